"""A search as Optuna keeps it: which candidate next, for any number of processes and machines at once.

A trial is one candidate. It is made in one transaction, running, with the candidate's name on it; whoever finds an
earlier trial of the same candidate gives way. So nothing is measured twice, and what was measured is kept the moment it
is known: a search that is killed goes on where it was. What a dead process had claimed is free again.

Candidates are proposed by rank first, few of a kind; then Optuna's TPE and the neighbours of the best alternate. TPE
thinks in parameters, each by itself; the free candidate that shares the most of them with its wish is taken.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.tuner.encoding import Encoding
from tilewright.tuner.measure import Measured
from tilewright.tuner.storage import open_storage, told
from tilewright.winners.plan_config import PlanConfig

LEASE_S = 300.0
"""After so long a claim of another machine is taken for forgotten."""

_CANDIDATE, _OWNER, _STARTED, _FAILURE, _MEASURED = "candidate", "owner", "started", "failure", "measured"
_PROCESS = secrets.token_hex(4)
"""This process, also where its number had been another's."""

_DEATHS = 2
"""Measurements that ended with the death of their process, after which a candidate is left alone."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A candidate that this process measures. number: of its trial."""

    candidate: PlanConfig
    number: int
    trial_id: int


@dataclass(frozen=True, slots=True)
class Result:
    """A candidate that was measured, by any process."""

    candidate: PlanConfig
    measured: Measured


