"""Exchanges between ranks by threads, which store into the memory of peers: few bytes are there sooner than by copies.

A block exchanges with the blocks of its number on the other ranks. Flags count the exchanges through the memory:

    gathered                                        summed
    tell the peers: this rank's memory is free      wait until the blocks of all peers have read the sums before
    wait for theirs
    store to the peers                              store to the peers
    tell them that it is there; wait for theirs     tell them that it is there; wait for theirs
                                                    add up;  tell the peers: this block has read

What is gathered is read by later launches, which have ended when the next exchange begins. What is added up has been
read when the launch ends: nobody waits for a peer that comes as late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32, I32, I64
from tilewright.ir.async_stmt import Scope, SignalFlag, WaitFlag
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Binary, Cast, Const, Expr, Load, Op, Ref, Select, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32, as_format
from tilewright.ir.kernel import OWN_RANK, SHARD_STARTS, WIDEST_BYTES, Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Let, Move, Stmt
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
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
from tilewright.problem.exchange import Exchange

THREADS = 512

BLOCKS = 64
"""Of each launch. All of them run at once on any GPU of a data centre, as they must, since they wait for each other.
They fill a link: 64 or 128 send 7 MB and add it up in 26 us between two H100s, 32 in 29 (beside 9 us of a launch)."""

_IN_FLIGHT = 4
"""Vectors of a thread that are under way at a time."""

_RANKS, _COLUMNS = argument("ranks"), argument("columns")
_OWNER, _SOURCE, _FIRST_ROW, _ROWS, _VECTORS, _COUNT = (
    Var(name) for name in ("owner", "sender", "first_row", "rows", "vectors", "exchange")
)
_FREE, _DATA = 0, 1
"""Flags that say that memory may be written, and that data are there."""


def flags_of(ranks: int) -> int:
    """How many flags and counters each rank has, which are 0 in the beginning: two flags for each block of each rank,
    and how many exchanges there were, for each own block."""
    return (2 * ranks + 1) * BLOCKS


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """width: elements of one access; addresses and rows are multiples of it. overlapped: it starts under the kernel
    before (sm_90 and later)."""

    width: int
    overlapped: bool = True

    @classmethod
    def of(cls, problem: Exchange, *, overlapped: bool = True) -> ExchangeConfig:
        """The widest accesses that are legal, the same on all ranks: addresses are multiples of 16 bytes."""
        most = WIDEST_BYTES // problem.dtype.bytes
        return cls(gcd(problem.columns, most), overlapped)

    def reasons_against(self, problem: Exchange, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot do it, in words; empty if it can."""
        found: list[str] = []
        if problem.columns % self.width:
            found.append(f"rows of {problem.columns} elements are not multiples of {self.width}")
        if len(problem.rows) > THREADS:
            found.append(f"a block of {THREADS} threads does not tell {len(problem.rows)} ranks")
        return *found, *against_overlap(self.overlapped, spec)

    def kernel(self, problem: Exchange) -> Kernel:
        """The kernel for the format of a problem; sizes are arguments, offsets have 64 bits."""
        return launched(
            f"exchange_{problem.dtype}_{'summed' if problem.summed else 'gathered'}_x{self.width}",
            problem,
            self.width * problem.dtype.bytes,
            (Const(BLOCKS), Const(1), Const(1)),
            THREADS,
            _Statements(self.width, problem).body(),
            overlapped=self.overlapped,
        )


