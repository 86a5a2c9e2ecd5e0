"""The kernels of one GPU, by class of problem: built, compiled and loaded when a class is new, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from tilewright.artifacts import Cubin, CudaSource
from tilewright.codegen import print_cuda
from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.errors import ScheduleError, TilewrightError
from tilewright.ir.clusters import cluster_tile
from tilewright.ir.guard import Guard
from tilewright.ir.kernel import Kernel, Variant, guarded
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.coded import CodedConfig
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.kernels.configuration import name_of
from tilewright.kernels.exchange import ExchangeConfig
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.quantization import QuantizationConfig
from tilewright.kernels.reduce import ReduceConfig
from tilewright.kernels.relayout import RelayoutConfig
from tilewright.kernels.row_sums import RowSumsConfig
from tilewright.kernels.scaling import ScalingConfig
from tilewright.kernels.simt import SimtConfig, repeats_lines
from tilewright.kernels.splitting import LineSplittingConfig, SplittingConfig
from tilewright.kernels.weight_coding import WeightCodingConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.lowering.variants import MAX_INDEX, ends_whole, reads_vectors, widest
from tilewright.planning.packing import Alignment, Shards, Stack
from tilewright.planning.skinny import Skinny, Start
from tilewright.problem.coded_product import CodedProduct
from tilewright.problem.exchange import Exchange
from tilewright.problem.gemm import Dim, Gemm, OperandName, piece_of
from tilewright.problem.quantization import Quantization
from tilewright.problem.reduction import Reduction
from tilewright.problem.relayout import Relayout
from tilewright.problem.row_sums import RowSums
from tilewright.problem.scaling import Scaling
from tilewright.problem.splitting import Splitting
from tilewright.problem.values import AddedName
from tilewright.problem.weight_coding import WeightCoding
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.prepared import PreparedLaunch
from tilewright.runtime.probe import probe
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, arguments, build, check_launchable, grid_of
from tilewright.winners.plan_config import PlanConfig

DIMS: tuple[Dim, ...] = ("m", "n", "k")

_AuxiliaryConfig = (
    CodedConfig
    | CodedWgmmaConfig
    | ExchangeConfig
    | QuantizationConfig
    | RelayoutConfig
    | ReduceConfig
    | RowSumsConfig
    | LineSplittingConfig
    | ScalingConfig
    | SplittingConfig
    | WeightCodingConfig
)
_AuxiliaryProblem = (
    CodedProduct | Exchange | Quantization | Relayout | Reduction | RowSums | Scaling | Splitting | WeightCoding
)


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel on a GPU, and what a launch must know of it."""

    loaded: LoadedKernel
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class Shape:
    """What assumptions hang on: elements that the blocks of a cluster cover; whether operands are read in vectors."""

    tile: Mapping[Dim, int]
    reads_vectors: bool


