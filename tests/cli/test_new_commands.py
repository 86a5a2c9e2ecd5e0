"""relayout, search and resources."""

from pathlib import Path

import pytest
from command_runs import Cli
from pages.resources import same


def test_relayout_finds_a_layout_and_proves_it(cli: Cli) -> None:
    ran = cli("relayout", "worklog/6", "A_tile")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("Relayout('A_tile', rows='k', arrangement=Xor(bits=3, base=2, shift=0))\n")
    assert "store 1 wavefronts a request, 1 is the fewest" in ran.out


@pytest.mark.slow
def test_relayout_says_which_access_no_layout_serves(cli: Cli) -> None:
    ran = cli("relayout", "worklog/6", "B_tile")
    assert ran.code == 1
    assert "no layout tried serves: B_frag" in ran.out


def test_relayout_of_an_unknown_tile_suggests_one(cli: Cli) -> None:
    ran = cli("relayout", "worklog/6", "A_tiles")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("There is no shared tile 'A_tiles'.\n  Hint: did you mean 'A_tile'? ")


def test_search_shows_a_recorded_table_without_a_gpu(cli: Cli) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "search_worklog_9.jsonl"
    data = cli("search", "worklog/9", "--file", str(path), "--show", "--json").json
    assert data["trials"] == 75
    assert data["best"]["point"] == {"bm": 128, "bn": 128, "bk": 8, "tm": 4, "tn": 4}


@pytest.mark.parametrize(
    ("text", "said"),
    [("[{}]", "is not a list of points of worklog/9."), ("{", "Cannot read points from"), (None, "No such file")],
)
def test_points_that_are_none_are_refused(cli: Cli, tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "points.json"
    if text is not None:
        path.write_text(text)
    ran = cli("search", "worklog/9", "--points", str(path))
    assert ran.code == 1
    assert said in ran.err


def test_a_table_of_a_search_that_is_no_text_holds_nothing(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    ran = cli("search", "worklog/9", "--file", path, "--show")
    assert (ran.code, ran.err.partition("\n")[0]) == (1, f"{str(path)!r} holds no right point yet.")


def test_search_of_a_rung_without_choices_is_refused(cli: Cli) -> None:
    ran = cli("search", "worklog/3")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("worklog/3 has no parameters to search.")


def test_pages_of_other_compilers_are_compared_without_registers() -> None:
    page = "with NVRTC 13.5.\n| worklog/1 | 32 | 58 | 58 | 32 | 8 | 0 % | 0 % | 2 |\n"
    other = page.replace("13.5", "13.0").replace("| 58 |", "| 60 |")
    assert same(page, other)
    assert not same(page, other.replace("| 2 |", "| 3 |"))
    assert not same(page, page.replace("| 58 |", "| 60 |"))
