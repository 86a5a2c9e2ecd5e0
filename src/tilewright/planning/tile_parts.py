"""Parts of tiles that ranks send each other where they share out k: how many there are, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.stack import Shards
from tilewright.units import ceil_div


@dataclass(frozen=True, slots=True)
class TileParts:
    """tiles: that a rank keeps, at most; tile_bytes: of a part."""

    tiles: int
    tile_bytes: int

    @classmethod
    def of(cls, shards: Shards, config: WgmmaConfig, columns: int, element_bytes: int) -> TileParts:
        """Of a kernel for C with so many columns and bytes of an element. Tiles of clusters' edges are sent, too."""
        across = ceil_div(columns, config.n * config.cluster_n) * config.cluster_n
        tiles = ceil_div(max(shards.rows), config.m * config.cluster_m) * config.cluster_m * across
        return cls(tiles, config.m * config.n * element_bytes)

    @property
    def slot_bytes(self) -> int:
        """Of all that a rank sends to another one, at most: what the next one sends or receives lies behind."""
        return self.tiles * self.tile_bytes
