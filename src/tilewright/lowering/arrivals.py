"""Rows of A that arrive shard by shard while the kernel runs: the producer waits for those of a tile before its loads.

    for each shard of which the tile has rows    wait for the shard's flag
    fence                                        what was waited for comes before the loads by TMA

Whoever writes a shard sets its flag to 1 behind the rows: copy engines, or a kernel of another GPU. Nothing here
resets a flag: all tiles of all blocks wait for the same ones.
"""

from __future__ import annotations

from tilewright.dtypes import I32
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import FenceProxy, Scope, WaitFlag
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Expr, Load, Op, Ref, Var, binary, both
from tilewright.ir.kernel import SHARD_FLAGS, SHARD_STARTS, SHARDS
from tilewright.ir.program import Axis, Program, Route
from tilewright.ir.stmt import Alloc, Body, For, If, Move
from tilewright.ir.work import Problems, SplitK, Walk

_SHARD = Var("shard")


def wait_for_rows(rows: Axis) -> Body:
    """One thread waits for all shards of which the running tile has rows. rows: the digit that counts rows of tiles."""
    starts, flags = (Buffer(name, Space.GLOBAL, I32, ()) for name in (SHARD_STARTS, SHARD_FLAGS))
    bounds = Buffer("shard_rows", Space.REGISTER, I32, (2,))
    begin, end = (Load(bounds, (place,)) for place in (ZERO, ONE))
    first = Var(rows.name) * rows.stride
    overlaps = both(binary(Op.LT, begin, first + rows.stride), binary(Op.LT, first, end))
    assert overlaps is not None
    each: Body = (
        Alloc(bounds),
        Move(Ref(bounds, (ZERO,)), Ref(starts, (_SHARD,))),
        Move(Ref(bounds, (ONE,)), Ref(starts, (_SHARD + 1,))),
        If(overlaps, (WaitFlag(Ref(flags, (_SHARD,)), ONE, scope=Scope.SYSTEM),)),
    )
    return (For(_SHARD.name, SHARDS, each, rolled=True, note="shards of A"), FenceProxy(Space.GLOBAL))


def from_row(tile_row: Expr, tile_rows: Expr, first: Expr) -> Expr:
    """The row of tiles that comes after `tile_row` others, where row `first` comes first: in a circle."""
    return binary(Op.MOD, tile_row + first, tile_rows)


def check_arrivals(program: Program) -> None:
    """Raise LoweringError for a program that cannot wait for rows of A."""
    by_tma = any(one.operand == "A" and one.route is Route.TMA for one in program.staged)
    if program.walk is not Walk.PERSISTENT or program.specialized is None or program.raster is None or not by_tma:
        raise LoweringError(
            "Only a persistent kernel whose producer loads A by TMA can wait for rows of A.",
            note="the producer waits while consumers multiply, and the order of tiles is that of arrival.",
            hint="a schedule of wgmma with Specialize(...), Raster(...) and Persist().",
        )
    if program.problems is not Problems.ONE or program.split_k is not SplitK.NONE:
        raise LoweringError(
            f"Rows of A can arrive in a product of one problem, and this is {program.problems.value}, "
            f"split-K {program.split_k.value}.",
            hint="leave problems and split_k out.",
        )
