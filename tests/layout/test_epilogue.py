"""Subtiles of an epilogue: which rows are filled without bank conflicts."""

from __future__ import annotations

import pytest

from tilewright.layout.epilogue import _excess


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_plain_rows_of_an_odd_number_of_units_have_no_conflicts_and_others_do(element_bytes: int) -> None:
    """A unit is 8 columns. What is counted are wavefronts above the fewest that could be."""
    assert [_excess(8 * units, element_bytes, None) for units in (1, 3, 5)] == [0, 0, 0]
    assert all(_excess(8 * units, element_bytes, None) > 0 for units in (2, 4, 8))
