"""Work that any number of processes and machines share, one item at a time: claims in a storage of Optuna.

A trial is one item. It is made in one transaction, running, with the item's key on it; whoever finds an earlier trial
of the same item gives way. So nothing is done twice, and what was found is kept the moment it is known: work that is
killed goes on where it was. What a dead process had claimed is free again.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from tilewright.tuner.storage import Finished, open_storage, told


class Keyed(Protocol):
    """An item of work. key: the same text in every process, and another one for every other item."""

    @property
    def key(self) -> str: ...


Item = TypeVar("Item", bound=Keyed)

LEASE_S = 300.0
"""After so long a claim of another machine is taken for forgotten."""

_CANDIDATE, _OWNER, _STARTED, _FAILURE, _MEASURED = "candidate", "owner", "started", "failure", "measured"
_PROCESS = secrets.token_hex(4)
"""This process, also where its number had been another's."""

_DEATHS = 2
"""Times that a process died over an item, after which the item is left alone."""


@dataclass(frozen=True, slots=True)
class Claim(Generic[Item]):
    """An item that this process works on. number: of its trial."""

    candidate: Item
    number: int
    trial_id: int


class Claims(Generic[Item]):
    """Items in a storage, of which each is done once.

    candidates: all items, in the order in which they are done. lease_s: after which a claim of another machine is free.
    died: what is told of an item over which processes died.
    """

    died = "the process that worked on it died, twice"

    def __init__(self, url: str, name: str, candidates: Sequence[Item], *, lease_s: float = LEASE_S) -> None:
        self.url, self.name = url, name
        self.candidates = tuple(candidates)
        self._lease_s = lease_s
        self._storage = open_storage(url)
        import optuna

        with told(url):
            self._study = optuna.create_study(
                storage=self._storage, study_name=name, direction="minimize", load_if_exists=True
            )
            self._study_id = self._storage.get_study_id_from_name(name)
        self._by_key = {candidate.key: candidate for candidate in self.candidates}
        self._values: dict[str, Mapping[str, Any]] = {}
        self._failed: dict[str, str] = {}
        self._busy: set[str] = set()
        self._owner = {"host": socket.gethostname(), "pid": os.getpid(), "process": _PROCESS}

    def close(self) -> None:
        """Leave the storage."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    # -- what is known ----------------------------------------------------------------------------------------------

    def refresh(self) -> list[Any]:
        """Read what all processes have done; the trials. `claim` does it too."""
        with told(self.url):
            trials: list[Any] = self._study.get_trials(deepcopy=False)
        self._values, self._failed, self._busy = {}, {}, set()
        for trial in trials:
            key = trial.user_attrs.get(_CANDIDATE, "")
            if _MEASURED in trial.user_attrs:
                self._values[key] = trial.user_attrs[_MEASURED]
            elif _FAILURE in trial.user_attrs:
                self._failed[key] = trial.user_attrs[_FAILURE]
            elif not trial.state.is_finished():
                self._busy.add(key)
        return trials

    def values(self) -> dict[Item, Mapping[str, Any]]:
        """What was found for items, by any process."""
        return {self._by_key[key]: found for key, found in self._values.items() if key in self._by_key}

    def failures(self) -> dict[Item, str]:
        """Why items were left out."""
        return {self._by_key[key]: reason for key, reason in self._failed.items() if key in self._by_key}

    @property
    def busy(self) -> int:
        """Items on which processes work."""
        return len(self._busy & self._by_key.keys())

    # -- which next -------------------------------------------------------------------------------------------------

    def claim(self) -> Claim[Item] | None:
        """The next item, for this process alone; None where all are taken."""
        while True:
            candidate = self._proposed()
            if candidate is None:
                return None
            claim = self._claimed(candidate)
            if claim is not None:
                return claim

    def claim_of(self, candidate: Item) -> Claim[Item] | None:
        """An item, for this process alone; None where it is taken, or none of these."""
        return self._claimed(candidate) if candidate.key in self._by_key and self._is_free(candidate) else None

    def _claimed(self, candidate: Item) -> Claim[Item] | None:
        import optuna

        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            user_attrs={_CANDIDATE: candidate.key, _OWNER: self._owner},
        )
        with told(self.url):
            trial_id = self._storage.create_new_trial(self._study_id, template_trial=trial)
        trials = self.refresh()
        claim = Claim(candidate, next(one.number for one in trials if one._trial_id == trial_id), trial_id)
        # Trials are numbered in the order of their transactions: of two of one item, the later sees the earlier.
        for other in trials:
            if other.number < claim.number and other.user_attrs.get(_CANDIDATE) == candidate.key:
                if not other.state.is_finished() or _MEASURED in other.user_attrs or _FAILURE in other.user_attrs:
                    self.release([claim])
                    self._busy.add(candidate.key)
                    return None
        return claim

    def _is_free(self, candidate: Item) -> bool:
        key = candidate.key
        return key not in self._values and key not in self._failed and key not in self._busy

    def _proposed(self) -> Item | None:
        """A free item, to be claimed next."""
        return next((candidate for candidate in self.candidates if self._is_free(candidate)), None)

    # -- what came of it --------------------------------------------------------------------------------------------

    def started(self, claim: Claim[Item]) -> None:
        """Work on the claim begins now: if this process dies, that may be why."""
        self._note(claim, _STARTED, True)

    def tell_values(self, claim: Claim[Item], values: Mapping[str, Any], order: float = 0.0) -> None:
        """What was found, as plain values. order: the less, the better."""
        self._note(claim, _MEASURED, values)
        self._finish(claim, order)
        self._values[claim.candidate.key] = values

    def tell_failure(self, claim: Claim[Item], reason: str) -> None:
        self._note(claim, _FAILURE, reason)
        self._finish(claim, None)
        self._failed[claim.candidate.key] = reason

    def release(self, claims: Iterable[Claim[Item]]) -> None:
        """These were not done: whoever comes next may."""
        for claim in claims:
            self._finish(claim, None)
            self._busy.discard(claim.candidate.key)

    def _note(self, claim: Claim[Item], name: str, value: Any) -> None:
        with told(self.url):
            self._storage.set_trial_user_attr(claim.trial_id, name, value)

    def _finish(self, claim: Claim[Item], value: float | None) -> None:
        from optuna.trial import TrialState

        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        with told(self.url):
            self._storage.set_trial_state_values(claim.trial_id, state, None if value is None else [value])

    # -- after a kill -----------------------------------------------------------------------------------------------

    def free_the_dead(self) -> int:
        """Release what processes that are gone had claimed; how many.

        An item over which processes died twice is taken for the reason, and fails.
        """
        deaths: dict[str, int] = {}
        freed = 0
        for trial in self.refresh():
            key = trial.user_attrs.get(_CANDIDATE, "")
            died = _STARTED in trial.user_attrs and _MEASURED not in trial.user_attrs
            gone = not trial.state.is_finished() and self._is_gone(trial)
            deaths[key] = deaths.get(key, 0) + (died and _FAILURE not in trial.user_attrs)
            if not gone or key not in self._by_key:
                continue
            with suppress(Finished):  # another process frees it at this moment
                if _MEASURED in trial.user_attrs:  # killed between the two writes of `tell_values`
                    self._finish(self._as_claim(trial), self._order_of(trial.user_attrs[_MEASURED]))
                    continue
                freed += 1
                if died and deaths[key] >= _DEATHS:
                    self.tell_failure(self._as_claim(trial), self.died)
                else:
                    self.release([self._as_claim(trial)])
        self.refresh()
        return freed

    def _order_of(self, values: Mapping[str, Any]) -> float:
        """The order of values that were told."""
        return 0.0

    def _as_claim(self, trial: Any) -> Claim[Item]:
        return Claim(self._by_key[trial.user_attrs[_CANDIDATE]], trial.number, trial._trial_id)

    def _is_gone(self, trial: Any) -> bool:
        owner = trial.user_attrs.get(_OWNER, {})
        if owner.get("process") == _PROCESS:
            return False
        if owner.get("host") == self._owner["host"]:
            return owner.get("pid") == self._owner["pid"] or not _is_alive(int(owner.get("pid", 0)))
        started = trial.datetime_start
        return started is not None and (datetime.now() - started).total_seconds() > self._lease_s


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
