"""The page as a file: whole, valid, small enough, and with nothing to fetch; and what refuses to write one."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_runs import Cli

from tilewright.report.page import Page

_MOST_BYTES = 8_000_000


class _Elements(HTMLParser):
    """Every element with its attributes, and the ends that do not match."""

    _VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unmatched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unmatched.append(tag)


@pytest.fixture(scope="module")
def elements(text: str) -> _Elements:
    parser = _Elements()
    parser.feed(text)
    return parser


@pytest.fixture(scope="module")
def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    loaded: dict[str, Any] = json.loads(found[1].replace("<\\/", "</"))
    return loaded


def test_elements_close_in_order(elements: _Elements) -> None:
    assert (elements.unmatched, elements.open) == ([], [])


def test_nothing_is_fetched(elements: _Elements) -> None:
    for tag, attributes in elements.found:
        assert tag not in ("img", "iframe", "object", "embed")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
    styles = [attributes for tag, attributes in elements.found if tag == "link"]
    assert all(attributes["rel"] == "icon" for attributes in styles)


def test_the_file_is_small_enough_to_mail(written: Path) -> None:
    assert written.stat().st_size < _MOST_BYTES


def test_every_control_has_a_name_and_every_picture_a_place(elements: _Elements, text: str) -> None:
    identifiers = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert {"tiles", "loads", "banks", "timeline", "order"} <= {*identifiers}
    assert {"ladder-chart", "roof-chart", "terms-chart"} <= {*identifiers}
    for tag, attributes in elements.found:
        if tag == "section":
            assert attributes["aria-labelledby"] in identifiers


def test_a_rung_has_its_texts_and_its_counts(text: str, page: Page) -> None:
    for view in page.views:
        assert f'<article class="rung" data-rung="{view.rung.name}"' in text
    assert '<span class="kt">float</span>' in text  # CUDA is marked up
    assert "Relayout(&#39;B_tile&#39;, rows=&#39;k&#39;, pad=5)" in text
    padded = page.views[1]
    assert [line.text for line in padded.lines if line.mark == "+"] == ["Relayout('B_tile', rows='k', pad=5)"]
    assert any("4 wavefronts each where 1 would do" in cost for line in padded.lines for cost in line.costs)


def test_recorded_and_predicted_are_told_apart(data: dict[str, Any]) -> None:
    for rung in data["rungs"]:
        speed = rung["speeds"]["4096"]
        assert speed["recorded"]["kind"] == "recorded" and "H200" in speed["recorded"]["device"]
        assert speed["predicted"]["low"] < speed["predicted"]["tflops"] < speed["predicted"]["high"]
        assert rung["speeds"]["1024"]["recorded"] is None  # nobody measured there
        total = sum(term["ms"] for term in speed["predicted"]["stacked"])
        assert total == pytest.approx(speed["predicted"]["ms"], rel=0.05)


def test_a_conflict_moves_the_mark_of_shared_memory_to_the_left(data: dict[str, Any]) -> None:
    _, padded, asynchronous = (rung["speeds"]["4096"]["bytes"]["shared"] for rung in data["rungs"])
    assert padded > 2 * asynchronous


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_an_unknown_ladder_or_device_is_answered_with_the_nearest(report: Cli) -> None:
    assert "did you mean 'hopper'?" in report("hoper").err
    ran = report("worklog", "--device", "RTX 3080")
    assert ran.code == 1 and "did you mean 'RTX 3090'?" in ran.err


def test_a_place_that_cannot_be_written_is_refused_before_the_work(report: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = report("worklog", "--output", tmp_path / "file" / "page.html")
    assert ran.code == 1 and "is no folder" in ran.err
    assert "it is a folder" in report("worklog", "--output", tmp_path).err


def test_a_missing_extra_is_named_with_its_command(report: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.extras.available", lambda package: package != "plotly")
    ran = report("worklog")
    assert ran.code == 1
    assert ran.err == (
        "The report page needs the package 'plotly', which is not installed.\n"
        "  Hint: python -m pip install 'tilewright[report]'\n"
    )


def test_records_of_another_version_are_refused(report: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.bench import records

    (tmp_path / "ladder_worklog.jsonl").write_text('{"rung": "worklog/1", "format": 99}\n')
    monkeypatch.setattr(records, "recorded_folder", lambda: tmp_path)
    records.recorded.cache_clear()
    ran = report("worklog", "--rungs", "1", "--size", "32", "--output", tmp_path / "page.html")
    records.recorded.cache_clear()
    assert ran.code == 1
    assert "Line 1 of ladder_worklog.jsonl is no record: format 99, not 1." in ran.err


def test_the_command_writes_the_page(report: Cli, tmp_path: Path) -> None:
    ran = report("worklog", "--rungs", "2", "--size", "64", "--output", tmp_path / "new" / "page.html")
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_kernel_that_cannot_be_built_keeps_its_place(report: Cli, tmp_path: Path) -> None:
    ran = report("hopper", "--rungs", "2", "--size", "100", "--output", tmp_path / "page.html")
    assert ran.code == 0
    assert "its rows are 200 bytes apart" in (tmp_path / "page.html").read_text(encoding="utf-8")
