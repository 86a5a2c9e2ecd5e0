"""Candidates as Optuna sees them: points of one space, whatever rung they are of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.tuner.space import Candidate

_RUNG_WEIGHT = 4
"""Parameters that another rung counts as, when candidates are compared."""


@dataclass(frozen=True)
class Encoding:
    """Candidates of several rungs as points of one space: a parameter that a rung lacks has the value "-" there."""

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    matrix: Any
    weights: Any

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> Encoding:
        if not candidates:
            raise TilewrightError("There is nothing to search.")
        names = ("rung", *sorted({name for candidate in candidates for name in candidate.point}))
        rows = [_texts(candidate, names) for candidate in candidates]
        values = tuple(tuple(sorted(set(column), key=_in_order)) for column in zip(*rows, strict=True))
        places = [{text: at for at, text in enumerate(column)} for column in values]
        matrix = np.array([[place[text] for place, text in zip(places, row, strict=True)] for row in rows])
        weights = np.array([_RUNG_WEIGHT] + [1] * (len(names) - 1))
        return cls(names, values, matrix, weights)

    @property
    def distributions(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution

        return {name: CategoricalDistribution(column) for name, column in zip(self.names, self.values, strict=True)}

    def params(self, candidate: Candidate) -> dict[str, str]:
        return dict(zip(self.names, _texts(candidate, self.names), strict=True))

    def codes_of(self, candidate: Candidate) -> Any:
        return self.codes(self.params(candidate))

    def codes(self, params: dict[str, str]) -> Any:
        pairs = zip(self.names, self.values, strict=True)
        return np.array([column.index(params[name]) for name, column in pairs])

    def likeness(self, codes: Any) -> Any:
        """How many parameters each candidate shares with a wish."""
        return ((self.matrix == codes) * self.weights).sum(axis=1)


def _texts(candidate: Candidate, names: Sequence[str]) -> list[str]:
    point = candidate.point
    return [candidate.rung, *(json.dumps(point[name]) if name in point else "-" for name in names[1:])]


def _in_order(text: str) -> tuple[float, str]:
    return (float(text), "") if text.replace(".", "", 1).isdigit() else (-1.0, text)
