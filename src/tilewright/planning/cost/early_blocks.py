"""Blocks of dependent launch: how many launches of a kernel find room on a GPU together, and what it costs where one
finds only a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels.columns import Column

_LAUNCHES = 3
"""Of which so many find room beside each other, blocks are hardly bound by memory."""

_UNEVEN, _UNEVEN_MORE = 0.35, 0.9
"""What blocks of dependent launch add to memory's time, by the share of SMs that they leave idle, and by its square:
`uneven`. H200, bf16, 1 to 16 rows, 55 pairs of plans: 1.03 to 1.09 at 0.15, 1.12 to 1.14 at 0.24, 1.2 at 0.35, 1.3 to
1.4 at 0.45 (record 0075). In f16, tf32 and FP8 alike, 197 pairs; one block an SM, where two have room: 1.12 at 0.2,
1.21 at 0.32 (record 0072). Clusters of 4 and 8 along k, of the 120 SMs that they fill: 1.24 to 1.49 at 0.47, 1.3 at
0.4, 0.95 to 1.1 at 0.2, 53 pairs (record 0094). Clusters of 4 tiles alike, and blocks that two launches of leave SMs
idle: record 0112."""


def filled(c: Any, blocks: Column, waves: Column) -> tuple[Column, Column]:
    """The share that blocks fill of the SMs that they can have; and how much of a launch finds room beside this one and
    as many of the next as find it as a whole. Not beside `_LAUNCHES`, of which hardly any waits."""
    an_sm = blocks * c.together / (c.room * waves)
    share = an_sm / np.ceil(an_sm)  # where an SM has room for more than it gets, blocks are spread out all the same
    launches = 1 / share
    return share, np.where(launches < _LAUNCHES, launches - np.floor(launches + 1e-9), 0.0)


def uneven(c: Any, blocks: Column, waves: Column) -> Column:
    """The share that dependent launch adds to memory's time. Blocks that start where others leave SMs idle, and the
    rest where others have just ended, lie on some GPCs more than on others. Not where all find idle SMs, or where
    blocks come in more than `uneven_waves`."""
    left = filled(c, blocks, waves)[1]
    idle = np.where(waves <= c.uneven_waves, left / (1 + left), 0.0)
    return c.dependent_launch * idle * (_UNEVEN + _UNEVEN_MORE * idle)
