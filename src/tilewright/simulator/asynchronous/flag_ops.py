"""Flags in global memory: a thread sets one, threads of other blocks wait for its value.

Who sets a flag leaves its clock row there, and who finds the value takes it up, as at an mbarrier. Between GPUs, and
between copy engines and a thread, only a flag that both sides take for one of the whole system does that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.async_stmt import Scope
from tilewright.simulator.asynchronous.flags import COPY_ENGINES, FLAGS, Flags, Setting
from tilewright.simulator.asynchronous.lanes import UnitOp, acting, held_back, values
from tilewright.simulator.convoy import Convoy, Wait
from tilewright.simulator.findings import Kind
from tilewright.simulator.index import Place
from tilewright.simulator.journal import Role
from tilewright.simulator.warps import Batch


@dataclass(slots=True)
class FlagOp(UnitOp):
    """What names a flag. buffer: that holds it."""

    buffer: str
    flag: Place
    value: Place
    scope: Scope

    @property
    def flags(self) -> Flags:
        return self.units.flags_of(self.buffer)

    def check_previous(self, convoy: Convoy, *, store: bool) -> None:
        """Flags are memory that the grid before may use, too."""
        self.units.check_previous(self.site, convoy, convoy.mask, self.buffer, store=store)

    def _numbers(self, convoy: Convoy, lanes: Array) -> tuple[Array, Array]:
        """The flag and the value of each lane; lanes that name no flag are reported and left out."""
        flags, wanted = values(self.flag, convoy, lanes), values(self.value, convoy, lanes)
        count = len(self.flags.values)
        outside = (flags < 0) | (flags >= count)
        if outside.any():
            headline = f"Flag {int(flags[int(np.argmax(outside))])} of {count} does not exist."
            self.report(Kind.OUT_OF_BOUNDS, headline, self.place(convoy, lanes[outside]))
        return flags[~outside], wanted[~outside]


@dataclass(slots=True)
class SignalFlagOp(FlagOp):
    """A thread sets a flag, or adds to it. releases: whoever finds the value knows what the thread knew, and what all
    knew that added before it."""

    releases: bool = True
    adds: bool = False

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        lanes = acting(convoy)
        if not len(lanes):
            return
        units, known = self.units, self.flags
        self.check_previous(convoy, store=True)
        flags, found = self._numbers(convoy, lanes)
        rows = self.rows(convoy, lanes)
        self.context.note(Role.ARRIVES, FLAGS, flags, known.times[flags])
        known.times[flags] += 1
        for flag, value, row in zip(flags.tolist(), found.tolist(), rows.tolist(), strict=False):
            gpu = _gpu(units.batch, row // units.clocks.warps)
            setting = Setting(units.clocks.rows[row].copy(), gpu, self.scope is Scope.SYSTEM)
            if self.adds:
                known.add(flag, value, setting)
            else:
                known.set(flag, value, setting if self.releases else None)
        units.clocks.tick(np.unique(rows))


@dataclass(slots=True)
class WaitFlagStep(FlagOp):
    """Go on if the flag has the value, or a later one where it counts; else wait for it and try again."""

    or_later: bool = False

    def over(self, keys: Array, wanted: Array) -> Array:
        ahead = self.flags.values[keys].astype(np.int32) - wanted.astype(np.int32)
        over: Array = ahead >= 0 if self.or_later else ahead == 0
        return over

    def name(self, key: int) -> str:
        return f"flag {key}"

    def text(self, key: int, wanted: int) -> str:
        return f"flag {key} to be {wanted}"

    def ready(self, convoy: Convoy) -> bool:
        flags, wanted = self._numbers(convoy, acting(convoy))
        return bool(self.over(flags, wanted).all())

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        lanes, known = acting(convoy), self.flags
        flags, wanted = self._numbers(convoy, lanes)
        passes = self.over(flags, wanted)
        if passes.all():
            self.issue(convoy)
            self.check_previous(convoy, store=False)
            self.context.note(Role.PASSES, FLAGS, flags, known.times[flags])
            for flag, row in zip(flags.tolist(), self.rows(convoy, lanes).tolist(), strict=False):
                self._take_up(convoy, lanes, known.setting(flag), row)
            convoy.pc += 1
            return (convoy,)
        return held_back(convoy, lanes[~passes], Wait(self.site, self, flags[~passes], wanted[~passes]))

    def _take_up(self, convoy: Convoy, lanes: Array, setting: Setting | None, row: int) -> None:
        """A warp knows what the setter of a flag knew, where the flag orders the two."""
        if setting is None:
            return
        clocks = self.units.clocks
        far = setting.gpu != _gpu(self.units.batch, row // clocks.warps)
        if far and not (setting.of_system and self.scope is Scope.SYSTEM):
            setter = "copy engines" if setting.gpu == COPY_ENGINES else "another GPU"
            self.report(
                Kind.UNFENCED,
                f"A flag of {self.buffer} is set by {setter}, and orders threads of one GPU only.",
                self.place(convoy, lanes),
                buffer=self.buffer,
                hint="set it, and wait for it, with Scope.SYSTEM.",
            )
            return
        clocks.rows[row] = np.maximum(clocks.rows[row], setting.row)


def _gpu(batch: Batch, slot: int) -> int:
    """The GPU of a block."""
    return int(batch.coordinates[slot, 2]) if batch.across_ranks else 0
