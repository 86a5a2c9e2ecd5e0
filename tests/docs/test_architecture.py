"""ARCHITECTURE.md names files that are there, and names of the code that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PLACES = sorted(
    set(re.findall(r"`([\w./-]+\.(?:py|md|yml))`", TEXT)) | set(re.findall(r"`([a-z_]+/[a-z_0-9/]+)`", TEXT))
)
NAMES = sorted(set(re.findall(r"`([A-Z][a-z]\w*(?:\.\w+)?)(?:\([^`]*\))?`", TEXT)))


def files_of(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]


PATHS = [f"/{path.relative_to(ROOT)}" for path in (*files_of("src", "tests", "benchmarks", "docs"), *ROOT.glob("*"))]
CODE = "".join(path.read_text("utf-8") for path in files_of("src", "tests", "benchmarks") if path.suffix == ".py")


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_it_names_is_there(place: str) -> None:
    assert any(path.endswith(f"/{place.rstrip('/')}") for path in PATHS)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_it_gives_is_defined(name: str) -> None:
    for part in name.split("."):
        defined = rf"^\s*(class|def) {part}\b|^\s*{part}\b[^=\n]*="
        assert re.search(defined, CODE, re.MULTILINE), f"nothing defines {part}"
