"""Groups of ragged sizes, whose ends are known on the device only.

    along m   group g has the rows offsets[g - 1] .. offsets[g] of A and C, and a B of its own
    along k   group g has the k offsets[g - 1] .. offsets[g] of A and B, and a C of its own
    counted   group g has the rows g * capacity .. g * capacity + counts[g] of A and C, and a B of its own

Along m, each block counts the rows of tiles of all groups once, in shared memory, up to and including each group. A
work item finds its group there by bisection: groups without rows have no items. Along k, each group has all tiles of C,
also a group without k, whose C becomes that of an empty sum.

Offsets come from the device unseen. Each is limited to the rows (or the k) that there are. A group that ends before it
begins is empty, and along m one that begins before the end of another is empty as well, so that no two groups of a
launch share a row. So offsets that are negative, too large or not ascending have a result, and no access leaves a
matrix.

More groups along m than the table has room for are several launches, each of which begins at its own first group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.dtypes import I32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Ref, Select, Var, binary, both
from tilewright.ir.kernel import CAPACITY, FIRST_GROUP, GROUP_COUNTS, GROUP_ENDS, GROUPS, MOST_GROUPS, SIZES
from tilewright.ir.program import WARP_LANES
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, Let, Move, ShuffleAdd
from tilewright.lowering.coordinates import K_FIRST, K_SIZE, M_FIRST, M_SIZE, PROBLEM
from tilewright.problem.gemm import Dim
from tilewright.units import ceil_div

_NOTE = "rows of tiles up to and including each group"
TABLE = Buffer("rows_of_tiles", Space.SHARED, I32, (MOST_GROUPS,), ("group",), _NOTE)
TOTAL = Var("rows_of_all_groups")
_WARPS = MOST_GROUPS // WARP_LANES
"""Numbers that the groups of a warp have together."""

_ENDS = Buffer(GROUP_ENDS, Space.GLOBAL, I32, ())
_COUNTS = Buffer(GROUP_COUNTS, Space.GLOBAL, I32, ())


def _register(name: str) -> Buffer:
    return Buffer(name, Space.REGISTER, I32, (1,))


def _value(buffer: Buffer) -> Expr:
    return Load(buffer, (ZERO,))


def _end_of(number: Expr, of: str, dim: Dim, exists: Expr) -> tuple[Body, Expr]:
    """The load of where a group ends, and that limited to the matrices; 0 where there is none."""
    end = _register(of)
    load = Move(Ref(end, (ZERO,)), Ref(_ENDS, (number,)), guard=exists)
    return (Alloc(end), load), binary(Op.MIN, binary(Op.MAX, _value(end), 0), SIZES[dim])


def _span_of(group: Expr, of: str, dim: Dim, before: Expr = ZERO) -> tuple[Body, Expr, Expr]:
    """Loads of where a group begins and ends, and the two: 0 for a group that there is none of. before: groups of
    earlier launches."""
    exists, number = binary(Op.LT, group, GROUPS), before + group
    of_first, first = _end_of(number - 1, f"{of}_begins", dim, both(binary(Op.LT, 0, number), exists))
    of_last, last = _end_of(number, f"{of}_ends", dim, exists)
    return (*of_first, *of_last), first, last


def _length(first: Expr, last: Expr) -> Expr:
    """From a first index to the one behind the last; 0 where that lies before."""
    return Binary(Op.SUB, binary(Op.MAX, last, first), first)


@dataclass(frozen=True)
class GroupsAlongM:
    """The statements that count the tiles of groups and find that of an item.

    threads, thread: of a block, and the number of the running one. rows_of: rows of tiles for rows of C. counted:
    groups have counts, and a capacity of rows.
    """

    threads: int
    thread: Expr
    rows_of: Callable[[Expr], Expr]
    counted: bool = False

    def prepare(self) -> Body:
        """All threads of a block: the table, and how many rows of tiles there are in all."""
        names = ("begins", "length", "largest", "rows")
        first, length, largest, rows = (Buffer(f"group_{name}", Space.REGISTER, I32, (self._passes,)) for name in names)
        here = (Var("group_pass"),)

        def load(group: Expr, _: Expr | None) -> Body:
            loads, begins, ends = self._span(group, "own")
            before = Select(binary(Op.LT, 0, group), Load(first, here), ZERO)  # where the group before ends
            checked = () if self.counted else (Assign(Ref(first, here), begins), Assign(Ref(largest, here), before))
            return (*loads, *checked, Assign(Ref(length, here), _length(begins, ends)))

        def count(group: Expr, _: Expr | None) -> Body:
            ascends = None if self.counted else binary(Op.LE, Load(largest, here), Load(first, here))
            own = Load(length, here) if ascends is None else Select(ascends, Load(length, here), ZERO)
            return (Assign(Ref(rows, here), self.rows_of(own)),)

        def store(group: Expr, inside: Expr | None) -> Body:
            return (Move(Ref(TABLE, (group,)), Ref(rows, here), guard=inside),)

        registers = (length, rows) if self.counted else (first, length, largest, rows)
        return (
            *map(Alloc, registers),
            *self._each(load),
            *(() if self.counted else self._scan(largest, Op.MAX, 0)),
            *self._each(count),
            *self._scan(rows, Op.ADD, _WARPS),
            Barrier("the results of all warps have been read"),
            *self._each(store),
            Barrier("rows_of_tiles is complete"),
            Alloc(total := _register("group_total")),
            Move(Ref(total, (ZERO,)), Ref(TABLE, (GROUPS - 1,)), guard=binary(Op.LT, 0, GROUPS)),
            Let(TOTAL.name, _value(total)),
        )

    @property
    def _passes(self) -> int:
        return ceil_div(MOST_GROUPS, self.threads)

    def _each(self, one: Callable[[Expr, Expr | None], Body]) -> Body:
        """`one` for each group that is the running thread's, with the condition that the table has it."""
        group = Var("group_pass") * self.threads + self.thread
        inside = binary(Op.LT, group, MOST_GROUPS) if MOST_GROUPS % self.threads else None
        return (For("group_pass", Const(self._passes), one(group, inside), unroll=True),)

    def _span(self, group: Expr, of: str) -> tuple[Body, Expr, Expr]:
        """As `_span_of`; of groups with counts, which are limited to the capacity."""
        if not self.counted:
            return _span_of(group, of, "m", FIRST_GROUP)
        count, number = _register(f"{of}_count"), FIRST_GROUP + group
        load = Move(Ref(count, (ZERO,)), Ref(_COUNTS, (number,)), guard=binary(Op.LT, group, GROUPS))
        first = number * CAPACITY
        limited = binary(Op.MIN, binary(Op.MAX, _value(count), 0), CAPACITY)
        return (Alloc(count), load), first, first + limited

    def _scan(self, values: Buffer, op: Op, first: int) -> Body:
        """Each group's number becomes the sum of those up to it, or the largest: within warps, then of those before,
        whose numbers meet in the table. first: of its entries for that."""
        here, warp = Ref(values, (Var("group_pass"),)), Var("warp_of_groups")
        before = _register("warps_before")

        def within(group: Expr, inside: Expr | None) -> Body:
            last = both(binary(Op.EQ, group % WARP_LANES, WARP_LANES - 1), inside)
            powers = (1 << bit for bit in range(WARP_LANES.bit_length() - 1))
            steps = (ShuffleAdd(here, apart, origin=values.name, op=op, up=True) for apart in powers)
            return (*steps, Move(Ref(TABLE, (first + group // WARP_LANES,)), here, guard=last))

        def across(group: Expr, _: Expr | None) -> Body:
            is_before = binary(Op.LT, warp, group // WARP_LANES)
            combined = Assign(here, Binary(op, Load(values, here.index), _value(before)))
            load = Move(Ref(before, (ZERO,)), Ref(TABLE, (first + warp,)), guard=is_before)
            return (For(warp.name, (GROUPS + WARP_LANES - 1) // WARP_LANES, (Alloc(before), load, combined)),)

        return (*self._each(within), Barrier("the results of all warps are stored"), *self._each(across))

    def find(self, item: Expr, columns: Expr) -> tuple[Body, Expr]:
        """Names the group of an item, and where its rows are; the number of its tile in the group."""
        group, entry, before = _register("group_found"), _register("group_entry"), _register("group_before")
        row = Var("row_of_tiles")
        bit = Var("group_bit")
        steps = MOST_GROUPS.bit_length() - 1
        stride = binary(Op.SHR, Const(MOST_GROUPS // 2), bit)
        further = Binary(Op.ADD, _value(group), stride)
        exists = binary(Op.LE, further, GROUPS)
        passes = both(exists, binary(Op.LE, _value(entry), row))
        search = For(
            bit.name,
            Const(steps),
            (
                Alloc(entry),
                Move(Ref(entry, (ZERO,)), Ref(TABLE, (further - 1,)), guard=exists),
                Assign(Ref(group, (ZERO,)), Select(passes, further, _value(group))),
            ),
            unroll=True,
        )
        load, first, last = self._span(_value(group), "rows")
        body: Body = (
            Let(row.name, item // columns, "of tiles, among those of all groups"),
            Alloc(group),
            Assign(Ref(group, (ZERO,)), ZERO),
            search,
            Alloc(before),
            Move(Ref(before, (ZERO,)), Ref(TABLE, (_value(group) - 1,)), guard=binary(Op.LT, 0, _value(group))),
            *load,
            Let(PROBLEM.name, FIRST_GROUP + _value(group)),
            Let(M_FIRST.name, first, "the group's rows"),
            Let(M_SIZE.name, _length(M_FIRST, last)),
        )
        return body, item - _value(before) * columns


def locate_along_k(group: Expr) -> Body:
    """Names the group of an item and its range of k."""
    load, first, last = _span_of(PROBLEM, "k", "k")
    return (
        Let(PROBLEM.name, group),
        *load,
        Let(K_FIRST.name, first, "the group's range of k"),
        Let(K_SIZE.name, _length(K_FIRST, last)),
    )
