"""Subtiles of an epilogue: which rows are filled without bank conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import (
    _excess,
    _places,
    _wavefronts_above,
    default_subtile,
    exchange_of,
    subtile_layout,
)
from tilewright.layout.fragment import Fragment, warpgroup_accumulator, warpgroup_accumulator_paired


def test_plain_rows_of_an_odd_number_of_units_have_no_conflicts_and_others_do() -> None:
    """A unit is 8 columns. What is counted are wavefronts above the fewest that could be."""
    assert [_excess(8 * units, 2, None) for units in (1, 3, 5)] == [0, 0, 0]
    assert all(_excess(8 * units, 2, None) > 0 for units in (2, 4, 8))
    assert [_excess(8 * units, 4, None) for units in (1, 2, 3, 5)] == [0, 0, 0, 0]
    assert all(_excess(8 * units, 4, None) > 0 for units in (4, 8))


SWAPPED = {"transposed": True}


@pytest.mark.parametrize(
    ("fragment", "columns", "row_bytes", "options", "exchanged", "two_way"),
    [
        (warpgroup_accumulator(32), 32, 128, {}, 8, 16),
        (warpgroup_accumulator(48), 16, 64, {}, 4, 8),
        (warpgroup_accumulator(64), 64, 32, {}, 0, 0),
        (warpgroup_accumulator(16), 64, 128, SWAPPED, 0, 0),
        (warpgroup_accumulator_paired(32), 32, 128, {}, 8, 16),
    ],
)
def test_an_exchange_of_the_order_of_stores_leaves_no_conflicts_of_4_byte_elements(
    fragment: Fragment, columns: int, row_bytes: int, options: dict[str, Any], exchanged: int, two_way: int
) -> None:
    """exchanged: registers apart; two_way: wavefronts too many of a warp without."""
    atoms = SwizzleAtoms(row_bytes // 4, row_bytes)
    found, left = exchange_of(fragment, columns, 4, atoms, **options)
    assert left == 0 and (found.registers if found else 0) == exchanged
    swapped = bool(options.get("transposed"))
    chunk = options.get("chunk", 16 if swapped else min(columns, 32))
    assert _wavefronts_above(fragment, columns, 4, atoms, None, chunk, swapped) == two_way


def test_single_elements_are_stored_in_the_order_of_registers() -> None:
    """Two-way conflicts, where an operand is read through registers under swap-AB."""
    atoms = SwizzleAtoms(32, 128)
    assert exchange_of(warpgroup_accumulator_paired(16), 64, 4, atoms, transposed=True) == (None, 8)


def test_boxes_of_4_byte_elements_are_as_wide_as_swizzle_atoms() -> None:
    """By boxes of 32 bytes a row C takes as long as by stores of a thread's own registers."""
    rows_of = {columns: subtile_layout(columns, 4) for columns in (16, 32, 64)}
    assert {columns: found.row_bytes if found else 0 for columns, found in rows_of.items()} == {
        16: 64,
        32: 128,
        64: 128,
    }
    assert [default_subtile(columns, 128, 4) for columns in (256, 192, 80, 136)] == [32, 32, 32, 32]
    assert [default_subtile(256, 256, 4, stages=stages) for stages in (1, 2)] == [32, 16]


@pytest.mark.parametrize("rows", [8, 16, 64])
@pytest.mark.parametrize("columns", [16, 32, 64, 128, 192])
@pytest.mark.parametrize("row_bytes", [None, 32, 64, 128])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_every_element_of_a_subtile_has_a_place_of_its_own(
    rows: int, columns: int, row_bytes: int | None, element_bytes: int
) -> None:
    """Atoms follow each other, each `rows` rows of its columns; a row of an atom holds its elements in some order."""
    atoms = None if row_bytes is None else SwizzleAtoms(row_bytes // element_bytes, row_bytes)
    wide = columns if atoms is None else atoms.columns
    columns = columns // wide * wide or wide
    row, column = (index.reshape(-1) for index in np.mgrid[:rows, :columns])
    places = _places(row, column, rows, columns, atoms)
    assert sorted(places.tolist()) == list(range(rows * columns))
    assert (places // wide == column // wide * rows + row).all()
