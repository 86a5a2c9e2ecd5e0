"""Rows that indices name, gathered or summed, at the speed of memory: no shared memory, one pass.

Some threads of a block have a row each; a thread loads the same columns of several terms before it adds them, in their
order.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32, I32
from tilewright.ir.buffer import Ref
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Fma, Load, Op, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32
from tilewright.ir.kernel import WIDEST_BYTES, Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let, Move
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
    WARP_LANES,
    against_overlap,
    argument,
    at,
    below,
    element_of,
    launched,
    registers,
    times,
    together,
    unrolled,
)
from tilewright.problem.row_sums import RowSums
from tilewright.units import ceil_div

THREADS = 256

_IN_FLIGHT = 8
"""Terms of a thread that are loaded at a time."""

_OF_A_ROW = 4
"""Accesses of a thread to a row that is copied, all under way at once: one would leave memory waiting for the index."""

MOST_TERMS = 1024
"""Of a row, where all have as many: it is written into the text."""


@dataclass(frozen=True, slots=True)
class RowSumsConfig:
    """width: elements of one access; addresses and rows are multiples of it. along: threads that have a row.
    overlapped: it starts under the kernel before (sm_90 and later). each: accesses of a thread to a row, of copies."""

    width: int
    along: int
    overlapped: bool = True
    each: int = 1

    @classmethod
    def of(cls, problem: RowSums, aligned_bytes: int, *, overlapped: bool = True) -> RowSumsConfig:
        """The widest that is legal. aligned_bytes: what the addresses and the rows of both are multiples of."""
        size = problem.dtype.bytes
        widths = (w for w in (16, 8, 4, 2, 1) if w * size <= WIDEST_BYTES)
        width = next(w for w in widths if w == 1 or not (aligned_bytes % (w * size) or problem.length % w))
        accesses = ceil_div(problem.length, width)
        each = min(_OF_A_ROW, max(1, accesses // WARP_LANES)) if problem.is_copy else 1
        along = WARP_LANES
        while along < THREADS and along * each < accesses:
            along *= 2
        return cls(width, along, overlapped, each)

    def reasons_against(self, problem: RowSums, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot do it, in words; empty if it can."""
        found: list[str] = []
        if any(size % self.width for size in (problem.length, problem.leading, problem.to_leading)):
            found.append(f"rows of {problem.length} elements are not multiples of {self.width}")
        if problem.terms > MOST_TERMS:
            found.append(f"{problem.terms} terms of each row are more than {MOST_TERMS}")
        return *found, *against_overlap(self.overlapped, spec)

    def kernel(self, problem: RowSums) -> Kernel:
        """The kernel for the formats of a problem; sizes are arguments, offsets have 64 bits."""
        what = f"{problem.terms or 'listed'}{'_weighted' if problem.weighted else ''}"
        return launched(
            f"row_sums_{problem.dtype}_{what}_x{self.width}_{self.along}{f'_{self.each}' * (self.each > 1)}",
            problem,
            self.width * problem.dtype.bytes,
            (
                ceil_div_of(argument("lines"), THREADS // self.along),
                ceil_div_of(argument("length"), self.along * self.width * self.each),
                Const(1),
            ),
            THREADS,
            _Statements(self, problem).body(),
            overlapped=self.overlapped,
        )


class _Statements:
    """The statements of a thread. together: terms that are loaded at a time."""

    def __init__(self, config: RowSumsConfig, problem: RowSums) -> None:
        self.config, self.problem = config, problem
        self.together = config.each if problem.is_copy else min(problem.terms or _IN_FLIGHT // 2, _IN_FLIGHT)
        self.named = registers("named", I32, self.together, note="rows of the source")
        self.held = registers("held", problem.dtype, self.together, config.width, note="terms")
        self.weight = registers("weight", F32, self.together)
        self.sum = registers("sum", F32, config.width)
        self.made = registers("made", problem.dtype, config.width)
        self.first, self.end = registers("first_term", I32, 1), registers("end_of_terms", I32, 1)

    def body(self) -> Body:
        line, along = Var("line"), self.config.along
        return together(
            Let("line", BLOCK * (THREADS // along) + binary(Op.DIV, THREAD, along)),
            Let("column", (Var("blockIdx.y") * (along * self.config.each) + THREAD % along) * self.config.width),
            Alloc(self.named),
            Alloc(self.held),
            self._copied() if self.problem.is_copy else self._summed(line),
        )

    @property
    def _inside(self) -> Expr:
        return self._inside_at(Var("column"))

    @staticmethod
    def _inside_at(column: Expr) -> Expr:
        return both(below(Var("line"), argument("lines")), below(column, argument("length")))

    def _copied(self) -> Body:
        each, width = self.config.each, self.config.width

        def column(i: Expr) -> Expr:
            return Var("column") + i * (self.config.along * width)

        def load(i: Expr) -> Move:
            return self._term(at(self.held, i, ZERO), ZERO, column(i), self._inside_at(column(i)))

        def store(i: Expr) -> Move:
            here, inside = at(self.held, i, ZERO), self._inside_at(column(i))
            return Move(self._target(column(i)), here, width, inside, origin="sums")

        named = self._named(ZERO, Var("line"), self._inside)
        return together(named, unrolled("i", each, load), unrolled("i", each, store))

    def _target(self, column: Expr) -> Ref:
        return element_of("sums", self.problem.dtype, times(Var("line"), "to_leading", near=False) + column)

    def _summed(self, line: Expr) -> Body:
        width, terms = self.config.width, self.problem.terms
        weights = (Alloc(self.weight),) if self.problem.weighted else ()
        zero = unrolled("element", width, lambda e: Assign(at(self.sum, e), real(0.0)))
        rounded = unrolled("element", width, lambda e: Assign(at(self.made, e), self._as_made(Load(self.sum, (e,)))))
        first, count = (line * terms, Const(terms)) if terms else self._listed
        return together(
            *((Alloc(self.sum), Alloc(self.made)), weights, zero),
            () if terms else self._limits(line),
            self._over(first, count),
            rounded,
            Move(self._target(Var("column")), at(self.made, ZERO), width, self._inside, origin="sums"),
        )

    def _as_made(self, value: Expr) -> Expr:
        return value if self.problem.dtype is F32 else Cast(self.problem.dtype, value)

    @property
    def _listed(self) -> tuple[Var, Var]:
        """The first term of a row in the list, and how many it has."""
        return Var("from_term"), Var("count_of_terms")

    def _limits(self, line: Expr) -> Body:
        """Loads where the terms of a row begin and end, limited to the list."""
        first, count = self._listed
        inside = below(line, argument("lines"))

        def limited(value: Expr) -> Expr:
            return binary(Op.MIN, binary(Op.MAX, value, 0), argument("listed"))

        end = binary(Op.MAX, limited(Load(self.end, (ZERO,))), first)
        return together(
            Alloc(self.first),
            Alloc(self.end),
            Move(at(self.first, ZERO), element_of("begins", I32, line), 1, inside, origin="begins"),
            Move(at(self.end, ZERO), element_of("begins", I32, line + 1), 1, inside, origin="begins"),
            Let(first.name, limited(Load(self.first, (ZERO,)))),
            Let(count.name, Binary(Op.SUB, end, first)),
        )

    def _over(self, first: Expr, count: Expr) -> Body:
        """All terms, so many at a time."""
        several = not (self.problem.terms and self.problem.terms <= self.together)
        number = Var("chunk") * self.together if several else ZERO

        def inside(i: Expr) -> Expr:
            ends = several and not (self.problem.terms and self.problem.terms % self.together == 0)
            return both(self._inside, below(number + i, count) if ends else None)

        body = together(
            unrolled("i", self.together, lambda i: self._named(i, first + number + i, inside(i))),
            unrolled("i", self.together, lambda i: self._loaded(i, first + number + i, inside(i))),
            unrolled("i", self.together, self._added),
        )
        if not several:
            return body
        if self.problem.terms:
            return (For("chunk", Const(ceil_div(self.problem.terms, self.together)), body),)
        return (For("chunk", ceil_div_of(count, self.together), body),)

    def _named(self, i: Expr, number: Expr, inside: Expr) -> Move:
        """The row that a term names; 0 where there is no term."""
        return Move(at(self.named, i), element_of("index", I32, number), 1, inside, origin="index")

    def _known(self, i: Expr, inside: Expr) -> Expr:
        """Whether there is a term, and it names a row."""
        row = Load(self.named, (i,))
        return both(inside, both(binary(Op.LE, 0, row), below(row, argument("from_lines"))))

    def _term(self, to: Ref, i: Expr, column: Expr, inside: Expr) -> Move:
        """What the row that a term names has from a column on; zeros where it names none."""
        row = Load(self.named, (i,))
        place = element_of("source", self.problem.dtype, times(row, "leading", near=False) + column)
        return Move(to, place, self.config.width, self._known(i, inside), origin="source")

    def _loaded(self, i: Expr, number: Expr, inside: Expr) -> Body:
        """A term and its weight."""
        load = self._term(at(self.held, i, ZERO), i, Var("column"), inside)
        if not self.problem.weighted:
            return (load,)
        weight = element_of("weights", F32, number)
        return load, Move(at(self.weight, i), weight, 1, self._known(i, inside), origin="weights")

    def _added(self, i: Expr) -> Body:
        def more(e: Expr) -> Assign:
            term, total = as_f32(Load(self.held, (i, e))), Load(self.sum, (e,))
            value = Fma(Load(self.weight, (i,)), term, total) if self.problem.weighted else Binary(Op.ADD, total, term)
            return Assign(at(self.sum, e), value)

        return unrolled("element", self.config.width, more)
