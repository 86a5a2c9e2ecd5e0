"""A page that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.report.chromium import Chromium
from tilewright.ladders import find_rung
from tilewright.prediction.advice import advise
from tilewright.problem.emulation import EMULATIONS
from tilewright.report.collect import target_for
from tilewright.report.page import Page, collect_page, page_text
from tilewright.report.page.on_gpu import PiecesRow
from tilewright.runtime.cubin_cache import CubinCache

SHOWN = ("worklog/1", "worklog/8", "worklog/12")
"""A rung without shared memory, one with conflicts, one with slots."""


PIECES = tuple(
    PiecesRow(name, 108, 112.5, 93.1, 131.9, 107.2, "shared memory", None if name == "f16x3" else 121.3)
    for name in EMULATIONS
)
"""What the page shows of products of pieces. Real rows take ten seconds, and test_pieces.py makes them."""


@pytest.fixture(scope="session")
def page(kernel_cache: Path) -> Page:
    """Some rungs of a ladder at a small size, for an H200."""
    cache = CubinCache(kernel_cache)
    rungs = [find_rung(name) for name in SHOWN]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tilewright.report.outlook.advise", partial(advise, seconds=0.3))
        patched.setattr("tilewright.report.page.ladder.pieces_rows", lambda spec: PIECES)
        patched.setenv("TILEWRIGHT_CACHE", str(kernel_cache))
        return collect_page(rungs, (128, 128, 64), target_for("H200", None, None), cache=cache)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Its open pages go on taking time until it is closed."""
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def text(page: Page) -> str:
    return page_text(page)


@pytest.fixture(scope="session")
def written(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "worklog.html"
    path.write_text(text, encoding="utf-8")
    return path
