"""Operands whose rows are shorter than a line of the L2: a tile's rows lie several in a line, and each is asked for on
its own, by every block, or cluster, that works on the same tile. The L2 serves requests to one line in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels.columns import Column
from tilewright.layout.banks import LINE_BYTES
from tilewright.problem.gemm import Gemm

_REQUEST_SECONDS, _FIRST_SECONDS = 0.7e-9, 1.2e-9
"""Of a request, and more of the first k tile, which nothing hides. H200: 6584 x 56 x 8, where 8 rows of B lie in a line
and 103 blocks ask for them, takes 3.45 us, and 2.17 in clusters of four, which ask once; 8 x 3072 x 768 TN 7.28 and
3.60, 8 x 6144 x 4096 TN 17.5 and 14.9 (record 0100)."""


def line_seconds(c: Any, gemm: Gemm, tiles: tuple[Column, Column], steps: Column) -> tuple[Column, Column] | None:
    """Seconds in which requests of all k tiles are served at least, and of those of the first; None where every row has
    lines of its own. tiles: rows and columns of them. steps: k tiles of a block."""
    rows, columns = tiles
    asked: Any = None
    for name, sharers, cluster in (("A", columns, c.cluster_n), ("B", rows, c.cluster_m)):
        operand = gemm.operand(name)
        in_line = LINE_BYTES / max(1, gemm.leading(name) * operand.dtype.bytes)
        if in_line >= 4:
            requests = in_line * np.minimum(sharers, c.slots) / cluster
            asked = requests if asked is None else np.maximum(asked, requests)
    return None if asked is None else (_REQUEST_SECONDS * asked * steps, _FIRST_SECONDS * asked)
