"""Which element of a tile each register of a warp's lanes holds, and values moved between the two ways to see them.

What the lanes of a warp do together is simulated in three steps: registers become tiles, one for each warp, something
is done with the tiles, and tiles become registers again. Each step is one gather over all warps of a convoy.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.layout.fragment import Fragment

_KEPT_SIZES = 8
"""Convoy sizes for which indices are kept; all but a few convoys of a run have the same."""


class Holding:
    """Who holds which element of a tile. numbers: of the element, (registers, 32); each element is held once or not."""

    __slots__ = ("_from_tiles", "_to_tiles", "elements", "numbers")

    def __init__(self, numbers: Array, elements: int) -> None:
        self.numbers = np.asarray(numbers, np.int64)
        self.elements = elements
        self._to_tiles: OrderedDict[int, Array] = OrderedDict()
        self._from_tiles: OrderedDict[int, Array] = OrderedDict()

    def tiles(self, rows: Array) -> Array:
        """Registers, (registers, lanes), as tiles, (warps, elements)."""
        warps = rows.shape[1] // WARP_THREADS
        index = _kept(self._to_tiles, warps)
        if index is None:
            place = np.zeros(self.elements, np.int64)  # of each element in the registers of warp 0
            register, lane = np.indices(self.numbers.shape)
            place[self.numbers] = register * rows.shape[1] + lane
            index = self._to_tiles[warps] = place + WARP_THREADS * np.arange(warps)[:, None]
        return np.take(rows, index)

    def registers(self, tiles: Array) -> Array:
        """Tiles, (warps, elements), as registers, (registers, lanes)."""
        warps = len(tiles)
        index = _kept(self._from_tiles, warps)
        if index is None:
            first = self.elements * np.arange(warps)[:, None]
            index = (self.numbers[:, None, :] + first).reshape(len(self.numbers), -1)
            self._from_tiles[warps] = index
        return np.take(tiles, index)


def _kept(indices: OrderedDict[int, Array], warps: int) -> Array | None:
    found = indices.get(warps)
    if found is None and len(indices) >= _KEPT_SIZES:
        indices.popitem(last=False)
    return found


@lru_cache
def holding_of(fragment: Fragment) -> Holding:
    """Who holds which element of a matrix, counted row by row.

    >>> from tilewright.layout.fragment import ACCUMULATOR_16X8
    >>> holding_of(ACCUMULATOR_16X8).numbers[:, 5].tolist()
    [10, 11, 74, 75]
    """
    row, column = fragment.places()
    return Holding((row * fragment.columns + column).T, fragment.rows * fragment.columns)


def as_matrices(tiles: Array, fragment: Fragment) -> Array:
    """Tiles, (warps, elements), as matrices, (warps, rows, columns)."""
    matrices: Array = tiles.reshape(-1, fragment.rows, fragment.columns)
    return matrices


def put(target: Array, rows: Array, lanes: Array | None) -> None:
    """`rows` into registers; only those of `lanes`, (lanes,) bool, where given."""
    where: Any = True if lanes is None else lanes
    np.copyto(target, rows, where=where, casting="same_kind")
