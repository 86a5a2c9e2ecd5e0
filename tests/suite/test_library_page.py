"""The page of the library's speed says what the records say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pages.library import page, page_or_part, recorded, sentence
from suite_fakes import ORIGIN, FakeBench

from tilewright.bench import records
from tilewright.errors import TilewrightError
from tilewright.suite.problems import Problem
from tilewright.suite.running import COMPILED, CUBLAS, CUBLASLT, PEERS, Plan, run


def rows(*given: Problem, peers: tuple[str, ...] = PEERS) -> list[records.Record]:
    return [row.made for row in run(Plan(given, peers), FakeBench()) if row.made is not None]


def test_a_page_without_records_says_so() -> None:
    assert "No measurement is recorded yet" in page([])


def test_a_row_has_the_peers_that_were_timed_and_what_ran() -> None:
    text = page(rows(Problem(256, 256, 256, "bf16"), peers=(CUBLAS, CUBLASLT)))
    assert "### bf16 NN" in text
    assert "| 256x256x256 | 1.00 | 33.6 | 2.00 | 2.000 | 2.00 | 2.000 | `hopper/best` |" in text


def test_means_are_geometric_and_the_least_is_named() -> None:
    one, two = rows(Problem(512, 512, 512, "f32"), Problem(256, 256, 256, "f32"), peers=(CUBLAS,))
    two = replace(two, extra={**two.extra, "shares": {CUBLAS: 0.5}})
    assert f"| f32 | {CUBLAS} | 2 | 1.000 | 0.500 | 256x256x256 NN |" in page([one, two])


def test_the_newest_run_counts_and_an_older_one_for_peers_that_it_left_out() -> None:
    problem = Problem(512, 512, 512, "f32")
    with_all = rows(problem)[-1]
    later = replace(
        rows(problem, peers=(CUBLAS,))[0], origin=replace(ORIGIN, date="2026-12-01T00:00:00Z"), median_us=9.5
    )
    text = page([with_all, later])
    assert "| 512x512x512 | 9.50 |" in text
    assert f"| f32 | {COMPILED} | 1 | 2.000 |" in text


def test_other_shapes_have_a_table_of_their_own_and_no_part_in_the_means() -> None:
    suite, other = rows(Problem(512, 512, 512, "f32"), Problem(7, 7, 7, "f32"), peers=(CUBLAS,))
    other = replace(other, extra={**other.extra, "shares": {CUBLAS: 0.25}})
    text = page([suite, other])
    assert f"| f32 | {CUBLAS} | 1 | 2.000 |" in text
    assert "| f32 NN | 7x7x7 |" in text.partition("### Untuned shapes")[2]
    assert sentence([suite, other]).endswith(
        "2.000 (f32) times as fast as cuBLAS (geometric means of 1 problems; the lowest of all is 2.000)."
    )


def test_a_page_of_another_subject_has_the_figures_between_its_markers() -> None:
    found = rows(Problem(512, 512, 512, "f32"), peers=(CUBLAS,))
    text = page_or_part("before\n<!-- library -->\nold\n<!-- /library -->\nafter\n", found)
    assert text == f"before\n<!-- library -->\n{sentence(found)}\n<!-- /library -->\nafter\n"
    assert page_or_part("", found) == page_or_part(page([]), found) == page(found)
    with pytest.raises(TilewrightError, match="no place for the figures"):
        page_or_part("# Another page, whose markers are gone", found)


def test_records_are_found_by_their_files(tmp_path: Path) -> None:
    records.write(tmp_path / "library_h200.jsonl", rows(Problem(64, 64, 64, "f32"), peers=(CUBLAS,)))
    (tmp_path / "ladder_worklog.jsonl").write_text("not looked at")
    assert len(recorded(tmp_path)) == 1


def test_the_page_in_docs_is_what_the_records_say() -> None:
    written = Path(__file__).parents[2] / "docs" / "library.md"
    assert written.read_text(encoding="utf-8") == page(recorded())
