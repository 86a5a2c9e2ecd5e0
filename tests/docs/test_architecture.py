"""ARCHITECTURE.md names files that are there, and names of the code that it has."""

from __future__ import annotations

import re
import tomllib
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


def test_its_layers_are_those_that_are_checked() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = (one["layers"] for one in linter["contracts"] if one["type"] == "layers")
    place = {name.strip(): at for at, layer in enumerate(layers) for name in layer.split("|")}
    table = TEXT.partition("| packages |")[2].partition("\n\n")[0]
    told = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(told) == sorted(place)
    assert [place[name] for name in told] == sorted(place.values())
