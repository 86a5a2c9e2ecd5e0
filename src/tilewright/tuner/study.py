"""A search as Optuna keeps it: which candidate next, for any number of processes and machines at once (`claims`).

Candidates are proposed by rank first, few of a kind; then Optuna's TPE and the neighbours of the best alternate. TPE
thinks in parameters, each by itself; the free candidate that shares the most of them with its wish is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.tuner.claims import Claim, Claims
from tilewright.tuner.encoding import Encoding
from tilewright.tuner.measure import Measured
from tilewright.winners.plan_config import PlanConfig


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
