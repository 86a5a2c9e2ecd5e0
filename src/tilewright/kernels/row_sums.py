"""Rows that indices name, gathered or summed, at the speed of memory: no shared memory, one pass.

Some threads of a block have a row each; a thread loads the same columns of several terms before it adds them, in their
order.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32, I32
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Fma, Load, Op, Ref, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32, as_format
from tilewright.ir.kernel import Kernel
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
    threads_along,
    times,
    together,
    unrolled,
    widest,
    within,
)
from tilewright.problem.row_sums import RowSums
from tilewright.units import ceil_div

THREADS = 256

_IN_FLIGHT = 8
"""Terms of a thread that are loaded at a time."""

MOST_TERMS = 1024
"""Of a row, where all have as many: it is written into the text."""


@dataclass(frozen=True, slots=True)
class RowSumsConfig:
    """width: elements of one access; addresses and rows are multiples of it. along: threads that have a row.
    overlapped: it starts under the kernel before (sm_90 and later)."""

    width: int
    along: int
    overlapped: bool = True

    @classmethod
    def of(cls, problem: RowSums, aligned_bytes: int, *, overlapped: bool = True) -> RowSumsConfig:
        """The widest that is legal. aligned_bytes: what the addresses and the rows of both are multiples of."""
        width = widest(problem.dtype.bytes, aligned_bytes, problem.length)
        return cls(width, threads_along(ceil_div(problem.length, width), least=WARP_LANES), overlapped)

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
            f"row_sums_{problem.dtype}_{what}_x{self.width}_{self.along}",
            problem,
            self.width * problem.dtype.bytes,
            (
                ceil_div_of(argument("lines"), THREADS // self.along),
                ceil_div_of(argument("length"), self.along * self.width),
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
        self.together = min(problem.terms or _IN_FLIGHT // 2, _IN_FLIGHT)
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
            Let("column", (Var("blockIdx.y") * along + THREAD % along) * self.config.width),
            Alloc(self.named),
            Alloc(self.held),
            self._copied() if self.problem.is_copy else self._summed(line),
        )

    @property
    def _inside(self) -> Expr:
        return within(Var("line"), Var("column"))

    def _copied(self) -> Body:
        return together(
            self._named(ZERO, Var("line"), self._inside),
            self._loaded(ZERO, ZERO, self._inside),
            Move(self._target, at(self.held, ZERO, ZERO), self.config.width, self._inside, origin="sums"),
        )

    @property
    def _target(self) -> Ref:
        return element_of("sums", self.problem.dtype, times(Var("line"), "to_leading", near=False) + Var("column"))

    def _summed(self, line: Expr) -> Body:
        width, terms = self.config.width, self.problem.terms
        weights = (Alloc(self.weight),) if self.problem.weighted else ()
        zero = unrolled("element", width, lambda e: Assign(at(self.sum, e), real(0.0)))
        rounded = unrolled(
            "element", width, lambda e: Assign(at(self.made, e), as_format(Load(self.sum, (e,)), self.problem.dtype))
        )
        first, count = (line * terms, Const(terms)) if terms else self._listed
        return together(
            *((Alloc(self.sum), Alloc(self.made)), weights, zero),
            () if terms else self._limits(line),
            self._over(first, count),
            rounded,
            Move(self._target, at(self.made, ZERO), width, self._inside, origin="sums"),
        )

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

    def _loaded(self, i: Expr, number: Expr, inside: Expr) -> Body:
        """A term and its weight; zeros where it names no row."""
        row = Load(self.named, (i,))
        known = both(inside, both(binary(Op.LE, 0, row), below(row, argument("from_lines"))))
        place = element_of("source", self.problem.dtype, times(row, "leading", near=False) + Var("column"))
        load = Move(at(self.held, i, ZERO), place, self.config.width, known, origin="source")
        if not self.problem.weighted:
            return (load,)
        return load, Move(at(self.weight, i), element_of("weights", F32, number), 1, known, origin="weights")

    def _added(self, i: Expr) -> Body:
        def more(e: Expr) -> Assign:
            term, total = as_f32(Load(self.held, (i, e))), Load(self.sum, (e,))
            value = Fma(Load(self.weight, (i,)), term, total) if self.problem.weighted else Binary(Op.ADD, total, term)
            return Assign(at(self.sum, e), value)

        return unrolled("element", self.config.width, more)
