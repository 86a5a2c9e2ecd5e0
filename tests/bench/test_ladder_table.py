"""Tables of recorded figures in Markdown, between markers: `benchmarks/write_page.py ladder:NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest
import write_page

BEGIN, END = "<!-- ladder:worklog -->", "<!-- /ladder:worklog -->"


def test_a_table_is_written_between_its_markers_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    words = ["ladder:worklog", str(readme)]
    assert write_page.main([*words, "--check"]) == 1
    assert capsys.readouterr().err == (
        f"{str(readme)!r} is not what the records say.\n"
        f"  Hint: python benchmarks/write_page.py ladder:worklog {readme}\n"
    )
    assert write_page.main(words) == 0
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n| rung | what is new |") and text.endswith(f"{END}\nafter\n")
    assert "| 6 vectorised |" in text and "old" not in text
    assert write_page.main([*words, "--check"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_table_needs_its_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no table here", encoding="utf-8")
    assert write_page.main(["ladder:worklog", str(readme)]) == 1
    assert capsys.readouterr().err == (
        "The text has no place for the table of ladder 'worklog'.\n"
        f"  Hint: put the lines {BEGIN} and {END} where it belongs, each once.\n"
    )
    assert readme.read_text(encoding="utf-8") == "no table here"
