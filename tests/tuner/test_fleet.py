"""A list of problems that several processes tune: each once, also where one of them is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_worker import PROBLEMS
from made_up_winners import a_winner
from tuning_fakes import url_of

from tilewright.device.catalog import H100, H200
from tilewright.errors import LaunchError, ProblemError, TilewrightError
from tilewright.problem.gemm import Gemm
from tilewright.tuner.fleet import Fleet, Listed, listed
from tilewright.winners.winner import Winner


def started(url: str, folder: Path, name: str, seconds: float) -> subprocess.Popen[str]:
    paths = [Path(__file__).parent, Path(__file__).parents[2] / "src"]
    files = [folder / f"{name}.done", folder / f"{name}.begun"]
    return subprocess.Popen(
        [sys.executable, Path(__file__).with_name("fleet_worker.py"), url, *files, str(seconds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(folder: Path) -> list[str]:
    return sorted(line for path in folder.glob("*.done") for line in path.read_text().splitlines())


def three_and_one_killed(url: str, folder: Path) -> None:
    victim = started(url, folder, "victim", 60)
    while not (folder / "victim.begun").exists():
        assert victim.poll() is None, victim.communicate()[1]
        time.sleep(0.05)
    others = [started(url, folder, name, 0.05) for name in ("one", "two")]
    while len(finished(folder)) < 3:
        assert all(process.poll() is None for process in others), [process.communicate()[1] for process in others]
        time.sleep(0.05)
    victim.kill()
    victim.communicate()
    told = [process.communicate(timeout=120) for process in others]
    assert [process.returncode for process in others] == [0, 0], told
    assert finished(folder) == sorted(str(problem.gemm) for problem in PROBLEMS), "each once, also the one of the dead"
    for text, _ in told:
        winners = [Winner.from_json(line) for line in text.splitlines()]
        assert sorted(winner.key.problem.m for winner in winners) == [problem.gemm.m for problem in PROBLEMS]


def test_three_processes_of_which_one_is_killed(tmp_path: Path) -> None:
    three_and_one_killed(url_of(tmp_path), tmp_path)


def test_a_problem_that_cannot_be_tuned_is_told_once(tmp_path: Path) -> None:
    def tune(gemm: Gemm) -> str:
        if gemm.m == 128:
            raise ProblemError("No kernel takes it.")
        return a_winner(m=gemm.m).to_json()

    for expected in ({"No kernel takes it.", ""}, set()):
        with closing(Fleet(url_of(tmp_path), PROBLEMS[:3], H200)) as fleet:
            reports = list(fleet.run(tune))
            assert {report.failure for report in reports} == expected and fleet.left == 0
            assert len(fleet.winners()) == 2


def test_a_machine_without_its_gpu_gives_the_problem_back(tmp_path: Path) -> None:
    def lost(gemm: Gemm) -> str:
        raise LaunchError("The GPU is gone.")

    with closing(Fleet(url_of(tmp_path), PROBLEMS[:1], H200)) as fleet:
        with pytest.raises(LaunchError):
            list(fleet.run(lost))
        (report,) = fleet.run(lambda gemm: a_winner().to_json())
        assert not report.failure


def test_another_kind_of_gpu_has_a_list_of_its_own(tmp_path: Path) -> None:
    for spec in (H200, H100):
        with closing(Fleet(url_of(tmp_path), PROBLEMS[:2], spec)) as fleet:
            assert len(list(fleet.run(lambda gemm: a_winner(m=gemm.m).to_json()))) == 2


def test_a_list_is_read(tmp_path: Path) -> None:
    path = tmp_path / "problems.csv"
    path.write_text("m,n,k,dtype,out,order\n64,32,16,,,\n64,32,16,bf16,f32,NT\n64,32,16,bf16,,nt\n64,32,16,,,\n")
    found = listed(path)
    assert len(found) == 3 and len({one.key for one in found}) == 3
    assert found[0] == Listed(Gemm(64, 32, 16))
    assert replace(found[1].gemm, out=found[2].gemm.out) == found[2].gemm
    path.write_text("m,n,k\n1,2,3\n")
    assert [one.gemm for one in listed(path)] == [Gemm(1, 2, 3)]


@pytest.mark.parametrize(
    "text", ["m,n\n1,2\n", "m,n,k\n1,2,0\n", "m,n,k\n1,2,x\n", "m,n,k,order\n1,2,3,XX\n", "m,n,k\n", ""]
)
def test_what_is_not_a_list_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "problems.csv"
    path.write_text(text)
    with pytest.raises(TilewrightError):
        listed(path)
    with pytest.raises(TilewrightError, match="cannot be read"):
        listed(tmp_path / "none.csv")


def test_two_machines_free_the_same_problem_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one finds it freed between its look at the list and its own word."""
    fleets = [Fleet(url_of(tmp_path), PROBLEMS[:1], H200) for _ in range(2)]
    dead, slow = (fleet._claims for fleet in fleets)
    claim = dead.claim()
    assert claim is not None
    looks, fresh = iter([slow.refresh()]), slow.refresh
    dead.release([claim])
    monkeypatch.setattr(slow, "refresh", lambda: next(looks, None) or fresh())
    monkeypatch.setattr(slow, "_is_gone", lambda trial: not trial.state.is_finished())
    slow.free_the_dead()
    assert slow.claim() is not None
    for fleet in fleets:
        fleet.close()
