"""Lines of an operand scaled and split in one launch: a block holds its lines, finds their largest magnitudes, and
stores a scale's inverse and the pieces of each. The source is read once, and no launch stands before this one. Where a
flag is asked for, it is raised for numbers that are too small beside their line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Op, Var, binary, both
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import finite_magnitude
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, Let, Move
from tilewright.kernels.scaling import INVERSE, SCALE, power_of_two
from tilewright.kernels.splitting import THREADS, PieceStatements, reasons_of_lines
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
    WARP_LANES,
    argument,
    at,
    below,
    element_of,
    larger,
    launched,
    over_lanes,
    over_warps,
    registers,
    times,
    together,
    unrolled,
    widest,
)
from tilewright.problem.splitting import Splitting
from tilewright.units import ceil_div

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
        statements = _Statements(self, problem)
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


class _Statements(PieceStatements):
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
