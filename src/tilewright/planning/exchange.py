"""What it costs that the blocks of a cluster share the sum over k of a tile: estimates, which `correction` mends."""

from __future__ import annotations

from typing import Any

from tilewright.kernels.columns import Column
from tilewright.kernels.tile_sizes import exchanged_bytes

_CLOCKS = 1000.0
"""Of an exchange of sums, beside its bytes: the meeting at the start of the kernel, a store to another SM, and the wait
for the slowest block."""

_BYTES_PER_CLOCK = 14.0
"""That an SM sends to others of its cluster: 3.3 TB/s of all SMs, in clusters of two (arXiv 2402.13499)."""


def parts_of(c: Any) -> Column:
    """Blocks that share the sum over k of a tile: by split-K, or in a cluster."""
    return c.split_k * c.cluster_k


def exchange_clocks(c: Any) -> Column:
    """Clocks in which the blocks of a cluster exchange their sums: each sends what it does not own."""
    sent = exchanged_bytes(c) * (c.cluster_k - 1) / c.cluster_k
    return (c.cluster_k > 1) * _CLOCKS + sent / _BYTES_PER_CLOCK
