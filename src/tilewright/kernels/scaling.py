"""Scales of the rows of A or the columns of B: the largest finite magnitude of each, and a power of two from that.

Along lines: threads side by side read vectors of a line. Across lines: a block has a strip of columns, whose lines it
reads in turn. Either way each thread keeps the largest that it has seen, and shared memory brings those together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Select, Var, binary, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import finite_magnitude
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Let, Move
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
    registers,
    threads_along,
    times,
    together,
    unrolled,
    widest,
    within,
)
from tilewright.problem.emulation import LARGEST_SCALE, SCALED_TO
from tilewright.problem.scaling import Scaling
from tilewright.units import ceil_div

THREADS = 256

_IN_FLIGHT = 8
"""Loads of a thread that are under way at a time."""

_STRIP = 8
"""Threads that share a line of a strip of columns: their vectors are a line of the L2."""

_MATRIX = Var("blockIdx.z")
"""Which of a batch."""

_BINADES = (64, 32, 16, 8, 4, 2)
"""By which the largest magnitude is brought between 1 and 4; before them, 32 for subnormal numbers."""


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """How scales are found.

    width: elements of one load; addresses and lines of the source are multiples of it
    along: threads of a block along a line (a power of two)
    overlapped: it starts under the kernel before (sm_90 and later)
    """

    width: int
    along: int
    overlapped: bool = True

    @classmethod
    def of(cls, problem: Scaling, aligned_bytes: int, *, overlapped: bool = True) -> ScalingConfig:
        """The widest that is legal. aligned_bytes: what the address, the lines and the steps of the source are
        multiples of."""
        width = widest(F32.bytes, aligned_bytes, problem.length)
        along = threads_along(ceil_div(problem.length, width * _IN_FLIGHT), least=WARP_LANES)
        return cls(width, _STRIP if problem.across else along, overlapped)

    def reasons_against(self, problem: Scaling, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot find these scales, in words; empty if it can."""
        found: list[str] = []
        if problem.length % self.width or problem.leading % self.width or problem.step % self.width:
            found.append(f"lines of {problem.length} elements are not multiples of {self.width}")
        return *found, *against_batch(problem.count), *against_overlap(self.overlapped, spec)

    def kernel(self, problem: Scaling) -> Kernel:
        """The kernel for lines, or for columns; sizes are arguments, offsets have 64 bits."""
        statements = (_Across if problem.across else _Along)(self)
        return launched(
            f"scales_{'across' if problem.across else 'along'}_x{self.width}_{self.along}",
            problem,
            self.width * F32.bytes,
            (statements.blocks(), Const(1), argument("count")),
            THREADS,
            statements.body(),
            shared=(statements.shared,),
            overlapped=self.overlapped,
        )


SCALE, INVERSE = registers("scale", F32, 1), registers("inverse", F32, 1)


def power_of_two(largest: Buffer) -> Body:
    """`SCALE` from the largest magnitude, which it changes, and `INVERSE`: by halves of the binades that are left."""

    def moved(condition: Expr, by: float) -> Body:
        """The largest brought nearer to 1 by a power of two, where a condition holds of it, which stands last."""
        factors = ((SCALE, by**0.5), (INVERSE, by**-0.5), (largest, by))
        return tuple(
            Assign(at(one, ZERO), Binary(Op.MUL, Load(one, (ZERO,)), Select(condition, real(factor), real(1.0))))
            for one, factor in factors
        )

    def limited(one: Buffer, op: Op, limit: float) -> Assign:
        return Assign(at(one, ZERO), Binary(op, Load(one, (ZERO,)), real(limit)))

    found = Load(largest, (ZERO,))
    return together(
        *(Alloc(one) for one in (SCALE, INVERSE)),
        Assign(at(SCALE, ZERO), real(SCALED_TO**0.5)),
        Assign(at(INVERSE, ZERO), real(SCALED_TO**-0.5)),
        *(moved(Binary(Op.GE, found, real(2.0**p)), 2.0**-p) for p in _BINADES),
        *(moved(Binary(Op.LT, found, real(2.0 ** (2 - p))), 2.0**p) for p in (32, *_BINADES)),
        limited(SCALE, Op.MIN, LARGEST_SCALE),
        limited(INVERSE, Op.MAX, 1 / LARGEST_SCALE),
    )


