"""`tilewright watch`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import Cli

from tilewright.cli.watch import small_size
from tilewright.ladders import find_rung
from tilewright.toolchain import build


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_block_is_recorded_and_written(cli: Cli) -> None:
    ran = cli("watch", "worklog/3", "--size", "64")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("worklog-shared.html (0.")
    page = Path("worklog-shared.html").read_text("utf-8")
    assert "<h1>worklog/3 shared</h1>" in page and "64 &times; 64 &times; 64" in page


def test_without_a_barrier_the_race_is_told_and_the_command_fails(cli: Cli) -> None:
    ran = cli("watch", "worklog/3", "--size", "64", "--without", "17", "-o", "race.html")
    assert ran.code == 1
    assert ran.out.startswith(
        "race: Race on A_tile[0]: written here, read by another thread, and nothing orders the two."
    )
    assert "Left out on purpose:" in Path("race.html").read_text("utf-8")


def test_a_file_is_watched_at_its_own_size(cli: Cli) -> None:
    Path("mine.py").write_text(
        "import tilewright as tw\n"
        "from tilewright.ir.program import Level\n"
        "gemm = tw.Gemm(32, 32, 8)\n"
        "naive = tw.Schedule(tw.schedule.Bind('m', Level.GRID_Y), tw.schedule.Bind('n', Level.GRID_X))\n"
    )
    ran = cli("watch", "mine.py:naive", "--block", "3,2")
    assert ran.code == 0, ran.err
    page = Path("mine-naive.html").read_text("utf-8")
    assert "Block (3, 2, 0) of 32 &times; 32 &times; 1" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--block", "x"), "'x' is not a block: write X, X,Y or X,Y,Z."),
        (("--block", "9"), "Block (9, 0, 0) is not in the grid (2, 2, 1)."),
        (("--without", "2"), "Line 2 is not a statement: grid"),
        (("--schedule", "fast"), "There is no schedule 'fast'."),
        (("-o", "."), "Cannot write '.': it is a folder."),
    ],
)
def test_what_cannot_be_is_refused(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    ran = cli("watch", "worklog/3", "--size", "64", *arguments)
    assert ran.code and said in " ".join(ran.err.split())
    assert not list(Path().glob("*.html"))


@pytest.mark.parametrize(
    ("name", "size"), [("worklog/6", (256, 256, 40)), ("worklog/1", (64, 64, 16)), ("hopper/3", (256, 256, 640))]
)
def test_the_size_that_is_watched_shows_every_stage_used_again(name: str, size: tuple[int, int, int]) -> None:
    rung = find_rung(name)
    assert small_size(build(rung.gemm(256, 256, 256), rung).kernel) == size
