"""The matrices of a problem as flat storage, by name: what `Operands` is for a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.problem.problem import Problem


@dataclass(frozen=True, slots=True)
class Storages:
    """arrays: of each matrix, 1-D, in the storage type of its format."""

    problem: Problem
    arrays: Mapping[str, Array]

    def storage(self, name: str) -> Array:
        return self.arrays[name]


def lines_of(storage: Array, first: int, lines: int, length: int, leading: int) -> Array:
    """Part of a storage as lines; a view."""
    if not lines or not length:
        return np.zeros((lines, length), storage.dtype)
    step = storage.itemsize
    return np.lib.stride_tricks.as_strided(storage[first:], (lines, length), (leading * step, step))
