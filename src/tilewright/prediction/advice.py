"""What to do next: edits of a schedule that were built, simulated and predicted, and made it faster.

An edit is first judged with the registers of the schedule as it is. The best few are then compiled, and run on the
simulator with its detectors, so that what is advised is right as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tilewright.artifacts import Cubin
from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.kernels.work import Access, Work
from tilewright.model.prediction import Prediction
from tilewright.model.time import predict_seconds, predict_time
from tilewright.prediction.counting import sample_gemm, work_of
from tilewright.prediction.edits import Edit, edits
from tilewright.prediction.predict import dram_bytes, predict
from tilewright.problem.reference import make_operands, view
from tilewright.problem.tolerance import check
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.schedule import Schedule
from tilewright.simulator import simulate
from tilewright.toolchain import Build, build, check_launchable

WORTH = 1.02
"""An edit that promises less is not told: the model is not that exact."""

SECONDS = 5.0
"""How long edits are tried."""


@dataclass(frozen=True, slots=True)
class Advice:
    """An edit that helps. counted: what it changes in the counts, or in what is exposed."""

    what: str
    schedule: Schedule
    counted: str
    before: Prediction
    after: Prediction

    @property
    def sentence(self) -> str:
        """ "pad the B tile by 4: 8 -> 4 wavefronts a load of B_frag, predicted 31.4 -> 36.0 TFLOP/s" """
        speed = f"predicted {self.before.tflops:.3g} -> {self.after.tflops:.3g} TFLOP/s"
        return f"{self.what}: {self.counted}, {speed}" if self.counted else f"{self.what}: {speed}"


@dataclass(frozen=True, slots=True)
class _Tried:
    edit: Edit
    built: Build
    work: Work
    predicted: Prediction


def advise(
    built: Build,
    spec: DeviceSpec | str,
    *,
    most: int = 3,
    seconds: float = SECONDS,
    now: Callable[[], float] = time.monotonic,
    cache: CubinCache | None = None,
) -> tuple[Advice, ...]:
    """The edits that help most on a GPU, the best first; none where nothing that was tried helps.

    seconds: of `now`, after which no further edit is tried.
    """
    found, until = known_device(spec), now() + seconds
    before_work = work_of(built)
    before = predict(built, found, cache=cache, work=before_work)
    cubin = built.compile(found.arch, cache=cache)
    every = edits(built, _conflicts(built, before_work))
    tried = list(_tried(built, every, cubin, found, before.seconds / WORTH, lambda: now() > until))
    told: list[Advice] = []
    families: set[str] = set()
    for one in sorted(tried, key=_rank):
        if len(told) == most or (told and now() > until):
            break
        if one.edit.family in families:
            continue
        after = _confirmed(one, found, cache)
        if after is not None and after.seconds * WORTH < before.seconds:
            families.add(one.edit.family)
            counted = _changes(before_work, one.work) or _less_exposed(before, after)
            told.append(Advice(one.edit.what, one.edit.schedule, counted, before, after))
    return tuple(sorted(told, key=lambda one: one.after.seconds))


def _rank(tried: _Tried) -> float:
    """Seconds, so coarse that of edits as good as each other the smaller one, which was tried first, stays first."""
    return round(math.log(tried.predicted.seconds) / math.log(WORTH))


def _conflicts(built: Build, work: Work) -> set[str]:
    """The operands whose tiles take more wavefronts in shared memory than a better layout of them would."""
    accesses = (*work.step.accesses, *work.rest.accesses)
    names = {one.name for one in accesses if one.space == "shared" and one.wavefronts > one.ideal}
    return {staged.operand for staged in built.program.staged if staged.name in names}


def _tried(
    built: Build, every: Iterable[Edit], cubin: Cubin, spec: DeviceSpec, below: float, spent: Callable[[], bool]
) -> Iterator[_Tried]:
    """The edits that apply and fit until the time is spent, predicted with as many registers as before, that take fewer
    seconds than `below`. What moves between L2 and DRAM is estimated only where it decides: it takes longest."""
    for edit in every:
        if spent():
            return
        try:
            edited = build(built.gemm, edit.schedule, name=built.name)
            check_launchable(edited, spec, edited.gemm)
            blocks = edited.occupancy(spec, _as_if(cubin, edited)).blocks_per_sm
            if blocks:
                work, least = work_of(edited), float(edited.gemm.compulsory_bytes)
                at_least = predict_seconds(work.from_dram_as(least), spec, blocks_per_sm=blocks, dram_bytes=least)
                if float(at_least) < below:
                    moved = dram_bytes(edited, spec, blocks)
                    found = predict_time(work, spec, blocks_per_sm=blocks, dram_bytes=moved)
                    if found.seconds < below:
                        yield _Tried(edit, edited, work, found)
        except TilewrightError:  # most edits do not fit most schedules
            continue


def _as_if(cubin: Cubin, edited: Build) -> Cubin:
    """What the edited kernel is supposed to use before it is compiled: its own shared memory, the old registers."""
    static = edited.kernel.shared_bytes - edited.kernel.dynamic_shared_bytes
    return replace(cubin, resources=replace(cubin.resources, shared_bytes=static))


def _confirmed(one: _Tried, spec: DeviceSpec, cache: CubinCache | None) -> Prediction | None:
    """The prediction with the registers that the compiler takes; None where it spills, or the result is wrong."""
    try:
        cubin = one.built.compile(spec.arch, cache=cache)
        if cubin.resources.spill_store_bytes or not _is_right(one.built):
            return None
        return predict(one.built, spec, cache=cache, work=one.work)
    except TilewrightError:
        return None


def _is_right(built: Build) -> bool:
    """Whether one block computes what it should, with no race and nothing read that was not written."""
    operands = make_operands(sample_gemm(built, steps=4))
    resident = built.kernel.cluster if built.kernel.resident else None
    run = simulate(built.kernel, operands, resident_blocks=resident)
    gemm = operands.gemm
    return bool(check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok)


# -- words -------------------------------------------------------------------------------------------------------------


def _changes(before: Work, after: Work) -> str:
    """What an edit changes most in the counts of a step; "" where it changes none by a tenth."""
    now = {(one.name, one.kind, one.space): one for one in _merged(after.step.accesses)}
    told: list[tuple[float, str]] = []
    for one in _merged(before.step.accesses):
        other = now.get((one.name, one.kind, one.space))
        if other is None:
            continue
        old, new = _each(one), _each(other)
        if new < 0.9 * old:
            unit = "wavefronts" if one.space == "shared" else "lines"
            told.append((old - new, f"{old:.3g} -> {new:.3g} {unit} a {one.kind} of {one.name}"))
        elif other.requests < 0.9 * one.requests:
            fewer = one.requests - other.requests
            told.append((fewer / one.requests, f"{_times(one)} of {one.name} / {one.requests / other.requests:.3g}"))
    return max(told)[1] if told else ""


def _times(one: Access) -> str:
    return f"{one.kind}s {'from' if one.kind == 'load' else 'to'} {one.space} memory"


def _each(one: Access) -> float:
    return float((one.wavefronts if one.space == "shared" else one.lines) / max(one.requests, 1e-9))


def _merged(accesses: Iterable[Access]) -> list[Access]:
    """One entry for each tile, kind and space, whatever the widths."""
    found: dict[tuple[str, str, str], Access] = {}
    for one in accesses:
        key = (one.name, one.kind, one.space)
        found[key] = found[key] + one if key in found else one
    return list(found.values())


def _less_exposed(before: Prediction, after: Prediction) -> str:
    """The term that shrinks most."""
    old = {term.name: term.seconds / before.seconds for term in before.terms}
    new = {term.name: term.seconds / before.seconds for term in after.terms}
    name = max(old, key=lambda term: old[term] - new.get(term, 0.0))
    return f"{name} {old[name]:.0%} -> {new.get(name, 0.0):.0%} of the time" if old[name] > new.get(name, 0.0) else ""
