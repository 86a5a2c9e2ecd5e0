"""Products under way: started by warps, gathered into groups, carried out when the first of the warps waits for them.

The four warps of a warpgroup start a wgmma together. It reads shared memory at some moment up to the first wait that
covers it; here as late as it can be. So the tiles are read for the whole warpgroup when its first warp has waited, and
kept for the others, which may come to their wait later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.sites import Site


@dataclass(slots=True)
class Product:
    """One statement as the warps of a convoy started it; arrays have an entry for each warp.

    number: of the wgmma that each warp has started, from 0. group: which each warp's belongs to. a, b: byte addresses;
    of A in registers, its first register. fresh: whether the sum begins anew. registers, first: the sum. operation: who
    carries it out.
    """

    site: Site
    operation: object
    registers: int
    first: int
    count: int
    number: Array
    group: Array
    a: Array
    b: Array
    fresh: Array

    def part(self, keep: Array) -> Product:
        arrays = (array[keep] for array in (self.number, self.group, self.a, self.b, self.fresh))
        return Product(self.site, self.operation, self.registers, self.first, self.count, *arrays)


class Products:
    """What the warps of one convoy have under way, in order. started, groups: of each warp so far, (warps,)."""

    __slots__ = ("groups", "started", "under_way")

    def __init__(self, warps: int) -> None:
        self.started: Array = np.zeros(warps, np.int64)
        self.groups: Array = np.zeros(warps, np.int64)
        self.under_way: list[Product] = []

    def due(self, pending: int) -> list[Product]:
        """The wgmma of all but the youngest `pending` groups; all warps of a convoy have the same ones."""
        due = [product for product in self.under_way if (product.group < self.groups - pending).all()]
        self.under_way = self.under_way[len(due) :]
        return due

    def select(self, keep: Array) -> Products:
        chosen = Products(0)
        chosen.started, chosen.groups = self.started[keep], self.groups[keep]
        chosen.under_way = [product.part(keep) for product in self.under_way]
        return chosen
