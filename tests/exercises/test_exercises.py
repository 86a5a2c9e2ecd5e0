"""Every exercise: what it starts from does not solve it, the reference solution does, and shortcuts do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.broken import run_of
from tilewright.errors import ScheduleError, TilewrightError
from tilewright.exercises import EXERCISES, find_exercise, judge
from tilewright.exercises.kernel_edits import put_in
from tilewright.ir.text import kernel_lines
from tilewright.problem.reference import make_operands

SOLUTIONS = Path(__file__).parent / "solutions"


def test_every_exercise_has_a_solution_and_hints() -> None:
    assert {path.stem for path in SOLUTIONS.glob("*.py")} == set(EXERCISES)
    assert all(len(exercise.hints) == 3 for exercise in EXERCISES.values())
    assert len(EXERCISES) >= 12


@pytest.mark.cross_section("name", every=2, at=1)
@pytest.mark.parametrize("name", EXERCISES)
def test_the_start_is_right_but_does_not_solve_it(name: str, tmp_path: Path) -> None:
    exercise = find_exercise(name)
    start = tmp_path / f"{name}.py"
    start.write_text(exercise.start())
    judgement = judge(exercise, start)
    assert not judgement.solved
    assert bool(judgement.findings) == (exercise.gap is not None)
    failed = [one.sentence for one in judgement.checked if not one.holds]
    if exercise.gap is None:
        sentences = tuple(goal.sentence for goal in exercise.goals)
        assert all(one.startswith(sentences) for one in failed)


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_solves_it(name: str) -> None:
    judgement = judge(find_exercise(name), SOLUTIONS / f"{name}.py")
    assert judgement.solved, judgement
    assert judgement.findings == ()


@pytest.mark.parametrize("name", [name for name, one in EXERCISES.items() if one.gap is None])
def test_the_file_is_about_the_problem_of_the_exercise(name: str) -> None:
    names: dict[str, object] = {}
    exec(find_exercise(name).start(), names)
    assert names["gemm"] == find_exercise(name).gemm


def test_a_stage_can_be_handed_back_in_one_place_only() -> None:
    exercise = find_exercise("deadlock")
    assert exercise.gap is not None
    kernel, release = exercise.gap.kernel(exercise.gemm)
    operands, right = make_operands(exercise.gemm), []
    for number, line in enumerate(kernel_lines(kernel), 1):
        if line.path is None:
            continue
        try:
            placed = put_in(kernel, {"release": release}, [("release", "after", number)])
        except TilewrightError:
            continue
        if run_of(placed, operands) is not None:
            right.append(line.text.strip())
    assert right == ["wait until at most 1 wgmma group(s) are under way"]


def test_more_barriers_than_are_needed_do_not_solve_the_race(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text('put = [("barrier", "before", line) for line in (17, 18, 23)]\n')
    judgement = judge(find_exercise("race"), mine)
    assert not judgement.solved
    assert judgement.findings == ()
    assert [one.sentence for one in judgement.checked if not one.holds] == [
        "__syncthreads for each k iteration: 3, at most 2"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("put = 1\n", "names no list 'put'"),
        ('put = [("barrier", "at", 3)]\n', "('barrier', 'at', 3) cannot be put into the kernel."),
        ('put = [("fence", "after", 12)]\n', "('fence', 'after', 12) cannot be put into the kernel."),
        ('put = [("barrier", "after", 999)]\n', "('barrier', 'after', 999) cannot be put into the kernel."),
        ('put = [("barrier", "after", 1)]\n', "Line 1 is not a statement: kernel worklog_shared("),
        ("put = [\n", "does not run: SyntaxError"),
    ],
)
def test_places_that_are_none_are_refused(tmp_path: Path, text: str, said: str) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(text)
    with pytest.raises(TilewrightError) as caught:
        judge(find_exercise("race"), mine)
    assert said in str(caught.value)


def test_a_part_where_its_names_are_unknown_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text('put = [("release", "before", 36)]\n')
    with pytest.raises(TilewrightError, match=r"is not a kernel: .*k_tile"):
        judge(find_exercise("deadlock"), mine)


def test_a_step_that_is_refused_is_told(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import tilewright as tw\nschedule = tw.Schedule(tw.Split('m', 7, into=('x', 'x')))\n")
    with pytest.raises(ScheduleError):
        judge(find_exercise("tiles"), mine)


def test_a_schedule_of_another_name_is_not_the_answer(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import tilewright as tw\nmine = tw.Schedule()\n")
    with pytest.raises(TilewrightError, match="names no schedule 'schedule'"):
        judge(find_exercise("tiles"), mine)


def test_the_page_lists_every_exercise_and_shows_what_a_check_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "exercises.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{one.name}` | {one.title} |" for one in EXERCISES.values()]
    start = tmp_path / "conflicts.py"
    start.write_text(find_exercise("conflicts").start())
    said = [f"{'ok  ' if one.holds else 'FAIL'} {one.sentence}" for one in judge(EXERCISES["conflicts"], start).checked]
    assert "\n".join(said) in page
