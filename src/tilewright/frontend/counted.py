"""Groups that have room for as many rows each and use the first ones: `grouped_matmul(a, b, counts=...)`, as decoding
has them. Their rows are one matrix, group below group, and the counts lie on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import ProblemError
from tilewright.frontend.compute import refuse_other_library
from tilewright.frontend.libraries import library_of
from tilewright.frontend.ragged import Room, check_offsets
from tilewright.frontend.shapes import ShapeError


def with_counts(
    name: str, a: Any, b: Any, counts: Any, expected_rows: Any, multiply: Callable[[Any, Room], Any]
) -> Any:
    """The result of a call, of shape (groups, capacity, n). multiply: of all rows, one below the other, and their room.
    Raises ShapeError, DTypeError and ProblemError for what cannot be asked."""
    refuse_other_library(library_of(a), "b", b)
    check_offsets(counts, "counts")
    shape_a, shape_b = tuple(a.shape), tuple(b.shape)
    if len(shape_a) != 3 or len(shape_b) != 3 or not shape_a[0] == shape_b[0] == counts.shape[0]:
        raise ShapeError(
            f"{name} takes no a of shape {shape_a} and b of shape {shape_b} with {counts.shape[0]} counts.",
            hint="give (groups, capacity, k), (groups, k, n) and (groups,).",
        )
    groups, capacity, k = shape_a
    if k != shape_b[1]:
        raise ShapeError(f"{name}: a of shape {shape_a} does not go with b of shape {shape_b}.")
    if expected_rows is not None and not (isinstance(expected_rows, int) and expected_rows > 0):
        raise ProblemError(f"{name}: expected_rows = {expected_rows!r} is not a number of rows.")
    if 0 in (groups, capacity):
        return multiply(a.reshape(0, k), Room(1)).reshape(groups, capacity, shape_b[2])
    expected = min(expected_rows or 0, capacity)
    return multiply(a.reshape(groups * capacity, k), Room(capacity, expected)).reshape(groups, capacity, shape_b[2])
