"""Which kernels compute a problem, found once for each kind of call and remembered.

A measured plan from the database, where there is one; else the analytical choice; else what is right everywhere. A
plan that cannot be built, compiled or loaded is left out, said once, and never tried again.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import merge
from itertools import chain, islice
from math import inf
from operator import itemgetter
from time import perf_counter
from typing import Any, TypeVar

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import FP8_FORMATS
from tilewright.errors import (
    CompileError,
    LaunchError,
    LoweringError,
    RegistersExceeded,
    ScheduleError,
    TilewrightError,
)
from tilewright.ir.guard import Guard
from tilewright.ir.verify import BrokenRule
from tilewright.ir.work import Problems
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.notices import say_once
from tilewright.planning.assembly import Request, as_multiplied_by, multiplied_on, plan_of
from tilewright.planning.beside_products import quantizing_plan, row_sums_plan
from tilewright.planning.coded import coded_plan, coding_plan
from tilewright.planning.emulated import emulated_plan, of_pieces, splitting_plan, why_not, with_fallback
from tilewright.planning.estimates import (
    estimated,
    estimates,
    is_ruled_out,
    no_kernel,
    pieces_us,
    prefers_f32,
    registers_of,
)
from tilewright.planning.gated import MOST_BUILT, in_one_kernel, in_two, joined, reading_us
from tilewright.planning.kernels import Kernels, build_of
from tilewright.planning.on_paper import version_of
from tilewright.planning.packing import Alignment, as_read, fitted
from tilewright.planning.plan import GroupPlan, Plan
from tilewright.planning.ragged import ragged_plan, ranked_ragged, reads_groups_by_tma
from tilewright.planning.ranking import Database, ranked, ranked_for_group
from tilewright.planning.room import MOST_PASSED_OVER, runs_as_counted
from tilewright.problem.coded_product import CodedProduct
from tilewright.problem.gemm import Gemm
from tilewright.problem.quantization import Quantization
from tilewright.problem.row_sums import RowSums
from tilewright.problem.weight_coding import WeightCoding
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.toolchain import grid_of
from tilewright.winners.lookup import default_lookup
from tilewright.winners.order import ReductionOrder, order_of
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner

SAFE = PlanConfig(SimtConfig((64, 64, 16), (32, 32), unroll=8))
"""Multiplies every format in every order on every device."""

_KEPT_PLANS = 4096
"""Plans kept; a program whose shapes never come back must not fill the memory with them."""

_TYPICAL = 4096
"""Rows and columns for which the order of a sum is chosen that must not depend on them."""

_NOT_BUILT = (CompileError, LaunchError, LoweringError, ScheduleError)
"""What is raised where a plan cannot be built."""

Made = TypeVar("Made")


class Dispatcher:
    """The plans of one GPU. `database`: plans that were measured; None to estimate always."""

    def __init__(self, gpu: Gpu, database: Database | None = None) -> None:
        self.gpu = gpu
        self.database = database
        self.kernels = Kernels(gpu)
        self.forked = False
        self._plans: dict[Request, Plan] = {}
        self._kept: dict[Request, Plan] = {}
        self._groups: dict[tuple[Request, ...], GroupPlan] = {}
        self._ragged: dict[Request, Plan] = {}
        self._others: dict[Any, Plan] = {}
        self._orders: dict[tuple[Gemm, int], ReductionOrder] = {}
        self._reported: set[tuple[str, str]] = set()
        self._lock = threading.RLock()

    @property
    def spec(self) -> DeviceSpec:
        return self.kernels.spec

    def known(self, request: Request) -> Plan | None:
        """The plan of a request that was made before."""
        return self._plans.get(request)

    def plan(self, request: Request) -> Plan:
        """The plan of a request; the first time for a class of problems, kernels are compiled."""
        return self._once(self._plans, request, lambda: self._kept.get(request) or self._made(request))

    def _once(self, plans: dict[Any, Made], key: Any, make: Callable[[], Made]) -> Made:
        """What is kept under a key, made where it is new."""
        found = plans.get(key)
        if found is not None:
            return found
        self.refuse_fork()
        with self._lock, self.gpu.as_current():
            found = plans.get(key)  # another thread may have made it meanwhile
            if found is None:
                if len(plans) >= _KEPT_PLANS:
                    plans.clear()
                found = plans[key] = make()
        return found

    def candidates(self, request: Request, most: int, seconds: float) -> list[Plan]:
        """The first plans of a request, best first: at most so many, and beyond the second none that is begun to be
        built after so many seconds. Raises as `plan`."""
        self.refuse_fork()
        began, found = perf_counter(), [self.plan(request)]
        with self._lock, self.gpu.as_current():
            for plan in self._built(request, []):
                if plan.words not in {one.words for one in found}:
                    found.append(plan)
                if len(found) >= most or (len(found) > 1 and perf_counter() - began > seconds):
                    break
        return found

    def is_measured(self, request: Request) -> bool:
        """Whether `keep` was told the plan of a request."""
        return request in self._kept

    def keep(self, request: Request, plan: Plan) -> None:
        """From now on this is the plan of a request: candidates were measured."""
        with self._lock:
            if len(self._kept) >= _KEPT_PLANS:
                self._kept.clear()
            self._kept[request] = self._plans[request] = plan

    def splitting(self, request: Request) -> tuple[Plan, int]:
        """What splits B into the pieces of a request, and their bytes. Raises LaunchError on a GPU without wgmma."""
        self.refuse_fork()
        refused = why_not(request, self.spec)
        if refused is not None:
            raise refused
        with self._lock, self.gpu.as_current():
            return splitting_plan(self.kernels, request)

    def quantizing(self, problem: Quantization, aligned_bytes: int, *, capturing: Callable[[], bool]) -> Plan:
        """What makes FP8 codes and scales. Raises LaunchError where it is new and a stream is recording a graph."""
        make = lambda: quantizing_plan(self.kernels, problem, aligned_bytes)  # noqa: E731
        return self._other((problem, aligned_bytes), make, "no kernel that quantises so", capturing)

    def coding(self, problem: WeightCoding, *, capturing: Callable[[], bool]) -> Plan:
        """What makes codes of a weight. Raises as `quantizing`."""
        make = lambda: coding_plan(self.kernels, problem)  # noqa: E731
        return self._other(problem, make, "no kernel that quantises so", capturing)

    def coded(self, problem: CodedProduct, *, capturing: Callable[[], bool]) -> Plan:
        """A product with a coded weight. Raises as `quantizing`, and LaunchError for a GPU that cannot compute it."""
        return self._other(problem, lambda: coded_plan(self.kernels, problem), "no kernel of this product", capturing)

    def row_sums(self, problem: RowSums, aligned_bytes: int, *, capturing: Callable[[], bool]) -> Plan:
        """What gathers and sums rows. Raises as `quantizing`."""
        make = lambda: row_sums_plan(self.kernels, problem, aligned_bytes)  # noqa: E731
        return self._other((problem, aligned_bytes), make, "no kernel of these sums of rows", capturing)

    def _other(self, key: Any, make: Callable[[], Plan], which: str, capturing: Callable[[], bool]) -> Plan:
        """A plan that is kept, made where it is new. which: is not there, in words."""
        if key not in self._others:
            self.refuse_fork()
            refuse_capture(capturing(), which)
        return self._once(self._others, key, make)

    def knows_ragged(self, request: Request) -> bool:
        """Whether `ragged` was asked the same before."""
        return request in self._ragged

    def reads_groups_by_tma(self, request: Request) -> bool:
        """Whether groups whose ends lie on the GPU are multiplied by wgmma from where they lie."""
        return reads_groups_by_tma(request, self.spec)

    def ragged(self, request: Request) -> Plan:
        """The plan of groups whose ends lie on the GPU, by a kernel that finds them itself."""
        return self._once(self._ragged, request, lambda: self._made_ragged(request))

    def _made_ragged(self, request: Request) -> Plan:
        failures: list[TilewrightError] = []
        for config in ranked_ragged(request, self.spec):
            with self._noted(request.gemm, config, failures):
                return ragged_plan(self.kernels, request, config)
        if not failures:
            raise LaunchError(
                f"Only wgmma multiplies {request.gemm.block_scales}, and no kernel of it reads these groups.",
                note="TMA loads operands whose addresses and rows are multiples of 16 bytes.",
                hint="pad k to a multiple of 16.",
            )
        raise failures[-1]

    def known_group(self, requests: tuple[Request, ...]) -> GroupPlan | None:
        """The plan of a group that was planned before."""
        return self._groups.get(requests)

    def group(self, requests: tuple[Request, ...]) -> GroupPlan:
        """One launch for problems that agree in formats, orders and epilogue: the best kernel that can be built.

        Raises what building, compiling and loading the last resort raises.
        """
        return self._once(self._groups, requests, lambda: self._made_group(requests))

    def _made_group(self, requests: tuple[Request, ...]) -> GroupPlan:
        failures: list[TilewrightError] = []
        gemms = [multiplied_on(self.spec, request.gemm) for request in requests]
        alignment = Alignment(*(min(getattr(request.alignment, side) for request in requests) for side in "abc"))
        for config in (*(config for _, config in ranked_for_group(gemms, self.spec)), SAFE):
            first, *others = (as_multiplied_by(config, gemm) for gemm in dict.fromkeys(gemms))
            with self._noted(first, config, failures):
                built = self.kernels.kernel(first, alignment, config, problems=Problems.LISTED, others=others)
                grids = [grid_of(built.kernel, gemm) for gemm in (first, *others)]
                grid = (max(grid[0] for grid in grids), max(grid[1] for grid in grids), len(requests))
                launch = built.loaded.prepare(grid, built.kernel.block, (0, first.alpha, first.beta))
                return GroupPlan(launch, tuple(column.name for column in built.kernel.columns))
        raise failures[-1]

    def is_better_alone(self, requests: Sequence[Request]) -> bool:
        """Whether a launch for each of some problems is estimated to be faster than one for all of them."""
        requests = [replace(one, gemm=multiplied_on(self.spec, one.gemm)) for one in requests]
        together = ranked_for_group([request.gemm for request in requests], self.spec)
        if not together:
            return False
        left, us = Counter(requests), 0.0
        for request, count in left.items():
            us += count * ranked(request.gemm, self.spec, request.alignment, keep_order=request.fixed_order)[0][0]
            if us >= together[0][0]:
                return False
        return True

    def refuse_fork(self) -> None:
        """Raises LaunchError in a process that was forked after the GPU was first used."""
        if self.forked:
            raise LaunchError(
                "This process was forked from one that had used the GPU, and CUDA does not work after that.",
                hint="start workers with the method 'spawn': multiprocessing.set_start_method('spawn').",
            )

    def forget(self) -> None:
        """Plan everything anew; kernels stay loaded."""
        self._plans.clear()
        self._groups.clear()
        self._ragged.clear()
        self._others.clear()
        self._kept.clear()

    def leave(self) -> None:
        """In a process that was forked: the kernels are those of its parent, and cannot be launched here."""
        self.forked = True
        self.forget()

    def _made(self, request: Request) -> Plan:
        failures: list[TilewrightError] = []
        for plan in self._built(request, failures):
            return plan
        if not failures:
            raise no_kernel(request)
        raise failures[-1]

    def _built(self, request: Request, failures: list[TilewrightError]) -> Iterator[Plan]:
        """Plans that can be built, best first; why others cannot is added to the failures."""
        if request.algorithm is not None:
            yield from self._emulated(request, failures)
            if not request.or_f32:
                return
            request = replace(request, algorithm=None, or_f32=False, fallback=None)
        request = replace(request, gemm=multiplied_on(self.spec, request.gemm))
        if request.gemm.accumulators > 1:
            yield from self._gated(request, failures)
            return
        spilling, passed_over = set(), list[Plan]()
        for config in self._ranked(request):
            if registers_of(config) in spilling:
                continue
            with self._noted(request.gemm, config, failures):
                try:
                    plan = plan_of(self.kernels, request, config)
                except RegistersExceeded:
                    spilling.add(registers_of(config))
                    raise
                if len(passed_over) < MOST_PASSED_OVER and not self._is_as_estimated(request, config, plan):
                    passed_over.append(plan)
                    continue
                yield plan
        yield from passed_over  # of few ways, such as sums in one order, these may be all

    def _is_as_estimated(self, request: Request, config: PlanConfig, plan: Plan) -> bool:
        """Whether a plan's kernel has the room that its estimate counts on; or it was measured, or is the last."""
        as_counted = runs_as_counted(plan, self.kernels.cubins, self.spec)
        return as_counted or config == SAFE or config in self._measured(request)

    def _gated(self, request: Request, failures: list[TilewrightError]) -> Iterator[Plan]:
        """Plans of two products of one A: of one kernel, or one after the other, in the order of their estimates."""
        apart = () if request.without_workspace or request.stack is not None else in_two(request)
        apart_us = sum(next(iter(estimates(one, self.spec)))[0] for one in apart) if apart else inf
        apart_us += reading_us(request.gemm, self.spec)
        last: list[tuple[float, PlanConfig | None]] = [(apart_us, None)] if apart else []
        alone: Iterator[tuple[float, PlanConfig | None]] = islice(in_one_kernel(request, self.spec), MOST_BUILT)
        safe: Iterator[tuple[float, PlanConfig | None]] = iter([(inf, SAFE)])
        for _, config in merge(alone, last, safe, key=itemgetter(0)):
            with self._noted(request.gemm, config, failures):
                if config is None:
                    first, second = (self.plan(one) for one in apart)
                    yield joined(first, second, request.gemm)
                else:
                    yield plan_of(self.kernels, request, config)

    def _emulated(self, request: Request, failures: list[TilewrightError]) -> Iterator[Plan]:
        """Plans of a product of f32 operands by their pieces, best first; none where f32 arithmetic is as good and
        estimated to be faster."""
        refused = why_not(request, self.spec)
        if refused is not None:
            failures.append(refused)
            return
        inner = of_pieces(request)
        if request.or_f32 and not request.fixed_order and prefers_f32(request, self.spec):
            return
        if request.fallback is not None:
            other = replace(request, algorithm=request.fallback, or_f32=False, fallback=None, prepared=False)
            if not request.prepared and self._pieces_us(other) <= self._pieces_us(request):
                yield from self._emulated(other, failures)
                return
            behind = next(self._behind(request, other, failures), None)
            if behind is not None:
                for plan in self._by_pieces(request, inner, failures):
                    yield with_fallback(request, plan, behind)
            return
        yield from self._by_pieces(request, inner, failures)

    def _behind(self, request: Request, other: Request, failures: list[TilewrightError]) -> Iterator[Plan]:
        """What runs where rows or columns span too many binades: the pieces of the fallback, or f32 arithmetic, which
        splits nothing. That takes one launch, as each that ends at once delays what follows."""
        plain = replace(other, algorithm=None, without_workspace=True)
        plain_us = next((us for us, one in estimates(plain, self.spec) if not is_ruled_out(plain, one)), inf)
        ways = (other, plain) if self._pieces_us(other) < plain_us else (plain, other)
        for way in ways:
            yield from self._built(replace(way, guard=Guard.RAISED), failures)

    def _pieces_us(self, request: Request) -> float:
        return pieces_us(request, self.spec)

    def _by_pieces(self, request: Request, inner: Request, failures: list[TilewrightError]) -> Iterator[Plan]:
        for config in self._ranked(inner):
            with self._noted(inner.gemm, config, failures):
                yield emulated_plan(self.kernels, request, config)

    def _ranked(self, request: Request) -> Iterator[PlanConfig]:
        """Plans worth trying, best first; the last is right everywhere, but where sums are to be promoted: those of
        FP8 are, in one rounding of f32 a product."""
        seen = set()
        gemm = request.gemm
        promoted = request.promote_every or gemm.pieces
        last = () if gemm.block_scales or (promoted and gemm.dtype not in FP8_FORMATS) else (SAFE,)
        for config in chain(self._measured(request), estimated(request, self.spec), last):
            if config in seen or is_ruled_out(request, config):
                continue
            if gemm.epilogue.is_whole and (isinstance(config.kernel, GemvConfig) or config.split_k > 1):
                continue
            seen.add(config)
            if not request.fixed_order or self._sums_as(self._order(request), request.gemm, config):
                yield config

    def _measured(self, request: Request) -> list[PlanConfig]:
        found = self.winner(request)
        return [] if found is None else [fitted(found.config, request.gemm, request.alignment)]

    def winner(self, request: Request) -> Winner | None:
        """What the tuner found for a request, or for one of near sizes; it may not be what runs."""
        if self.database is None or request.stack is not None or request.promote_every or request.gemm.pieces:
            return None
        try:
            order = self._order(request).name if request.fixed_order else None
            return self.database.winner(self.gpu.name, request.gemm, request.alignment.least, order)
        except TilewrightError as failure:
            say_once(f"The database of tuned kernels cannot be read, so kernels are chosen by estimate: {failure}")
            return None

    # -- one order of summation ---------------------------------------------------------------------------------------

    def _order(self, request: Request) -> ReductionOrder:
        """The order in which sums of this length and these formats are added, whatever m and n are."""
        typical = replace(request.gemm, m=_TYPICAL, n=_TYPICAL, lda=0, ldb=0, ldc=0, ld_added=())
        every = request.promote_every
        found = self._orders.get((typical, every))
        if found is None:
            likely = ranked(typical, self.spec, Alignment(16, 16, 16), keep_order=True, promote_every=every)
            # Of a k that is filled up the order is that of another length.
            for config in chain((config for _, config in likely if not config.tile_multiples), (SAFE,)):
                try:
                    alone = Request(typical, Alignment(16, 16, 16), piece_bytes=request.piece_bytes)
                    plan_of(self.kernels, alone, config)
                    found = order_of(build_of(as_read(typical, config), config))
                except _NOT_BUILT:
                    continue
                if config == SAFE or self._adds_up_a_row(found, typical, every):
                    self._orders[typical, every] = found
                    break
        assert found is not None  # SAFE is lowered for everything
        return found

    def _adds_up_a_row(self, order: ReductionOrder, typical: Gemm, every: int) -> bool:
        """Whether likely kernels of one row add up so too: of k = 1000 a tile of 16 ends with zeros, one of 8 not."""
        row, lies = replace(typical, m=1), Alignment(16, 16, 16)
        likely = islice(ranked(row, self.spec, lies, keep_order=True, promote_every=every), 24)
        return any(self._sums_as(order, row, config) for _, config in likely)

    def _sums_as(self, order: ReductionOrder, gemm: Gemm, config: PlanConfig) -> bool:
        if isinstance(config.kernel, GemvConfig):
            return False
        try:
            return not config.shares_k and order_of(build_of(as_read(gemm, config), config)) == order
        except (LoweringError, ScheduleError):
            return False

    @contextmanager
    def _noted(self, gemm: Gemm, config: PlanConfig | None, failures: list[TilewrightError]) -> Iterator[None]:
        """Within the block a plan is built; that it cannot be is noted and reported, and another one is tried."""
        try:
            yield
        except _NOT_BUILT as failure:
            failures.append(failure)
            self.report(gemm, str(config), failure)

    # -- faults -------------------------------------------------------------------------------------------------------

    def report(self, gemm: Gemm, config: str, failure: TilewrightError) -> None:
        """A kernel that cannot be compiled or loaded, or that a pass broke, is a mistake of ours. That a schedule does
        not go with a problem, or needs more than the GPU has, is none."""
        known = (config, failure.headline)
        if isinstance(failure, RegistersExceeded):
            return  # what spills is told by compiling it; the next plan is about as fast
        if isinstance(failure, (CompileError, BrokenRule)) and known not in self._reported:
            self._reported.add(known)
            say_once(f"Kernel {config} is left out for {gemm}, and another one runs: {failure.headline}")


