"""Clocks of an SM with kernels whose blocks `kernels.block_work` counts. Of a table that is kept, what no size of a
problem changes is found once: a step over k and the ends of a block, by how many blocks share an SM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import DType
from tilewright.kernels import mma, simt, wgmma
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns, has_column
from tilewright.kernels.tile_sizes import accumulators_of, warps_of
from tilewright.model.occupancy import blocks_that_fit
from tilewright.model.sm import Sm
from tilewright.problem.gemm import Gemm

CORRECTED_WAVEFRONT_CLOCKS = 1.0
"""Of the load/store unit, in estimates: `correction` was fitted to what they lack with it (record 0039)."""

_OTHER_REGISTERS = 32
"""Of a thread, beside twice its accumulators: within a block an SM of what ptxas makes of these kernels."""


class BlockClocks:
    """step, ends: clocks of each kernel of a table with 1, 2, ... blocks on an SM, as many as fit, one after another.
    first: where those of each kernel begin."""

    def __init__(self, kind: str, table: Columns, gemm: Gemm, spec: DeviceSpec, loads_bytes: int) -> None:
        """loads_bytes: that rows of A and B are multiples of."""
        most = np.maximum(1, blocks_per_sm(kind, table, gemm, spec))
        self.first = np.cumsum(most) - most
        self._asked = kind, gemm, spec, loads_bytes
        self._rows = table[np.repeat(np.arange(len(table)), most)]
        self._together = 1 + np.arange(len(self._rows)) - np.repeat(self.first, most)
        self._ends: dict[tuple[int, int], Any] = {}
        self.step = self._sm(Setting(1, 1, loads_bytes)).step_clocks(self._together)

    def ends(self, result_bytes: int, out_bytes: int) -> Any:
        """Before the first step and after the last one. result_bytes: that rows of C are multiples of."""
        found = self._ends.get((result_bytes, out_bytes))
        if found is None:
            sm = self._sm(Setting(1, 1, self._asked[-1], result_bytes, out_bytes))
            found = self._ends[result_bytes, out_bytes] = sm.ends_clocks(self._together)
        return found

    def _sm(self, setting: Setting) -> Sm:
        kind, gemm, spec, _ = self._asked
        return Sm.of(work_of(kind, self._rows, gemm, setting), spec, CORRECTED_WAVEFRONT_CLOCKS)


def sm_clocks(
    kind: str,
    c: Columns,
    gemm: Gemm,
    spec: DeviceSpec,
    setting: Setting,
    most: Any,
    per_sm: Any,
    stores: Sequence[tuple[int, int]],
) -> tuple[Any, Any, Any]:
    """Of the busiest SM: for all of its blocks, `most`; of a k tile of those that run at once; of what they do before
    the first and after the last one. per_sm: that share it, at most. stores: result_bytes and out_bytes of a kernel
    without and with split-K."""
    if c.table is None:
        sm = Sm.of(work_of(kind, c, gemm, setting), spec, CORRECTED_WAVEFRONT_CLOCKS)
        together = np.maximum(1, np.minimum(per_sm, most))
        return sm.clocks(most, together), sm.step_clocks(together), sm.ends_clocks(together)
    clocks = _known(kind, c.table, gemm, spec, setting.aligned_bytes)
    before = clocks.first - 1 if c.rows is None else (clocks.first - 1).take(c.rows)
    parts, k_tiles = c.split_k > 1, np.broadcast_to(setting.k_tiles, len(c))
    whole, part = clocks.ends(*stores[0]), clocks.ends(*stores[1]) if parts.any() else None
    together, rounds, left = _rounds_of(per_sm, most)

    def step_and_ends(at: Any, parts: Any) -> tuple[Any, Any]:
        ends = whole.take(at)
        if part is not None:
            ends = np.where(parts, part.take(at), ends)
        return clocks.step.take(at), ends

    step, ends = step_and_ends(before + together, parts)
    total = rounds * (k_tiles * step + ends)
    some = np.flatnonzero(left)
    if len(some):
        last, last_ends = step_and_ends(before[some] + left[some], parts[some])
        total[some] += k_tiles[some] * last + last_ends
    return total, step, ends


def _rounds_of(per_sm: Any, most: Any) -> tuple[Any, Any, Any]:
    """Of `most` blocks of an SM, where so many fit: how many run together, how often, and those that are left."""
    together = np.maximum(1, np.minimum(per_sm, most)).astype(np.int64)
    rounds = np.floor(most / together)
    return together, rounds, (most - rounds * together).astype(np.int64)


def busiest_clocks(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, loads_bytes: int, most: Any) -> Any:
    """Of the busiest SM, for a step over k of all of its blocks, `most` of each kernel of a table that is kept."""
    assert c.table is not None
    clocks = _known(kind, c.table, gemm, spec, loads_bytes)
    before = clocks.first - 1 if c.rows is None else (clocks.first - 1).take(c.rows)
    together, rounds, left = _rounds_of(blocks_per_sm(kind, c, gemm, spec), most)
    total = rounds * clocks.step.take(before + together)
    some = np.flatnonzero(left)
    total[some] += clocks.step.take(before[some] + left[some])
    return total


def _known(kind: str, table: Columns, gemm: Gemm, spec: DeviceSpec, loads_bytes: int) -> BlockClocks:
    def made(c: Columns) -> BlockClocks:
        return BlockClocks(kind, c, gemm, spec, loads_bytes)

    found: BlockClocks = table.known((*_formats(gemm), gemm.a, gemm.b, spec, loads_bytes), made)
    return found


def _formats(gemm: Gemm) -> tuple[DType | None, ...]:
    return gemm.dtype, gemm.product, gemm.out


def blocks_per_sm(kind: str, c: Any, gemm: Gemm, spec: DeviceSpec) -> Any:
    """By shared memory and registers; 0 where a block is too large for the device."""

    def fitting(c: Any) -> Any:
        if kind == "wgmma":
            found = c.per_sm if has_column(c, "per_sm") else wgmma.blocks_per_sm(c, gemm)
            size_bytes = c.shared_bytes if has_column(c, "shared_bytes") else wgmma.plain_bytes(c, gemm)
            return found * (size_bytes <= spec.max_shared_bytes_per_block)
        if kind == "simt":
            registers, size_bytes = simt.registers_of(c), simt.shared_bytes(c, gemm)
        else:
            registers = 2 * accumulators_of(c) + _OTHER_REGISTERS
            size_bytes = mma.shared_bytes(c, gemm.dtype.bytes)
        return blocks_that_fit(
            spec,
            warps=warps_of(c),
            registers_per_thread=np.minimum(spec.max_registers_per_thread, registers),
            shared_bytes=size_bytes,
        )

    return (
        c.fact(("blocks per SM", gemm.dtype, gemm.out, gemm.b, spec), fitting) if isinstance(c, Columns) else fitting(c)
    )
