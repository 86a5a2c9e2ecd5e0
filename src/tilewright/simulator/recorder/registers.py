"""Registers and shared memory of one block, read out of the machine after each statement."""

from __future__ import annotations

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import MBARRIER, Array
from tilewright.ir.buffer import Buffer
from tilewright.simulator.context import Context
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.recorder.cells import Cells, written_only
from tilewright.simulator.warps import Batch


class State:
    """Reads what has changed into `cells`. slot: of the block in the batch that runs."""

    def __init__(self, context: Context, batch: Batch, slot: int) -> None:
        self.cells = Cells()
        self._memory = context.memory
        self._arithmetic = context.arithmetic
        self._slot = slot
        self._registers: dict[int, int] = {}
        self.warps = batch.warps_per_block
        self._shared: list[tuple[int, Buffer, Array]] = []
        for buffer, offset_bytes in context.memory.shared_places():
            if buffer.dtype is not MBARRIER:
                region = self.cells.add_shared(buffer, offset_bytes)
                self._shared.append((region, buffer, self._stored(buffer).copy()))

    def _stored(self, buffer: Buffer) -> Array:
        first = self._slot * buffer.elements
        return self._memory.arrays[buffer.name][first : first + buffer.elements]

    def read_shared(self) -> None:
        for region, buffer, known in self._shared:
            stored = self._stored(buffer)
            bits = f"u{stored.dtype.itemsize}"
            changed = np.flatnonzero(stored.view(bits) != known.view(bits))
            if len(changed):
                first, end = int(changed[0]), int(changed[-1]) + 1
                known[first:end] = stored[first:end]
                values = self._arithmetic.decode(stored[first:end], buffer.dtype)
                self.cells.set(region, first, np.asarray(values, np.float32))

    def read_registers(self, convoy: Convoy, rows: Array) -> None:
        """The registers of the warps in these rows of a convoy."""
        for number, array in enumerate(convoy.registers):
            if array is None:
                continue
            if number not in self._registers:
                self._registers[number] = self.cells.add_registers(array.buffer, self.warps)
            elements = array.buffer.elements
            data = array.data.reshape(elements, -1, WARP_THREADS)
            values = written_only(data[:, rows]).transpose(1, 0, 2).reshape(len(rows), -1)
            each = elements * WARP_THREADS
            for row, warp in enumerate(convoy.warps.numbers[rows].tolist()):
                self.cells.set(self._registers[number], warp * each, np.ascontiguousarray(values[row]))
