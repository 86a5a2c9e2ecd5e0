"""The flags of a launch, in global memory."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import Array

FLAGS = "flag"
"""What a journal calls them."""


class Flags:
    """The flags of a launch. rows: for each flag what its last setter knew, made when the first one is set. times: how
    often each was set, counted for a journal."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.times = np.zeros(len(values), np.int64)
        self.rows: dict[int, Array] = {}
