"""A page that the tests of this folder share, and the command that writes one."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import Cli, Ran

from tilewright.cli import main
from tilewright.ladders import find_rung
from tilewright.report.collect import target_for
from tilewright.report.page import Page, collect_page, page_text
from tilewright.runtime.cubin_cache import CubinCache

SHOWN = ("worklog/1", "worklog/8", "worklog/12")
"""A rung without shared memory, one with conflicts, one with slots."""


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Some rungs of a ladder at a small size, for an H200."""
    cache = CubinCache(tmp_path_factory.mktemp("cubins"))
    rungs = [find_rung(name) for name in SHOWN]
    return collect_page(rungs, (128, 128, 64), target_for("H200", None, None), cache=cache)


@pytest.fixture(scope="session")
def text(page: Page) -> str:
    return page_text(page)


@pytest.fixture(scope="session")
def written(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "worklog.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Cli:
    """`report("worklog", "--size", 64)`: the command, as if piped, with a kernel cache of its own."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.mktemp("cubins")))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main(["report", *map(str, arguments)])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run
