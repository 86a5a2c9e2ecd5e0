"""st.async: registers of a thread on their way to shared memory of a block of the cluster, whose mbarrier is told.

What arrives is there at once, as far as the values go. Who may read it, and from when on, is up to the clocks: it is
stamped with the phase that counts its bytes, as a box of TMA is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.barrier_ops import BarrierOp
from tilewright.simulator.asynchronous.bulk_ops import LanePlaces
from tilewright.simulator.asynchronous.lanes import SharedPlace, acting
from tilewright.simulator.asynchronous.ordered import UnitAccess
from tilewright.simulator.asynchronous.phases import MBARRIERS
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Kind
from tilewright.simulator.index import Place
from tilewright.simulator.journal import Role
from tilewright.simulator.values import RegisterView


@dataclass(slots=True)
class StoreAsyncOp(BarrierOp):
    """Each lane stores its registers in another block; `barrier` is told there."""

    target: SharedPlace
    source: RegisterView
    count: int
    rank: Place

    def __call__(self, convoy: Convoy) -> None:
        lanes = acting(convoy)
        if not len(lanes):
            self.issue(convoy)
            return
        units, buffer = self.units, self.target.buffer
        keys, first = self.keys(convoy, lanes), self.target.of(self, convoy, lanes, self.count)
        self.issue(convoy, keys)
        self._check_aligned(convoy, lanes, first)
        slots, keys = self.there(convoy, lanes, keys, self.rank)
        held = self.source.read(convoy).reshape(self.count, -1)[:, lanes]
        made = self.check_made(convoy, lanes, keys, far=True)
        lanes, slots, keys, first, held = lanes[made], slots[made], keys[made], first[made], held[:, made]
        if not len(lanes):
            return
        if self.context.journal is not None:
            self.context.journal.note(Role.ARRIVES, MBARRIERS, keys, units.phases.phase[keys])
        elements = (slots * buffer.elements + first)[:, None] + np.arange(self.count)
        if units.races is not None:
            units.races.unit_writes(self._access(convoy, lanes, slots, keys, elements))
        units.memory.arrays[buffer.name][elements.T] = self.context.arithmetic.encode(held, buffer.dtype)
        units.note_stored(keys, convoy.warps.block_of_lane[lanes])
        units.phases.land(keys, self.count * buffer.dtype.bytes, units.complain(self.place(convoy, lanes)))

    def _access(self, convoy: Convoy, lanes: Array, slots: Array, keys: Array, elements: Array) -> UnitAccess:
        units, name = self.units, self.target.buffer.name
        stamp = units.clocks.phases, keys % len(units.names), units.phases.phase[keys] + 1
        thread, places = convoy.warps.global_thread[lanes], LanePlaces(self, convoy, lanes)
        rows = self.rows(convoy, lanes)
        return UnitAccess(self.site, name, "written by st.async", elements, rows, slots, *stamp, thread, places)

    def _check_aligned(self, convoy: Convoy, lanes: Array, first: Array) -> None:
        buffer = self.target.buffer
        size_bytes = self.count * buffer.dtype.bytes
        address = self.units.memory.base_bytes(buffer) + first * buffer.dtype.bytes
        wrong = address % size_bytes != 0
        if wrong.any():
            headline = (
                f"A store of {size_bytes} bytes to {buffer.name} is at byte {int(address[int(np.argmax(wrong))])}, "
                f"not at a multiple of {size_bytes}."
            )
            self.report(Kind.MISALIGNED, headline, self.place(convoy, lanes[wrong]), buffer=buffer.name)
