"""The flags of a launch, in global memory."""

from __future__ import annotations

from tilewright.dtypes import Array


class Flags:
    """The flags of a launch. rows: for each flag what its last setter knew, made when the first one is set."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.rows: dict[int, Array] = {}