class _Statements:
    """The statements of a thread."""

    def __init__(self, width: int, problem: Exchange) -> None:
        self.width, self.problem, self.dtype = width, problem, problem.dtype
        self.held = registers("held", problem.dtype, _IN_FLIGHT, width)
        self.bounds = registers("bounds", I32, 2, note="rows of a rank: the first, and the one behind the last")

    def body(self) -> Body:
        summed, count = self.problem.summed, registers("exchanges", I32, 1, note="through this memory, before this one")
        counter = self._word(OWN_RANK, _RANKS * (2 * BLOCKS) + BLOCK)
        begin = (Alloc(count), Move(at(count, 0), counter), Let(_COUNT.name, Load(count, (ZERO,)) + 1))
        counted = Assign(at(count, 0), _COUNT), Move(counter, at(count, 0))
        if not summed:
            moved = together(self._tell(_FREE), self._wait(_FREE), self._over_rows(OWN_RANK, self._gathered()))
        else:
            owner = Let(_OWNER.name, binary(Op.MOD, OWN_RANK + 1 + Var("distance"), _RANKS))
            to_peer = together(owner, self._over_rows(_OWNER, self._sent()))
            moved = together(self._wait_for_readers(), For("distance", _RANKS - 1, to_peer, rolled=True, note="peers"))
        added = together(self._over_rows(OWN_RANK, self._added()), self._tell(_FREE)) if summed else ()
        told = together(self._tell(_DATA), self._wait(_DATA))
        return together(begin, moved, told, added, If(binary(Op.EQ, THREAD, 0), counted))

    # -- flags --------------------------------------------------------------------------------------------------------

    def _word(self, rank: Expr, number: Expr) -> Ref:
        return Ref(Buffer("peer_flags", Space.GLOBAL, I32, (), of_ranks=True), (rank, number))

    def _flag(self, rank: Expr, which: int, source: Expr) -> Ref:
        """Of the running block of a source."""
        return self._word(rank, (source + _RANKS * which) * BLOCKS + BLOCK)

    @staticmethod
    def _if_peer(rank: Expr, then: Stmt) -> If:
        return If(both(below(rank, _RANKS), binary(Op.NE, rank, OWN_RANK)), (then,))

    def _tell(self, which: int) -> Body:
        """The blocks of this number on all peers, by a thread for each: what the block has done comes before."""
        signal = SignalFlag(self._flag(THREAD, which, OWN_RANK), _COUNT, scope=Scope.SYSTEM)
        return Barrier(), self._if_peer(THREAD, signal)

    def _wait(self, which: int) -> Body:
        """For those blocks to tell as much; what they did before is visible to the block."""
        wait = WaitFlag(self._flag(OWN_RANK, which, THREAD), _COUNT, scope=Scope.SYSTEM, or_later=True)
        return self._if_peer(THREAD, wait), Barrier()

    def _wait_for_readers(self) -> Body:
        """For all blocks of all peers to have read what was exchanged before."""
        number = Var("readers") * THREADS + THREAD
        flag = self._word(OWN_RANK, number)
        wait = WaitFlag(flag, _COUNT - 1, scope=Scope.SYSTEM, or_later=True)
        some = self._if_peer(binary(Op.DIV, number, BLOCKS), wait)
        return For("readers", ceil_div_of(_RANKS * BLOCKS, THREADS), (some,)), Barrier()

    # -- which vectors ------------------------------------------------------------------------------------------------

    def _over_rows(self, rank: Expr, some: Body) -> Body:
        """`some` vectors of a rank's rows, until all are done: the same ones by blocks of one number on all ranks."""
        first, behind = (Load(self.bounds, (place,)) for place in (ZERO, ONE))
        return (
            Alloc(self.bounds),
            Move(at(self.bounds, 0), element_of(SHARD_STARTS, I32, rank)),
            Move(at(self.bounds, 1), element_of(SHARD_STARTS, I32, rank + 1)),
            Let(_FIRST_ROW.name, first),
            Let(_ROWS.name, behind - first),
            Let(_VECTORS.name, _ROWS * binary(Op.DIV, _COLUMNS, self.width)),
            For("chunk", ceil_div_of(_VECTORS, BLOCKS * THREADS * _IN_FLIGHT), some),
        )

    def _vector(self, u: Expr) -> Expr:
        return (Var("chunk") * _IN_FLIGHT + u) * (BLOCKS * THREADS) + BLOCK * THREADS + THREAD

    def _moved(self, u: Expr, to: Ref, source: Ref, origin: str) -> Move:
        return Move(to, source, self.width, below(self._vector(u), _VECTORS), origin=origin)

    def _offset(self, u: Expr, row: Expr = ZERO) -> Expr:
        """Elements to a vector of rows that begin with one of the matrix."""
        inside = Binary(Op.MUL, Cast(I64, self._vector(u)), Const(self.width, I64))
        return inside if row == ZERO else Binary(Op.ADD, times(row, "columns", near=False), inside)

    def _of_source(self, u: Expr, row: Expr) -> Move:
        place = element_of("source", self.dtype, self._offset(u, row))
        return self._moved(u, at(self.held, u, ZERO), place, "source")

    def _received(self, u: Expr, rank: Expr, row: Expr) -> Ref:
        buffer = Buffer("peer_received", Space.GLOBAL, self.dtype, (), of_ranks=True)
        return Ref(buffer, (rank, self._offset(u, row)))

    @staticmethod
    def _slot(source: Expr, owner: Expr) -> Expr:
        """The first row of what a peer sends, among all that the owner of the running rows receives."""
        return Select(below(source, owner), source, source - 1) * _ROWS

    # -- what is moved ------------------------------------------------------------------------------------------------

    def _each(self, make: Callable[[Expr], Stmt | Body]) -> Body:
        """`make` for each vector under way."""
        return unrolled("u", _IN_FLIGHT, make)

    def _gathered(self) -> Body:
        """Own rows go to all ranks, this one too."""

        def store(u: Expr) -> Move:
            return self._moved(u, self._received(u, _SOURCE, _FIRST_ROW), at(self.held, u, ZERO), "received")

        stores = For(_SOURCE.name, _RANKS, self._each(store), rolled=True, note="ranks")
        return together(Alloc(self.held), self._each(lambda u: self._of_source(u, ZERO)), stores)

    def _sent(self) -> Body:
        """Parts of a peer's rows go there."""

        def store(u: Expr) -> Move:
            place = self._received(u, _OWNER, self._slot(OWN_RANK, _OWNER))
            return self._moved(u, place, at(self.held, u, ZERO), "received")

        return together(Alloc(self.held), self._each(lambda u: self._of_source(u, _FIRST_ROW)), self._each(store))

    def _added(self) -> Body:
        """Own rows are the sum of the parts of all ranks, in order; this rank's part is of the source."""
        sums, made = registers("sum", F32, _IN_FLIGHT, self.width), registers("made", self.dtype, self.width)

        def over_elements(what: Callable[[Expr, Expr], Assign]) -> Body:
            return self._each(lambda u: unrolled("element", self.width, lambda e: what(u, e)))

        def received(u: Expr) -> Move:
            place = self._received(u, OWN_RANK, self._slot(_SOURCE, OWN_RANK))
            return self._moved(u, at(self.held, u, ZERO), place, "received")

        def total(u: Expr, e: Expr) -> Assign:
            part = as_f32(Load(self.held, (u, e)))
            value = Select(binary(Op.EQ, _SOURCE, 0), part, Binary(Op.ADD, Load(sums, (u, e)), part))
            return Assign(at(sums, u, e), value, origin="sum")

        def store(u: Expr) -> Body:
            place = element_of("result", self.dtype, self._offset(u))
            rounded = unrolled(
                "element", self.width, lambda e: Assign(at(made, e), as_format(Load(sums, (u, e)), self.dtype))
            )
            return together(rounded, self._moved(u, place, at(made, ZERO), "result"))

        own = self._each(lambda u: self._of_source(u, _FIRST_ROW))
        part = If(binary(Op.EQ, _SOURCE, OWN_RANK), own, self._each(received))
        return together(
            (Alloc(self.held), Alloc(sums), Alloc(made)),
            over_elements(lambda u, e: Assign(at(sums, u, e), real(0.0), origin="sum")),
            For(_SOURCE.name, _RANKS, (part, *over_elements(total)), rolled=True, note="ranks"),
            self._each(store),
        )
