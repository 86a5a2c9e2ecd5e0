"""The order of tiles in a kernel whose ranks share out k: those of each rank's rows are a run of their own.

The rows of the next ranks come first, one rank after the other, and own rows last. Inside a run tiles are rasterised
as if there were no other rows, so that the number of a tile in its run is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import I32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Binary, Const, Expr, Load, Op, Ref, Var, binary, both
from tilewright.ir.kernel import OWN_RANK, SHARD_STARTS, SHARDS
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move

OWNER, IN_RUN = Var("owner"), Var("number_in_run")
"""The rank that keeps the running tile, and the tile's number among those of its rows (of clusters, where there are
any)."""

FIRST_OF_RUN, ROWS_OF_RUN = Var("first_of_run"), Var("rows_of_run")
"""The first row of tiles of the run, and how many it has, of clusters where there are any."""


def locate_run(number: Expr, rows_of: Callable[[Expr], Expr], columns: Expr) -> Body:
    """Names the run of a tile. number: among all tiles. rows_of: rows of tiles that cover so many rows of C; those of
    each rank begin with a whole one. columns: of tiles."""
    bounds = Buffer("run_rows", Space.REGISTER, I32, (2,))
    found = Buffer("run", Space.REGISTER, I32, (4,), note="owner, number of the tile, first row of tiles, rows of them")
    left = Buffer("tiles_left", Space.REGISTER, I32, (1,))
    starts, rank, rows, distance = (
        Buffer(SHARD_STARTS, Space.GLOBAL, I32, ()),
        Var("rank_of_run"),
        Var("run_tiles"),
        Var("distance"),
    )
    here = Load(left, (ZERO,))
    begin, end = (Load(bounds, (place,)) for place in (ZERO, ONE))
    inside = both(binary(Op.LE, 0, here), binary(Op.LT, here, rows * columns))
    assert inside is not None

    def of_run(place: int) -> Ref:
        return Ref(found, (Const(place),))

    take = tuple(Assign(of_run(i), one) for i, one in enumerate((rank, here, rows_of(begin), rows)))
    each: Body = (
        Let(rank.name, binary(Op.MOD, OWN_RANK + 1 + distance, SHARDS)),
        Alloc(bounds),
        Move(Ref(bounds, (ZERO,)), Ref(starts, (rank,))),
        Move(Ref(bounds, (ONE,)), Ref(starts, (rank + 1,))),
        Let(rows.name, rows_of(Binary(Op.SUB, end, begin))),
        If(inside, take),
        Assign(Ref(left, (ZERO,)), Binary(Op.SUB, here, rows * columns)),
    )
    return (
        Alloc(left),
        Assign(Ref(left, (ZERO,)), number),
        Alloc(found),
        *(Assign(of_run(i), ZERO) for i in range(4)),
        For(distance.name, SHARDS, each, rolled=True, note="the rank whose rows the tile has"),
        *(
            Let(name.name, Load(found, (Const(i),)))
            for i, name in enumerate((OWNER, IN_RUN, FIRST_OF_RUN, ROWS_OF_RUN))
        ),
    )
