"""Plans with no GPU: which kernels a configuration is, their texts, grids and arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from tilewright.artifacts import CudaSource
from tilewright.device.arch import SINCE, Feature
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError, UnknownName
from tilewright.ir.clusters import cluster_tile
from tilewright.ir.guard import Guard
from tilewright.kernels.columns import Columns
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.skinny import is_k_major
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.planning.assembly import Request, part_length, plan_of
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.exchange import shared_out
from tilewright.planning.cost.gemv import predict_gemv
from tilewright.planning.cost.launches import MORE_LAUNCHES_SECONDS, around_us
from tilewright.planning.folding import in_groups
from tilewright.planning.kernels import Built, Kernels, build_of
from tilewright.planning.packing import Alignment, as_read
from tilewright.planning.plan import Multiplied, Plan, Role, Step
from tilewright.planning.skinny import skinny_for
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.toolchain import Build, check_launchable
from tilewright.units import ceil_div, format_bytes
from tilewright.winners.keys import ALIGNMENTS, DeviceKey, Key, kernel_version, row_alignment
from tilewright.winners.lookup import gemm_of
from tilewright.winners.order import ReductionOrder, order_of
from tilewright.winners.plan_config import PlanConfig

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PaperLaunch:
    """In the place of a prepared launch."""

    source: CudaSource
    grid: Dim3
    block: Dim3
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PaperKernel:
    """In the place of a loaded kernel."""

    source: CudaSource

    def prepare(self, grid: Dim3, block: Dim3, arguments: tuple[Any, ...]) -> PaperLaunch:
        return PaperLaunch(self.source, grid, block, arguments)


class PaperKernels(Kernels):
    """Kernels that are printed, and no more. spec: of the device that they must be able to run on; None for any.
    compiles: whether they are compiled for it, so that those whose registers spill fail as they do there.

    products: the build of each kernel of a ladder, by its text.
    """

    def __init__(self, spec: DeviceSpec | None = None, *, compiles: bool = False) -> None:
        nowhere: Any = None
        super().__init__(nowhere)
        self._for, self._compiles = spec, compiles
        if spec is not None:
            self.spec = spec
        self.products: dict[CudaSource, Build] = {}

    def _loaded(self, built: Build) -> Built:
        if self._for is not None:
            check_launchable(built, self._for, replace(built.gemm, m=1, n=1, k=1))
        self.products[built.source] = built
        return Built(self.small(built.source), built.kernel)

    @property
    def blocks_at_once(self) -> int | None:
        return None if self._for is None else self._for.sm_count

    @property
    def knows_device(self) -> bool:
        return self._for is not None

    @property
    def overlaps(self) -> bool:
        return self._for is None or self._for.compute_capability >= SINCE[Feature.DEPENDENT_LAUNCH]

    def small(self, source: CudaSource) -> Any:
        if self._compiles and self._for is not None:
            self.cubins[source] = compile_cuda(source, self._for.arch, cache=self._cache)
        return PaperKernel(source)


def launches_of(plan: Plan) -> tuple[PaperLaunch, ...]:
    """The launches of a plan that was made of paper kernels."""
    found: list[Any] = [step.launch for step in plan.steps]
    return tuple(found)


def version_of_plan(plan: Plan) -> str:
    return kernel_version(launch.source for launch in launches_of(plan))


def version_of(key: Key, config: PlanConfig) -> str:
    """`kernel_version` of a plan for a problem with tight rows. Raises TilewrightError where it is none."""
    gemm = gemm_of(key)
    # A key tells the least alignment only; where rows explain it, addresses are aligned.
    told = key.problem.alignment
    request = Request(gemm, alignment_of_rows(gemm, ALIGNMENTS[0] if told == row_alignment(gemm) else told))
    return version_of_plan(plan_of(PaperKernels(known_device(key.device)), request, config))


def known_device(key: DeviceKey) -> DeviceSpec | None:
    """The device of a key, on which a plan may start its kernels otherwise than on others; None if it is in no list."""
    try:
        return replace(device(key.name), sm_count=key.sm_count)
    except UnknownName:
        return None


def alignment_of_rows(gemm: Gemm, most: int = ALIGNMENTS[0]) -> Alignment:
    """Bytes that rows are multiples of, where addresses are multiples of `most`."""

    def of(row_bytes: int) -> int:
        return next(size for size in ALIGNMENTS if row_bytes % size == 0 and size <= most)

    a, b, c = (of(gemm.leading(operand.name) * operand.dtype.bytes) for operand in gemm.operands)
    return Alignment(a, b, c)


def order_of_plan(gemm: Gemm, alignment: Alignment, config: PlanConfig) -> ReductionOrder:
    """The order in which the plan of a configuration sums. Raises what schedules, passes and `plan_of` raise."""
    if isinstance(config.kernel, GemvConfig):
        return _order_of_thin(gemm, alignment, config)
    read = as_read(gemm, config)
    built = build_of(read, config)
    length = part_length(read, config, cluster_tile(built.program, "k")) if config.split_k > 1 else 0
    return order_of(built, part_of_k=length)


def _order_of_thin(gemm: Gemm, alignment: Alignment, config: PlanConfig) -> ReductionOrder:
    skinny = skinny_for(gemm, alignment, None, parts=config.split_k)
    if skinny is None:
        raise LaunchError(f"{gemm} has too many rows and columns for {config}, or other formats.")
    kernel = skinny.config
    neighbours = kernel.width if is_k_major(gemm) else 1
    return ReductionOrder(
        unit="FFMA",
        depth=1,
        visits="ascending",
        shared_by=(
            f"{kernel.lanes_k} lanes, {neighbours} of k each in turn",
            f"{kernel.warps_k} warps in turn",
            *((f"blocks, {skinny.part_of_k} of k each",) if skinny.parts > 1 else ()),
        ),
        sum_in="f32 in registers",
        late=("alpha", "beta"),
        ends_with_zeros=False,
    )


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
    from tilewright.prediction.counting import work_of  # here: it imports the simulator, which no plan needs
    from tilewright.prediction.predict import predict

    config, kernel = one.config, one.config.kernel
    assert not isinstance(kernel, GemvConfig)
    alone, read = kernel.with_split_k(1), as_read(in_groups(one.gemm, config), config)
    if isinstance(alone, SimtConfig | WgmmaConfig) and alone.stream_k:
        alone = replace(alone, stream_k=False, persistent=isinstance(alone, WgmmaConfig))
    built = build_of(read, replace(config, kernel=alone))
    work = work_of(built)
    if kernel.split_k > 1:
        work = replace(work, steps=ceil_div(work.steps, kernel.split_k), blocks=work.blocks * kernel.split_k)
    elif config.stream_k and isinstance(kernel, WgmmaConfig):  # what each wave leaves idle is shared out
        waves = work.blocks / spec.sm_count
        work = replace(work, steps=ceil(work.steps * max(1.0, waves) / max(1, ceil(waves))))
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
