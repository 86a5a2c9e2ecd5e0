"""The space of a search: every point of the rungs that can multiply a problem, and why a point is no kernel.

What is legal is decided where it always is: the laws of schedules, the passes, and `model.limits`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tilewright.device.spec import DeviceSpec
from tilewright.errors import ProblemError, TilewrightError, UnknownName
from tilewright.ladders import LADDERS, find_ladder, find_rung
from tilewright.ladders.rung import Point, Rung
from tilewright.model.limits import reasons_it_cannot_run
from tilewright.problem.gemm import Gemm
from tilewright.toolchain import Build, build, grid_of
from tilewright.winners.order import ReductionOrder, order_of

_BUILDS_KEPT = 4
"""A candidate is asked for its reasons, its prediction and its text, one after another."""

_LOOKED_AT_FIRST = 16
"""Points that are tried before a rung is said to have none for a problem."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point of a rung's choices."""

    rung: str
    point: Point = field(hash=False)

    @property
    def key(self) -> str:
        """The same text for the same point, in every process."""
        return f"{self.rung} {json.dumps(dict(self.point), sort_keys=True)}"

    def __str__(self) -> str:
        return f"{self.rung} {', '.join(f'{name} {value}' for name, value in self.point.items())}"

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key


class Space:
    """The candidates for one problem on one device.

    like: only candidates that sum in this order are legal. May be asked from several threads.
    """

    def __init__(self, gemm: Gemm, spec: DeviceSpec, rungs: Sequence[Rung], *, like: ReductionOrder | None = None):
        self.gemm, self.spec, self.like = gemm, spec, like
        self.rungs: dict[str, Rung] = {rung.name: rung for rung in rungs}
        self.candidates = tuple(
            Candidate(rung.name, dict(point))
            for rung in rungs
            if rung.choices is not None
            for point in rung.choices.points()
        )
        self._by_key = {candidate.key: candidate for candidate in self.candidates}
        self._reasons: dict[str, tuple[str, ...]] = {}
        self._lock = threading.Lock()
        self._built = lru_cache(_BUILDS_KEPT)(self._build)

    def find(self, rung: str, point: Mapping[str, Any]) -> Candidate | None:
        """The candidate of a rung at a point, if it is one of this space."""
        return self._by_key.get(Candidate(rung, point).key)

    def default(self, rung: str) -> Candidate | None:
        """The candidate at which the rung itself stands, if it is one of its points."""
        one = self.rungs[rung]
        assert one.choices is not None
        try:
            own = one.schedule(self.gemm)
            mine = (candidate for candidate in self.candidates if candidate.rung == rung)
            return next((c for c in mine if one.choices.schedule_at(self.gemm, c.point) == own), None)
        except TilewrightError:
            return None

    def build(self, candidate: Candidate) -> Build:
        """The kernel of a candidate. Raises what schedules and passes raise."""
        return self._built(candidate)

    def _build(self, candidate: Candidate) -> Build:
        return build_of(self.gemm, self.rungs[candidate.rung], candidate.point)

    def reasons(self, candidate: Candidate) -> tuple[str, ...]:
        """Every reason why a candidate cannot be used; empty if it can."""
        with self._lock:
            known = self._reasons.get(candidate.key)
        if known is None:
            known = self._looked(candidate)
            with self._lock:
                self._reasons[candidate.key] = known
        return known

    def is_legal(self, candidate: Candidate) -> bool:
        return not self.reasons(candidate)

    def _looked(self, candidate: Candidate) -> tuple[str, ...]:
        try:
            built = self.build(candidate)
            order = order_of(built) if self.like is not None else None
            if order is not None and self.like is not None and order != self.like:
                return (f"it sums in another order: {order.difference_from(self.like)}",)
            return reasons_of(built, self.spec)
        except TilewrightError as refusal:
            return (refusal.headline,)

    @property
    def digest(self) -> str:
        """A name for this set of candidates: studies of different sets do not mix."""
        text = "\n".join([*sorted(self._by_key), repr(self.like)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def build_of(gemm: Gemm, rung: Rung, point: Point) -> Build:
    """The kernel of a rung at a point."""
    assert rung.choices is not None
    return build(gemm, rung.choices.schedule_at(gemm, point), name=f"{rung.ladder}_{rung.slug}")


def reasons_of(built: Build, spec: DeviceSpec) -> tuple[str, ...]:
    """Why a kernel cannot run on a device, as far as that is known before it is compiled."""
    kernel = built.kernel
    dynamic_bytes = kernel.shared_bytes if kernel.uses_dynamic_shared else 0
    return reasons_it_cannot_run(
        spec,
        threads_per_block=kernel.threads_per_block,
        static_shared_bytes=kernel.shared_bytes - dynamic_bytes,
        dynamic_shared_bytes=dynamic_bytes,
        grid=grid_of(kernel, built.gemm),
        cluster=(kernel.cluster, 1, 1) if not kernel.resident else (1, 1, 1),
        needs=kernel.needs,
    )


def make_space(
    gemm: Gemm,
    spec: DeviceSpec,
    *,
    ladder: str | None = None,
    rung: str | None = None,
    like: ReductionOrder | None = None,
) -> Space:
    """The space of a problem: of one rung, of one ladder, or of whatever has choices.

    Without a rung or a ladder, rungs that multiply without tensor cores are left out where others use them. Raises
    ProblemError with the reasons if no rung has a legal point.
    """
    if gemm.m == 0 or gemm.n == 0 or gemm.k == 0:
        raise ProblemError(f"There is nothing to tune in {gemm}: it has no products.")
    asked = _asked(ladder, rung)
    refusals: dict[str, str] = {}
    fitting: list[Rung] = []
    for one in asked:
        reason = _why_not(gemm, spec, one)
        if reason:
            refusals[one.name] = reason
        else:
            fitting.append(one)
    if not fitting:
        raise ProblemError(
            f"No rung with choices can multiply {gemm} on {spec.name}.",
            place="\n".join(f"{name}: {reason}" for name, reason in refusals.items()),
            hint="other formats or orders may fit; `tilewright tune --help` lists --ladder and --rung.",
        )
    if ladder is None and rung is None:
        fitting = _on_the_fastest_units(gemm, spec, fitting)
    space = Space(gemm, spec, fitting, like=like)
    if like is not None and not any(space.is_legal(candidate) for candidate in space.candidates):
        raise ProblemError(
            f"No candidate for {gemm} sums in the order of today's kernel: {like}.",
            hint="leave --keep-bits out, or name another --rung or --ladder.",
        )
    return space


def _asked(ladder: str | None, rung: str | None) -> list[Rung]:
    searchable = [one for rungs in LADDERS.values() for one in rungs if one.choices is not None]
    if rung is not None:
        found = find_rung(rung)
        if ladder is not None and found.ladder != ladder:
            raise UnknownName(f"rung of ladder {ladder!r}", rung, [one.name for one in find_ladder(ladder)])
        if found.choices is None:
            raise ProblemError(f"{found.name} has no choices to tune.", hint=f"{_listed(searchable)} have.")
        return [found]
    if ladder is not None:
        chosen = [one for one in find_ladder(ladder) if one.choices is not None]
        if not chosen:
            raise ProblemError(f"No rung of {ladder} has choices to tune.", hint=f"{_listed(searchable)} have.")
        return chosen
    return searchable


def _listed(rungs: Iterable[Rung]) -> str:
    names = [rung.name for rung in rungs]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _why_not(gemm: Gemm, spec: DeviceSpec, rung: Rung) -> str:
    """Why the points of a rung that were looked at are all illegal; "" if one is not."""
    space = Space(gemm, spec, [rung])
    step = max(1, len(space.candidates) // _LOOKED_AT_FIRST)
    first = ""
    for candidate in space.candidates[::step]:
        reasons = space.reasons(candidate)
        if not reasons:
            return ""
        first = first or reasons[0]
    return first or "it has no points."


def _on_the_fastest_units(gemm: Gemm, spec: DeviceSpec, rungs: Sequence[Rung]) -> list[Rung]:
    def uses_tensor_cores(rung: Rung) -> bool:
        space = Space(gemm, spec, [rung])
        legal = next((one for one in space.candidates if space.is_legal(one)), None)
        return legal is not None and space.build(legal).program.tensorized is not None

    with_tensor_cores = [rung for rung in rungs if uses_tensor_cores(rung)]
    return with_tensor_cores or list(rungs)
