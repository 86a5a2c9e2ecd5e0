"""Tables of configurations: rows of tables that are kept, changed, put beside each other, with columns made late."""

from __future__ import annotations

import numpy as np

from tilewright.kernels.columns import Columns, Deferred, has_column
from tilewright.kernels.simt import SimtConfig


def kept(*values: int) -> Columns:
    return Columns({"m": np.array(values), "n": np.ones(len(values), dtype=np.int64)}).kept()


def test_rows_of_a_changed_table_have_what_was_given_since() -> None:
    changed: list[int] = []

    def twice(whole: Columns) -> Columns:
        changed.append(len(whole))
        return whole.with_columns(m=2 * whole.m)

    table = kept(8, 16, 32)
    for _ in range(2):
        rows = table[[2, 0]].with_columns(split_k=np.array([3, 1])).in_table("twice", twice)
        assert (rows.m.tolist(), rows.n.tolist(), rows.split_k.tolist()) == ([64, 16], [1, 1], [3, 1])
        assert rows.fact("sum", lambda whole: whole.m + whole.n).tolist() == [65, 17]
    assert changed == [3]


def test_rows_of_two_tables_beside_each_other_are_rows_of_one() -> None:
    first, second = kept(8, 16, 32), kept(64, 128)
    found = []
    for _ in range(2):
        joint = first[[2, 1]].with_columns(tiles=np.array([5, 6])).beside(second[[1]].with_columns(tiles=np.array([7])))
        assert (joint.m.tolist(), joint.tiles.tolist()) == ([32, 16, 128], [5, 6, 7])
        found.append(joint.table)
    assert found[0] is found[1] is not None
    assert Columns({"m": np.array([1])}).beside(second).m.tolist() == [1, 64, 128]


def test_a_deferred_column_is_made_of_the_rows_that_are_left() -> None:
    asked: list[int] = []

    def half(c: Columns) -> list[int]:
        asked.append(len(c))
        return (c.m // 2).tolist()

    table = kept(8, 16, 32).with_columns(half=Deferred(half))
    joint = table[[0, 2]].beside(table[[1]])
    assert not asked
    assert list(joint[[1]].half) == [16] and asked == [1]


def test_facts_of_a_kept_table_are_columns_of_its_rows_found_once() -> None:
    found: list[int] = []

    def facts(whole: Columns) -> dict[str, object]:
        found.append(len(whole))
        return {"half": whole.m / 2, "same": 7.0}

    table = kept(8, 16, 32)
    for rows, halves in (([2, 0], [16, 4]), ([1], [8])):
        c = table[rows].with_facts("facts", facts)
        assert (c.half.tolist(), c.same.tolist()) == (halves, [7.0] * len(rows))
    assert found == [3] and "half" not in table
    given = table[[1, 2]].with_columns(half=np.array([1, 2])).with_facts("facts", facts)
    assert given[[1]].m.tolist() == [32]


def test_facts_of_few_and_of_many_rows_are_the_same() -> None:
    table = kept(*range(1, 2001))
    facts = lambda whole: {"half": whole.m / 2, "odd": whole.m % 2 > 0}  # noqa: E731
    few, many = np.array([3, 1999]), np.arange(0, 2000, 2)
    for rows in (few, many):
        c = table[rows].with_facts("facts", facts)
        assert np.array_equal(c.half, (rows + 1) / 2) and np.array_equal(c.odd, (rows + 1) % 2)
        assert np.array_equal(c[[1, 0]].m, rows[[1, 0]] + 1)


def test_values_of_one_row_are_those_of_its_columns() -> None:
    given = kept(8, 16, 32)[[2, 0]].with_columns(split_k=np.array([3, 4]), late=Deferred(lambda c: c.m + 1))
    names = ["m", "n", "split_k", "late"]
    for table in (given, given[[1, 1, 0]], kept(8, 16).with_columns(split_k=np.array([1, 2]), late=np.array([5, 6]))):
        for row in range(len(table)):
            told = table.values(row, names)
            assert told == {name: getattr(table, name)[row] for name in names}
            assert all(type(value) is int for value in told.values())


def test_what_columns_there_are() -> None:
    table = kept(8, 16)
    rows = table[[1]].with_columns(late=Deferred(lambda c: c.m), split_k=np.array([2]))
    assert all(name in rows for name in ("m", "late", "split_k")) and "stages" not in rows
    assert has_column(rows, "m") and not has_column(rows, "stages")
    assert has_column(SimtConfig(), "stages") and not has_column(SimtConfig(), "ping_pong")
