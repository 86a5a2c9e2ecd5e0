"""The space of a search: every plan that the library could run for a problem, ranked by the cost model.

A plan is a `PlanConfig`: a configuration of a family, with split-K or without, operands packed or not. Families state
their spaces as columns (`kernels.spaces`), `planning.cost` prices all rows at once, and the best are candidates. What
is legal is decided where it always is: by the laws of families and schedules, the passes, `model.limits`, `plan_of`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice

from tilewright.device.spec import DeviceSpec
from tilewright.errors import ProblemError, TilewrightError, UnknownName
from tilewright.kernels.configuration import FAMILIES
from tilewright.kernels.gemv import GemvConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.dispatch import SAFE
from tilewright.planning.estimates import estimated
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows, order_of_plan, version_of
from tilewright.planning.packing import Alignment, Stack, fitted
from tilewright.planning.plan import Plan
from tilewright.planning.ranking import estimate_us, whole_space
from tilewright.planning.skinny import skinny_for
from tilewright.problem.gemm import Gemm
from tilewright.toolchain import Build
from tilewright.winners.database import ShippedWinners
from tilewright.winners.lookup import Lookup
from tilewright.winners.order import ReductionOrder
from tilewright.winners.plan_config import PlanConfig

MOST = 3000
"""Candidates of a search: those of each family and packing with the best prices."""

NEAR = 1.5
"""A family whose best plan is predicted to take longer by more than this factor is not tried early."""

_ESTIMATES = 32
"""Plans of dispatch's own ranking that are candidates in any case."""

_PAPERS_KEPT = 4
"""A candidate is asked for its reasons and its text, one after another."""

_SPLIT_K = (2, 3, 4, 6, 8, 12, 16, 24, 32)

_LEAST_PART = 256
"""Products that are worth a part of their own."""


