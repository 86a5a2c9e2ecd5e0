"""Which element of a tile each register of a warp's lanes holds, and values moved between the two ways to see them.

What the lanes of a warp do together is simulated in three steps: registers become tiles, one for each warp, something
is done with the tiles, and tiles become registers again. Each step is one gather over all warps of a convoy.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.layout.fragment import Fragment


class Holding:
    """Who holds which element of a tile. numbers: of the element, (registers, 32); each element is held once or not."""

    __slots__ = ("elements", "numbers")

    def __init__(self, numbers: Array, elements: int) -> None:
        self.numbers = np.asarray(numbers, np.int64)
        self.elements = elements

    def tiles(self, rows: Array) -> Array:
        """Registers, (registers, lanes), as tiles, (warps, elements)."""
        return np.take(rows, _tile_places(self, rows.shape[1] // WARP_THREADS))

    def registers(self, tiles: Array) -> Array:
        """Tiles, (warps, elements), as registers, (registers, lanes)."""
        return np.take(tiles, _register_places(self, len(tiles)))


# All but a few convoys of a run have as many warps.
@lru_cache
def _tile_places(held: Holding, warps: int) -> Array:
    """Where the elements of the tiles of these warps lie in (registers, lanes), flat: (warps, elements)."""
    place = np.zeros(held.elements, np.int64)  # of each element in the registers of warp 0
    register, lane = np.indices(held.numbers.shape)
    place[held.numbers] = register * warps * WARP_THREADS + lane
    places: Array = place + WARP_THREADS * np.arange(warps)[:, None]
    return places


@lru_cache
def _register_places(held: Holding, warps: int) -> Array:
    """Where what registers hold lies in (warps, elements), flat: (registers, lanes)."""
    first = held.elements * np.arange(warps)[:, None]
    return (held.numbers[:, None, :] + first).reshape(len(held.numbers), -1)


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
