"""The code blocks of the tutorials run, print what the pages say, and build what the ladder has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import reference
from rung_pages import paths

from docs.markdown_blocks import blocks, run, with_outputs
from tilewright.ladders import find_ladder

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "tutorial.md",
    "coalescing.md",
    "occupancy.md",
    "write_a_schedule.md",
    "tensor_cores.md",
    "hopper.md",
    "howto_tensor_cores.md",
    "howto_hopper.md",
    "watch.md",
)


NOTEBOOKS = {f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.ipynb")}
PAGES_OF_THE_SITE = frozenset(reference.pages()) | {f"rungs/{path}" for path in paths()} | NOTEBOOKS
"""Generated when the site is built; pages may link to them."""


def ran(name: str) -> tuple[dict[str, Any], list[str]]:
    page = DOCS / name
    return run(page, blocks(page.read_text(encoding="utf-8")))


@pytest.mark.cross_section("name", every=3, at=1)
@pytest.mark.parametrize("name", PAGES)
def test_each_block_prints_what_the_page_says(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / name
    text = page.read_text(encoding="utf-8")
    found = blocks(text)
    names, printed = ran(name)
    if request.config.getoption("--update-golden"):
        page.write_text(with_outputs(text, found, printed), encoding="utf-8")
        return
    for block, said in zip(found, printed, strict=True):
        if block.output is not None:
            assert said == block.output, f"{name}, line {block.line}; if this is meant: pytest --update-golden"
    assert not any("WRONG" in said for said in printed)
    if name == "tutorial.md":
        check_that_the_twelve_steps_are_the_first_twelve_rungs(names)


def check_that_the_twelve_steps_are_the_first_twelve_rungs(names: dict[str, Any]) -> None:
    gemm = names["gemm"]
    for rung in find_ladder("worklog")[:12]:
        name = "asynchronous" if rung.slug == "async" else rung.slug
        assert names[name] == rung.schedule(gemm), rung.title


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            generated = (path.parent / target).resolve().relative_to(DOCS.parent).as_posix().removeprefix("docs/")
            assert (path.parent / target).exists() or generated in PAGES_OF_THE_SITE, target