class Kernels:
    """A class of problems is all that kernels are made for: formats, orders, epilogue, what may be assumed of sizes and
    addresses (`Variant`). Sizes themselves are arguments."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._cache = CubinCache()
        self._built: dict[Any, Built] = {}
        self._failed: dict[Any, TilewrightError] = {}
        self._shapes: dict[Any, Shape] = {}
        self._auxiliary: dict[Any, Built] = {}
        self._texts: dict[CudaSource, LoadedKernel] = {}
        self.cubins: dict[CudaSource, Cubin] = {}
        """Of kernels that multiply, by their texts."""

    @cached_property
    def spec(self) -> DeviceSpec:
        return probe(self.gpu)

    def kernel(
        self,
        gemm: Gemm,
        alignment: Alignment,
        config: PlanConfig,
        *,
        problems: Problems = Problems.ONE,
        others: Sequence[Gemm] = (),
        guard: Guard | None = None,
        shards: Shards | None = None,
        constant: OperandName | Literal[""] = "",
    ) -> Built:
        """The kernel of a plan for the class of a problem. others: which it must also serve, of the same formats.
        guard: of `Variant`. shards: of ranks that share it. constant: as of `Program`.

        Raises what building, compiling or loading raises, the second time at once.
        """
        schedule = schedule_of(gemm, config)
        known = (schedule, _formats(gemm), config.split_k > 1, config.stream_k)
        built, shape = _build(gemm, schedule, config), self._shapes.get(known)
        if shape is None:
            program = built.program
            tile = {dim: cluster_tile(program, dim) for dim in DIMS}
            shape = self._shapes[known] = Shape(tile, reads_vectors(program))
        variant = weakest([variant_of(one, alignment, shape, config) for one in (gemm, *others)])
        variant = replace(variant, guard=guard)
        across = None if shards is None else shards.summed
        key = (*known, variant, problems, across, constant)
        if key in self._failed:
            raise self._failed[key]
        found = self._built.get(key)
        if found is None:
            split_k = SplitK.RANKS if across else built.split_k
            built = built.changed(
                asked_variant=variant,
                problems=problems,
                arriving=across is False,
                constant=constant,
                split_k=split_k,
            )
            try:
                found = self._built[key] = self._loaded(built)
            except TilewrightError as failure:
                self._failed[key] = failure
                raise
        return found

    def _loaded(self, built: Build) -> Built:
        check_launchable(built, self.spec, replace(built.gemm, m=1, n=1, k=1))
        cubin = self.cubins[built.source] = compile_cuda(built.source, self.gpu.arch, cache=self._cache)
        return Built(load(self.gpu, cubin, built.source), built.kernel)

    @property
    def blocks_at_once(self) -> int | None:
        """Blocks of a persistent kernel that run at once, where TMA loads its tiles; None: nobody knows."""
        return self.spec.sm_count

    @property
    def knows_device(self) -> bool:
        """Whether there is a device to ask."""
        return True

    @property
    def overlaps(self) -> bool:
        """Whether the GPU starts a kernel under the one before."""
        return self.spec.compute_capability >= SINCE[Feature.DEPENDENT_LAUNCH]

    def auxiliary(
        self,
        config: _AuxiliaryConfig,
        problem: _AuxiliaryProblem,
        guard: Guard | None = None,
    ) -> PreparedLaunch:
        """The launch of a kernel that stands before or after a product, or multiplies by a coded weight. guard: of
        `Variant`.

        Raises what compiling or loading raises, the second time at once.
        """
        key = (config, problem.formats, guard)
        found = self._auxiliary.get(key)
        if found is None:
            kernel = config.kernel(problem)  # type: ignore[arg-type]
            kernel = kernel if guard is None else guarded(kernel, guard)
            found = self._auxiliary[key] = Built(self.small(print_cuda(kernel)), kernel)
        nowhere = (0,) * (len(problem.matrices) + len(found.kernel.guard_flags))
        return found.loaded.prepare(grid_of(found.kernel, problem), found.kernel.block, arguments(problem, nowhere))

    def gemv(self, skinny: Skinny, guard: Guard | None = None) -> PreparedLaunch:
        """The launch of a GEMV kernel. Raises what compiling or loading raises, the second time at once."""
        start = skinny.start(self.spec) if self.knows_device else Start()
        key = (*skinny.key, guard, start)
        found = self._auxiliary.get(key)
        if found is None:
            kernel = skinny.kernel(start.early)
            kernel = kernel if guard is None else guarded(kernel, guard)
            source = replace(print_cuda(kernel), dynamic_shared_bytes=kernel.dynamic_shared_bytes + start.spare_bytes)
            found = self._auxiliary[key] = Built(self.small(source), kernel)
        values = skinny.arguments(len(found.kernel.guard_flags))
        return found.loaded.prepare(skinny.grid(found.kernel), found.kernel.block, values)

    def small(self, source: CudaSource) -> LoadedKernel:
        """A text, compiled and loaded. Raises what compiling or loading raises, the second time at once."""
        if source in self._failed:
            raise self._failed[source]
        found = self._texts.get(source)
        if found is None:
            try:
                cubin = compile_cuda(source, self.gpu.arch, cache=self._cache)
                found = self._texts[source] = load(self.gpu, cubin, source)
            except TilewrightError as failure:
                self._failed[source] = failure
                raise
        return found


def schedule_of(gemm: Gemm, config: PlanConfig) -> Schedule:
    """The schedule of a plan's kernel. Raises ScheduleError where the family cannot compute the problem."""
    assert not isinstance(config.kernel, GemvConfig)
    reasons = config.kernel.reasons_against(gemm)
    if reasons:
        raise ScheduleError(f"{config} cannot compute {gemm}: {reasons[0]}.")
    return config.kernel.schedule(gemm)


def build_of(gemm: Gemm, config: PlanConfig) -> Build:
    """The kernel of a plan for a problem, not yet compiled."""
    return _build(gemm, schedule_of(gemm, config), config)


