"""Pieces of an operand before a product that emulates f32: read once, each piece written once.

A thread reads vectors of a line, splits each number in registers, and stores a vector of each piece: neighbouring
lanes read and store side by side.

Where a line fits in a block, it is scaled and split in one launch: the block holds its lines, finds their largest
magnitudes, and stores a scale's inverse and the pieces of each. The source is read once, and no launch stands before
this one. Where a flag is asked for, it is raised for numbers that are too small beside their line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Load, Op, Ref, Select, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_format, finite_magnitude
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, Let, Move
from tilewright.kernels.scaling import INVERSE, SCALE, power_of_two
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
    WARP_LANES,
    against_batch,
    against_overlap,
    argument,
    at,
    below,
    element_of,
    larger,
    launched,
    over_lanes,
    over_warps,
    registers,
    threads_along,
    times,
    together,
    unrolled,
    widest,
    within,
)
from tilewright.problem.emulation import largest, smallest
from tilewright.problem.gemm import LARGEST_FACTOR
from tilewright.problem.splitting import Splitting, stored_as
from tilewright.units import ceil_div

THREADS = 256

_VECTORS = {4: 4, 2: 4, 1: 8}
"""Vectors of a thread on their way at a time, by their elements."""


def reasons_of_lines(width: int, problem: Splitting, overlapped_on: DeviceSpec | None) -> tuple[str, ...]:
    """Why loads of `width` elements cannot split an operand, in words. overlapped_on: the device on which the kernel
    starts under the one before."""
    found: list[str] = []
    if problem.length % width or problem.leading % width or problem.step % width:
        found.append(f"lines of {problem.length} elements are not multiples of {width}")
    if any(offset % width for offset in (problem.to_length, problem.to_leading, problem.to_piece, problem.to_step)):
        found.append(f"lines of {problem.to_length} elements of a piece are not multiples of {width}")
    if problem.across and problem.scale_step % width:
        found.append(f"{problem.scale_step} scales of a matrix are not multiples of {width}")
    return *found, *against_batch(problem.count), *against_overlap(True, overlapped_on)


@dataclass(frozen=True, slots=True)
class SplittingConfig:
    """How an operand is split.

    width: elements of one load; addresses, lines and steps of the source are multiples of it
    along: threads of a block along a line (a power of two)
    overlapped: it starts under the kernel before (sm_90 and later)
    """

    width: int
    along: int = THREADS
    overlapped: bool = True

    @classmethod
    def of(cls, problem: Splitting, aligned_bytes: int, *, overlapped: bool = True) -> SplittingConfig:
        """The widest that is legal. aligned_bytes: what the address, the lines and the steps of the source are
        multiples of."""
        width = widest(F32.bytes, aligned_bytes, problem.length)
        return cls(width, threads_along(ceil_div(problem.to_length, width)), overlapped)

    def reasons_against(self, problem: Splitting, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot split this operand, in words; empty if it can."""
        given = ("it is given scales and finds none",) if problem.own_scales else ()
        return *reasons_of_lines(self.width, problem, spec if self.overlapped else None), *given

    @property
    def lines(self) -> int:
        """Lines that a block splits."""
        return THREADS // self.along * _VECTORS[self.width]

    @property
    def elements(self) -> int:
        """Elements of a line that a block splits."""
        return self.along * self.width

    def kernel(self, problem: Splitting) -> Kernel:
        """The kernel for an algorithm and an operand of it; sizes are arguments, offsets have 64 bits."""
        groups = ceil_div_of(argument("to_lines"), self.lines)
        pieces = ceil_div_of(argument("to_length"), self.elements)
        of_line = f"_{self.along}" if self.along < THREADS else ""
        of_line += "_across" if problem.across else ""
        return launched(
            f"split_{problem.algorithm}_x{self.width}{of_line}",
            problem,
            self.width * F32.bytes,
            (groups * pieces, Const(1), argument("count")),
            THREADS,
            _VectorStatements(self, problem).body(pieces),
            overlapped=self.overlapped,
        )


