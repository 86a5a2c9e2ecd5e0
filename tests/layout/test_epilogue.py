"""Subtiles of an epilogue: which rows are filled without bank conflicts."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import _excess, _places


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_plain_rows_of_an_odd_number_of_units_have_no_conflicts_and_others_do(element_bytes: int) -> None:
    """A unit is 8 columns. What is counted are wavefronts above the fewest that could be."""
    assert [_excess(8 * units, element_bytes, None) for units in (1, 3, 5)] == [0, 0, 0]
    assert all(_excess(8 * units, element_bytes, None) > 0 for units in (2, 4, 8))


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
