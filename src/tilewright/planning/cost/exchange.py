"""How blocks share the sums over k of tiles, and what it costs: estimates, which `correction` mends."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels.columns import Column, Columns, has_column
from tilewright.kernels.tile_sizes import exchanged_bytes
from tilewright.units import ceil_div

_CLOCKS = 1000.0
"""Of an exchange of sums, beside its bytes: the meeting at the start of the kernel, a store to another SM, and the wait
for the slowest block."""

_BYTES_PER_CLOCK = 14.0
"""That an SM sends to others of its cluster: 3.3 TB/s of all SMs, in clusters of two (arXiv 2402.13499)."""


_L2_BYTES_PER_CLOCK = 24.0
"""Of an SM, with all of them asking."""


def parts_of(c: Any) -> Column:
    """Blocks that share the sum over k of a tile: by split-K, or in a cluster."""
    return c.split_k * c.cluster_k


_CLUSTERED_SMS = 120, 132
"""Of the SMs, how many blocks fill in clusters of 4 or 8, which lie in one GPC: a 31st cluster of 4, or a 16th of 8,
waits for another or doubles the blocks of some SMs, and takes 1.2 to 2 times as long (H100 and H200)."""


def filled_sms(c: Any, spec: DeviceSpec) -> Column:
    """SMs that blocks of a kernel fill before one of them has two."""
    some, of = _CLUSTERED_SMS
    return np.where(c.cluster_k >= 4, spec.sm_count * some // of, spec.sm_count)


def streams_k(c: Any) -> Any:
    """Which kernels share out the k of all tiles in equal parts; False for families without such kernels."""
    if not has_column(c, "stream_k"):
        return False
    kept = c.table if type(c) is Columns and "stream_k" not in c.given else None
    if kept is not None and not kept.known("any streams", _any_streams):
        return False
    return c.stream_k > 0


def _any_streams(kept: Columns) -> bool:
    return bool((kept.stream_k > 0).any())


def shared_out(c: Any, tiles: Column, k_tiles: Column, slots: Column, count: int = 1) -> tuple[Column, Column]:
    """Blocks, and k tiles of each. slots: blocks that run at once. count: of such problems."""
    parts = parts_of(c)
    blocks: Column = tiles * parts * count
    steps: Column = ceil_div(k_tiles, parts)
    streamed = streams_k(c)
    if streamed is False or not streamed.any():
        return blocks, steps
    at = streamed.nonzero()  # some, and divisions of whole numbers are slow
    tiles, k_tiles, slots = (np.broadcast_to(one, streamed.shape)[at] for one in (tiles, k_tiles, slots))
    some = np.minimum(slots, np.maximum(tiles, tiles * k_tiles // LEAST_STREAMED))
    blocks[at], steps[at] = some, ceil_div(tiles * k_tiles, np.maximum(some, 1))
    return blocks, steps


LEAST_STREAMED = 4
"""k tiles that are worth a block of stream-K."""


_ALONE_BYTES_PER_CLOCK = 64.0
"""Of an SM, while others wait for it."""


def exchange_clocks(c: Any, per_sm: Column = 1, between: Column = 0) -> Column:
    """Clocks in which the blocks of a cluster exchange their sums: each sends what it does not own; or in which blocks
    of stream-K, so many of an SM, add up: each writes the sums of a tile and reads another's. between: blocks of a tile
    that have neither its first nor its last k. All end at the same time, and add up one after the other: 1.0 to 1.7 us
    each with tiles of 64 x 128 (431 kernels of an H200, record 0074)."""
    sent = exchanged_bytes(c) * (c.cluster_k - 1) / c.cluster_k
    found = (c.cluster_k > 1) * _CLOCKS + sent / _BYTES_PER_CLOCK
    streamed = streams_k(c)
    if streamed is False:
        return found
    exchanged = 2 * F32.bytes * c.m * c.n
    in_turn = between * (_CLOCKS + exchanged / _ALONE_BYTES_PER_CLOCK)
    return found + streamed * (_CLOCKS + per_sm * exchanged / _L2_BYTES_PER_CLOCK + in_turn)
