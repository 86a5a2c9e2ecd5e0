"""An account of plans, for people and for programs: what each launch is, what it is estimated to take, and why this
plan was chosen. Plans come from the dispatcher, whether its GPU is there or only known by its data sheet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from math import isfinite
from typing import Any

from tilewright.device.spec import DeviceSpec
from tilewright.errors import CompileError
from tilewright.ir.guard import Guard
from tilewright.kernels.configuration import described
from tilewright.kernels.gemv import GemvConfig
from tilewright.planning.assembly import Request
from tilewright.planning.cost.launches import MORE_LAUNCHES_SECONDS, around_us
from tilewright.planning.dispatch import SAFE, Dispatcher, measured_plans
from tilewright.planning.on_paper import PaperKernels
from tilewright.planning.packing import fitted
from tilewright.planning.plan import Plan, Role, Step
from tilewright.planning.ranking import estimate_us
from tilewright.runtime.nvrtc import compiler_version
from tilewright.winners.winner import Winner

Dim3 = tuple[int, int, int]

ALWAYS, FLAGS_CLEAR, FLAG_RAISED = "always", "flags are clear", "a flag is raised"
"""When a launch runs. Launches whose condition does not hold end at once."""

_CONDITIONS = {None: ALWAYS, Guard.DECIDES: FLAGS_CLEAR, Guard.CLEAR: FLAGS_CLEAR, Guard.RAISED: FLAG_RAISED}

_SECONDS = 10.0
"""No further plan is begun to be built after so long."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a plan.

    role: "copy", "transpose", "scale", "split", "product", "reduction" or "fold". what: it reads or makes. kernel: its
    configuration, or its name. grid, block: along x, y, z. condition: `ALWAYS`, `FLAGS_CLEAR` or `FLAG_RAISED`. cuda:
    the text.
    """

    role: str
    what: str
    kernel: str
    grid: Dim3
    block: Dim3
    estimated_us: float
    condition: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Account:
    """A plan. words: what runs, in short. scratch_bytes: of workspace. decided: what decided for it, in words; a winner
    of the tuner where one did."""

    words: str
    launches: tuple[Launch, ...]
    scratch_bytes: int
    decided: str | Winner

    @property
    def chosen_by(self) -> str:
        """What decided for it, in words."""
        return self.decided if isinstance(self.decided, str) else "a tuned winner"

    @property
    def winner(self) -> Winner | None:
        """What was tuned, and how long it took then: this problem, or one of near sizes."""
        return None if isinstance(self.decided, str) else self.decided

    @property
    def estimated_us(self) -> float:
        """Of all launches; of a guarded plan with no flag raised."""
        return self._total(FLAG_RAISED)

    @property
    def fallback_us(self) -> float | None:
        """With a flag raised; None where there is no guard."""
        return self._total(FLAGS_CLEAR) if self.is_guarded else None

    @property
    def is_guarded(self) -> bool:
        """Whether the device chooses between two kinds of products."""
        return any(launch.condition == FLAG_RAISED for launch in self.launches)

    def _total(self, ended: str) -> float:
        ends_us = 1e6 * MORE_LAUNCHES_SECONDS
        return sum(ends_us if one.condition == ended else one.estimated_us for one in self.launches)


@dataclass(frozen=True, slots=True)
class PaperGpu:
    """In the place of a GPU."""

    name: str
    arch: str
    index: int = 0

    def as_current(self) -> AbstractContextManager[object]:
        return nullcontext()


def dispatcher_on_paper(spec: DeviceSpec) -> Dispatcher:
    """The dispatcher of a GPU that need not be here: it decides as that of the GPU itself, and cannot launch.

    Kernels are compiled where there is a compiler: those whose registers spill are passed over, as they are there.
    """
    gpu: Any = PaperGpu(spec.name, spec.arch)
    found = Dispatcher(gpu, measured_plans())
    found.kernels = PaperKernels(spec, compiles=_has_compiler())
    return found


def _has_compiler() -> bool:
    try:
        compiler_version()
    except CompileError:
        return False
    return True


def account_of(dispatcher: Dispatcher, request: Request, plan: Plan) -> Account:
    """The account of a plan of a request."""
    spec = dispatcher.spec
    launches: list[Launch] = []
    for steps in _by_product(plan):
        beside_us = [_around(step, spec) for step in steps]
        for step, us in zip(steps, beside_us, strict=True):
            if step.multiplied is not None:
                one = step.multiplied
                total = estimate_us(one.config, one.gemm, spec, one.alignment, one.stack)
                own = (us for other, us in zip(steps, beside_us, strict=True) if other.role in _OF_PRODUCT)
                us = max(total - sum(own), 0.0)
            launches.append(_launch(step, us))
    return Account(plan.words, tuple(launches), plan.scratch_bytes, _decided(dispatcher, request, plan))


def _decided(dispatcher: Dispatcher, request: Request, plan: Plan) -> str | Winner:
    """What decided for a plan of a request."""
    if dispatcher.is_measured(request) and dispatcher.plan(request) is plan:
        return "measured by autotune"
    made = [step.multiplied.config for step in plan.steps if step.multiplied is not None]
    winner = None if request.algorithm is not None else dispatcher.winner(request)
    if winner is not None and [fitted(winner.config, request.gemm, request.alignment)] == made[:1]:
        return winner
    return "the right-everywhere kernel" if made == [SAFE] else "the estimate"


def next_best(dispatcher: Dispatcher, request: Request, plan: Plan, most: int) -> tuple[Account, ...]:
    """Accounts of other plans of a request, best first; at most so many."""
    if not most:
        return ()
    paper = dispatcher_on_paper(dispatcher.spec)
    found = [account_of(paper, request, one) for one in paper.candidates(request, most + 1, _SECONDS)]
    others = [one for one in found if one.words != plan.words][:most]
    if request.or_f32:  # candidates are those of one way: pieces, or f32 arithmetic
        splits = any(step.role is Role.SPLIT for step in plan.steps)
        way = replace(request, algorithm=None, fallback=None) if splits else request
        way = replace(way, or_f32=False)
        others = [*others[: most - 1], account_of(paper, way, paper.plan(way))]
    return tuple(sorted(others, key=lambda one: one.estimated_us))


_OF_PRODUCT = (Role.COPY, Role.REDUCTION)
"""Launches whose time `estimate_us` counts with the product's."""


def _by_product(plan: Plan) -> Iterator[list[Step]]:
    """The steps of a plan, those of each product together: its copies stand before it, its reduction behind it."""
    numbers, number, done = [], 0, False
    for step in plan.steps:
        if done and step.role is not Role.REDUCTION:
            number, done = number + 1, False
        done = done or step.role is Role.PRODUCT
        numbers.append(number)
    for _, found in groupby(zip(numbers, plan.steps, strict=True), key=lambda one: one[0]):
        yield [step for _, step in found]


def _around(step: Step, spec: DeviceSpec) -> float:
    return around_us(step.moved_bytes, spec, packs=step.role is Role.COPY) if step.multiplied is None else 0.0


def _launch(step: Step, us: float) -> Launch:
    launch: Any = step.launch  # prepared, or on paper
    kernel = launch.source.entry
    if step.multiplied is not None and not isinstance(step.multiplied.config.kernel, GemvConfig):
        kernel = described(step.multiplied.config.kernel)
    return Launch(
        str(step.role),
        step.what,
        kernel,
        tuple(launch.grid),
        tuple(launch.block),
        us if isfinite(us) else 0.0,
        _CONDITIONS[step.guard],
        launch.source.text,
    )
