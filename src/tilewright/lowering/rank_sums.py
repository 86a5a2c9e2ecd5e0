"""Sums over the ranks of a group, added up in the kernels: parts of tiles of C travel to the rank that keeps them.

    a tile of another rank   its sums go to memory for what is sent;  count of its piece += 1
    an own tile              for each other rank, in order: wait for the flag of the piece;  sums = sums + its part
                             the epilogue

Tiles of other ranks come first, so that no kernel waits for one that waits for it. The tiles of a rank are sent in
pieces: so many tiles one after the other. Copy engines push a piece when its count says that it is done, and set its
flag on the rank that keeps it; who starts the kernel sets counts and flags back. So no thread waits for the link.

Parts have the format of C; what they are added to stays in f32. They lie in the order in which tiles are computed,
those of a tile in the order of the registers, thread beside thread; those of (or for) rank 0 first, the running one
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.dtypes import F32, I32, I64
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import Scope, SignalFlag, WaitFlag
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ONE, ZERO, Binary, Cast, Const, Expr, Load, Op, Select, Var, binary
from tilewright.ir.kernel import (
    MOST_ROWS,
    OWN_RANK,
    PIECE_TILES,
    RECEIVED_FLAGS,
    RECEIVED_PARTS,
    SENT_COUNTS,
    SENT_PARTS,
    SHARDS,
)
from tilewright.ir.program import Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move
from tilewright.ir.work import Problems
from tilewright.lowering.coordinates import GROUP, RANK
from tilewright.lowering.ordered_sums import CHUNK, ELEMENT, OrderedSums
from tilewright.lowering.rank_tiles import IN_RUN, OWNER
from tilewright.lowering.scheduler import Scheduler

_KEEPER, _TILE, _SOURCE = Var("keeper"), Var("tile_of_keeper"), Var("source")
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class RankSums(OrderedSums):
    """The statements around the epilogue of a program whose ranks share out k."""

    def around(self, finish: Body) -> Body:
        """`finish` where the running tile is this rank's, behind what the others have summed; else its sums leave."""
        one = binary(Op.EQ, self._thread, 0)
        of_other: Body = (
            If(one, (WaitFlag(self._of_piece(RECEIVED_FLAGS, _SOURCE), ONE, scope=Scope.SYSTEM),)),
            self._meet(),
            *self._chunks(self._add_part()),
        )
        others = If(binary(Op.NE, _SOURCE, OWN_RANK), of_other)
        keep: Body = (For(_SOURCE.name, SHARDS, (others,), rolled=True, note="ranks"), *finish)
        count = SignalFlag(self._of_piece(SENT_COUNTS, _KEEPER), ONE, scope=Scope.SYSTEM, adds=True)
        leave: Body = (*self._chunks(self._leave()), self._meet(), If(one, (count,)))
        tile = IN_RUN * self._cluster + Var(RANK) if self._cluster > 1 else IN_RUN
        lets = Let(_KEEPER.name, OWNER, uniform=True), Let(_TILE.name, tile, uniform=True)
        return (*lets, If(binary(Op.EQ, _KEEPER, OWN_RANK), keep, leave))

    @property
    def _cluster(self) -> int:
        return Scheduler(self.program).plan.cluster

    def _of_piece(self, name: str, rank: Expr) -> Ref:
        """The flag or the count of the piece of the running tile. rank: that sends or gets it."""
        return Ref(Buffer(name, Space.GLOBAL, I32, ()), (binary(Op.DIV, _TILE, PIECE_TILES) * SHARDS + rank,))

    def _part(self, rank: Expr) -> Expr:
        """The number of the running team's part of the tile among all that a rank sends or receives. rank: that gets or
        sends it."""
        scheduler = Scheduler(self.program)
        tiles = scheduler.rows_of(MOST_ROWS) * scheduler.tile_counts[1] * self._cluster
        slot = Select(binary(Op.LT, rank, OWN_RANK), rank, Binary(Op.SUB, rank, ONE))
        tile = slot * tiles + _TILE
        return tile * self._groups + Var(GROUP) % self._groups if self._groups > 1 else tile

    def _place_of(self, name: str, rank: Expr) -> Ref:
        """A vector of the running thread's part."""
        each = self._threads * self.sums.buffer.elements
        base = Binary(Op.MUL, Cast(I64, self._part(rank)), Const(each, I64))
        inside = (Var(CHUNK) * self._threads + self._thread) * self._width
        return Ref(Buffer(name, Space.GLOBAL, self.program.gemm.out, ()), (base, inside))

    @property
    def _width(self) -> int:
        return gcd(_VECTOR_BYTES // self.program.gemm.out.bytes, self.sums.buffer.elements)

    def _chunks(self, body: Body) -> Body:
        return (For(CHUNK, Const(self.sums.buffer.elements // self._width), body, unroll=True),)

    def _leave(self) -> Body:
        """A vector of sums goes to what is sent, in the format of C."""
        here, out = self._register(), self.program.gemm.out
        value = Ref(Buffer("part", Space.REGISTER, out, (self._width,)), (ZERO,))
        total: Expr = Load(here.buffer, here.index)
        total = total if total.dtype is out else Cast(out, total)
        rounded = Assign(Ref(value.buffer, (Var(ELEMENT),)), total, origin=self.sums.name)
        store = Move(self._place_of(SENT_PARTS, _KEEPER), value, self._width, origin=self.sums.name)
        return (Alloc(value.buffer), self._over_vector(rounded), store)

    def _add_part(self) -> Body:
        """A vector of another rank's part is added to the sums."""
        here, out = self._register(), self.program.gemm.out
        value = Buffer("part", Space.REGISTER, out, (self._width,))
        part: Expr = Load(value, (Var(ELEMENT),))
        total = Binary(Op.ADD, Load(here.buffer, here.index), part if out is F32 else Cast(F32, part))
        load = Move(Ref(value, (ZERO,)), self._place_of(RECEIVED_PARTS, _SOURCE), self._width, origin=self.sums.name)
        return (Alloc(value), load, self._over_vector(Assign(here, total, origin=self.sums.name)))


def check_rank_sums(program: Program) -> None:
    """Raise LoweringError for a program whose ranks cannot share out k."""
    if not program.persistent or program.specialized is None or program.raster is None:
        raise LoweringError(
            "Sums over ranks need a persistent kernel with a producer, whose tiles are rasterised.",
            note="tiles of other ranks come first, so that no rank waits for one that waits for it.",
            hint="a schedule of wgmma with Specialize(...), Raster(...) and Persist().",
        )
    if program.problems is not Problems.ONE or program.stream_k or program.arriving:
        raise LoweringError(
            f"Ranks share out the k of one problem, and this is {program.problems.value}"
            f"{', stream-K' if program.stream_k else ''}{', whose rows arrive' if program.arriving else ''}.",
            hint="leave problems, stream_k and arriving out.",
        )
    if program.accumulation is None or program.gemm.accumulate is not F32 or program.gemm.accumulators > 1:
        raise LoweringError(
            f"Ranks add up one sum of f32 in registers, not {program.gemm.accumulators} of {program.gemm.accumulate}.",
            hint="accumulate in f32, in registers: Accumulate(over=...).",
        )
