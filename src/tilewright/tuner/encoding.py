"""Plans as Optuna sees them: points of one space, whatever family their kernels are of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.kernels.configuration import parameters
from tilewright.winners.plan_config import PlanConfig

_FAMILY_WEIGHT = 4
"""Parameters that another family counts as, when candidates are compared."""

_AROUND_WEIGHT = 2
"""The same for split-K, and for what is packed."""

_OF_ALL = ("family", "split_k", "packing")
"""What every plan has, before the parameters of its family."""


@dataclass(frozen=True)
class Encoding:
    """Candidates of several families as points of one space: a parameter that one lacks has the value "-" there."""

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    matrix: Any
    weights: Any

    @classmethod
    def of(cls, candidates: Sequence[PlanConfig]) -> Encoding:
        if not candidates:
            raise TilewrightError("There is nothing to search.")
        kinds = {candidate.kernel.kind: candidate.kernel for candidate in candidates}
        own = {name for kernel in kinds.values() for name in parameters(kernel)}
        names = (*_OF_ALL, *sorted(own - set(_OF_ALL)))
        rows = [_texts(candidate, names) for candidate in candidates]
        values = tuple(tuple(sorted(set(column), key=_in_order)) for column in zip(*rows, strict=True))
        places = [{text: at for at, text in enumerate(column)} for column in values]
        matrix = np.array([[place[text] for place, text in zip(places, row, strict=True)] for row in rows])
        weights = np.array([_FAMILY_WEIGHT] + [_AROUND_WEIGHT] * 2 + [1] * (len(names) - len(_OF_ALL)))
        return cls(names, values, matrix, weights)

    @property
    def distributions(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution

        return {name: CategoricalDistribution(column) for name, column in zip(self.names, self.values, strict=True)}

    def params(self, candidate: PlanConfig) -> dict[str, str]:
        return dict(zip(self.names, _texts(candidate, self.names), strict=True))

    def codes_of(self, candidate: PlanConfig) -> Any:
        return self.codes(self.params(candidate))

    def codes(self, params: dict[str, str]) -> Any:
        pairs = zip(self.names, self.values, strict=True)
        return np.array([column.index(params[name]) for name, column in pairs])

    def likeness(self, codes: Any) -> Any:
        """How many parameters each candidate shares with a wish."""
        return ((self.matrix == codes) * self.weights).sum(axis=1)


def _texts(candidate: PlanConfig, names: Sequence[str]) -> list[str]:
    point = parameters(candidate.kernel)
    own = (_text_of(repr(type(point[name])), point[name]) if name in point else "-" for name in names[len(_OF_ALL) :])
    packing = [*sorted(candidate.packed), *(f"transposed {name}" for name in sorted(candidate.transposed))]
    packing += ["tile multiples"] if candidate.tile_multiples else []
    return [candidate.kernel.kind, str(candidate.split_k), " ".join(packing), *own]


@cache
def _text_of(kind: str, value: Any) -> str:
    """kind: True is not 1."""
    return json.dumps(value)


def _in_order(text: str) -> tuple[float, str]:
    return (float(text), "") if text.replace(".", "", 1).isdigit() else (-1.0, text)