class TuningStudy:
    """One search in a storage.

    candidates: all of them, the most promising first. seeds: to be proposed before anything is learned.
    """

    def __init__(
        self, url: str, name: str, candidates: Sequence[PlanConfig], seeds: Sequence[PlanConfig] = (), *, seed: int = 0
    ) -> None:
        self.url, self.name = url, name
        self.candidates = tuple(candidates)
        self._storage = open_storage(url)
        import optuna

        with told(url):
            self._study = optuna.create_study(
                storage=self._storage, study_name=name, direction="minimize", load_if_exists=True
            )
            self._study_id = self._storage.get_study_id_from_name(name)
        self._by_key = {candidate.key: candidate for candidate in self.candidates}
        self._seeds = list(seeds)
        self._turn = 0
        self._measured: dict[str, Measured] = {}
        self._failed: dict[str, str] = {}
        self._busy: set[str] = set()
        self._owner = {"host": socket.gethostname(), "pid": os.getpid(), "process": _PROCESS}
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

    def close(self) -> None:
        """Leave the storage."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    # -- what is known ----------------------------------------------------------------------------------------------

    def refresh(self) -> list[Any]:
        """Read what all processes have done; the trials. `claim` does it too."""
        with told(self.url):
            trials: list[Any] = self._study.get_trials(deepcopy=False)
        self._measured, self._failed, self._busy = {}, {}, set()
        for trial in trials:
            key = trial.user_attrs.get(_CANDIDATE, "")
            if _MEASURED in trial.user_attrs:
                self._measured[key] = Measured(**trial.user_attrs[_MEASURED])
            elif _FAILURE in trial.user_attrs:
                self._failed[key] = trial.user_attrs[_FAILURE]
            elif not trial.state.is_finished():
                self._busy.add(key)
        return trials

    def results(self) -> list[Result]:
        """What was measured, the fastest first."""
        found = [Result(self._by_key[key], one) for key, one in self._measured.items() if key in self._by_key]
        return sorted(found, key=lambda result: result.measured.median_us)

    def failures(self) -> dict[PlanConfig, str]:
        """Why candidates were left out."""
        return {self._by_key[key]: reason for key, reason in self._failed.items() if key in self._by_key}

    @property
    def best_us(self) -> float | None:
        """The fastest time known."""
        return min((one.median_us for one in self._measured.values()), default=None)

    # -- which next -------------------------------------------------------------------------------------------------

    def claim(self) -> Claim | None:
        """The next candidate, for this process alone; None where all are taken."""
        while True:
            candidate = self._proposed()
            if candidate is None:
                return None
            claim = self._claimed(candidate)
            if claim is not None:
                return claim

    def _claimed(self, candidate: PlanConfig) -> Claim | None:
        import optuna

        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            user_attrs={_CANDIDATE: candidate.key, _OWNER: self._owner},
        )
        with told(self.url):
            trial_id = self._storage.create_new_trial(self._study_id, template_trial=trial)
        trials = self.refresh()
        claim = Claim(candidate, next(one.number for one in trials if one._trial_id == trial_id), trial_id)
        # Trials are numbered in the order of their transactions: of two of one candidate, the later sees the earlier.
        for other in trials:
            if other.number < claim.number and other.user_attrs.get(_CANDIDATE) == candidate.key:
                if not other.state.is_finished() or _MEASURED in other.user_attrs or _FAILURE in other.user_attrs:
                    self.release([claim])
                    self._busy.add(candidate.key)
                    return None
        return claim

    def _is_free(self, candidate: PlanConfig) -> bool:
        key = candidate.key
        return key not in self._measured and key not in self._failed and key not in self._busy

    def _proposed(self) -> PlanConfig | None:
        while self._seeds:
            first = self._seeds.pop(0)
            if self._is_free(first):
                return first
        taken = {*self._measured, *self._failed, *self._busy}
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
            wish = self._wished()
        likeness = np.where(free, self._encoding.likeness(wish), -1)
        return self.candidates[int(np.argmax(likeness))]  # of equals, the one of the best rank

    def _wished(self) -> Any:
        import optuna

        distributions = self._encoding.distributions
        for key in [one for one in self._measured if one in self._by_key and one not in self._known]:
            self._known.add(key)
            params, us = self._encoding.params(self._by_key[key]), self._measured[key].median_us
            self._learned.add_trial(optuna.trial.create_trial(value=us, params=params, distributions=distributions))
        params = self._sampler.sample_relative(self._learned, self._any_trial, distributions)
        return self._encoding.codes({**self._encoding.params(self.candidates[0]), **params})

    # -- what came of it --------------------------------------------------------------------------------------------

    def started(self, claim: Claim) -> None:
        """The claim goes to the GPU now: if this process dies, that may be why."""
        self._note(claim, _STARTED, True)

    def tell(self, claim: Claim, measured: Measured) -> None:
        values = {name: getattr(measured, name) for name in Measured.__slots__}
        self._note(claim, _MEASURED, values)
        self._finish(claim, measured.median_us)
        self._measured[claim.candidate.key] = measured

    def tell_failure(self, claim: Claim, reason: str) -> None:
        self._note(claim, _FAILURE, reason)
        self._finish(claim, None)
        self._failed[claim.candidate.key] = reason

    def release(self, claims: Iterable[Claim]) -> None:
        """These were not measured: whoever comes next may."""
        for claim in claims:
            self._finish(claim, None)
            self._busy.discard(claim.candidate.key)

    def _note(self, claim: Claim, name: str, value: Any) -> None:
        with told(self.url):
            self._storage.set_trial_user_attr(claim.trial_id, name, value)

    def _finish(self, claim: Claim, value: float | None) -> None:
        from optuna.trial import TrialState

        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        with told(self.url):
            self._storage.set_trial_state_values(claim.trial_id, state, None if value is None else [value])

    # -- after a kill -----------------------------------------------------------------------------------------------

    def free_the_dead(self) -> int:
        """Release what processes that are gone had claimed; how many.

        A candidate in whose measurement processes died twice is taken for the reason, and fails.
        """
        deaths: dict[str, int] = {}
        freed = 0
        for trial in self.refresh():
            key = trial.user_attrs.get(_CANDIDATE, "")
            died = _STARTED in trial.user_attrs and _MEASURED not in trial.user_attrs
            gone = not trial.state.is_finished() and self._is_gone(trial)
            if gone and _MEASURED in trial.user_attrs:  # killed between the two writes of `tell`
                self._finish(self._as_claim(trial), trial.user_attrs[_MEASURED]["median_us"])
                continue
            deaths[key] = deaths.get(key, 0) + (died and _FAILURE not in trial.user_attrs)
            if gone and key in self._by_key:
                freed += 1
                if died and deaths[key] >= _DEATHS:
                    self.tell_failure(self._as_claim(trial), "the process that measured it died, twice")
                else:
                    self.release([self._as_claim(trial)])
        self.refresh()
        return freed

    def _as_claim(self, trial: Any) -> Claim:
        return Claim(self._by_key[trial.user_attrs[_CANDIDATE]], trial.number, trial._trial_id)

    def _is_gone(self, trial: Any) -> bool:
        owner = trial.user_attrs.get(_OWNER, {})
        if owner.get("process") == _PROCESS:
            return False
        if owner.get("host") == self._owner["host"]:
            return owner.get("pid") == self._owner["pid"] or not _is_alive(int(owner.get("pid", 0)))
        started = trial.datetime_start
        return started is not None and (datetime.now() - started).total_seconds() > LEASE_S


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
