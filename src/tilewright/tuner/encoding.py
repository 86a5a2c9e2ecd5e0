"""Choices as Optuna sees them: points of one space, whatever rung they are of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.winners.choice import Choice

_RUNG_WEIGHT = 4
"""Parameters that another rung counts as, when candidates are compared."""

_AROUND_WEIGHT = 2
"""The same for the parts of k, and for what is copied first."""

_OF_ALL = ("rung", "splits", "copied first")
"""What every choice has, before the parameters of its rung."""


@dataclass(frozen=True)
class Encoding:
    """Candidates of several rungs as points of one space: a parameter that a rung lacks has the value "-" there."""

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    matrix: Any
    weights: Any

    @classmethod
    def of(cls, candidates: Sequence[Choice]) -> Encoding:
        if not candidates:
            raise TilewrightError("There is nothing to search.")
        names = (*_OF_ALL, *sorted({name for candidate in candidates for name in candidate.point}))
        rows = [_texts(candidate, names) for candidate in candidates]
        values = tuple(tuple(sorted(set(column), key=_in_order)) for column in zip(*rows, strict=True))
        places = [{text: at for at, text in enumerate(column)} for column in values]
        matrix = np.array([[place[text] for place, text in zip(places, row, strict=True)] for row in rows])
        weights = np.array([_RUNG_WEIGHT] + [_AROUND_WEIGHT] * 2 + [1] * (len(names) - len(_OF_ALL)))
        return cls(names, values, matrix, weights)

    @property
    def distributions(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution

        return {name: CategoricalDistribution(column) for name, column in zip(self.names, self.values, strict=True)}

    def params(self, candidate: Choice) -> dict[str, str]:
        return dict(zip(self.names, _texts(candidate, self.names), strict=True))

    def codes_of(self, candidate: Choice) -> Any:
        return self.codes(self.params(candidate))

    def codes(self, params: dict[str, str]) -> Any:
        pairs = zip(self.names, self.values, strict=True)
        return np.array([column.index(params[name]) for name, column in pairs])

    def likeness(self, codes: Any) -> Any:
        """How many parameters each candidate shares with a wish."""
        return ((self.matrix == codes) * self.weights).sum(axis=1)


def _texts(candidate: Choice, names: Sequence[str]) -> list[str]:
    point = candidate.point
    own = (json.dumps(point[name]) if name in point else "-" for name in names[len(_OF_ALL) :])
    copies = [*sorted(candidate.pads), *(f"turned {name}" for name in sorted(candidate.turned))]
    copies += ["whole tiles"] if candidate.filled else []
    return [candidate.rung, str(candidate.splits), " ".join(copies), *own]


def _in_order(text: str) -> tuple[float, str]:
    return (float(text), "") if text.replace(".", "", 1).isdigit() else (-1.0, text)
