"""From a request and a configuration to a plan: what runs before the product, the product, and what runs after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.errors import LaunchError
from tilewright.ir.guard import Guard
from tilewright.ir.kernel import FLAGS_OF_A_TILE, Kernel
from tilewright.ir.work import Problems
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.reduce import ReduceConfig
from tilewright.kernels.relayout import RelayoutConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.cost.exchange import LEAST_STREAMED
from tilewright.planning.folding import Folding, in_groups, places_of
from tilewright.planning.kernels import Kernels, steps_of
from tilewright.planning.packing import (
    PACKABLE,
    TMA_BYTES,
    Alignment,
    Groups,
    Shards,
    Stack,
    as_packed,
    as_read,
    order_read,
    padded_bytes,
    row_length,
    whole_pieces,
)
from tilewright.planning.plan import Multiplied, Place, Plan, Role, Step, guards_of
from tilewright.planning.skinny import skinny_for
from tilewright.problem.block_scales import NAMES as BLOCK_SCALES
from tilewright.problem.emulation import Algorithm
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import Gemm, OperandName, piece_of
from tilewright.problem.reduction import Reduction, row_of_parts
from tilewright.problem.relayout import MatrixCopy, Relayout
from tilewright.runtime.prepared import PreparedLaunch
from tilewright.toolchain import arguments, grid_of
from tilewright.units import ceil_div, format_bytes, round_up
from tilewright.winners.plan_config import PlanConfig

_SCRATCH_LIMIT = 8 << 30
"""No workspace is larger."""

_PLACE: Mapping[OperandName, Place] = {"A": Place.A, "B": Place.B, "C": Place.OUT}


@dataclass(frozen=True, slots=True)
class Request:
    """A problem as it lies in memory. gemm: C row-major. stack: where it is one of many. fixed_order: the sum over k in
    one order, whatever m and n are. groups: of which `gemm` is the sum. algorithm: of pieces of f32 operands; or_f32:
    f32 arithmetic may compute it as well, where that is faster. prepared: whether the pieces of B lie at `Place.PIECES`
    already. promote_every: elements of k after which sums are added to registers of f32; 0 for never. piece_bytes: from
    one piece of A and of B to the next, where `gemm` is of pieces, which are promoted as their algorithm says.
    fallback: the algorithm that computes it instead where an operand spans too many binades, which the device finds.
    guard: all launches run on that condition. shards: of ranks that share it. constant: the operand that no launch of a
    call writes, nor one just before it."""

    gemm: Gemm
    alignment: Alignment
    stack: Stack | None = None
    fixed_order: bool = False
    without_workspace: bool = False
    groups: Groups | None = None
    algorithm: Algorithm | None = None
    or_f32: bool = False
    prepared: bool = False
    promote_every: int = 0
    piece_bytes: tuple[int, ...] = ()
    fallback: Algorithm | None = None
    guard: Guard | None = None
    shards: Shards | None = None
    constant: OperandName | Literal[""] = ""

    @property
    def unsplit(self) -> bool:
        """Whether the kernel that multiplies sums all of k: in one order, or because the epilogue needs that."""
        return self.fixed_order or self.gemm.epilogue.is_whole or self.shards is not None


def in_f32(gemm: Gemm) -> Gemm:
    """The same, where operands that may be rounded to tf32 are not."""
    return replace(gemm, product=None) if gemm.multiplies_tf32 else gemm


def multiplied_on(spec: DeviceSpec, gemm: Gemm) -> Gemm:
    """The problem that a device computes: one without tf32 multiplies f32."""
    return gemm if spec.tensor.tf32_f32 else in_f32(gemm)


def as_multiplied_by(config: PlanConfig, gemm: Gemm) -> Gemm:
    """The problem that a kernel computes: CUDA cores do not round to tf32."""
    return in_f32(gemm) if isinstance(config.kernel, SimtConfig) else gemm


def plan_of(kernels: Kernels, request: Request, config: PlanConfig) -> Plan:
    """Packing, the GEMM kernel, and the reduction of split-K, as far as the configuration has them."""
    if isinstance(config.kernel, GemvConfig):
        return _thin_plan(kernels, request, config)
    gemm, alignment, stack = as_multiplied_by(config, request.gemm), request.alignment, request.stack
    steps: list[Step] = []
    at = 0
    places: dict[OperandName, tuple[Place, int]] = {name: (place, 0) for name, place in _PLACE.items()}
    copies = [_copy(gemm, config, name, stack) for name in sorted(config.packed)]
    for copy in copies:
        places[copy.name] = (Place.SCRATCH, at)
        alignment = replace(alignment, **{copy.name.lower(): TMA_BYTES})
        if stack is not None:
            stack = replace(stack, a=copy.apart) if copy.name == "A" else replace(stack, b=copy.apart)
        at += copy.count * copy.size_bytes
    gemm = in_groups(gemm, config)
    inner = as_read(gemm, config)
    folding = Folding(kernels, gemm, at)
    size_bytes = folding.at + (_part_bytes(inner, config.split_k, row_of_parts(inner.n)) if config.split_k > 1 else 0)
    if size_bytes > _SCRATCH_LIMIT:  # before anything is compiled
        raise LaunchError(f"{config} would need a workspace of {format_bytes(size_bytes)}.")
    steps += _copied(kernels, request, copies, places)
    length, workspace = 0, tuple[tuple[int, int], ...]()
    if config.stream_k:
        tiles = tiles_of(inner, config) * (1 if stack is None else stack.count)
        zeroed, length, workspace, size_bytes = streamed(kernels, config, tiles, size_bytes)
        steps.append(zeroed)
    if config.split_k > 1:
        steps += _parts(kernels, request, inner, alignment, config, places, at)
    else:
        gemm = inner
        problems = Problems.ONE if stack is None else Problems.STRIDED
        built = kernels.kernel(
            gemm,
            alignment,
            config,
            problems=problems,
            guard=request.guard,
            shards=request.shards,
            constant=request.constant,
        )
        check_maps(built.kernel, alignment, config)
        grid = grid_of(built.kernel, gemm, part_of_k=length, batch=1 if stack is None else stack.count)
        told = (*workspace, *_tables(request.shards), *guards_of(request.guard))
        shards = () if request.shards is None else request.shards.numbers
        nowhere = (0,) * (len(gemm.matrices) + len(told))
        values = (
            *arguments(gemm, nowhere, part_of_k=length),
            *shards,
            *(() if stack is None else steps_of(stack, gemm)),
        )
        launch = built.loaded.prepare(grid, built.kernel.block, values)
        pieces, added = _later_pieces(gemm, places, request.piece_bytes), _added(gemm, folding.partials)
        pointers = (places["A"], places["B"], places["C"], *pieces, *added, *_scales(gemm), *told)
        steps.append(_product(launch, pointers, request, config))
        steps += folding.steps
    return Plan(tuple(steps), size_bytes, str(config))


def _thin_plan(kernels: Kernels, request: Request, config: PlanConfig) -> Plan:
    """The GEMV kernel, and the sum of its parts where it has some."""
    skinny = skinny_for(request.gemm, request.alignment, None, request.stack, parts=config.split_k)
    if skinny is None:
        raise LaunchError(f"{request.gemm} has too many rows and columns for {config}, or other formats.")
    launch, guards = kernels.gemv(skinny, request.guard), guards_of(request.guard)
    if skinny.whole:
        places = (Place.A, 0), (Place.B, 0), (Place.OUT, 0), *_added(request.gemm), *guards
        return Plan((_product(launch, places, request, config),), 0, str(skinny))
    first = _product(launch, ((Place.A, 0), (Place.B, 0), (Place.SCRATCH, 0), *guards), request, config)
    gemm = request.gemm
    last = _finish(kernels, gemm, request.alignment, (gemm.m, gemm.n), skinny.parts, 0, request.guard)
    return Plan((first, last), _part_bytes(gemm, skinny.parts, gemm.n), str(skinny))


def _product(
    launch: PreparedLaunch, pointers: tuple[tuple[int, int], ...], request: Request, config: PlanConfig
) -> Step:
    """The launch that multiplies."""
    multiplied = Multiplied(request.gemm, request.alignment, request.stack, config)
    what = "C" if config.split_k == 1 else "partial sums"
    return Step(launch, pointers, Role.PRODUCT, what, multiplied=multiplied, guard=request.guard)


@dataclass(frozen=True, slots=True)
class _Copy:
    """The copy of an operand, or of `count` of them in a stack.

    size_bytes: of the copy of one. apart: elements from the copy of one to the next.
    """

    name: OperandName
    matrix: MatrixCopy
    count: int
    size_bytes: int
    apart: int


def _copy(gemm: Gemm, config: PlanConfig, name: OperandName, stack: Stack | None) -> _Copy:
    lines, length = gemm.size(gemm.operand(name).strided), row_length(gemm, name)
    count, step = (1, 0) if stack is None else (stack.count, {"A": stack.a, "B": stack.b}[name])
    transposed = order_read(config.kernel.kind, config, gemm, name) is not gemm.operand(name).order
    read = as_packed(gemm, config)
    to = read.size(read.operand(name).strided), whole_pieces(row_length(read, name), gemm.dtype)
    size_bytes = padded_bytes(*to, gemm.dtype)
    apart = size_bytes // gemm.dtype.bytes
    matrix = MatrixCopy(
        lines, length, gemm.leading(name), *to, read.leading(name), transposed=transposed, step=step, to_step=apart
    )
    return _Copy(name, matrix, count, size_bytes, apart)


def _copied(
    kernels: Kernels, request: Request, copies: Sequence[_Copy], places: Mapping[OperandName, tuple[Place, int]]
) -> Iterator[Step]:
    """The launch that copies operands, if any are copied."""
    if not copies:
        return
    dtype = request.gemm.dtype
    problem = Relayout(tuple(copy.matrix for copy in copies), dtype, dtype, copies[0].count)
    aligned = [request.alignment.of(copy.name) for copy in copies]
    config = RelayoutConfig.of(problem, aligned, overlapped=kernels.overlaps)
    launch = kernels.auxiliary(config, problem, request.guard)
    pointers = tuple(place for copy in copies for place in ((_PLACE[copy.name], 0), places[copy.name]))
    what = " and ".join(f"{copy.name}{', transposed' if copy.matrix.transposed else ''}" for copy in copies)
    told = (*pointers, *guards_of(request.guard))
    yield Step(launch, told, Role.COPY, what, problem.compulsory_bytes, guard=request.guard)


def check_maps(kernel: Kernel, alignment: Alignment, config: PlanConfig) -> None:
    """TMA takes addresses and rows at multiples of 16 bytes, also C's, of which no schedule knows; scales of blocks are
    known to lie so."""
    for told in kernel.maps:
        if told.operand not in BLOCK_SCALES and alignment.of(told.operand) < TMA_BYTES:
            raise LaunchError(
                f"{config} loads or stores {told.operand} by TMA, and it lies at a multiple of "
                f"{alignment.of(told.operand)} bytes."
            )


def tiles_of(gemm: Gemm, config: PlanConfig) -> int:
    """Tiles of C of a kernel, in whole clusters."""
    assert isinstance(config.kernel, SimtConfig | WgmmaConfig)
    along_m, along_n = config.kernel.cluster if isinstance(config.kernel, WgmmaConfig) else (1, 1)
    m, n, _ = config.kernel.tile
    return ceil_div(gemm.m, m * along_m) * ceil_div(gemm.n, n * along_n) * along_m * along_n


def streamed(
    kernels: Kernels, config: PlanConfig, tiles: int, at: int
) -> tuple[Step, int, tuple[tuple[int, int], ...], int]:
    """What stream-K needs beside the matrices: the launch that clears the flags of tiles, the least k of a block, the
    places of partial sums and of flags, and the end of these in the workspace, in which they begin at `at`. tiles: at
    most, of which blocks of wgmma share out fewer than two of each block."""
    assert isinstance(config.kernel, SimtConfig | WgmmaConfig)
    m, n, k = config.kernel.tile
    if isinstance(config.kernel, WgmmaConfig) and kernels.blocks_at_once is not None:
        tiles = min(tiles, 2 * kernels.blocks_at_once)  # as `Kernel.workspace_tiles`
    flags, sums_at = tiles * FLAGS_OF_A_TILE, at + round_up(tiles * FLAGS_OF_A_TILE * F32.bytes, 256)
    nothing = MatrixCopy(0, 0, 0, 1, flags, flags)  # a copy has zeros beyond its source
    problem = Relayout((nothing,), F32, F32)
    launch = kernels.auxiliary(RelayoutConfig.of(problem, (TMA_BYTES,), overlapped=kernels.overlaps), problem)
    places = (int(Place.SCRATCH), at), (int(Place.SCRATCH), sums_at)
    zeroed = Step(launch, (places[0], places[0]), Role.COPY, "flags of tiles, zero", problem.compulsory_bytes)
    size_bytes = sums_at + round_up(tiles * m * n * F32.bytes, 256)
    if size_bytes > _SCRATCH_LIMIT:
        raise LaunchError(f"{config} would need a workspace of {format_bytes(size_bytes)}.")
    return zeroed, LEAST_STREAMED * k, places[::-1], size_bytes


def _part_bytes(gemm: Gemm, parts: int, row: int) -> int:
    return round_up(parts * gemm.m * row * F32.bytes, 256)


def _parts(
    kernels: Kernels,
    request: Request,
    inner: Gemm,
    alignment: Alignment,
    config: PlanConfig,
    places: Mapping[OperandName, tuple[Place, int]],
    at: int,
) -> list[Step]:
    """The parts of split-K into the workspace, and C of their sum. inner: as it is read."""
    row = row_of_parts(inner.n)
    part = replace(inner, out=F32, ldc=row, alpha=1.0, beta=0.0, epilogue=PLAIN, ld_added=(), numbers=())
    inside = replace(alignment, c=TMA_BYTES)
    built = kernels.kernel(part, inside, config, guard=request.guard, constant=request.constant)
    guards = guards_of(request.guard)
    length = part_length(inner, config, built.kernel.tile["k"])
    count = ceil_div(inner.k, length)
    grid, nowhere = grid_of(built.kernel, part, part_of_k=length), (0,) * (len(part.matrices) + len(guards))
    launch = built.loaded.prepare(grid, built.kernel.block, arguments(part, nowhere, part_of_k=length))
    pieces = _later_pieces(part, places, request.piece_bytes)
    pointers = (places["A"], places["B"], (Place.SCRATCH, at), *pieces, *_scales(part), *guards)
    first = _product(launch, pointers, request, config)
    return [first, _finish(kernels, request.gemm, alignment, (inner.m, row), count, at, request.guard)]


def _tables(shards: Shards | None) -> tuple[tuple[int, int], ...]:
    """The places of what a launch of ranks that share a product is told beside the matrices."""
    if shards is None:
        return ()
    parts = Place.SENT_PARTS, Place.SENT_FLAGS, Place.RANK_SUMS, Place.RANK_FLAGS
    told = parts if shards.summed else (Place.SHARD_FLAGS,)
    return tuple((int(place), 0) for place in (Place.SHARD_STARTS, *told))


def _later_pieces(
    gemm: Gemm, places: Mapping[OperandName, tuple[Place, int]], piece_bytes: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """The places of the pieces behind the first ones, in the order of the parameters; or that of a second B, behind the
    operands of the epilogue's function."""
    if gemm.pieces is None:
        behind = Place.OPERAND + len(gemm.epilogue.named) + len(gemm.epilogue.written)
        return tuple((behind + number, 0) for number in range(len(gemm.later_pieces)))
    found: list[tuple[int, int]] = []
    for piece in gemm.later_pieces:
        operand, number = piece_of(piece.name)
        place, offset = places[operand]
        found.append((place, offset + number * piece_bytes[PACKABLE.index(operand)]))
    return tuple(found)


