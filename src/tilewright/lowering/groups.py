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
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Select, Var, binary, both
from tilewright.ir.kernel import CAPACITY, FIRST_GROUP, GROUP_COUNTS, GROUP_ENDS, GROUPS, MOST_GROUPS, SIZES
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Let, Move, Stmt
from tilewright.lowering.located import K_FIRST, K_SIZE, M_FIRST, M_SIZE, PROBLEM
from tilewright.problem.gemm import Dim
from tilewright.units import ceil_div

TABLE = Buffer("rows_of_tiles", Space.SHARED, I32, (MOST_GROUPS,), ("group",), "up to and including each group")
TOTAL = Var("rows_of_all_groups")
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
        total, rows = _register("group_total"), Buffer("group_rows", Space.REGISTER, I32, (self._passes,))
        here = Ref(rows, (Var("group_pass"),))

        def store(group: Expr, inside: Expr | None) -> Body:
            return (Move(Ref(TABLE, (group,)), here, guard=inside),)

        largest = (*self._each(self._own_end), *self._scan(Op.MAX), Barrier("the largest ends up to each group"))
        return (
            *(() if self.counted else largest),
            Alloc(rows),
            *self._each(lambda group, inside: self._own_rows(here, group, inside)),
            *(() if self.counted else (Barrier("all have read the largest ends"),)),
            *self._each(store),
            *self._scan(Op.ADD),
            Barrier("the rows of tiles are counted"),
            Alloc(total),
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

    def _own_end(self, group: Expr, inside: Expr | None) -> Body:
        load, end = _end_of(FIRST_GROUP + group, "own_end", "m", binary(Op.LT, group, GROUPS))
        value = _register("group_end")
        assign = Assign(Ref(value, (ZERO,)), end)
        return (*load, Alloc(value), assign, Move(Ref(TABLE, (group,)), Ref(value, (ZERO,)), guard=inside))

    def _own_rows(self, rows: Ref, group: Expr, inside: Expr | None) -> Body:
        """Rows of tiles of a group; none where it begins before the largest end of those before it."""
        load, first, last = self._span(group, "group")
        if self.counted:
            return (*load, Assign(rows, self.rows_of(_length(first, last))))
        largest = _register("largest_end")
        there = both(binary(Op.LT, 0, group), inside)
        ascends = binary(Op.LE, _value(largest), first)
        return (
            *load,
            Alloc(largest),
            Move(Ref(largest, (ZERO,)), Ref(TABLE, (group - 1,)), guard=there),
            Assign(rows, self.rows_of(Select(ascends, _length(first, last), ZERO))),
        )

    def _span(self, group: Expr, of: str) -> tuple[Body, Expr, Expr]:
        """As `_span_of`; of groups with counts, which are limited to the capacity."""
        if not self.counted:
            return _span_of(group, of, "m", FIRST_GROUP)
        count, number = _register(f"{of}_count"), FIRST_GROUP + group
        load = Move(Ref(count, (ZERO,)), Ref(_COUNTS, (number,)), guard=binary(Op.LT, group, GROUPS))
        first = number * CAPACITY
        limited = binary(Op.MIN, binary(Op.MAX, _value(count), 0), CAPACITY)
        return (Alloc(count), load), first, first + limited

    def _scan(self, op: Op) -> Body:
        """Each entry becomes the sum, or the largest, of those up to it."""
        stmts: list[Stmt] = []
        apart = 1
        while apart < MOST_GROUPS:
            stmts.append(If(binary(Op.LT, apart, GROUPS), self._combine(op, apart)))
            apart *= 2
        return tuple(stmts)

    def _combine(self, op: Op, apart: int) -> Body:
        """Each entry with that of `apart` groups before it."""
        found = Buffer(f"{'sum' if op is Op.ADD else 'largest'}_of_{2 * apart}", Space.REGISTER, I32, (self._passes,))
        before = _register("entry_before")
        number = Var("group_pass")

        def load(group: Expr, inside: Expr | None) -> Body:
            here = Ref(found, (number,))
            there = both(binary(Op.LE, apart, group), inside)
            both_of_them = Binary(op, Load(found, (number,)), _value(before))
            return (
                Move(here, Ref(TABLE, (group,)), guard=inside),
                Alloc(before),
                Move(Ref(before, (ZERO,)), Ref(TABLE, (group - apart,)), guard=there),
                Assign(here, both_of_them),
            )

        def store(group: Expr, inside: Expr | None) -> Body:
            return (Move(Ref(TABLE, (group,)), Ref(found, (number,)), guard=inside),)

        return (
            Barrier("all have their entries"),
            Alloc(found),
            *self._each(load),
            Barrier("all have read"),
            *self._each(store),
        )

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
