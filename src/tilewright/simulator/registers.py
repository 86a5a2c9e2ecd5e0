"""Registers: what each lane holds, and which of it was ever written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer
from tilewright.simulator.sites import Site
from tilewright.simulator.warps import Mask


class RegisterArray:
    """One register buffer of every lane of a convoy: `data` is (elements, lanes), an element's lanes side by side.

    `missing` counts the elements that some lane has not written: at 0, which is almost always, reads need no check.
    dirty: touched since the last wgmma fence. in_products: runs of elements (from, to) that products under
    way add to, or multiply, with the number of these and the place where the last was started.
    """

    __slots__ = ("_partial", "_written", "buffer", "data", "dirty", "in_products", "missing")

    def __init__(self, buffer: Buffer, lanes: int, dtype: np.dtype[Any], poison: Any) -> None:
        self.buffer = buffer
        self.data = np.full((buffer.elements, lanes), poison, dtype)
        self._written = bytearray(buffer.elements)
        self._partial: dict[int, Array] = {}
        self.missing = buffer.elements
        self.dirty = True
        self.in_products: dict[tuple[int, int], tuple[int, Site]] = {}

    def start_product(self, first: int, end: int, site: Site) -> None:
        """A wgmma that adds to these elements is under way."""
        known = self.in_products.get((first, end))
        self.in_products[first, end] = (1 if known is None else known[0] + 1, site)

    def end_product(self, first: int, end: int) -> None:
        count, site = self.in_products.pop((first, end))
        if count > 1:
            self.in_products[first, end] = (count - 1, site)

    def forget(self, poison: Any) -> None:
        """The buffer is declared anew: its elements hold nothing."""
        if self.missing < self.buffer.elements or self._partial:
            self.data.fill(poison)
            self._written = bytearray(self.buffer.elements)
            self._partial.clear()
            self.missing = self.buffer.elements

    def mark(self, elements: Sequence[int], mask: Mask | None) -> None:
        """These elements are written by the lanes of `mask`."""
        for element in elements:
            if self._written[element]:
                continue
            if mask is not None:
                lanes = self._partial.setdefault(element, np.zeros(self.data.shape[1], np.bool_))
                lanes |= mask.lanes
                if not lanes.all():
                    continue
                del self._partial[element]
            self._written[element] = 1
            self.missing -= 1

    def unwritten(self, elements: Sequence[int], mask: Mask | None) -> tuple[int, Array] | None:
        """The first element that a lane of `mask` has not written, with those lanes as (lanes,) bool."""
        for element in elements:
            if self._written[element]:
                continue
            partial = self._partial.get(element)
            bare = np.ones(self.data.shape[1], np.bool_) if partial is None else ~partial
            if mask is not None:
                bare &= mask.lanes
            if bare.any():
                return element, bare
        return None

    def select(self, lanes: Array) -> RegisterArray:
        """The lanes where `lanes`, (lanes,) bool, is true: a copy of their registers."""
        chosen = object.__new__(RegisterArray)
        chosen.buffer = self.buffer
        chosen.data = np.ascontiguousarray(self.data[:, lanes])
        chosen._written = bytearray(self._written)
        chosen._partial = {}
        chosen.dirty = self.dirty
        chosen.in_products = dict(self.in_products)
        chosen.missing = self.missing
        for element, partial in self._partial.items():
            kept = partial[lanes]
            if kept.all():
                chosen._written[element] = 1
                chosen.missing -= 1
            elif kept.any():
                chosen._partial[element] = kept
        return chosen
