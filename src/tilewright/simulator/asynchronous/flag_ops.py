"""Flags in global memory: a thread sets one, threads of other blocks wait for its value.

Who sets a flag leaves its clock row there, and who finds the value takes it up, as at an mbarrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.kernel import TILE_FLAGS
from tilewright.simulator.asynchronous.flags import FLAGS, Flags
from tilewright.simulator.asynchronous.lanes import UnitOp, acting, values
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Kind
from tilewright.simulator.index import Place
from tilewright.simulator.journal import Role
from tilewright.simulator.sites import Site


@dataclass(slots=True)
class FlagOp(UnitOp):
    """What names a flag."""

    flag: Place
    value: Place

    def check_previous(self, convoy: Convoy, *, store: bool) -> None:
        """Flags are memory that the grid before may use, too."""
        self.units.check_previous(self.site, convoy, convoy.mask, TILE_FLAGS, store=store)

    def _numbers(self, convoy: Convoy, lanes: Array) -> tuple[Array, Array]:
        """The flag and the value of each lane; lanes that name no flag are reported and left out."""
        flags, wanted = values(self.flag, convoy, lanes), values(self.value, convoy, lanes)
        count = len(self.units.flags.values)
        outside = (flags < 0) | (flags >= count)
        if outside.any():
            headline = f"Flag {int(flags[int(np.argmax(outside))])} of {count} does not exist."
            self.report(Kind.OUT_OF_BOUNDS, headline, self.place(convoy, lanes[outside]))
        return flags[~outside], wanted[~outside]


@dataclass(slots=True)
class SignalFlagOp(FlagOp):
    """A thread sets a flag."""

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        lanes = acting(convoy)
        if not len(lanes):
            return
        units = self.units
        self.check_previous(convoy, store=True)
        flags, found = self._numbers(convoy, lanes)
        rows = self.rows(convoy, lanes)
        if self.context.journal is not None:
            self.context.journal.note(Role.ARRIVES, FLAGS, flags, units.flags.times[flags])
            units.flags.times[flags] += 1
        for flag, value, row in zip(flags.tolist(), found.tolist(), rows.tolist(), strict=False):
            units.flags.values[flag] = value
            units.flags.rows[flag] = units.clocks.rows[row].copy()
        units.clocks.tick(np.unique(rows))


@dataclass(slots=True)
class WaitFlagStep(FlagOp):
    """Go on if the flag has the value, else wait for it and try again."""

    def ready(self, convoy: Convoy) -> bool:
        flags, wanted = self._numbers(convoy, acting(convoy))
        return bool((self.units.flags.values[flags] == wanted).all())

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        lanes = acting(convoy)
        units = self.units
        flags, wanted = self._numbers(convoy, lanes)
        passes = units.flags.values[flags] == wanted
        if passes.all():
            self.issue(convoy)
            self.check_previous(convoy, store=False)
            if self.context.journal is not None:
                self.context.journal.note(Role.PASSES, FLAGS, flags, units.flags.times[flags])
            for flag, row in zip(flags.tolist(), self.rows(convoy, lanes).tolist(), strict=False):
                known = units.flags.rows.get(flag)
                if known is not None:
                    units.clocks.rows[row] = np.maximum(units.clocks.rows[row], known)
            convoy.pc += 1
            return (convoy,)
        held = np.zeros(len(convoy.warps), np.bool_)
        held[lanes[~passes] // WARP_THREADS] = True
        if not held.all():
            return convoy.part(~held), convoy.part(held)
        _, first = np.unique(lanes[~passes] // WARP_THREADS, return_index=True)
        convoy.wait = FlagWait(self.site, units.flags, flags[~passes][first], wanted[~passes][first])
        return (convoy,)


@dataclass(slots=True)
class FlagWait:
    """Warps that wait for flags."""

    site: Site
    flags: Flags
    numbers: Array
    wanted: Array = field(repr=False)

    def ready(self) -> Array:
        found: Array = self.flags.values[self.numbers] == self.wanted
        return found

    def select(self, keep: Array) -> FlagWait:
        return FlagWait(self.site, self.flags, self.numbers[keep], self.wanted[keep])

    def describe(self) -> str:
        return f"flag {int(self.numbers[0])} to be {int(self.wanted[0])}"
