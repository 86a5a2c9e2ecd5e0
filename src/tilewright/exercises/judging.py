"""Whether a file solves an exercise: the simulator runs its kernel, compares C with float64, and counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.exercises.exercise import Exercise, Gap
from tilewright.exercises.kernel_edits import put_in
from tilewright.ir.kernel import Kernel
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands, view
from tilewright.problem.tolerance import check
from tilewright.report.own_schedules import names_in, schedules_in
from tilewright.simulator import Finding, Run, simulate

ANSWER = "schedule"
"""The name of the schedule in a file that answers with one."""

PLACEMENTS = "put"
"""The name of the list in a file that answers with places in a kernel."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One thing that was checked: whether it holds, in a sentence with the figures."""

    holds: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that was checked, in order, and the rules of the machine that the kernel breaks."""

    checked: tuple[Judged, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def solved(self) -> bool:
        return all(one.holds for one in self.checked)


def judge(exercise: Exercise, path: Path) -> Judgement:
    """Run the kernel of a file at the sizes of an exercise.

    Raises TilewrightError where the file does not run, names no answer, or a step of its schedule is refused.
    """
    run, checked = _checked(_kernel(exercise, path, exercise.gemm), exercise.gemm)
    if run.errors:
        return Judgement(tuple(checked), run.errors)
    kernel = _kernel(exercise, path, exercise.gemm)
    for goal in exercise.goals:
        measured = goal.measure(run.counters, kernel)
        said = f"{goal.sentence}: {_figure(measured)}, at most {_figure(goal.at_most)}"
        checked.append(Judged(measured <= goal.at_most, said))
    if exercise.edges is None:
        return Judgement(tuple(checked))
    beside, also = _checked(_kernel(exercise, path, exercise.edges), exercise.edges)
    return Judgement((*checked, *also), beside.errors)


def _kernel(exercise: Exercise, path: Path, gemm: Gemm) -> Kernel:
    if exercise.gap is not None:
        return _mended(exercise.gap, path, gemm)
    known = {own.name: own for own in schedules_in(path)}
    if ANSWER not in known:
        raise TilewrightError(
            f"{str(path)!r} names no schedule {ANSWER!r}.", hint=f"it names {', '.join(known)}: rename one."
        )
    return known[ANSWER].make(gemm).kernel


def _mended(gap: Gap, path: Path, gemm: Gemm) -> Kernel:
    placements = names_in(path).get(PLACEMENTS)
    if not isinstance(placements, list):
        raise TilewrightError(
            f"{str(path)!r} names no list {PLACEMENTS!r}.", hint=f'{PLACEMENTS} = [("{gap.part}", ...)]'
        )
    kernel, missing = gap.kernel(gemm)
    return put_in(kernel, {gap.part: missing}, placements)


def _checked(kernel: Kernel, gemm: Gemm) -> tuple[Run, list[Judged]]:
    operands = make_operands(gemm)
    run = simulate(kernel, operands, on_finding="collect")
    verdict = check(operands, gemm.out.decode(view(gemm, "C", run.c)))
    size = f"{gemm.m} x {gemm.n} x {gemm.k}"
    rules = f"races, deadlocks and other broken rules at {size}: {len(run.errors)}, at most 0"
    return run, [Judged(verdict.ok and run.completed, f"C is right at {size}"), Judged(not run.errors, rules)]


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
