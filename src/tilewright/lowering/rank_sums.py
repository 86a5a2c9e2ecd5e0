"""Sums over the ranks of a group, added up in the kernels: a tile of C is sent to the rank that keeps its rows.

    a tile of another rank   its sums go to that rank's memory;  flag there = 1
    an own tile              for each other rank, in order: wait for its flag;  sums = sums + its part;  flag = 0
                             the epilogue

Tiles of other ranks come first, so that no kernel waits for one that waits for it. Parts that leave have the format of
C; what they are added to stays in f32. They lie in the order of the registers, thread beside thread, on the rank that
keeps the tile: those of rank 0 first. Flags are 0 again when a launch ends: nobody waits for that value, so that its
store waits for none before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.dtypes import F32, I32, I64
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import Scope, SignalFlag, WaitFlag
from tilewright.ir.buffer import PEERS, Buffer, Ref, Space
from tilewright.ir.clusters import neighbours
from tilewright.ir.expr import ONE, ZERO, Binary, Cast, Const, Expr, Load, Op, Var, binary, both, ceil_div
from tilewright.ir.kernel import MOST_ROWS, OWN_RANK, RANK_FLAGS, RANK_SUMS, SHARD_STARTS, SHARDS
from tilewright.ir.program import Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move
from tilewright.ir.work import Problems
from tilewright.lowering.coordinates import GROUP
from tilewright.lowering.ordered_sums import CHUNK, ELEMENT, OrderedSums
from tilewright.lowering.scheduler import Scheduler

_OWNER, _PLACE, _SOURCE = Var("owner"), Var("tile_of_owner"), Var("source")
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class RankSums(OrderedSums):
    """The statements around the epilogue of a program whose ranks share out k."""

    def around(self, finish: Body) -> Body:
        """`finish` where the running tile is this rank's, behind what the others have summed; else its sums leave."""
        one = binary(Op.EQ, self._thread, 0)
        arrived, sent = self._flag(OWN_RANK, _SOURCE), self._flag(_OWNER, OWN_RANK)
        of_other: Body = (
            If(one, (WaitFlag(arrived, ONE, scope=Scope.SYSTEM),)),
            self._meet(),
            *self._chunks(self._add_part()),
            self._meet(),
            If(one, (SignalFlag(arrived, ZERO, scope=Scope.SYSTEM, releases=False),)),
        )
        others = If(binary(Op.NE, _SOURCE, OWN_RANK), of_other)
        keep: Body = (For(_SOURCE.name, SHARDS, (others,), rolled=True, note="ranks"), *finish)
        signal = If(one, (SignalFlag(sent, ONE, scope=Scope.SYSTEM),))
        leave: Body = (*self._chunks(self._leave()), self._meet(), signal)
        elsewhere = If(binary(Op.LE, 0, _OWNER), leave)
        return (*self._locate(), If(binary(Op.EQ, _OWNER, OWN_RANK), keep, (elsewhere,)))

    def _locate(self) -> Body:
        """Names the rank that keeps the running tile, -1 for one beyond all rows, and the tile's number there."""
        rows, columns = Scheduler(self.program).tile_axes
        found, bounds = (Buffer(name, Space.REGISTER, I32, (2,)) for name in ("owner_of_tile", "shard_rows"))
        starts, shard = Buffer(SHARD_STARTS, Space.GLOBAL, I32, ()), Var("shard")
        begin, end = (Load(bounds, (place,)) for place in (ZERO, ONE))
        row = Var(rows.name) * rows.stride
        inside = both(binary(Op.LE, begin, row), binary(Op.LT, row, end))
        assert inside is not None
        take: Body = (Assign(Ref(found, (ZERO,)), shard), Assign(Ref(found, (ONE,)), begin))
        each: Body = (
            Alloc(bounds),
            Move(Ref(bounds, (ZERO,)), Ref(starts, (shard,))),
            Move(Ref(bounds, (ONE,)), Ref(starts, (shard + 1,))),
            If(inside, take),
        )
        tile_row = binary(Op.DIV, row - Load(found, (ONE,)), rows.stride)
        return (
            Alloc(found),
            Assign(Ref(found, (ZERO,)), Const(-1)),
            Assign(Ref(found, (ONE,)), ZERO),
            For(shard.name, SHARDS, each, rolled=True, note="the rank that keeps the tile"),
            Let(_OWNER.name, Load(found, (ZERO,)), uniform=True),
            Let(_PLACE.name, tile_row * self._columns + Var(columns.name), uniform=True),
        )

    @property
    def _columns(self) -> Expr:
        """Tiles of a row of tiles, those of clusters' edges too."""
        return Scheduler(self.program).tile_counts[1] * neighbours(self.program, "n")

    def _part(self, source: Expr) -> Expr:
        """The number of the running team's part of the tile among all that a rank receives. source: that sends it."""
        rows, _ = Scheduler(self.program).tile_axes
        tile = source * (ceil_div(MOST_ROWS, rows.stride) * self._columns) + _PLACE
        return tile * self._groups + Var(GROUP) % self._groups if self._groups > 1 else tile

    def _flag(self, rank: Expr, source: Expr) -> Ref:
        return Ref(Buffer(PEERS + RANK_FLAGS, Space.GLOBAL, I32, (), of_ranks=True), (rank, self._part(source)))

    def _place_of(self, rank: Expr, source: Expr) -> Ref:
        """A vector of the running thread's part in the memory of a rank."""
        each = self._threads * self.sums.buffer.elements
        base = Binary(Op.MUL, Cast(I64, self._part(source)), Const(each, I64))
        inside = (Var(CHUNK) * self._threads + self._thread) * self._width
        buffer = Buffer(PEERS + RANK_SUMS, Space.GLOBAL, self.program.gemm.out, (), of_ranks=True)
        return Ref(buffer, (rank, Binary(Op.ADD, base, Cast(I64, inside))))

    @property
    def _width(self) -> int:
        return gcd(_VECTOR_BYTES // self.program.gemm.out.bytes, self.sums.buffer.elements)

    def _chunks(self, body: Body) -> Body:
        return (For(CHUNK, Const(self.sums.buffer.elements // self._width), body, unroll=True),)

    def _leave(self) -> Body:
        """A vector of sums goes to the rank that keeps the tile, in the format of C."""
        here, out = self._register(), self.program.gemm.out
        value = Ref(Buffer("part", Space.REGISTER, out, (self._width,)), (ZERO,))
        total: Expr = Load(here.buffer, here.index)
        total = total if total.dtype is out else Cast(out, total)
        rounded = Assign(Ref(value.buffer, (Var(ELEMENT),)), total, origin=self.sums.name)
        store = Move(self._place_of(_OWNER, OWN_RANK), value, self._width, origin=self.sums.name)
        return (Alloc(value.buffer), self._over_vector(rounded), store)

    def _add_part(self) -> Body:
        """A vector of another rank's part is added to the sums."""
        here, out = self._register(), self.program.gemm.out
        value = Buffer("part", Space.REGISTER, out, (self._width,))
        part: Expr = Load(value, (Var(ELEMENT),))
        total = Binary(Op.ADD, Load(here.buffer, here.index), part if out is F32 else Cast(F32, part))
        load = Move(Ref(value, (ZERO,)), self._place_of(OWN_RANK, _SOURCE), self._width, origin=self.sums.name)
        return (Alloc(value), load, self._over_vector(Assign(here, total, origin=self.sums.name)))


def part_elements(program: Program) -> int:
    """Elements of one part of a tile."""
    return program.block_tile("m") * program.block_tile("n")


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
