"""Pages for readers with a keyboard, a screen reader, a phone, or a dark screen: axe-core finds nothing serious."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.chromium import BROWSER, Chromium, Tab
from tilewright.cli import main
from tilewright.ladders import find_rung
from tilewright.report.debugger import watch
from tilewright.toolchain import build

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed here")

LADDER = "ladder"


def _watched(path: Path) -> None:
    rung = find_rung("worklog/3")
    watch(build(rung.gemm(32, 32, 64), rung), without=17).save(path)


def _in_a_notebook(path: Path) -> None:
    rung = find_rung("worklog/3")
    shown = watch(build(rung.gemm(32, 32, 32), rung), title="worklog/3")._repr_html_()
    head = "<!doctype html><html lang=en data-ready><title>Notebook</title><link rel=icon href=data:,>"
    path.write_text(f"{head}<main><h1>Notebook</h1>{shown}</main></html>", "utf-8")


def _compared(path: Path) -> None:
    main(["compare", "worklog/1", "worklog/2", "--size", "64", "--page", str(path)])
    _mark_ready(path)


def _swept(path: Path) -> None:
    main(["predict", "worklog/2", "--sweep", "64,128", "--output", str(path)])
    _mark_ready(path)


def _mark_ready(path: Path) -> None:
    """A page without scripts of its own is ready when it is there."""
    path.write_text(path.read_text("utf-8").replace('<html lang="en"', '<html lang="en" data-ready', 1), "utf-8")


PAGES: dict[str, Callable[[Path], None] | None] = {
    LADDER: None,  # a fixture of the session writes it
    "watch": _watched,
    "notebook": _in_a_notebook,
    "compare": _compared,
    "sweep": _swept,
}


@pytest.mark.cross_section("name", "screen", every=8)
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("screen", [(1400, False), (390, True), (1400, True), (390, False)])
def test_nothing_keeps_a_reader_out(
    browser: Chromium,
    request: pytest.FixtureRequest,
    name: str,
    screen: tuple[int, bool],
    tmp_path: Path,
    kernel_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(kernel_cache))
    make = PAGES[name]
    path = tmp_path / f"{name}.html"
    if make is None:
        path = request.getfixturevalue("written")
    else:
        make(path)
    width, dark = screen
    tab = Tab(browser, path, width, dark=dark)
    assert tab.barriers() == []
    assert tab.troubles == []
    assert tab.ask("document.documentElement.scrollWidth <= innerWidth")
