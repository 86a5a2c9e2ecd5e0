"""Boxes: what TMA takes from a matrix and where it puts it, and the copies that are under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.async_stmt import TensorMap
from tilewright.ir.buffer import Buffer
from tilewright.layout.banks import SECTOR_BYTES
from tilewright.problem.problem import Problem, TmaMatrix, tma_matrix, values_of
from tilewright.simulator.findings import Site, Where

Coordinates = tuple[Array, ...]
"""Of the first elements of boxes, as their map counts: an array for each coordinate, an entry for each box."""


@dataclass(frozen=True)
class Box:
    """A tensor map at work. base_bytes: of the buffer in shared memory, to which the swizzle is applied. step: elements
    from one matrix to the next, where the map is of several."""

    map: TensorMap
    problem: Problem
    buffer: Buffer
    base_bytes: int
    step: int = 0

    @cached_property
    def matrix(self) -> TmaMatrix:
        return tma_matrix(self.problem, self.map.operand)

    @cached_property
    def _sizes(self) -> tuple[int, int, int]:
        """Elements of a line, lines, and elements from one line to the next."""
        arguments, matrix = values_of(self.problem), self.matrix
        return matrix.length.of(arguments), matrix.lines.of(arguments), matrix.leading.of(arguments)

    @property
    def _itemsize(self) -> int:
        return self.matrix.dtype.bytes

    @property
    def elements(self) -> int:
        inner, outer = self.map.box
        return inner * outer

    @property
    def size_bytes(self) -> int:
        return self.elements * self._itemsize

    @property
    def row_bytes(self) -> int:
        return self.map.box[0] * self._itemsize

    @property
    def length_bytes(self) -> int:
        """Of a row (or column) of the matrix that lies side by side."""
        return self._sizes[0] * self._itemsize

    @property
    def leading_bytes(self) -> int:
        return self._sizes[2] * self._itemsize

    @cached_property
    def _steps(self) -> tuple[Array, Array]:
        """The position of each element of the box along the contiguous and the strided dimension, (elements,)."""
        inner, outer = self.map.box
        number = np.arange(inner * outer)
        return number % inner, number // inner

    def places(self, first: Array) -> Array:
        """The elements of the buffer at which boxes that begin at `first` lie, (boxes, elements)."""
        linear = np.arange(self.elements) * self._itemsize
        address = self.map.swizzle.apply(self.base_bytes + (first * self._itemsize)[:, None] + linear)
        places: Array = (address - self.base_bytes) // self._itemsize
        return places

    def offsets(self, at: Coordinates) -> tuple[Array, Array]:
        """The offset of each element in the matrix, and whether it is inside; both (boxes, elements)."""
        along, across = self._steps
        inner, outer, *further = at
        x, y = inner[:, None] + along, outer[:, None] + across
        length, line_count, leading = self._sizes
        inside = (x >= 0) & (x < length) & (y >= 0)
        base: Array | int = 0
        if self.map.ragged:
            first, lines = further
            inside &= y < lines[:, None]
            y = y + first[:, None]
        elif further:
            number = further[0][:, None]
            # A matrix that all problems share is number 0, and the map has no other.
            inside &= (y < line_count) & ((number >= 0) if self.step else (number == 0))
            base = number * self.step
        else:
            inside &= y < line_count
        return np.where(inside, base + y * leading + x, 0), inside

    def sectors(self, at: Coordinates) -> int:
        """32-byte sectors of global memory that boxes touch, each box's own."""
        offsets, inside = self.offsets(at)
        numbers = np.where(inside, offsets * self._itemsize // SECTOR_BYTES, -1)
        numbers.sort(axis=1)
        first = numbers[:, 0] >= 0
        return int(first.sum() + np.count_nonzero(numbers[:, 1:] != numbers[:, :-1]))


@dataclass(slots=True)
class Flight:
    """Boxes under way to shared memory; arrays have an entry for each box and block in which it lands.

    at: of its first element, as the map counts. slot: of the block. first: element of the buffer. key: of the
    mbarrier that is told. where: the first thread that started one.
    """

    site: Site
    box: Box
    at: Coordinates
    slot: Array
    first: Array
    key: Array
    where: Where

    def part(self, chosen: Array) -> Flight:
        at = tuple(part[chosen] for part in self.at)
        slot, first, key = self.slot[chosen], self.first[chosen], self.key[chosen]
        return Flight(self.site, self.box, at, slot, first, key, self.where)

    def land(self, source: Array, target: Array, rounded: Callable[[Array], Array] | None) -> None:
        """Writes the boxes into the shared memory of their blocks; zero where they leave the matrix."""
        offsets, inside = self.box.offsets(self.at)
        if len(source):
            values = np.where(inside, source.take(offsets, mode="clip"), np.zeros((), target.dtype))
        else:
            values = np.zeros(offsets.shape, target.dtype)
        if rounded is not None:
            values = rounded(values)
        places = self.box.places(self.first) + (self.slot * self.box.buffer.elements)[:, None]
        target[places] = values


@dataclass(slots=True)
class Store:
    """A box under way from shared to global memory. serial: of the bulk stores of its warp, from 1."""

    site: Site
    box: Box
    at: tuple[int, ...]
    source: Array
    serial: int
    where: Where

    def carry_out(self, source: Array, target: Array) -> None:
        offsets, inside = self.box.offsets(tuple(np.array([part]) for part in self.at))
        target[offsets[0][inside[0]]] = source[self.source[inside[0]]]


class StoreQueue:
    """The bulk stores of one thread: those of the running group, and the groups that are not complete."""

    __slots__ = ("groups", "running")

    def __init__(self) -> None:
        self.running: list[Store] = []
        self.groups: list[list[Store]] = []

    def commit(self) -> None:
        self.groups.append(self.running)
        self.running = []

    def due(self, pending: int) -> list[Store]:
        """The stores of all but the youngest `pending` groups, which leave the queue."""
        count = max(0, len(self.groups) - pending)
        due, self.groups = self.groups[:count], self.groups[count:]
        return [store for group in due for store in group]

    def all(self) -> list[Store]:
        return [store for group in (*self.groups, self.running) for store in group]
