"""Ranges of k tiles of the blocks of a persistent kernel whose whole waves have a tile per block (`Walk.HYBRID`).

    tiles of C     0 .. streamed          those that fill no wave, and those of one wave
                   streamed .. count      whole waves
    blocks         equal ranges of the k tiles of the first ones, the last tile of each first; then a tile of each wave

No range is shorter than the k of a tile where there are as many tiles as blocks, so that two blocks at most share one.
A block writes what it has of the last tile of its range at once, and comes to the first one at the end, whose first
part the block before it wrote at the start: nobody waits. All blocks begin at k = 0, and are never further apart than
what a range is longer than a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import I32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Const, Expr, Load, Op, Ref, Select, Var, binary
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, If, Let, Move

STREAMED_ITEMS, ITEMS = Var("streamed_items"), Var("items_of_block")
"""How many tiles the running block's range has a part of, to which it comes first; and all of its items."""

IN_STEP = 12
"""Blocks with neighbouring tiles that have the same range of k, and read the same at a time: a divisor of 132 SMs. With
every block a range of its own 17 large products took 1.06 to 1.4 times as long (H200, record 0087)."""

_FIRST, _END, _LAST_TILE, _TOGETHER, _STREAMED, _WHOLE, _ITEMS = _ENTRIES = (
    *("first", "end", "last_tile", "together", "streamed", "whole", "items"),
)
_RANGE = Buffer("k_range", Space.SHARED, I32, (len(_ENTRIES),), ("entry",), "of this block, in the first tiles")


@dataclass(frozen=True, slots=True)
class PartOfTile:
    """The k tiles of an item: the first, the one behind the last, and how many the block has summed before."""

    first: Expr
    end: Expr
    uses: Expr


@dataclass(frozen=True, slots=True)
class RangesOfBlocks:
    """The statements that find the range of the running block, and its items. Blocks are clusters, where there are any.

    thread: the number of the running one. count: tiles of C. blocks, own: how many there are, and the running one.
    k_tiles: of a tile. cluster: blocks that have neighbouring tiles, and start together, already.
    """

    thread: Expr
    count: Expr
    blocks: Expr
    own: Expr
    k_tiles: Expr
    cluster: int

    @property
    def streamed(self) -> Expr:
        """Tiles whose k tiles are shared out."""
        waves, left = binary(Op.DIV, self.count, self.blocks), binary(Op.MOD, self.count, self.blocks)
        with_one = left + Select(binary(Op.LT, 0, waves), self.blocks, ZERO)
        return Select(binary(Op.LT, 0, left), with_one, ZERO)

    def prepare(self) -> Body:
        """One thread finds the range, and all read it where they have an item: it would cost each role registers."""
        last, tiles, together = Var("last_of_range"), Var("tiles_of_range"), Var("together")
        values = {
            _FIRST: Var("range_first") - last * self.k_tiles,
            _END: Var("range_end") - last * self.k_tiles,
            _LAST_TILE: last * together + self.own % together,
            _TOGETHER: together,
            _STREAMED: tiles,
            _WHOLE: self.streamed + self.own,
            _ITEMS: Select(
                binary(Op.LT, self.own, self.blocks),
                tiles + strided_count(self.blocks, self.own, self.count - self.streamed),
                ZERO,
            ),
        }
        found = Buffer("of_range", Space.REGISTER, I32, (len(values),))
        find: Body = (
            *self._range(last, tiles, together),
            Alloc(found),
            *(Assign(Ref(found, (Const(at),)), of) for at, of in enumerate(values.values())),
            *(Move(_entry(name), Ref(found, (Const(at),))) for at, name in enumerate(values)),
        )
        count = Buffer("items_found", Space.REGISTER, I32, (1,))
        return (
            If(binary(Op.EQ, self.thread, 0), find),
            Barrier("the range of k tiles is found"),
            Alloc(count),
            Move(Ref(count, (ZERO,)), _entry(_ITEMS)),
            Let(ITEMS.name, Load(count, (ZERO,))),
        )

    def _range(self, last: Var, tiles: Var, together: Var) -> Body:
        """Names the range, in k tiles of units of as many neighbouring tiles as blocks run in step: a block whose unit
        is cut off ends with its last tile; the unit in which the range ends; and how many units it has a part of."""
        several = binary(Op.LE, self.blocks, self.count)
        in_step = binary(Op.MIN, self.blocks, max(1, IN_STEP // self.cluster))
        units, first, end = Var("units"), Var("range_first"), Var("range_end")
        sharing = binary(Op.MAX, binary(Op.DIV, self.blocks, together), 1)
        each, left = (binary(op, units * self.k_tiles, sharing) for op in (Op.DIV, Op.MOD))

        def before(number: Expr) -> Expr:
            own = ceil_div_by(binary(Op.MAX, self.streamed - self.own % together, 0), together)
            return binary(Op.MIN, number * each + binary(Op.MIN, number, left), own * self.k_tiles)

        touched = last - binary(Op.DIV, first, self.k_tiles) + 1
        return (
            Let(together.name, Select(several, in_step, ONE), "blocks that run in step"),
            Let(units.name, ceil_div_by(self.streamed, together)),
            Let(first.name, before(self.own // together), "k tiles of this block in tiles that fill no wave"),
            Let(end.name, before(self.own // together + 1)),
            Let(last.name, binary(Op.DIV, binary(Op.MAX, end - 1, 0), self.k_tiles)),
            Let(tiles.name, Select(binary(Op.LT, first, end), touched, ZERO)),
        )

    def item(self, number: Expr) -> tuple[Body, Expr, PartOfTile]:
        """Statements in front of an item, its tile of C, and its part of k: of the last tile of the range first, behind
        the range that of each wave."""
        names = _ENTRIES[:-1]
        found = Buffer("range_found", Space.REGISTER, I32, (len(names),))
        values = [Load(found, (Const(at),)) for at in range(len(names))]
        first, end, tile, together, streamed, whole = values
        k_tiles, part_first, part_end = Var("k_tiles"), Var("tile_first"), Var("tile_end")
        of_range, on, later = binary(Op.LT, number, STREAMED_ITEMS), number * k_tiles, number - STREAMED_ITEMS
        statements: Body = (
            Alloc(found),
            *(Move(Ref(found, (Const(at),)), _entry(name)) for at, name in enumerate(names)),
            Let(k_tiles.name, self.k_tiles, "of a tile of C"),
            Let(STREAMED_ITEMS.name, streamed),
            Let(part_first.name, Select(of_range, binary(Op.MAX, first + on, 0), ZERO)),
            Let(part_end.name, Select(of_range, binary(Op.MIN, end + on, k_tiles), k_tiles)),
        )
        uses = Select(of_range, end + on - part_end, end - first + later * k_tiles)
        at = Select(of_range, tile - number * together, whole + later * self.blocks)
        return statements, at, PartOfTile(part_first, part_end, uses)


def _entry(name: str) -> Ref:
    return Ref(_RANGE, (Const(_ENTRIES.index(name)),))


def ceil_div_by(a: Expr, b: Expr) -> Expr:
    """`ceil(a / b)` for a value known when the kernel is launched."""
    return binary(Op.DIV, a + b - 1, b)


def strided_count(step: Expr | int, first: Expr, count: Expr) -> Expr:
    """How many numbers below `count` there are from `first` on, `step` apart; first < count + step."""
    return binary(Op.DIV, count - first + (step - 1), step)