class _Statements(ABC):
    """The statements of a thread. kept: scales of a block. shares: threads that have seen a part of each. held: largest
    magnitudes of a thread."""

    def __init__(self, config: ScalingConfig, kept: int, shares: int, held: int) -> None:
        self.config, self.kept, self.shares = config, kept, shares
        self.down = THREADS // config.along
        self.values = registers("values", F32, _IN_FLIGHT, config.width, note="numbers of the source")
        self.largest = registers("largest", F32, held, note="magnitudes")
        self.shared = Buffer("shares", Space.SHARED, F32, (shares, kept + 1), ("share", "scale"))

    def body(self) -> Body:
        """Every thread's part, and the scales by as many threads as there are."""
        config = self.config
        found = together(
            Alloc(registers("share_of", F32, 1)),
            Assign(at(self.largest, ZERO), real(0.0)),
            For("share", Const(self.shares), self._gather()),
            self._stored(),
        )
        return together(
            Let("along", THREAD % config.along),
            Let("down", binary(Op.DIV, THREAD, config.along)),
            *(Alloc(buffer) for buffer in (self.values, self.largest)),
            unrolled("i", self.largest.shape[0], lambda i: Assign(at(self.largest, i), real(0.0))),
            self._seen(),
            self._put(),
            Barrier(note="every thread's largest is there"),
            If(below(THREAD, self.kept), found),
        )

    def _gather(self) -> Body:
        one = registers("share_of", F32, 1)
        get = Move(at(one, ZERO), at(self.shared, Var("share"), THREAD), origin="shares")
        return get, larger(at(self.largest, ZERO), Load(one, (ZERO,)))

    def _stored(self) -> Body:
        """The scale of a line or column by its largest magnitude."""
        number = BLOCK * self.kept + THREAD
        inside = below(number, argument("length" if isinstance(self, _Across) else "lines"))
        inverses = times(_MATRIX, "apart", near=False) + number
        scales = times(argument("count"), "apart", near=False) + inverses
        body: list[Body] = [power_of_two(self.largest)]
        for place, first in ((INVERSE, inverses), (SCALE, scales)):
            body.append((Move(element_of("target", F32, first), at(place, ZERO), 1, inside, origin="target"),))
        return together(*body)

    def _load(self, i: Expr, line: Expr, column: Expr) -> Move:
        inside = within(line, column)
        first = times(_MATRIX, "step", near=False)
        place = element_of("source", F32, first + times(line, "leading", near=False) + column)
        return Move(at(self.values, i, ZERO), place, self.config.width, inside, origin="source")

    def _keep(self, i: Expr, element: Expr, held: Expr) -> Assign:
        return larger(at(self.largest, held), finite_magnitude(Load(self.values, (i, element))))

    @abstractmethod
    def blocks(self) -> Expr:
        """Blocks of the grid along x."""

    @abstractmethod
    def _seen(self) -> Body:
        """The largest magnitudes of what this thread reads."""

    @abstractmethod
    def _put(self) -> Body:
        """Those into shared memory."""


class _Along(_Statements):
    """Lines: a thread sees vectors of one."""

    def __init__(self, config: ScalingConfig) -> None:
        super().__init__(config, THREADS // config.along, config.along, 1)

    def blocks(self) -> Expr:
        return ceil_div_of(argument("lines"), self.kept)

    def _seen(self) -> Body:
        config, step = self.config, self.config.along * self.config.width
        line = BLOCK * self.kept + Var("down")

        def load(i: Expr) -> Move:
            return self._load(i, line, (Var("chunk") * _IN_FLIGHT + i) * step + Var("along") * config.width)

        def keep(i: Expr) -> Body:
            return unrolled("element", config.width, lambda e: self._keep(i, e, ZERO))

        body = together(unrolled("i", _IN_FLIGHT, load), unrolled("i", _IN_FLIGHT, keep))
        return (For("chunk", ceil_div_of(argument("length"), step * _IN_FLIGHT), body),)

    def _put(self) -> Body:
        place = at(self.shared, Var("along"), Var("down"))
        return (Move(place, at(self.largest, ZERO), 1, origin="shares"),)


class _Across(_Statements):
    """Columns: a thread sees every so many lines of `width` of them."""

    def __init__(self, config: ScalingConfig) -> None:
        super().__init__(config, config.along * config.width, THREADS // config.along, config.width)

    def blocks(self) -> Expr:
        return ceil_div_of(argument("length"), self.kept)

    def _seen(self) -> Body:
        width = self.config.width
        column = BLOCK * self.kept + Var("along") * width

        def load(i: Expr) -> Move:
            return self._load(i, (Var("chunk") * _IN_FLIGHT + i) * self.down + Var("down"), column)

        def keep(i: Expr) -> Body:
            return unrolled("element", width, lambda e: self._keep(i, e, e))

        body = together(unrolled("i", _IN_FLIGHT, load), unrolled("i", _IN_FLIGHT, keep))
        return (For("chunk", ceil_div_of(argument("lines"), self.down * _IN_FLIGHT), body),)

    def _put(self) -> Body:
        def put(element: Expr) -> Move:
            place = at(self.shared, Var("down"), Var("along") * self.config.width + element)
            return Move(place, at(self.largest, element), 1, origin="shares")

        return unrolled("element", self.config.width, put)
