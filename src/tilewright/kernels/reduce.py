"""The sum of partial sums, in the order of k whatever ran first, and the epilogue of the whole product.

Where C has many elements, a thread adds up its own elements part after part. Where it has few, lanes of a warp share
out the parts of neighbours and add their sums by shuffles: all 32 after a dot product over hundreds of blocks, fewer of
more elements and fewer parts. Either order is fixed, so the same call gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Ref, Select, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import store_finished
from tilewright.ir.kernel import WIDEST_BYTES, Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let, Move, ShuffleAdd
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
)
from tilewright.problem.functions import Operation
from tilewright.problem.gemm import leading_of
from tilewright.problem.reduction import Reduction
from tilewright.units import ceil_div

THREADS = 128

_IN_FLIGHT = 8
"""Loads of a thread that are under way at a time, where it adds up several rows or shares its elements' parts."""

_MOST_IN_FLIGHT = 16
"""Where it has one row. From 34 parts on a product with its sum takes 0.93 of the time with 8, for 18 to 33 parts 0.98,
for up to 17 0.99 (10, 57 and 72 pairs, 0.88 to 1.01), with 32 in flight 0.96 and 0.99 (H200, docs/decisions/0093)."""

_FEW_THREADS = 1 << 17
"""That add up a vector of C each, or share out its parts, up to which those of all rows are counted in a row: some half
of what the SMs hold."""

_MOST_LANES, _LATENCY_THREADS = 8, 24_576
"""Lanes that share out parts by eights as long as there are few threads; and threads up to which they do so by fours,
whatever their number. Of 38 sums (H200) those by lanes take 0.79 of the time of a block for each row: 198 x 40 in 37
parts 1.6 us in the place of 3.6; more lanes than that reach less of a sector each (docs/decisions/0105)."""


