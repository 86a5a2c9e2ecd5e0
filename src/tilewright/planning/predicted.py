"""The time model on what `matmul` runs: the product of a plan as any kernel, and the launches around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.ir.guard import Guard
from tilewright.kernels.columns import Columns
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.exchange import shared_out
from tilewright.planning.cost.gemv import predict_gemv
from tilewright.planning.cost.launches import MORE_LAUNCHES_SECONDS, around_us
from tilewright.planning.folding import in_groups
from tilewright.planning.kernels import build_of
from tilewright.planning.packing import as_read
from tilewright.planning.plan import Multiplied, Plan, Role, Step
from tilewright.planning.skinny import skinny_for
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
        one = product.multiplied
        skinny = skinny_for(one.gemm, one.alignment, None, one.stack, parts=one.config.split_k)
        assert skinny is not None, "a plan's kernel fits its problem"
        found = predict_gemv(skinny.config, skinny.problem, spec, clock_mhz)
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


def _around(step: Step, spec: DeviceSpec) -> Term:
    name = f"{step.role} {step.what}"
    if step.guard is Guard.RAISED:
        return Term(name, MORE_LAUNCHES_SECONDS, "ends at once where no flag is raised", "exposed")
    us = around_us(step.moved_bytes, spec, packs=step.role is Role.COPY)
    return Term(name, 1e-6 * us, f"{format_bytes(step.moved_bytes)} from and to memory", "exposed")


def _relief(term: Term) -> str:
    return _SPLITS if term.name.startswith((Role.SPLIT, Role.SCALE)) else f"It is {_MOVES}."
