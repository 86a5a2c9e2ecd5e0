"""The time model on what `matmul` runs: the product of a plan as any kernel, and the launches around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.ir.guard import Guard
from tilewright.kernels.columns import Columns
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.gemv_fit import blocks_that_fit, sm_seconds
from tilewright.kernels.simt import SimtConfig
from tilewright.model.power import Energy, Events, sustained_mhz
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.model.time import DRAM_SHARE, LAUNCH_SECONDS
from tilewright.planning.block_clocks import blocks_per_sm
from tilewright.planning.cost import MORE_LAUNCHES_SECONDS, around_us
from tilewright.planning.exchange import shared_out
from tilewright.planning.folding import in_groups
from tilewright.planning.kernels import build_of
from tilewright.planning.packing import as_read
from tilewright.planning.plan import Multiplied, Plan, Role, Step
from tilewright.planning.skinny import dram_seconds, overlapped, skinny_for
from tilewright.prediction.counting import work_of
from tilewright.prediction.predict import predict
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.units import ceil_div, format_bytes

_MOVES = "a launch that moves bytes: a larger product has more arithmetic for each of them"

_SPLITS = (
    "Splitting takes as long as reading the operand and writing its pieces: tilewright.prepare keeps those of a "
    "constant one."
)


def predict_plan(
    plan: Plan, flops: int, spec: DeviceSpec, *, cache: CubinCache | None = None, clock_mhz: float | None = None
) -> Prediction:
    """The time of all launches of a plan with one product, or two of which the device takes the first. flops: of the
    product that was asked for. clock_mhz: by default that of the data sheet."""
    product, *_ = (step for step in plan.steps if step.role is Role.PRODUCT)
    assert product.multiplied is not None
    if isinstance(product.multiplied.config.kernel, GemvConfig):
        found = _of_gemv(product.multiplied, spec, clock_mhz)
    else:
        found = _of_product(product.multiplied, spec, cache, clock_mhz)
    around = [_around(step, spec) for step in plan.steps if step is not product]
    more = sum(term.seconds for term in around)
    seconds = found.seconds + more
    most = max(around, key=lambda term: term.seconds, default=found.binding)
    binding, relief = (most, _relief(most)) if most.seconds > found.binding.seconds else (found.binding, found.relief)
    return replace(
        found,
        seconds=seconds,
        low_s=LOW * seconds,
        high_s=HIGH * seconds,
        tflops=flops / seconds / 1e12,
        terms=(*found.terms, *around),
        binding=binding,
        relief=relief,
        sustained_s=found.sustained_s + more,
    )


def _of_product(one: Multiplied, spec: DeviceSpec, cache: CubinCache | None, clock_mhz: float | None) -> Prediction:
    """Of the kernel alone; parts of split-K are blocks with fewer steps each, and so are those of stream-K."""
    config, kernel = one.config, one.config.kernel
    assert not isinstance(kernel, GemvConfig)
    alone, read = kernel.with_split_k(1), as_read(in_groups(one.gemm, config), config)
    if isinstance(alone, SimtConfig) and alone.stream_k:
        alone = replace(alone, stream_k=False, persistent=False)
    built = build_of(read, replace(config, kernel=alone))
    work = work_of(built)
    if kernel.split_k > 1:
        work = replace(work, steps=ceil_div(work.steps, kernel.split_k), blocks=work.blocks * kernel.split_k)
    elif config.stream_k:
        table = Columns.of([kernel], kernel.columns)
        slots = spec.sm_count * np.maximum(1, blocks_per_sm("simt", table, read, spec))
        blocks, steps = shared_out(table, np.array([work.blocks]), np.array([work.steps]), slots)
        work = replace(work, steps=int(steps[0]), blocks=int(blocks[0]))
    return predict(built, spec, cache=cache, work=work, clock_mhz=clock_mhz)


def _of_gemv(one: Multiplied, spec: DeviceSpec, clock_mhz: float | None) -> Prediction:
    """Of a GEMV kernel: the time of memory, and that of the busiest SM, which depends on the clock."""
    skinny = skinny_for(one.gemm, one.alignment, None, one.stack, parts=one.config.split_k)
    assert skinny is not None, "a plan's kernel fits its problem"
    gemm, config = skinny.problem, skinny.config
    clock = clock_mhz or spec.boost_clock_mhz
    dram = dram_seconds(gemm, spec)

    def busy_at(mhz: float) -> float:
        return sm_seconds(config, gemm, replace(spec, boost_clock_mhz=round(mhz)))

    def seconds_at(mhz: float) -> float:
        return overlapped(dram, busy_at(mhz)) + LAUNCH_SECONDS

    total, busy = seconds_at(clock), busy_at(clock)
    bounds = (
        Term("busiest SM", busy, "its loads in flight, its instructions, and what its blocks wait for"),
        Term("DRAM", dram, f"{format_bytes(gemm.compulsory_bytes)} at {DRAM_SHARE:.0%} of {spec.dram_gb_per_s:g} GB/s"),
    )
    binding = max(bounds, key=lambda term: term.seconds)
    exposed = (
        Term("overlap", total - LAUNCH_SECONDS - binding.seconds, "memory and SMs wait for each other", "exposed"),
        Term("launch", LAUNCH_SECONDS, "from one kernel to the next", "exposed"),
    )
    loads = gemm.m * gemm.n * gemm.k / min(gemm.m, gemm.n) / config.width
    events = Events(0.0, gemm.m * gemm.n * gemm.k + loads, gemm.compulsory_bytes, gemm.compulsory_bytes)
    energy = Energy.of_events(events, spec)
    kept_mhz = sustained_mhz(energy, spec, clock, seconds_at)
    return Prediction(
        seconds=total,
        low_s=LOW * total,
        high_s=HIGH * total,
        tflops=gemm.flops / total / 1e12,
        clock_hz=clock * 1e6,
        terms=(*bounds, *exposed),
        binding=binding,
        relief="GEMV reads its matrix once: only fewer bytes are faster, as a narrower format has them.",
        device=spec.name,
        blocks_per_sm=blocks_that_fit(config, gemm, spec),
        power_w=energy.power_w(spec, clock, total),
        limit_w=spec.board_power_w,
        sustained_hz=kept_mhz * 1e6,
        sustained_s=seconds_at(kept_mhz),
    )


def _around(step: Step, spec: DeviceSpec) -> Term:
    name = f"{step.role} {step.what}"
    if step.guard is Guard.RAISED:
        return Term(name, MORE_LAUNCHES_SECONDS, "ends at once where no flag is raised", "exposed")
    us = around_us(step.moved_bytes, spec, packs=step.role is Role.COPY)
    return Term(name, 1e-6 * us, f"{format_bytes(step.moved_bytes)} from and to memory", "exposed")


def _relief(term: Term) -> str:
    return _SPLITS if term.name.startswith((Role.SPLIT, Role.SCALE)) else f"It is {_MOVES}."