class PieceStatements(ABC):
    """The statements of a thread that splits some vectors, whatever line each is of."""

    def __init__(self, problem: Splitting, width: int, count: int) -> None:
        self.algorithm, self.width, self.count, self.flags = problem.algorithm, width, count, problem.flags
        self.stored = stored_as(self.algorithm)
        self.held = registers("held", F32, count, width, note="numbers of the source")
        self.rest = registers("rest", F32, width, note="what the pieces so far leave")
        self.high = registers("high", F32, width, note="the first piece")
        self.pieces = [registers(f"piece{i}", self.stored, width) for i in range(self.algorithm.count)]
        self.alarm = registers("alarm", F32, 1, note="1 where a number is too small beside its row")

    @abstractmethod
    def line(self, i: Expr) -> Expr:
        """The line of a vector."""

    @abstractmethod
    def column(self, i: Expr) -> Expr:
        """The first element of a vector in its line."""

    @abstractmethod
    def scale(self, i: Expr, element: Expr) -> Expr:
        """By what a number is multiplied twice, of algorithms that scale."""

    @property
    def declared(self) -> Body:
        held = tuple(Alloc(buffer) for buffer in (self.held, self.rest, self.high, *self.pieces))
        return (*held, Alloc(self.alarm), Assign(at(self.alarm, Const(0)), real(0.0))) if self.flags else held

    @property
    def raised(self) -> Body:
        """The flag, by every thread that has met a number too far below the largest of its row; all write the same."""
        if not self.flags:
            return ()
        met = Binary(Op.NE, Load(self.alarm, (Const(0),)), real(0.0))
        return (Move(element_of("flag", F32, Const(0)), at(self.alarm, Const(0)), 1, met, origin="flag"),)

    def load(self, i: Expr) -> Move:
        line, column = self.line(i), self.column(i)
        inside = within(line, column)
        place = element_of("source", F32, self._offset("step", line, "leading") + column)
        return Move(at(self.held, i, Const(0)), place, self.width, inside, origin="source")

    @staticmethod
    def _offset(step: str, line: Expr, leading: str) -> Expr:
        return times(Var("blockIdx.z"), step, near=False) + times(line, leading, near=False)

    def split_and_store(self, i: Expr) -> Body:
        line, column = self.line(i), self.column(i)
        inside = within(line, column, "to_")
        stores: list[Move] = []
        for number, held in enumerate(self.pieces):
            offset = self._offset("to_step", line, "to_leading") + column
            if number:
                offset = offset + times(Const(number), "to_piece", near=False)
            place = element_of("target", self.stored, offset)
            stores.append(Move(place, at(held, Const(0)), self.width, inside, origin="target"))
        return together(unrolled("element", self.width, lambda e: self._split(i, e)), *stores)

    def scaled(self, i: Expr, element: Expr) -> Expr:
        """A number times its scale, twice, of algorithms that have scales."""
        number = Load(self.held, (i, element))
        if not self.algorithm.shift:
            return number
        scale = self.scale(i, element)
        return Binary(Op.MUL, Binary(Op.MUL, number, scale), scale)

    def _seen(self, i: Expr, element: Expr) -> Body:
        """Too small a number raises the alarm."""
        if not self.flags:
            return ()
        number, scaled = Load(self.held, (i, element)), self.scaled(i, element)
        least = Var("least", F32)
        near = both(Binary(Op.LT, Binary(Op.MUL, least, real(-1.0)), scaled), Binary(Op.LT, scaled, least))
        deep = both(near, Binary(Op.NE, number, real(0.0)))
        return (Assign(at(self.alarm, Const(0)), Select(deep, real(1.0), Load(self.alarm, (Const(0),)))),)

    def _split(self, i: Expr, element: Expr) -> Body:
        """The pieces of one number; behind infinities and NaN stands NaN."""
        algorithm = self.algorithm
        rest, high, number = Load(self.rest, (element,)), Load(self.high, (element,)), Load(self.held, (i, element))
        bound, least = real(float(largest(algorithm.pieces))), real(smallest(algorithm.pieces))
        finite = both(Binary(Op.LE, real(-LARGEST_FACTOR), rest), Binary(Op.LE, rest, real(LARGEST_FACTOR)))
        clamped = Binary(Op.MAX, real(-float(largest(algorithm.pieces))), Binary(Op.MIN, rest, bound))
        signed = Select(Binary(Op.LT, number, real(0.0)), real(-smallest(algorithm.pieces)), least)
        lost = both(Binary(Op.EQ, high, real(0.0)), Binary(Op.NE, number, real(0.0)))
        statements: list[Assign] = [
            Assign(at(self.rest, element), self.scaled(i, element)),
            Assign(at(self.high, element), self._nearest(clamped)),
            Assign(at(self.high, element), Select(lost, signed, Select(finite, high, rest))),
            self._keep(self.pieces[0], element, high),
            Assign(at(self.rest, element), Binary(Op.SUB, rest, high)),
        ]
        for piece in self.pieces[1:]:
            if algorithm.shift:
                statements.append(Assign(at(self.rest, element), Binary(Op.MUL, rest, real(2.0**algorithm.shift))))
            statements.append(Assign(at(self.high, element), self._nearest(rest)))
            statements.append(self._keep(piece, element, high))
            statements.append(Assign(at(self.rest, element), Binary(Op.SUB, rest, high)))
        return (*self._seen(i, element), *statements[:-1])

    def _nearest(self, value: Expr) -> Expr:
        return Cast(F32, Cast(self.algorithm.pieces, value))

    def _keep(self, piece: Buffer, element: Expr, value: Expr) -> Assign:
        return Assign(Ref(piece, (element,)), as_format(value, self.stored))


