"""A law of a family: stated once, in arithmetic over columns, with its reason in words for one configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.kernels.columns import Columns
from tilewright.problem.gemm import Gemm


@dataclass(frozen=True, slots=True)
class Law:
    """broken: of columns and a problem, where the law is not met. reason: of one configuration, with its values."""

    broken: Callable[[Any, Gemm], Any]
    reason: Callable[[Any, Gemm], str]


def legal(laws: Sequence[Law], columns: Columns, gemm: Gemm) -> Any:
    """Whether each configuration meets all laws: a column of truth values."""
    found = np.ones(len(columns), dtype=bool)
    for law in laws:
        found &= ~np.asarray(law.broken(columns, gemm), dtype=bool)
    return found


def reasons_against(laws: Sequence[Law], configuration: Any, names: Sequence[str], gemm: Gemm) -> tuple[str, ...]:
    """Why a configuration cannot compute a problem, in words; empty if it can."""
    one = Columns.of([configuration], names)
    return tuple(law.reason(configuration, gemm) for law in laws if np.any(law.broken(one, gemm)))
