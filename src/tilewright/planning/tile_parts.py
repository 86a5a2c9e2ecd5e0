"""Parts of tiles that ranks send each other where they share out k: which go together, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.stack import Shards
from tilewright.units import ceil_div


@dataclass(frozen=True, slots=True)
class TileParts:
    """tiles: that each rank keeps, in the order in which they are computed; piece_tiles: of them, one after the other,
    that are sent together. tile_bytes: of a part."""

    tiles: tuple[int, ...]
    piece_tiles: int
    tile_bytes: int

    @classmethod
    def of(cls, shards: Shards, config: WgmmaConfig, columns: int, element_bytes: int) -> TileParts:
        """Of a kernel for C with so many columns and bytes of an element. Tiles of clusters' edges are sent, too."""
        across = ceil_div(columns, config.n * config.cluster_n) * config.cluster_n
        tiles = tuple(ceil_div(rows, config.m * config.cluster_m) * config.cluster_m * across for rows in shards.rows)
        piece = max(1, ceil_div(max(tiles), shards.pieces))
        return cls(tiles, piece, config.m * config.n * element_bytes)

    def piece(self, keeper: int, number: int) -> tuple[int, int]:
        """The first tile of a piece among those of the rank that keeps them, and how many there are; later ones may
        have none.

        >>> parts = TileParts((9, 4), 2, 1)
        >>> parts.piece(0, 4), parts.piece(1, 1), parts.piece(1, 2)
        ((8, 1), (2, 2), (4, 0))
        """
        first = number * self.piece_tiles
        return first, max(min(self.piece_tiles, self.tiles[keeper] - first), 0)

    @property
    def slot_bytes(self) -> int:
        """Of all tiles that a rank sends to another one, at most: what the next one sends or receives lies behind."""
        return max(self.tiles) * self.tile_bytes


def slot_of(rank: int, own_rank: int) -> int:
    """The number of a rank among the others.

    >>> [slot_of(rank, 1) for rank in (0, 2, 3)]
    [0, 1, 2]
    """
    return rank if rank < own_rank else rank - 1
