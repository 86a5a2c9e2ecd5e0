"""Arrangements and hardware swizzles: bijections, without bank conflicts where they promise it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import ScheduleError
from tilewright.layout.arrangement import Interleaved, Xor
from tilewright.layout.banks import matrix_wavefronts, wavefronts
from tilewright.layout.swizzle import SWIZZLE_128B, SWIZZLES, swizzle_of

arrangements = st.one_of(
    st.builds(Interleaved, st.integers(1, 16)),
    st.builds(Xor, bits=st.integers(0, 4), base=st.integers(0, 4), shift=st.integers(0, 3)),
)


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
