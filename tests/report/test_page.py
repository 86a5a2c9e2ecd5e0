"""The page as a file: whole, valid, small enough, and with nothing to fetch."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tilewright.device.catalog import H200, device
from tilewright.ladders import find_rung
from tilewright.report.figures import suite_figure
from tilewright.report.page import Page, write_page

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
    assert padded > 1.5 * asynchronous


def test_changes_of_the_schedule_are_marked_where_they_are(page: Page) -> None:
    marks = [line.mark for line in page.views[1].lines]
    added, removed = marks.index("+"), marks.index("-")
    assert removed < added < len(marks) - 5  # replaced in place, and the schedule goes on


def test_counts_say_what_got_better_and_leave_out_what_a_rung_has_none_of(page: Page) -> None:
    first, _, top = page.views
    assert "Lost to bank conflicts" not in [count.name for count in first.counts]
    assert all(count.before == "" and count.better is None for count in first.counts)  # nothing lies below
    by_name = {count.name: count for count in top.counts}
    assert by_name["Sectors per global load"].value == "16"


def test_warps_that_are_resident_are_drawn(text: str, page: Page) -> None:
    fits = page.views[1].row.occupancy
    assert fits is not None
    assert f'aria-label="{fits.warps_per_sm} of 64 warps are resident"' in text


def test_a_record_of_a_suite_counts_where_the_ladder_has_none() -> None:
    rung = find_rung("hopper/best")
    figure = suite_figure(rung, (4096, 4096, 4096), "bf16", H200)
    assert figure is not None and figure.kind == "recorded" and figure.share_of_cublas is not None
    assert suite_figure(rung, (4096, 4096, 4096), "bf16", device("RTX 3090")) is None


def test_an_interrupted_page_leaves_the_old_file(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.files.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_page(page, path)
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "old"
