"""From a request and a choice to a plan: what runs before the product, the product, and what runs after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.dtypes import F32, DType
from tilewright.errors import LaunchError
from tilewright.ir.kernel import Kernel
from tilewright.ir.work import Problems
from tilewright.planning.copies import ENGINE_BYTES, Alignment, as_read, finishes, order_read, row_length
from tilewright.planning.kernels import Kernels, steps_of
from tilewright.planning.passes.finish import finish_grid, finish_source
from tilewright.planning.passes.pad import pad_grid, pad_source, padded_bytes, whole_pieces
from tilewright.planning.passes.turn import turn_grid, turn_source
from tilewright.planning.plan import Place, Plan, Step
from tilewright.planning.skinny import skinny_for
from tilewright.planning.stack import Stack
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import Gemm, OperandName
from tilewright.toolchain import arguments, grid_of
from tilewright.units import ceil_div, format_bytes, round_up
from tilewright.winners.choice import THIN, Choice

_SCRATCH_LIMIT = 8 << 30
"""No workspace is larger."""

_PLACE: Mapping[OperandName, Place] = {"A": Place.A, "B": Place.B, "C": Place.OUT}


@dataclass(frozen=True, slots=True)
class Request:
    """A problem as it lies in memory. gemm: C by rows. stack: where it is one of many. fixed_order: the sum over k in
    one order, whatever m and n are."""

    gemm: Gemm
    alignment: Alignment
    stack: Stack | None = None
    fixed_order: bool = False
    without_workspace: bool = False

    @property
    def exact(self) -> Request:
        """The same, where operands that may be rounded to tf32 are not."""
        return replace(self, gemm=replace(self.gemm, product=None)) if self.gemm.multiplies_tf32 else self


def plan_of(kernels: Kernels, request: Request, choice: Choice) -> Plan:
    """Pads, the product, and the sum of its parts, as far as the choice has them."""
    if choice.rung == THIN:
        return _thin_plan(kernels, request, choice)
    gemm, alignment, stack = request.gemm, request.alignment, request.stack
    steps: list[Step] = []
    at = 0
    places: dict[OperandName, tuple[Place, int]] = {name: (place, 0) for name, place in _PLACE.items()}
    copies = [_copy(gemm, choice, name, stack) for name in sorted(choice.pads)]
    for copy in copies:
        places[copy.name] = (Place.SCRATCH, at)
        alignment = replace(alignment, **{copy.name.lower(): ENGINE_BYTES})
        stack = None if stack is None else replace(stack, **{copy.name.lower(): copy.apart})
        at += copy.count * copy.size_bytes
    steps += _copied(kernels, gemm.dtype, copies, places)
    inner = as_read(gemm, choice)
    if finishes(choice):
        steps += _parts(kernels, gemm, inner, alignment, choice, places, at)
        at += _part_bytes(inner, choice.splits)
    else:
        gemm = inner
        problems = Problems.ONE if stack is None else Problems.STRIDED
        built = kernels.kernel(gemm, alignment, choice, problems=problems)
        _check_maps(built.kernel, alignment, choice)
        x, y, z = grid_of(built.kernel, gemm)
        nowhere = (0,) * (3 + len(gemm.added))
        values = arguments(gemm, nowhere) if stack is None else (*arguments(gemm, nowhere), *steps_of(stack, gemm))
        launch = built.loaded.prepare((x, y, z if stack is None else stack.count), built.kernel.block, values)
        steps.append(Step(launch, (places["A"], places["B"], places["C"], *_added(gemm))))
    if at > _SCRATCH_LIMIT:
        raise LaunchError(f"{choice} would need a workspace of {format_bytes(at)}.")
    return Plan(tuple(steps), at, str(choice))


def _thin_plan(kernels: Kernels, request: Request, choice: Choice) -> Plan:
    """The thin kernel, and the sum of its parts where it has some."""
    skinny = skinny_for(request.gemm, request.alignment, None, request.stack, parts=choice.splits)
    if skinny is None:
        raise LaunchError(f"{request.gemm} has too many rows and columns for {choice}, or other formats.")
    kernel = kernels.small(skinny.source)
    launch = kernel.prepare(skinny.grid, skinny.block, skinny.arguments)
    long, short = (Place.B, Place.A) if skinny.long == "B" else (Place.A, Place.B)
    if skinny.whole:
        return Plan((Step(launch, ((short, 0), (long, 0), (Place.OUT, 0))),), 0, str(skinny))
    first = Step(launch, ((short, 0), (long, 0), (Place.SCRATCH, 0)))
    last = _finish(kernels, request.gemm, request.alignment, request.gemm, skinny.parts, 0)
    return Plan((first, last), _part_bytes(request.gemm, skinny.parts), str(skinny))


@dataclass(frozen=True, slots=True)
class _Copy:
    """The copy of an operand, or of `count` of them in a stack. lines, length: as it lies; to: lines and elements of a
    line of the copy; leading: of the copy.

    step: elements from one matrix to the next of the stack. size_bytes: of the copy of one.
    """

    name: OperandName
    turns: bool
    lines: int
    length: int
    to: tuple[int, int]
    own_leading: int
    leading: int
    count: int
    step: int
    size_bytes: int
    apart: int

    @property
    def values(self) -> tuple[int, ...]:
        """The arguments of the kernels that copy, for one matrix: no addresses yet."""
        return 0, 0, self.lines, self.length, *self.to, self.own_leading, self.leading, self.step, self.apart


def _copy(gemm: Gemm, choice: Choice, name: OperandName, stack: Stack | None) -> _Copy:
    lines, length = gemm.size(gemm.operand(name).strided), row_length(gemm, name)
    count, step = (1, 0) if stack is None else (stack.count, {"A": stack.a, "B": stack.b}[name])
    turns = order_read(choice, gemm, name) is not gemm.operand(name).order
    read = as_read(gemm, choice)
    to = read.size(read.operand(name).strided), whole_pieces(row_length(read, name), gemm.dtype)
    size_bytes = padded_bytes(*to, gemm.dtype)
    apart, leading = size_bytes // gemm.dtype.bytes, read.leading(name)
    return _Copy(name, turns, lines, length, to, gemm.leading(name), leading, count, step, size_bytes, apart)


def _copied(
    kernels: Kernels, dtype: DType, copies: Sequence[_Copy], places: Mapping[OperandName, tuple[Place, int]]
) -> Iterator[Step]:
    """The launches that copy: one for each that is turned, one for all others."""
    turned = [(one,) for one in copies if one.turns]
    padded_ones = tuple(one for one in copies if not one.turns)
    for together in (*turned, *([padded_ones] if padded_ones else [])):
        first = together[0]
        source = turn_source(dtype) if first.turns else pad_source(dtype, len(together))
        x, y, z = turn_grid(*first.to) if first.turns else pad_grid([one.to for one in together], dtype)
        values = tuple(value for one in together for value in one.values)
        kernel = kernels.small(source)
        launch = kernel.prepare((x, y, z * first.count), (kernel.source.threads_per_block, 1, 1), values)
        yield Step(launch, tuple(place for one in together for place in ((_PLACE[one.name], 0), places[one.name])))


def _check_maps(kernel: Kernel, alignment: Alignment, choice: Choice) -> None:
    """The copy engine takes addresses and rows at multiples of 16 bytes, also C's, of which no schedule knows."""
    for told in kernel.maps:
        if alignment.of(told.operand) < ENGINE_BYTES:
            raise LaunchError(
                f"{choice} brings {told.operand} by the copy engine, and it lies at a multiple of "
                f"{alignment.of(told.operand)} bytes."
            )


