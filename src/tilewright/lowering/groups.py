"""Groups of ragged sizes, whose ends are known on the device only.

    along m   group g has the rows offsets[g - 1] .. offsets[g] of A and C, and a B of its own
    along k   group g has the k offsets[g - 1] .. offsets[g] of A and B, and a C of its own

Along m, each block counts the rows of tiles of all groups once, in shared memory, up to and including each group. A
work item finds its group there by bisection: groups without rows have no items. Along k, each group has all tiles of C,
also a group without k, whose C becomes that of an empty sum.

More groups along m than the table has room for are several launches, each of which begins at its own first group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.dtypes import I32
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Select, Var, binary, both
from tilewright.ir.kernel import FIRST_GROUP, GROUP_ENDS, GROUPS, MOST_GROUPS
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, Let, Move, Stmt
from tilewright.lowering.located import K_FIRST, K_SIZE, M_FIRST, M_SIZE, PROBLEM
from tilewright.units import ceil_div

TABLE = Buffer("rows_of_tiles", Space.SHARED, I32, (MOST_GROUPS,), ("group",), "up to and including each group")
TOTAL = Var("rows_of_all_groups")
_ENDS = Buffer(GROUP_ENDS, Space.GLOBAL, I32, ())


def _register(name: str) -> Buffer:
    return Buffer(name, Space.REGISTER, I32, (1,))


def _value(buffer: Buffer) -> Expr:
    return Load(buffer, (ZERO,))


def _ends_of(group: Expr, of: str, before: Expr = ZERO) -> tuple[Body, Expr, Expr]:
    """Loads of where a group begins and ends, and the two; 0 for a group that there is none of. before: groups of
    earlier launches."""
    first, last = _register(f"{of}_begins"), _register(f"{of}_ends")
    exists = binary(Op.LT, group, GROUPS)
    number = before + group
    body: Body = (
        Alloc(first),
        Alloc(last),
        Move(Ref(first, (ZERO,)), Ref(_ENDS, (number - 1,)), guard=both(binary(Op.LT, 0, number), exists)),
        Move(Ref(last, (ZERO,)), Ref(_ENDS, (number,)), guard=exists),
    )
    return body, _value(first), _value(last)


@dataclass(frozen=True)
class GroupsAlongM:
    """The statements that count the tiles of groups and find that of an item.

    threads, thread: of a block, and the number of the running one. rows_of: rows of tiles for rows of C.
    """

    threads: int
    thread: Expr
    rows_of: Callable[[Expr], Expr]

    def prepare(self) -> Body:
        """All threads of a block: the table, and how many rows of tiles there are in all."""
        stmts: list[Stmt] = list(self._each(self._own_rows))
        apart = 1
        while apart < MOST_GROUPS:
            stmts += self._add(apart)
            apart *= 2
        total = _register("group_total")
        stmts += [
            Barrier("the rows of tiles are counted"),
            Alloc(total),
            Move(Ref(total, (ZERO,)), Ref(TABLE, (GROUPS - 1,)), guard=binary(Op.LT, 0, GROUPS)),
            Let(TOTAL.name, _value(total)),
        ]
        return tuple(stmts)

    @property
    def _passes(self) -> int:
        return ceil_div(MOST_GROUPS, self.threads)

    def _each(self, one: Callable[[Expr, Expr | None], Body]) -> Body:
        """`one` for each group that is the running thread's, with the condition that the table has it."""
        group = Var("group_pass") * self.threads + self.thread
        inside = binary(Op.LT, group, MOST_GROUPS) if MOST_GROUPS % self.threads else None
        return (For("group_pass", Const(self._passes), one(group, inside), unroll=True),)

    def _own_rows(self, group: Expr, inside: Expr | None) -> Body:
        load, first, last = _ends_of(group, "group", FIRST_GROUP)
        rows = _register("group_rows")
        assign = Assign(Ref(rows, (ZERO,)), self.rows_of(Binary(Op.SUB, last, first)))
        return (*load, Alloc(rows), assign, Move(Ref(TABLE, (group,)), Ref(rows, (ZERO,)), guard=inside))

    def _add(self, apart: int) -> Body:
        """Each entry gets that of `apart` groups before it added."""
        name = f"sum_of_{2 * apart}"
        sums = Buffer(name, Space.REGISTER, I32, (self._passes,))
        before = _register("rows_before")
        number = Var("group_pass")

        def load(group: Expr, inside: Expr | None) -> Body:
            here = Ref(sums, (number,))
            there = binary(Op.LE, apart, group)
            return (
                Move(here, Ref(TABLE, (group,)), guard=inside),
                Alloc(before),
                Move(Ref(before, (ZERO,)), Ref(TABLE, (group - apart,)), guard=both(there, inside)),
                Assign(here, Binary(Op.ADD, Load(sums, (number,)), _value(before))),
            )

        def store(group: Expr, inside: Expr | None) -> Body:
            return (Move(Ref(TABLE, (group,)), Ref(sums, (number,)), guard=inside),)

        return (
            Barrier("all have counted so far"),
            Alloc(sums),
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
        load, first, last = _ends_of(_value(group), "rows", FIRST_GROUP)
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
            Let(M_SIZE.name, Binary(Op.SUB, last, first)),
        )
        return body, item - _value(before) * columns


def locate_along_k(group: Expr) -> Body:
    """Names the group of an item and its range of k."""
    load, first, last = _ends_of(PROBLEM, "k")
    return (
        Let(PROBLEM.name, group),
        *load,
        Let(K_FIRST.name, first, "the group's range of k"),
        Let(K_SIZE.name, Binary(Op.SUB, last, first)),
    )
