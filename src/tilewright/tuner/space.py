"""The space of a search: every plan that the library could run for a problem, and why one cannot be used.

A plan is a `Choice`: a point of a rung, in how many parts k is summed, what is copied first; or the kernel for few
rows. What is legal is decided where it always is: the laws of schedules, the passes, `model.limits`, and `plan_of`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.device.spec import DeviceSpec
from tilewright.errors import ProblemError, TilewrightError, UnknownName
from tilewright.ladders import LADDERS, find_ladder, find_rung
from tilewright.ladders.rung import Point, Rung
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.copies import Copies, ways_to_copy
from tilewright.planning.dispatch import estimated
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows, order_of_choice
from tilewright.planning.plan import Plan
from tilewright.problem.gemm import Gemm
from tilewright.toolchain import Build
from tilewright.units import ceil_div
from tilewright.winners.choice import THIN, Choice
from tilewright.winners.order import ReductionOrder

_PAPERS_KEPT = 4
"""A candidate is asked for its reasons, its prediction and its text, one after another."""

_LOOKED_AT_FIRST = 16
"""Points that are tried before a rung is said to have none for a problem."""

_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_SPLIT_ROUNDS = 4
"""Blocks an SM, up to which sharing out k may pay."""

_LEAST_PART = 256
"""Products that are worth a part of their own."""

_MOST_SHARED = 4000
"""Plans of a rung in parts, evenly spread where there are more: a rung with thousands of points tells little apart."""


@dataclass(frozen=True, slots=True)
class Paper:
    """A choice written out: its launches, and the build of its product; None for the GEMV kernel."""

    plan: Plan
    product: Build | None


class Space:
    """The candidates for one problem on one device, at aligned addresses.

    like: only candidates that sum in this order are legal. also: candidates beside the points of the rungs. May be
    asked from several threads.
    """

    def __init__(
        self,
        gemm: Gemm,
        spec: DeviceSpec,
        rungs: Sequence[Rung],
        *,
        like: ReductionOrder | None = None,
        also: Sequence[Choice] = (),
    ) -> None:
        self.gemm, self.spec, self.like = gemm, spec, like
        self.alignment = alignment_of_rows(gemm)
        self.request = Request(gemm, self.alignment)
        self.rungs: dict[str, Rung] = {rung.name: rung for rung in rungs}
        self.also = tuple(canonical(choice) for choice in also)
        self._reasons: dict[str, tuple[str, ...]] = {}
        self._lock = threading.Lock()
        self._papers = lru_cache(_PAPERS_KEPT)(self._written)
        points = [choice for rung in rungs for choice in self._of_rung(rung)]
        self._by_key = {choice.key: choice for choice in (*self.also, *points)}
        self.candidates = tuple(self._by_key.values())

    def __contains__(self, choice: Choice) -> bool:
        return choice.key in self._by_key

    def _of_rung(self, rung: Rung) -> Iterator[Choice]:
        """Every point alone, then those that may be split, in parts; the ways to copy one after another, so that an
        even spread meets all of them."""
        if rung.choices is None:
            return
        ways = self._ways_to_copy(rung.name)
        points = list(rung.choices.points())
        for copies in ways:
            for point in points:
                yield Choice(rung.name, dict(point), 1, *copies)
        points = [point for point in points if rung.choices.shares_k(point)]
        shared = [(point, splits) for point in points for splits in self._split_counts(point)]
        if not shared or not self._splits(rung, points, ways[0]):
            return
        for copies in ways:
            for point, splits in shared[:: ceil_div(len(shared), _MOST_SHARED)]:
                yield Choice(rung.name, dict(point), splits, *copies)

    def _ways_to_copy(self, rung: str) -> tuple[Copies, ...]:
        return ways_to_copy(rung, self.gemm, self.alignment)

    def _split_counts(self, point: Point) -> tuple[int, ...]:
        """Parts of k that fill the device, as far as a point tells its tile."""
        m, n = (point.get(name, point.get(f"b{name}")) for name in ("m", "n"))
        if m is None or n is None:
            return ()
        tiles = ceil_div(self.gemm.m, m) * ceil_div(self.gemm.n, n)
        most = min(_SPLIT_ROUNDS * self.spec.sm_count // tiles, self.gemm.k // _LEAST_PART)
        return tuple(splits for splits in _SPLITS if splits <= most)

    def _splits(self, rung: Rung, points: Sequence[Point], copies: Copies) -> bool:
        """Whether some of a few points of a rung can share out k."""
        some = points[:: max(1, len(points) // 4)]
        return any(not self._looked(Choice(rung.name, point, 2, *copies), any_order=True) for point in some)

    def default(self, rung: str) -> Choice | None:
        """The candidate at which the rung itself stands, if it is one of its points."""
        one = self.rungs[rung]
        assert one.choices is not None
        try:
            own = one.schedule(self.gemm)
            point = next((p for p in one.choices.points() if one.choices.schedule_at(self.gemm, p) == own), None)
        except TilewrightError:
            return None
        return None if point is None else Choice(rung, dict(point), 1, *self._ways_to_copy(rung)[0])

    def paper(self, choice: Choice) -> Paper:
        """A candidate written out. Raises what schedules, passes and `plan_of` raise."""
        return self._papers(choice.key, choice)

    def _written(self, key: str, choice: Choice) -> Paper:
        kernels = PaperKernels(self.spec)
        plan = plan_of(kernels, self.request, choice)
        return Paper(plan, next(iter(kernels.products.values()), None))

    def order(self, choice: Choice) -> ReductionOrder:
        """How a candidate sums."""
        return order_of_choice(self.gemm, self.alignment, choice)

    def reasons(self, choice: Choice) -> tuple[str, ...]:
        """Every reason why a candidate cannot be used; empty if it can."""
        with self._lock:
            known = self._reasons.get(choice.key)
        if known is None:
            known = self._looked(choice)
            with self._lock:
                self._reasons[choice.key] = known
        return known

    def is_legal(self, choice: Choice) -> bool:
        return not self.reasons(choice)

    def _looked(self, choice: Choice, *, any_order: bool = False) -> tuple[str, ...]:
        try:
            self.paper(choice)
            if self.like is not None and not any_order:
                order = self.order(choice)
                if order != self.like:
                    return (f"it sums in another order: {order.difference_from(self.like)}",)
        except TilewrightError as refusal:
            return (refusal.headline,)
        return ()

    @property
    def digest(self) -> str:
        """A name for this set of candidates: studies of different sets do not mix."""
        text = "\n".join([*sorted(self._by_key), repr(self.like)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def canonical(choice: Choice) -> Choice:
    """The same choice under the one name of its rung."""
    if choice.rung == THIN:
        return choice
    return replace(choice, rung=find_rung(choice.rung).name, point=dict(choice.point))


def make_space(
    gemm: Gemm,
    spec: DeviceSpec,
    *,
    ladder: str | None = None,
    rung: str | None = None,
    like: ReductionOrder | None = None,
    today: Choice | None = None,
) -> Space:
    """The space of a problem: of one rung, of one ladder, or of whatever has choices.

    Without a rung or a ladder, rungs that multiply without tensor cores are left out where others use them, and all
    that the library would choose by estimate is a candidate. today: what `matmul` runs now, a candidate in any case.
    Raises ProblemError with the reasons if no rung has a legal point.
    """
    if gemm.m == 0 or gemm.n == 0 or gemm.k == 0:
        raise ProblemError(f"There is nothing to tune in {gemm}: it has no products.")
    refusals: dict[str, str] = {}
    fitting: list[Rung] = []
    for one in _asked(ladder, rung):
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
    by_estimate = list(estimated(Request(gemm, alignment_of_rows(gemm)), spec))
    # With the first estimate, the set stays the same when a winner of it becomes today's choice, and so does the study.
    also = [] if today is None else [today, *by_estimate[:1]]
    if ladder is None and rung is None:
        fitting = _on_the_fastest_units(gemm, spec, fitting)
        also += [*by_estimate, *_thin(gemm, spec)]
    space = Space(gemm, spec, fitting, like=like, also=also)
    if like is not None and not any(space.is_legal(candidate) for candidate in space.candidates):
        raise ProblemError(
            f"No candidate for {gemm} sums in the order of today's kernel: {like}.",
            hint="leave --keep-bits out, or name another --rung or --ladder.",
        )
    return space


def _thin(gemm: Gemm, spec: DeviceSpec) -> Iterator[Choice]:
    """The GEMV kernel, where m or n is small, k in as many parts as may pay."""
    alone = Choice(THIN)
    if not Space(gemm, spec, []).reasons(alone):
        yield alone
        yield from (Choice(THIN, splits=splits) for splits in _SPLITS if splits <= gemm.k // _LEAST_PART)


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


def _alone(space: Space, rung: Rung) -> list[Choice]:
    """The points of a rung, unsplit, a few of them evenly spread."""
    found = [one for one in space.candidates if one.rung == rung.name and one.splits == 1]
    return found[:: max(1, len(found) // _LOOKED_AT_FIRST)]


def _why_not(gemm: Gemm, spec: DeviceSpec, rung: Rung) -> str:
    """Why the points of a rung that were looked at are all illegal; "" if one is not."""
    space = Space(gemm, spec, [rung])
    first = ""
    for candidate in _alone(space, rung):
        reasons = space.reasons(candidate)
        if not reasons:
            return ""
        first = first or reasons[0]
    return first or "it has no points."


def _on_the_fastest_units(gemm: Gemm, spec: DeviceSpec, rungs: Sequence[Rung]) -> list[Rung]:
    def uses_tensor_cores(rung: Rung) -> bool:
        space = Space(gemm, spec, [rung])
        legal = next((one for one in _alone(space, rung) if space.is_legal(one)), None)
        product = None if legal is None else space.paper(legal).product
        return product is not None and product.program.tensorized is not None

    with_tensor_cores = [rung for rung in rungs if uses_tensor_cores(rung)]
    return with_tensor_cores or list(rungs)