def part_length(gemm: Gemm, config: PlanConfig, depth: int) -> int:
    """Products that one part sums, of a kernel whose blocks take `depth` of them at a time."""
    return round_up(ceil_div(gemm.k, config.split_k), depth)


def _finish(
    kernels: Kernels,
    gemm: Gemm,
    alignment: Alignment,
    part: tuple[int, int],
    count: int,
    at: int,
    guard: Guard | None = None,
) -> Step:
    """The sum of parts, and the epilogue. part: rows of one, and elements from row to row. guard: that of the kernel
    that made them."""
    guard = None if guard is None else guard.behind
    problem = Reduction.of(gemm, count, part[1], part[0] * part[1])
    launch = kernels.auxiliary(ReduceConfig.of(problem, alignment.c, overlapped=kernels.overlaps), problem, guard)
    pointers = ((Place.SCRATCH, at), (Place.OUT, 0), *_added(gemm), *guards_of(guard))
    return Step(launch, pointers, Role.REDUCTION, f"C of {count} partial sums", problem.compulsory_bytes, guard=guard)


def _added(gemm: Gemm, partials: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> tuple[tuple[int, int], ...]:
    """The places of what the epilogue reads and writes, in the order of the parameters. partials: of folds."""
    places = {name: (int(place), 0) for name, place in _PLACES.items()} | places_of(gemm, partials)
    absent = [operand.name for operand in gemm.added if operand.name not in places]
    if absent:
        raise LaunchError(f"No plan has a place for {' and '.join(absent)}.", hint="build(gemm, schedule) has.")
    return tuple(places[operand.name] for operand in gemm.added)


def added_places(gemm: Gemm) -> tuple[tuple[int, int], ...]:
    """The places of what the epilogue reads, and of the scales of blocks, of a product that folds nothing."""
    return *_added(gemm), *_scales(gemm)


def _scales(gemm: Gemm) -> tuple[tuple[int, int], ...]:
    """The places of the scales of blocks."""
    return () if gemm.block_scales is None else ((Place.SCALE_A, 0), (Place.SCALE_B, 0))


_PLACES: Mapping[str, int] = {
    "bias": Place.BIAS,
    "residual": Place.RESIDUAL,
    "scale_a": Place.SCALE_A,
    "scale_m": Place.SCALE_A,
    "scale_b": Place.SCALE_B,
    "scale_n": Place.SCALE_B,
}
