"""Tables of configurations: rows of tables that are kept, changed, put beside each other, with columns made late."""

from __future__ import annotations

import numpy as np

from tilewright.kernels.columns import Columns, Deferred


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
