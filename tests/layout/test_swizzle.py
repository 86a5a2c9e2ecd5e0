"""Arrangements and hardware swizzles: bijections, without bank conflicts where they promise it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import ScheduleError
from tilewright.ir.expr import Lookup, Var
from tilewright.ir.visit import walk_expr
from tilewright.layout.arrangement import Interleaved, Permuted, Xor
from tilewright.layout.banks import matrix_wavefronts, wavefronts
from tilewright.layout.swizzle import SWIZZLE_128B, SWIZZLES, swizzle_of

arrangements = st.one_of(
    st.builds(Interleaved, st.integers(1, 16)),
    st.builds(Xor, bits=st.integers(0, 4), base=st.integers(0, 4), shift=st.integers(0, 3)),
)


tables = st.tuples(st.integers(1, 4), st.integers(1, 24)).flatmap(
    lambda shape: st.lists(st.permutations(range(shape[1])), min_size=shape[0], max_size=shape[0])
)
"""A table for each row."""


@given(arrangements, st.integers(1, 20), st.integers(1, 256))
def test_an_arrangement_permutes_each_row(arrangement, rows: int, columns: int) -> None:
    if arrangement.problem(rows, columns):
        return
    row, col = np.mgrid[:rows, :columns]
    places = arrangement.column(row, col, columns)
    assert (np.sort(places, axis=1) == np.arange(columns)).all()
    assert arrangement.column(rows - 1, columns - 1, columns) == places[-1, -1]  # integers as arrays


@given(arrangements, st.integers(1, 20), st.integers(1, 256))
def test_runs_stay_together_and_aligned(arrangement, rows: int, columns: int) -> None:
    run = arrangement.run(columns)
    if arrangement.problem(rows, columns) or columns % run:
        return
    row, col = np.mgrid[:rows, :columns]
    places = arrangement.column(row, col, columns).reshape(rows, -1, run)
    assert (places[:, :, 0] % run == 0).all()
    assert (places - places[:, :, :1] == np.arange(run)).all()


@given(tables)
def test_a_table_says_where_each_column_lies(rows: list[list[int]]) -> None:
    columns = len(rows[0])
    arrangement = Permuted(tuple(place for row in rows for place in row))
    assert arrangement.problem(7, columns) is None
    row, col = np.mgrid[:7, :columns]
    places = arrangement.column(row, col, columns)
    assert places.tolist() == [rows[r % len(rows)] for r in range(7)]
    assert [arrangement.column(5, c, columns) for c in range(columns)] == places[5].tolist()
    run = arrangement.run(columns)
    assert columns % run == 0
    for longer in (length for length in range(1, columns + 1) if columns % length == 0):
        chunks = places[: len(rows)].reshape(-1, longer)
        together = (chunks - chunks[:, :1] == np.arange(longer)).all() and (chunks[:, 0] % longer == 0).all()
        assert together == (run % longer == 0)


@given(arrangements, st.integers(0, 3), st.integers(0, 6))
def test_a_table_of_any_arrangement_is_that_arrangement(arrangement, log_rows: int, log_columns: int) -> None:
    rows, columns = 1 << log_rows, 1 << log_columns
    if arrangement.problem(rows, columns):
        return
    row, col = np.mgrid[:rows, :columns]
    places = arrangement.column(row, col, columns)
    table = Permuted(tuple(places.reshape(-1).tolist()))
    assert (table.column(row, col, columns) == places).all()
    # Of an expression no entry is read: bits of rows and columns are enough.
    if isinstance(arrangement, Xor) or arrangement.of & (arrangement.of - 1) == 0:
        r, c = Var("r"), Var("c")
        assert not any(isinstance(part, Lookup) for part in walk_expr(table.column(r, c, columns)))


@pytest.mark.parametrize(
    ("table", "columns", "problem"),
    [
        ([0, 1], 2, "the table of Permuted is a tuple of whole numbers"),
        ((), 2, "the table of Permuted is a tuple of whole numbers"),
        ((0, 1.0), 2, "the table of Permuted is a tuple of whole numbers"),
        ((False, True), 2, "the table of Permuted is a tuple of whole numbers"),
        ((0, 1, 2), 2, "a table of 3 places does not hold whole rows of 2"),
        ((0, 2, 2), 3, "the table is not a permutation of 0 to 2, because no column lies at 1"),
        ((0, 1, 1, 2), 2, "row 1 of the table is not a permutation of 0 to 1, because no column lies at 0"),
        ((0, -1), 2, "the table is not a permutation of 0 to 1, because no column lies at 1"),
    ],
)
def test_what_is_no_permutation_is_refused(table, columns: int, problem: str) -> None:
    assert Permuted(table).problem(4, columns) == problem


def test_interleaving_is_the_linearised_b_tile() -> None:
    """Worklog rung 7: element (k, 8q + r) of a 128-wide tile at (r + 8k) * 16 + q."""
    k, col = np.mgrid[:8, :128]
    q, r = col // 8, col % 8
    assert (k * 128 + Interleaved(8).column(k, col, 128) == (r + 8 * k) * 16 + q).all()


def test_interleaving_removes_the_conflicts_of_strided_reads() -> None:
    lane = np.arange(32)
    columns = (lane % 16) * 8  # sixteen threads, each at the first of its eight columns
    plain = wavefronts(columns[None] * 4, 4, store=False)
    dealt_out = wavefronts(Interleaved(8).column(0, columns, 128)[None] * 4, 4, store=False)
    assert (plain.tolist(), dealt_out.tolist()) == ([4], [1])


@pytest.mark.parametrize("swizzle", SWIZZLES, ids=lambda swizzle: swizzle.tensor_map)
def test_a_hardware_swizzle_is_its_own_inverse(swizzle) -> None:
    address = np.arange(4 * 1024)
    places = swizzle.apply(address)
    assert (np.sort(places) == address).all()
    assert (swizzle.apply(places) == address).all()
    repeat = swizzle.repeat_bytes
    assert (swizzle.apply(address + repeat) == places + repeat).all()
    assert (places // swizzle.row_bytes == address // swizzle.row_bytes).all()
    assert (places % 16 == address % 16).all()


@pytest.mark.parametrize("swizzle", SWIZZLES[1:], ids=lambda swizzle: swizzle.tensor_map)
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_the_arrangement_is_the_same_permutation(swizzle, element_bytes: int) -> None:
    columns = swizzle.row_bytes // element_bytes
    row, col = np.mgrid[:32, :columns]
    linear = row * swizzle.row_bytes + col * element_bytes
    arrangement = swizzle.arrangement(element_bytes)
    assert arrangement.problem(32, columns) is None
    placed = row * swizzle.row_bytes + arrangement.column(row, col, columns) * element_bytes
    assert (swizzle.apply(linear) == placed).all()


def test_eight_rows_of_a_swizzled_column_lie_in_different_banks() -> None:
    rows = np.arange(32)[None] * 128
    assert matrix_wavefronts(rows, 4).tolist() == [32]
    assert matrix_wavefronts(SWIZZLE_128B.apply(rows), 4).tolist() == [4]


def test_rows_that_no_swizzle_holds_are_refused() -> None:
    with pytest.raises(ScheduleError) as caught:
        swizzle_of(256)
    assert str(caught.value) == (
        "There is no hardware swizzle for rows of 256 bytes.\n"
        "  Note: TMA and wgmma permute 16-byte pieces within 32, 64 or 128 bytes\n"
        "  Hint: make the inner extent of the tile 32, 64 or 128 bytes, such as 64 elements of 2 bytes"
    )


def test_descriptors_name_a_swizzle_as_ptx_does() -> None:
    """PTX ISA, "matrix descriptor format" of wgmma: bits 62 and 63; the driver's enumeration has names for the same."""
    codes = {one.row_bytes: one.descriptor_code for one in SWIZZLES}
    assert codes == {16: 0, 128: 1, 64: 2, 32: 3}
    assert [one.tensor_map.rpartition("_")[2] for one in SWIZZLES] == ["NONE", "32B", "64B", "128B"]


@pytest.mark.parametrize("runs", [-1, 0, 1, 2, 3, 4, 6, 12, True, 2.0])
def test_columns_are_dealt_out_to_a_divisor_of_their_number(runs: Any) -> None:
    fits = type(runs) is int and runs in (1, 2, 3, 4, 6, 12)
    assert (Interleaved(runs).problem(5, 12) is None) == fits
    if fits:
        assert sorted(Interleaved(runs).column(0, column, 12) for column in range(12)) == list(range(12))
