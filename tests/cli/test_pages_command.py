"""`tilewright pages`."""

from pathlib import Path

from command_runs import Cli


def test_pages_are_written_and_checked(cli: Cli, tmp_path: Path) -> None:
    ran = cli("pages", "te", "--write", tmp_path)
    assert (ran.code, ran.out) == (0, "")
    assert cli("pages", "te", "--check", tmp_path).code == 0
    (tmp_path / "te" / "0_naive.md").write_text("")
    ran = cli("pages", "te", "--check", tmp_path)
    assert ran.code == 1
    assert ran.err.splitlines()[1:] == ["  te/0_naive.md", f"  Hint: tilewright pages --write {tmp_path}"]


def test_a_place_must_be_said_and_a_ladder_known(cli: Cli) -> None:
    assert cli("pages").code == 2
    assert "did you mean 'worklog'?" in cli("pages", "worklgo", "--check", "docs/rungs").err
