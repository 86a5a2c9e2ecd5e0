"""Plans with no GPU: which kernels a configuration is, their texts, grids and arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.artifacts import CudaSource
from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.skinny import is_k_major
from tilewright.planning.assembly import Request, part_length, plan_of
from tilewright.planning.kernels import Built, Kernels, build_of
from tilewright.planning.packing import Alignment, as_read
from tilewright.planning.plan import Plan
from tilewright.planning.skinny import skinny_for
from tilewright.problem.gemm import Gemm
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.toolchain import Build, check_launchable
from tilewright.winners.keys import ALIGNMENTS, Key, kernel_version, row_alignment
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
    return version_of_plan(plan_of(PaperKernels(), request, config))


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
    length = part_length(read, config, built.program.cluster_tile("k")) if config.split_k > 1 else 0
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