@dataclass(frozen=True, slots=True)
class Paper:
    """A plan written out: its launches, and the build of its GEMM kernel; None for one of GEMV."""

    plan: Plan
    product: Build | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan and what it is predicted to take. Equal kinds are predicted alike: family, tile, what blocks share."""

    config: PlanConfig
    predicted_us: float

    @property
    def kind(self) -> tuple[object, ...]:
        kernel = self.config.kernel
        around = (kernel.kind, kernel.split_k, self.config.packed, self.config.transposed, self.config.tile_multiples)
        if isinstance(kernel, GemvConfig):
            return around
        names = ("ping_pong", "cluster", "cluster_k", "persistent", "swap_ab", "warp_tile", "left_in_registers")
        return (*around, kernel.m, kernel.n, *(getattr(kernel, name, None) for name in names))


class Space:
    """The candidates for one problem on one device, at aligned addresses, best predicted first.

    like: only candidates that sum in this order are legal. stack: where the problem is one of a batch. May be asked
    from several threads.
    """

    def __init__(
        self,
        gemm: Gemm,
        spec: DeviceSpec,
        candidates: Sequence[Candidate],
        *,
        like: ReductionOrder | None = None,
        stack: Stack | None = None,
    ) -> None:
        self.gemm, self.spec, self.like = gemm, spec, like
        self.alignment = alignment_of_rows(gemm)
        self.request = Request(gemm, self.alignment, stack)
        first: dict[PlanConfig, Candidate] = {}
        for one in candidates:  # priced beside others, a plan may come a last digit dearer
            first.setdefault(one.config, one)
        self.ranked = tuple(first.values())
        self.candidates = tuple(one.config for one in self.ranked)
        self._known = frozenset(self.candidates)
        self._reasons = cache(self._looked)
        self._papers = lru_cache(_PAPERS_KEPT)(self._written)

    def __contains__(self, config: PlanConfig) -> bool:
        return config in self._known

    def paper(self, config: PlanConfig) -> Paper:
        """A candidate written out. Raises what schedules, passes and `plan_of` raise."""
        return self._papers(config)

    def _written(self, config: PlanConfig) -> Paper:
        kernels = PaperKernels(self.spec)
        plan = plan_of(kernels, self.request, config)
        return Paper(plan, next(iter(kernels.products.values()), None))

    def order(self, config: PlanConfig) -> ReductionOrder:
        """How a candidate sums."""
        return order_of_plan(self.gemm, self.alignment, config)

    def reasons(self, config: PlanConfig) -> tuple[str, ...]:
        """Every reason why a candidate cannot be used; empty if it can."""
        return self._reasons(config)

    def is_legal(self, config: PlanConfig) -> bool:
        return not self.reasons(config)

    def _looked(self, config: PlanConfig) -> tuple[str, ...]:
        try:
            self.paper(config)
            if self.like is not None:
                order = self.order(config)
                if order != self.like:
                    return (f"it sums in another order: {order.difference_from(self.like)}",)
        except TilewrightError as refusal:
            return (refusal.headline,)
        return ()

    @property
    def digest(self) -> str:
        """A name for this set of candidates: studies of different sets do not mix."""
        text = "\n".join([*sorted(one.key for one in self.candidates), repr(self.like)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def todays_plan(gemm: Gemm, spec: DeviceSpec, lookup: Lookup) -> PlanConfig:
    """The first plan of dispatch for a problem with aligned addresses: measured, else by estimate."""
    alignment = alignment_of_rows(gemm)
    found = lookup.winner(spec.name, gemm, alignment.least)
    if found is not None:
        return fitted(found.config, gemm, alignment)
    return next(estimated(Request(gemm, alignment), spec), SAFE)


def likely_plans(gemm: Gemm, spec: DeviceSpec, most: int) -> list[PlanConfig]:
    """The first plans by their estimates, of aligned addresses."""
    return list(islice(estimated(Request(gemm, alignment_of_rows(gemm)), spec), most))


def todays_order(gemm: Gemm, today: PlanConfig) -> ReductionOrder:
    """How it sums."""
    return order_of_plan(gemm, alignment_of_rows(gemm), today)


def make_space(
    gemm: Gemm,
    spec: DeviceSpec,
    *,
    family: str | None = None,
    like: ReductionOrder | None = None,
    today: PlanConfig | None = None,
) -> Space:
    """The space of a problem: of one family, or of all that multiply its formats on the device's fastest units.

    today: what `matmul` runs now, a candidate in any case. Raises ProblemError where nothing is legal.
    """
    if gemm.m == 0 or gemm.n == 0 or gemm.k == 0:
        raise ProblemError(f"There is nothing to tune in {gemm}: it has no products.")
    if family is not None and family not in FAMILIES:
        raise UnknownName("family of kernels", family, list(FAMILIES))
    alignment = alignment_of_rows(gemm)
    priced = whole_space(gemm, spec, alignment, family=family)
    found = [Candidate(config, us) for us, config in priced.of_each_table(MOST)]
    more: list[PlanConfig] = []
    if family is None:
        more += likely_plans(gemm, spec, _ESTIMATES)
    if family in (None, "gemv"):
        more += _gemv(gemm, alignment)
    if today is not None:  # and what ran before anything was tuned: the same command goes on in the same space
        more += [today, todays_plan(gemm, spec, Lookup(version_of, ShippedWinners()))]
    found += [Candidate(config, estimate_us(config, gemm, spec, alignment)) for config in more]
    space = Space(gemm, spec, sorted(found, key=lambda one: one.predicted_us), like=like)
    legal = _in_the_order(space) if like is not None else space
    # What matmul runs is legal: looking costs a build of a kernel.
    if today is None and not any(legal.is_legal(config) for config in _one_of_each_order(legal)):
        raise _nothing(space, family)
    return legal


def _in_the_order(space: Space) -> Space:
    """The candidates that sum in the order to be kept, as far as one of each way to sum tells."""
    ways = {_way_to_sum(config) for config in _one_of_each_order(space) if space.is_legal(config)}
    kept = [one for one in space.ranked if _way_to_sum(one.config) in ways]
    return Space(space.gemm, space.spec, kept, like=space.like)


def _gemv(gemm: Gemm, alignment: Alignment) -> Iterator[PlanConfig]:
    """The GEMV kernel, where the problem is skinny, with each split-K that may pay."""
    if skinny_for(gemm, alignment, None, parts=1) is not None:
        yield PlanConfig(GemvConfig())
        yield from (PlanConfig(GemvConfig(split_k=parts)) for parts in _SPLIT_K if parts <= gemm.k // _LEAST_PART)


def _one_of_each_order(space: Space) -> Iterator[PlanConfig]:
    """A few candidates of each way to sum: whether one is legal does not depend on much else."""
    seen: dict[tuple[object, ...], int] = {}
    for config in space.candidates:
        way = _way_to_sum(config)
        seen[way] = seen.get(way, 0) + 1
        if seen[way] <= _OF_EACH_ORDER:
            yield config


_OF_EACH_ORDER = 3


def _way_to_sum(config: PlanConfig) -> tuple[object, ...]:
    """What decides the order of a sum: plans that are equal in it sum alike."""
    tile = None if isinstance(config.kernel, GemvConfig) else config.kernel.k
    return config.kernel.kind, tile, config.split_k, getattr(config.kernel, "cluster_k", 1), config.tile_multiples


def _nothing(space: Space, family: str | None) -> ProblemError:
    if space.like is not None and space.candidates:
        return ProblemError(
            f"No candidate for {space.gemm} sums in the order of today's kernel: {space.like}.",
            hint="leave --keep-bits out, or name another --family.",
        )
    reasons = {f"{config}: {space.reasons(config)[0]}" for config in islice(_one_of_each_order(space), 8)}
    return ProblemError(
        f"No {'kernel' if family is None else f'kernel of family {family}'} can multiply {space.gemm} "
        f"on {space.spec.name}.",
        place="\n".join(sorted(reasons)),
        hint="other formats or orders may fit; `tilewright tune --help` lists --family.",
    )