class _VectorStatements(PieceStatements):
    """The statements of a thread: its vectors stand one below the other, and their scales are given."""

    def __init__(self, config: SplittingConfig, problem: Splitting) -> None:
        super().__init__(problem, config.width, _VECTORS[config.width])
        self.config, self.across = config, problem.across
        self.scales = registers("scales_of", F32, self.count, self.width, note="powers of two")

    def body(self, pieces: Expr) -> Body:
        """pieces: blocks that share a line."""
        config = self.config
        lines = THREADS // config.along * _VECTORS[config.width]
        return together(
            Let("group", binary(Op.DIV, BLOCK, pieces)),
            Let("piece", BLOCK - Var("group") * pieces),
            Let("line", Var("group") * lines + binary(Op.DIV, THREAD, config.along)),
            Let("column", (Var("piece") * config.along + THREAD % config.along) * config.width),
            *self.declared,
            *self._scaled(),
            unrolled("i", self.count, self.load),
            unrolled("i", self.count, self.split_and_store),
            *self.raised,
        )

    def line(self, i: Expr) -> Expr:
        return Var("line") + i * (THREADS // self.config.along)

    def column(self, i: Expr) -> Expr:
        return Var("column")

    def scale(self, i: Expr, element: Expr) -> Expr:
        return Load(self.scales, (Const(0), element) if self.across else (i, Const(0)))

    def _scaled(self) -> Body:
        """The scales of the numbers of a thread."""
        if not self.algorithm.shift:
            return ()
        column, width = Var("column"), self.config.width if self.across else 1

        def load(i: Expr) -> Move:
            index = column if self.across else self.line(i)
            inside = below(index, argument("length" if self.across else "lines"))
            place = element_of("scales", F32, times(Var("blockIdx.z"), "scale_step", near=False) + index)
            return Move(at(self.scales, i, Const(0)), place, width, inside, origin="scales")

        loads = (load(Const(0)),) if self.across else unrolled("i", _VECTORS[self.config.width], load)
        return (Alloc(self.scales), *loads)


_MOST_THREADS = 1024
"""Along a line."""

_GOOD_VECTORS = 2
"""Of a thread, for which a line has no more threads."""

_MOST_HELD = 32
"""Numbers of a line that a thread holds."""

LONGEST_LINE = _MOST_THREADS * _MOST_HELD
"""Elements of a piece's line that one block holds."""


@dataclass(frozen=True, slots=True)
class LineSplittingConfig:
    """How lines are scaled and split.

    width: elements of one load; addresses, lines and steps of the source are multiples of it
    along: threads of a block along a line (a power of two, whole warps)
    held: vectors of a line that a thread holds (a power of two)
    overlapped: it starts under the kernel before (sm_90 and later)
    """

    width: int
    along: int
    held: int
    overlapped: bool = True

    @classmethod
    def of(cls, problem: Splitting, aligned_bytes: int, *, overlapped: bool = True) -> LineSplittingConfig:
        """The widest that is legal. aligned_bytes: what the address, the lines and the steps of the source are
        multiples of."""
        width = widest(F32.bytes, aligned_bytes, problem.length)
        vectors, along, held = ceil_div(problem.to_length, width), WARP_LANES, 1
        while along < _MOST_THREADS and along * _GOOD_VECTORS < vectors:
            along *= 2
        while along * held < vectors:
            held *= 2
        return cls(width, along, held, overlapped)

    def reasons_against(self, problem: Splitting, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot split this operand, in words; empty if it can."""
        found = list(reasons_of_lines(self.width, problem, spec if self.overlapped else None))
        if not problem.own_scales:
            found.append("it finds the scales of its lines, and these are given")
        room = self.along * self.held * self.width
        if problem.to_length > room or room > LONGEST_LINE:
            found.append(f"lines of {problem.to_length} elements are more than a block holds")
        return tuple(found)

    @property
    def threads(self) -> int:
        return max(THREADS, self.along)

    def kernel(self, problem: Splitting) -> Kernel:
        """The kernel for an algorithm; sizes are arguments, offsets have 64 bits."""
        statements = _LineStatements(self, problem)
        return launched(
            f"split_lines_{problem.algorithm}_x{self.width}_{self.along}_{self.held}",
            problem,
            self.width * F32.bytes,
            (ceil_div_of(argument("to_lines"), self.threads // self.along), Const(1), argument("count")),
            self.threads,
            statements.body(),
            shared=statements.shared,
            overlapped=self.overlapped,
        )


class _LineStatements(PieceStatements):
    """The statements of a thread."""

    def __init__(self, config: LineSplittingConfig, problem: Splitting) -> None:
        super().__init__(problem, config.width, config.held)
        self.config = config
        self.lines, self.warps = config.threads // config.along, config.along // WARP_LANES
        self.largest = registers("largest", F32, 1, note="magnitude of the line")
        self.share = registers("share_of", F32, 1)
        self.shares = Buffer("shares", Space.SHARED, F32, (self.lines, self.warps), ("line", "warp"))

    @property
    def shared(self) -> tuple[Buffer, ...]:
        return (self.shares,) if self.warps > 1 else ()

    def body(self) -> Body:
        along, count = self.config.along, self.config.held
        of_block = binary(Op.DIV, THREAD, along) if self.lines > 1 else ZERO
        return together(
            Let("of_block", of_block),
            Let("line", BLOCK * self.lines + Var("of_block")),
            Let("along", THREAD % along if self.lines > 1 else THREAD),
            *self.declared,
            Alloc(self.largest),
            Assign(at(self.largest, ZERO), Const(0.0, F32)),
            unrolled("i", count, self.load),
            unrolled("i", count, self._magnitudes),
            over_lanes(at(self.largest, ZERO)),
            self._over_warps(),
            power_of_two(self.largest),
            self._put_inverse(),
            unrolled("i", count, self.split_and_store),
            self.raised,
        )

    def line(self, i: Expr) -> Expr:
        return Var("line")

    def column(self, i: Expr) -> Expr:
        return (i * self.config.along + Var("along")) * self.config.width

    def scale(self, i: Expr, element: Expr) -> Expr:
        return Load(SCALE, (ZERO,))

    def _magnitudes(self, i: Expr) -> Body:
        def more(element: Expr) -> Assign:
            return larger(at(self.largest, ZERO), finite_magnitude(Load(self.held, (i, element))))

        return unrolled("element", self.config.width, more)

    def _over_warps(self) -> Body:
        """The largest of all warps of a line."""
        if self.warps == 1:
            return ()
        warp = binary(Op.DIV, Var("along"), WARP_LANES)
        shares = partial(at, self.shares, Var("of_block"))
        return over_warps(at(self.largest, ZERO), self.share, shares, warp, self.warps)

    def _put_inverse(self) -> Move:
        first = both(binary(Op.EQ, Var("along"), 0), below(Var("line"), argument("lines")))
        offset = times(Var("blockIdx.z"), "scale_step", near=False) + Var("line")
        return Move(element_of("inverses", F32, offset), at(INVERSE, ZERO), 1, first, origin="inverses")
