"""A search as Optuna keeps it: which candidate next, for any number of processes and machines at once (`claims`).

Candidates are proposed by rank first, few of a kind; then Optuna's TPE and the neighbours of the best alternate. TPE
thinks in parameters, each by itself; the free candidate that shares the most of them with its wish is taken.

Plans as Optuna sees them: points of one space, whatever family their kernels are of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.kernels.configuration import parameters
from tilewright.tuner.claims import Claim, Claims
from tilewright.tuner.measure import Measured
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


@dataclass(frozen=True, slots=True)
class Result:
    """A candidate that was measured, by any process."""

    candidate: PlanConfig
    measured: Measured


class TuningStudy(Claims[PlanConfig]):
    """One search in a storage.

    candidates: all of them, the most promising first. seeds: to be proposed before anything is learned.
    """

    died = "the process that measured it died, twice"

    def __init__(
        self, url: str, name: str, candidates: Sequence[PlanConfig], seeds: Sequence[PlanConfig] = (), *, seed: int = 0
    ) -> None:
        super().__init__(url, name, candidates)
        import optuna

        self._seeds = list(seeds)
        self._turn = 0
        self._any_trial = optuna.trial.create_trial(value=0.0)  # the sampler wants one, and reads nothing of it
        self._sampler: Any = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=False, n_startup_trials=5
        )
        # The sampler learns from a study in memory: writing every parameter of a candidate takes a database 20 times
        # as long as writing its name.
        self._learned = optuna.create_study(direction="minimize", storage=optuna.storages.InMemoryStorage())
        self._known: set[str] = set()

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding.of(self.candidates)

    def results(self) -> list[Result]:
        """What was measured, the fastest first."""
        found = [Result(candidate, Measured(**values)) for candidate, values in self.values().items()]
        return sorted(found, key=lambda result: result.measured.median_us)

    @property
    def best_us(self) -> float | None:
        """The fastest time known."""
        return min((values["median_us"] for values in self._values.values()), default=None)

    def tell(self, claim: Claim[PlanConfig], measured: Measured) -> None:
        values = {name: getattr(measured, name) for name in Measured.__slots__}
        self.tell_values(claim, values, measured.median_us)

    def _order_of(self, values: Mapping[str, Any]) -> float:
        return float(values["median_us"])

    def _proposed(self) -> PlanConfig | None:
        while self._seeds:
            first = self._seeds.pop(0)
            if self._is_free(first):
                return first
        taken = {*self._values, *self._failed, *self._busy}
        free = np.array([key not in taken for key in self._by_key])
        if not free.any():
            return None
        self._turn += 1
        results = self.results()
        if not results:
            return self.candidates[int(np.argmax(free))]
        if self._turn % 2:
            wish = self._encoding.codes_of(results[self._turn // 2 % min(3, len(results))].candidate)
        else:
            wish = self._wished(results)
        likeness = np.where(free, self._encoding.likeness(wish), -1)
        return self.candidates[int(np.argmax(likeness))]  # of equals, the one of the best rank

    def _wished(self, results: Sequence[Result]) -> Any:
        import optuna

        distributions = self._encoding.distributions
        for result in [one for one in results if one.candidate.key not in self._known]:
            self._known.add(result.candidate.key)
            params, us = self._encoding.params(result.candidate), result.measured.median_us
            self._learned.add_trial(optuna.trial.create_trial(value=us, params=params, distributions=distributions))
        params = self._sampler.sample_relative(self._learned, self._any_trial, distributions)
        return self._encoding.codes({**self._encoding.params(self.candidates[0]), **params})