@dataclass(frozen=True, slots=True)
class ReduceConfig:
    """One kernel of the family.

    width: neighbouring elements of a row that a thread loads at once
    along: threads of a block along a row (a power of two)
    rows: rows whose elements a thread adds up together
    loads: partial sums of an element that a thread has in flight; 0 where there is one part
    lanes: of a warp that share out the parts of a vector, which all threads of a row of it then have been counted for;
        0: none do, and blocks have rows. Else along and rows are 1
    overlapped: it starts under the kernel before (sm_90 and later)
    """

    width: int = 4
    along: int = THREADS
    rows: int = 1
    loads: int = _IN_FLIGHT
    lanes: int = 0
    overlapped: bool = True

    @classmethod
    def of(cls, problem: Reduction, aligned_bytes: int, *, overlapped: bool = True) -> ReduceConfig:
        """The kernel for a problem. aligned_bytes: what the addresses and rows of C and of what is added to it are
        multiples of; partial sums lie at a multiple of 256 bytes."""
        vector = WIDEST_BYTES // F32.bytes
        whole = all(one % vector == 0 for one in (problem.n, problem.row, problem.part))
        width = vector if whole and aligned_bytes % (vector * problem.out.bytes) == 0 else 1
        # By the rows of C, not by its address, on which no order of a sum hangs.
        vectors = problem.m * ceil_div(problem.n, vector if whole and problem.ldc % vector == 0 else 1)
        if vectors <= _FEW_THREADS and problem.parts > 1:
            lanes = _lanes(vectors, problem.parts)
            each = ceil_div(problem.parts, lanes)
            loads = next((count for count in _LOADS if count >= each), _MOST_IN_FLIGHT)
            return cls(width, 1, 1, loads, lanes, overlapped)
        along = threads_along(ceil_div(problem.n, width), most=THREADS)
        loads = next((count for count in (0, *_LOADS) if count >= problem.parts - 1), _MOST_IN_FLIGHT)
        return cls(width, along, max(1, min(4, _IN_FLIGHT // max(loads, 1))), loads, 0, overlapped)

    def reasons_against(self, problem: Reduction, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot add up these parts, in words; empty if it can."""
        found: list[str] = []
        if any(one % self.width for one in (problem.n, problem.row, problem.part, problem.ldc, *problem.ld_added)):
            found.append(f"rows of {problem.n} elements, {problem.ldc} apart, are not multiples of {self.width}")
        if problem.parts < 1 or (problem.parts > 1 and not self.loads):
            found.append(f"it does not add up {problem.parts} parts")
        return *found, *against_overlap(self.overlapped, spec)

    def kernel(self, problem: Reduction) -> Kernel:
        """The kernel for the formats and the epilogue of a problem; sizes are arguments, offsets have 64 bits."""
        reduce = _Reduce(self, problem)
        epilogue = problem.epilogue
        words = [one.name if one.name != "bias" else f"bias_{one.along}" for one in epilogue.operands]
        words += [epilogue.activation.value] if epilogue.activation else []
        words += [] if problem.operation is Operation.PLUS else ["largest"]
        own = f"{self.width}x{self.rows}_{self.along}_{self.loads}"
        shape = f"{self.width}_by_{self.lanes}_{self.loads}" if self.lanes else own
        return launched(
            "_".join(["reduce", problem.out.name, shape, *words]),
            problem,
            self.width * problem.out.bytes,
            (reduce.blocks(), Const(1), Const(1)),
            THREADS,
            reduce.body(),
            overlapped=self.overlapped,
        )


_LOADS = (1, 2, 4, _IN_FLIGHT, _MOST_IN_FLIGHT)


def _lanes(vectors: int, parts: int) -> int:
    """Lanes that share out the parts of a vector of C.

    >>> [_lanes(*few) for few in ((1, 264), (1980, 18), (1980, 88), (100_000, 18), (30_000, 18))]
    [32, 8, 8, 1, 4]
    """
    by_fours, by_eights = (max(1, ceil_div(parts, each)) for each in (4, 8))

    def is_few(count: int) -> bool:
        for_latency = count < 2 * by_fours and count * vectors <= _LATENCY_THREADS
        return for_latency or (count < 2 * by_eights and count <= _MOST_LANES and count * vectors <= _FEW_THREADS)

    return max(count for count in (1, 2, 4, 8, 16, WARP_LANES) if count == 1 or is_few(count))


class _Reduce:
    """The statements of a thread."""

    def __init__(self, config: ReduceConfig, problem: Reduction) -> None:
        self.config = config
        self.problem = problem
        self.m, self.n, self.parts = (argument(name) for name in ("M", "N", "parts"))
        self.down = THREADS // config.along
        self.op = Op.ADD if problem.operation is Operation.PLUS else Op.MAX
        self.sum = registers("sum", F32, config.rows, config.width)

    def blocks(self) -> Expr:
        if self.config.lanes:
            return ceil_div_of(self.m * self._vectors(), THREADS // self.config.lanes)
        return ceil_div_of(self.m, self.down * self.config.rows) * self._pieces()

    def _pieces(self) -> Expr:
        """Blocks that share a row."""
        return ceil_div_of(self.n, self.config.along * self.config.width)

    def body(self) -> Body:
        return self._across() if self.config.lanes else self._along()

    def _partial(self, part: Expr, row: Expr, column: Expr) -> Ref:
        offset = times(part, "part", near=False) + times(row, "row", near=False) + column
        return element_of("partials", F32, offset)

    def _place(self, row: Expr, column: Expr, name: str) -> Ref:
        """An element of C, or of what the epilogue reads beside it."""
        out = self.problem.out
        operand = self.problem.operand(name)
        dtype = out if operand is None else operand.dtype or out
        if operand is not None and operand.is_vector:
            return element_of(name, dtype, ZERO if operand.single else column if operand.along == "n" else row)
        return element_of(name, dtype, times(row, leading_of(name), near=False) + column)

    def _added(self, sums: Buffer, index: tuple[Expr, ...], part: Expr, next_one: Expr) -> Assign:
        """The sum, with a partial sum where there is one: adding zero would turn -0 into 0."""
        total = Load(sums, index)
        value = Select(below(part, self.parts), Binary(self.op, total, next_one), total)
        return Assign(at(sums, *index), value, origin="sum")

    def _along(self) -> Body:
        config = self.config
        group = Let("group", binary(Op.DIV, BLOCK, self._pieces()))
        piece = Let("piece", BLOCK - Var("group") * self._pieces())
        row = Let("row_first", Var("group") * (self.down * config.rows) + binary(Op.DIV, THREAD, config.along))
        column = Let("column", (Var("piece") * config.along + THREAD % config.along) * config.width)

        def first(i: Expr) -> Move:
            place = self._partial(ZERO, self._row(i), Var("column"))
            return Move(at(self.sum, i, ZERO), place, config.width, self._inside(i), origin="partials")

        return together(
            (group, piece, row, column, Alloc(self.sum)),
            unrolled("i", config.rows, first),
            self._further_parts() if config.loads else (),
            unrolled("i", config.rows, self._finish),
        )

    def _row(self, i: Expr) -> Expr:
        return Var("row_first") + i * self.down

    def _inside(self, i: Expr) -> Expr:
        return both(below(self._row(i), self.m), below(Var("column"), self.n))

    def _further_parts(self) -> Body:
        """All parts but the first, `loads` of them in flight."""
        config = self.config
        held = registers("held", F32, config.rows, config.loads, config.width)

        def part(u: Expr) -> Expr:
            return Var("chunk") * config.loads + u + 1

        def load(i: Expr, u: Expr) -> Move:
            guard = both(below(part(u), self.parts), self._inside(i))
            place = self._partial(part(u), self._row(i), Var("column"))
            return Move(at(held, i, u, ZERO), place, config.width, guard, origin="partials")

        def add(i: Expr, u: Expr) -> Body:
            one = lambda e: self._added(self.sum, (i, e), part(u), Load(held, (i, u, e)))  # noqa: E731
            return unrolled("element", config.width, one)

        body = together(
            Alloc(held),
            unrolled("i", config.rows, lambda i: unrolled("u", config.loads, lambda u: load(i, u))),
            unrolled("i", config.rows, lambda i: unrolled("u", config.loads, lambda u: add(i, u))),
        )
        return (For("chunk", ceil_div_of(self.parts - 1, config.loads), body),)

    def _finish(self, i: Expr) -> Body:
        return store_finished(
            self.problem.epilogue,
            self.problem.out,
            lambda element: Load(self.sum, (i, element)),
            lambda name: self._place(self._row(i), Var("column"), name),
            width=self.config.width,
            guard=self._inside(i),
        )

    def _vectors(self) -> Expr:
        """Of a row."""
        return ceil_div_of(self.n, self.config.width)

    def _across(self) -> Body:
        """Some lanes for each vector, neighbours of which lie in neighbouring lanes; lane l adds the parts l, l +
        lanes, ..., and the sums of the lanes are added."""
        config = self.config
        side_by_side = WARP_LANES // config.lanes
        number, lane = Var("number"), Var("lane")
        warp_first = BLOCK * (THREADS // config.lanes) + binary(Op.DIV, THREAD, WARP_LANES) * side_by_side
        inside = below(number, self.m * self._vectors())
        start = real(0 if self.op is Op.ADD else float("-inf"))
        return together(
            Let("number", warp_first + THREAD % side_by_side),
            Let("lane", binary(Op.DIV, THREAD % WARP_LANES, side_by_side)),
            Let("row_first", binary(Op.DIV, number, self._vectors())),
            Let("column", (number - Var("row_first") * self._vectors()) * config.width),
            Alloc(self.sum),
            unrolled("e", config.width, lambda e: Assign(at(self.sum, ZERO, e), start, origin="sum")),
            For("chunk", ceil_div_of(self.parts, config.lanes * config.loads), self._parts_of_a_lane(lane, inside)),
            *(self._shuffled(WARP_LANES >> bit) for bit in range(1, config.lanes.bit_length())),
            store_finished(
                self.problem.epilogue,
                self.problem.out,
                lambda element: Load(self.sum, (ZERO, element)),
                lambda name: self._place(Var("row_first"), Var("column"), name),
                width=config.width,
                guard=both(inside, below(lane, 1)),
            ),
        )

    def _parts_of_a_lane(self, lane: Expr, inside: Expr) -> Body:
        """Some parts of a vector, all of them in flight."""
        config = self.config
        held = registers("held", F32, config.loads, config.width)

        def part(u: Expr) -> Expr:
            return (Var("chunk") * config.loads + u) * config.lanes + lane

        def load(u: Expr) -> Move:
            place = self._partial(part(u), Var("row_first"), Var("column"))
            guard = both(below(part(u), self.parts), inside)
            return Move(at(held, u, ZERO), place, config.width, guard, origin="partials")

        def add(u: Expr) -> Body:
            one = lambda e: self._added(self.sum, (ZERO, e), part(u), Load(held, (u, e)))  # noqa: E731
            return unrolled("element", config.width, one)

        return together(Alloc(held), unrolled("u", config.loads, load), unrolled("u", config.loads, add))

    def _shuffled(self, mask: int) -> Body:
        """The sums of two lanes, in both."""
        return unrolled(
            "e",
            self.config.width,
            lambda e: ShuffleAdd(at(self.sum, ZERO, e), mask, origin="sum", op=self.op),
        )