def _part_bytes(gemm: Gemm, parts: int) -> int:
    return round_up(parts * gemm.m * gemm.n * F32.bytes, 256)


def _parts(
    kernels: Kernels,
    gemm: Gemm,
    inner: Gemm,
    alignment: Alignment,
    choice: Choice,
    places: Mapping[OperandName, tuple[Place, int]],
    at: int,
) -> list[Step]:
    """The product into the workspace, in parts of k or whole, and what C takes of their sum. inner: as it is read."""
    part = replace(inner, out=F32, ldc=inner.n, alpha=1.0, beta=0.0, epilogue=PLAIN, ld_residual=0)
    row_bytes = part.ldc * F32.bytes
    inside = replace(alignment, c=max(size for size in (16, 8, 4) if row_bytes % size == 0))
    built = kernels.kernel(part, inside, choice)
    length, count = 0, 1
    if choice.splits > 1:
        length = part_length(inner, choice, built.kernel.tile["k"])
        count = ceil_div(inner.k, length)
    grid = grid_of(built.kernel, part, part_of_k=length)
    launch = built.loaded.prepare(grid, built.kernel.block, arguments(part, (0, 0, 0), part_of_k=length))
    first = Step(launch, (places["A"], places["B"], (Place.SCRATCH, at)))
    return [first, _finish(kernels, gemm, alignment, inner, count, at)]


def part_length(gemm: Gemm, choice: Choice, depth: int) -> int:
    """Products that one part sums, of a kernel whose blocks take `depth` of them at a time."""
    return round_up(ceil_div(gemm.k, choice.splits), depth)


def _finish(kernels: Kernels, gemm: Gemm, alignment: Alignment, inner: Gemm, count: int, at: int) -> Step:
    """The sum of parts, and the epilogue. inner: the problem of which they are, whose rows lie tight."""
    wide = gemm.n % 4 == 0 and inner.n % 4 == 0 and alignment.c % (4 * gemm.out.bytes) == 0
    width, lines = 4 if wide else 1, _LINES_AT_ONCE if count == 1 else 1
    kernel = kernels.small(finish_source(gemm.out, gemm.epilogue, width=width, lines=lines))
    nowhere = (0,) * (2 + len(gemm.added))
    apart = inner.n, inner.m * inner.n
    values = (*nowhere, gemm.m, gemm.n, gemm.ldc, gemm.ld_residual, *apart, count, gemm.alpha, gemm.beta)
    grid = finish_grid(gemm.m, gemm.n, width, lines)
    launch = kernel.prepare(grid, (kernel.source.threads_per_block, 1, 1), values)
    return Step(launch, ((Place.SCRATCH, at), (Place.OUT, 0), *_added(gemm)))


_LINES_AT_ONCE = 4
"""Rows of a result that a thread copies from the workspace together: so many loads are under way."""


def _added(gemm: Gemm) -> tuple[tuple[Place, int], ...]:
    """The places of what the epilogue adds, in the order of the parameters."""
    return tuple((Place.BIAS if operand.name == "bias" else Place.RESIDUAL, 0) for operand in gemm.added)