def _build(gemm: Gemm, schedule: Schedule, config: PlanConfig) -> Build:
    streamed, wgmma = config.stream_k, isinstance(config.kernel, WgmmaConfig)
    split_k = SplitK.ORDERED if streamed else SplitK.PARTIALS if config.split_k > 1 else SplitK.NONE
    built = build(gemm, schedule, name=name_of(config.kernel).replace(" ", "_"))
    return replace(built, split_k=split_k, stream_k=streamed, whole_waves=streamed and wgmma)


def _formats(gemm: Gemm) -> tuple[Any, ...]:
    scales = None if gemm.block_scales is None else gemm.block_scales.classes
    orders = gemm.a, gemm.b, gemm.c, gemm.b_dtype
    return gemm.dtype, gemm.accumulate, gemm.out, gemm.product, *orders, gemm.epilogue, gemm.pieces, scales


def variant_of(gemm: Gemm, alignment: Alignment, shape: Shape, config: PlanConfig) -> Variant:
    """What may be assumed of a problem as the kernel of a plan finds it, behind copies. Sizes are exact all together
    or not at all, or k alone where lines are repeated or filled up, so that a class has few kernels. A function of the
    epilogue is long, and few calls of one have a beta: where that is 0, the way that reads an addend is left out."""
    tile = shape.tile
    exact = frozenset(dim for dim in DIMS if gemm.size(dim) % tile[dim] == 0)
    repeats = filled = False
    if len(exact) < len(DIMS):
        kernel, filled = config.kernel, config.tile_multiples
        repeats = "k" in exact and isinstance(kernel, SimtConfig) and repeats_lines(kernel) and not filled
        exact = frozenset[Dim](("k",) if repeats or filled else ())
    read_bytes, result = _read_bytes(gemm, alignment, config), widest(gemm, (alignment.c,))
    reach = max(_reach(gemm, operand.name, tile) for operand in (*gemm.operands, *gemm.added))
    if config.split_k > 1:
        reach = max(reach, (config.split_k * gemm.m + tile["m"]) * gemm.ldc)
    each = {name: read_bytes[name.startswith("B")] for name in gemm.factors}
    whole = shape.reads_vectors and ends_whole(gemm, each, exact, config.packed)
    overwrites = gemm.beta == 0 and (gemm.epilogue.function is not None or config.split_k > 1)
    read, of_b = read_bytes
    near = reach <= MAX_INDEX
    return Variant(exact, read, near, result, whole, overwrites, repeats=repeats, filled=filled, b_bytes=of_b)


def _read_bytes(gemm: Gemm, alignment: Alignment, config: PlanConfig) -> tuple[int, int]:
    """What rows of A, and of B, are multiples of: each its own for kernels of FMAs, which copy them apart."""
    if isinstance(config.kernel, SimtConfig):
        return widest(gemm, (alignment.a,)), widest(gemm, (alignment.b,))
    both = widest(gemm, (alignment.a, alignment.b))
    return both, both


def weakest(variants: Sequence[Variant]) -> Variant:
    """What is true wherever one of these is."""
    exact = frozenset.intersection(*(variant.exact for variant in variants))
    read, of_b, result = (min(v.aligned_bytes(name) for v in variants) for name in ("A", "B", "C"))
    # Of exact ones `whole` need not say what is true of them.
    every = frozenset(DIMS)
    whole = (
        max(read, of_b) > 1 and any(v.whole for v in variants) and all(v.whole or v.exact == every for v in variants)
    )
    overwrites = all(v.overwrites for v in variants)
    repeats = any(v.repeats for v in variants)  # true of problems of any size
    near, filled = (all(getattr(v, name) for v in variants) for name in ("near", "filled"))
    return Variant(exact, read, near, result, whole, overwrites, repeats=repeats, filled=filled, b_bytes=of_b)


def _reach(gemm: Gemm, name: OperandName | AddedName, tile: Mapping[Dim, int]) -> int:
    """An offset that no thread's exceeds."""
    operand = gemm.operand(name)
    lines = gemm.size(operand.strided) + tile[operand.strided]
    return lines * gemm.leading(name) + gemm.size(operand.contiguous) + tile[operand.contiguous]


def steps_of(stack: Stack, gemm: Gemm) -> tuple[int, ...]:
    """The steps between the matrices of a batch and their count, as `Kernel.batching` orders them."""
    of_pieces = tuple(stack.a if piece_of(one.name)[0] == "A" else stack.b for one in gemm.later_pieces)
    return stack.a, stack.b, stack.c, *of_pieces, *stack.added, stack.count
