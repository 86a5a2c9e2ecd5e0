"""A convoy: warps at the same point of the program, stepping together.

Each warp is an independent thread of control. As long as warps agree on where to go they travel as one convoy, as
arrays; where they disagree the convoy splits, and each part goes on alone with registers of its own.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.queue import Products
from tilewright.simulator.copies import Copies
from tilewright.simulator.registers import RegisterArray
from tilewright.simulator.sites import Site
from tilewright.simulator.warps import Lanes, Mask, Warps


class Wait(Protocol):
    """What a convoy waits for: a barrier, a phase of an mbarrier, the other warps of a warpgroup."""

    site: Site

    def ready(self) -> Array:
        """(warps,) bool: which warps may go on."""

    def select(self, keep: Array) -> Wait:
        """The wait of the warps where `keep` is true."""

    def describe(self) -> str:
        """What is waited for, in words."""


class Convoy:
    """Control state and registers of some warps.

    slots: values of the loop variables, the same in every lane. mask: lanes that take part now, None for all.
    pc: next instruction of the program. frames: what to restore at the end of each open branch. memo: lane values
    known so far, a dictionary for each cell of the program. copies: asynchronous ones under way. products: the wgmma
    under way under way; None until there is one.
    """

    __slots__ = ("copies", "frames", "mask", "memo", "pc", "products", "registers", "slots", "wait", "warps")

    def __init__(self, warps: Warps, slots: int, registers: int, cells: int) -> None:
        self.warps = warps
        self.slots: list[int] = [0] * slots
        self.registers: list[RegisterArray | None] = [None] * registers
        self.memo: list[dict[Any, Lanes]] = [{} for _ in range(cells)]
        self.mask: Mask | None = warps.exists
        self.pc = 0
        self.frames: list[tuple[Mask | None, Mask | None]] = []
        self.wait: Wait | None = None
        self.copies = Copies(warps.lanes)
        self.products: Products | None = None

    @property
    def active_warps(self) -> int:
        return len(self.warps) if self.mask is None else self.mask.warps

    @property
    def active_lanes(self) -> int:
        return self.warps.lanes if self.mask is None else self.mask.count

    def part(self, keep: Array) -> Convoy:
        """The warps where `keep`, (warps,) bool, is true, with a copy of their registers."""
        lanes = np.repeat(keep, WARP_THREADS)

        def part_of(mask: Mask | None) -> Mask | None:
            if mask is None or mask.lanes[lanes].all():
                return None
            return Mask(mask.lanes[lanes])

        part = Convoy(self.warps.select(keep), len(self.slots), len(self.registers), len(self.memo))
        part.slots = list(self.slots)
        part.registers = [None if array is None else array.select(lanes) for array in self.registers]
        part.mask = part_of(self.mask)
        part.pc = self.pc
        part.frames = [(part_of(before), part_of(otherwise)) for before, otherwise in self.frames]
        part.copies = self.copies.select(lanes)
        part.products = None if self.products is None else self.products.select(keep)
        part.wait = None if self.wait is None else self.wait.select(keep)
        return part