def refuse_capture(capturing: bool, which: str) -> None:
    """Raises LaunchError where a stream is recording a graph. which: is not there, in words."""
    if capturing:
        raise LaunchError(
            f"The stream is recording a CUDA graph, and {which} is loaded yet.",
            note="compiling and loading cannot be recorded.",
            hint="make the same call once before the capture.",
        )


_DISPATCHERS: dict[int, Dispatcher] = {}
_DATABASE: list[Database | None] = []
"""What `use_database` was given; empty where it was not called."""


def dispatcher(device: int) -> Dispatcher:
    """The dispatcher of a GPU, by its number."""
    found = _DISPATCHERS.get(device)
    if found is None:
        found = _DISPATCHERS[device] = Dispatcher(open_gpu(device), measured_plans())
    return found


def measured_plans() -> Database | None:
    """The database that all dispatchers ask."""
    return _DATABASE[0] if _DATABASE else default_lookup(version_of, say_once)


def use_database(database: Database | None) -> None:
    """Measured plans for all that is planned from now on, in place of the user's; None to estimate always."""
    _DATABASE[:] = [database]
    for known in _DISPATCHERS.values():
        known.database = database
        known.forget()


def _after_fork() -> None:
    for known in _DISPATCHERS.values():
        known.leave()


os.register_at_fork(after_in_child=_after_fork)

__all__ = ["Dispatcher", "dispatcher", "measured_plans", "refuse_capture", "use_database"]
