"""`tilewright exercise`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import Cli

from tilewright.exercises import EXERCISES

SOLUTIONS = Path(__file__).parents[1] / "exercises" / "solutions"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_exercises_are_listed_in_order(cli: Cli) -> None:
    ran = cli("exercise")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.out.splitlines()[: len(EXERCISES)]] == list(EXERCISES)


def test_an_exercise_is_written_once(cli: Cli) -> None:
    ran = cli("exercise", "conflicts")
    assert (ran.code, ran.err) == (0, "")
    assert "tilewright exercise conflicts --check conflicts.py" in ran.out
    text = Path("conflicts.py").read_text()
    assert "tilewright explain conflicts.py" in text and "FILE" not in text
    again = cli("exercise", "conflicts")
    assert (again.code, again.out) == (1, "")
    assert again.err == "'conflicts.py' exists.\n  Hint: choose another name, or remove it first.\n"


def test_the_text_of_a_kernel_is_in_the_file(cli: Cli) -> None:
    assert cli("exercise", "race").code == 0
    text = Path("race.py").read_text()
    assert "  12    for k_tile in K / 32:\n" in text
    assert not any(line.endswith(" barrier") for line in text.splitlines())


def test_what_does_not_solve_it_fails_with_the_goal_and_the_way_to_a_hint(cli: Cli) -> None:
    cli("exercise", "conflicts")
    ran = cli("exercise", "conflicts", "--check", "conflicts.py")
    assert (ran.code, ran.err) == (1, "")
    assert "FAIL wavefronts of shared loads lost to bank conflicts: 4,096, at most 0\n" in ran.out
    assert "ok   C is right at 128 x 128 x 64\n" in ran.out
    assert "tilewright exercise conflicts --hint 1" in ran.out


def test_a_race_is_told_with_its_two_accesses(cli: Cli) -> None:
    cli("exercise", "race")
    ran = cli("exercise", "race", "--check", "race.py")
    assert ran.code == 1
    assert "Race on A_tile[0]: read here, written by another thread" in ran.out
    assert "line 25: A_value[0] <- A_tile[m_thread, k_in]" in ran.out


def test_a_solution_leads_to_the_next_exercise(cli: Cli) -> None:
    ran = cli("exercise", "tiles", "--check", SOLUTIONS / "tiles.py")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("tiles is solved. Next: tilewright exercise race\n")
    assert cli("exercise", "multicast", "--check", SOLUTIONS / "multicast.py").out.endswith("multicast is solved.\n")


def test_hints_come_one_at_a_time(cli: Cli) -> None:
    said = [cli("exercise", "tiles", "--hint", number).out for number in (1, 2, 3)]
    assert [one[:7] for one in said] == ["1 of 3:", "2 of 3:", "3 of 3:"]
    ran = cli("exercise", "tiles", "--hint", 4)
    assert (ran.code, ran.out, ran.err) == (1, "", "tiles has hints 1 to 3, not 4.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("conflict",), 1, "There is no exercise 'conflict'.\n  Hint: did you mean 'conflicts'?"),
        (("--hint", "1"), 2, "say which exercise."),
        (("tiles", "--check", "none.py"), 1, "There is no file 'none.py'."),
    ],
)
def test_what_is_not_there_is_named(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    ran = cli("exercise", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
