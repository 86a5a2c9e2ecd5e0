"""No module needs itself, not even for the types of its annotations: a reader can begin at the bottom."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"


def needed(text: str, names: frozenset[str]) -> set[str]:
    """The modules that one imports on top, under `TYPE_CHECKING` as well. names: of all."""
    tree, found = ast.parse(text), set()
    under = [stmt for one in tree.body if isinstance(one, ast.If) for stmt in one.body]
    for stmt in (*tree.body, *under):
        if isinstance(stmt, ast.Import):
            found |= {one.name for one in stmt.names}
        elif isinstance(stmt, ast.ImportFrom):
            inside = {f"{stmt.module}.{one.name}" for one in stmt.names}
            found |= {name if name in names else stmt.module or "" for name in inside}
    return found & names


def in_order(modules: Mapping[str, str]) -> tuple[str, ...]:
    """Modules, each behind those that it needs. Raises CycleError where they need each other."""
    names = frozenset(modules)
    return tuple(
        TopologicalSorter({name: needed(text, names) - {name} for name, text in modules.items()}).static_order()
    )


def test_modules_have_an_order() -> None:
    paths = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    texts = {name.removesuffix(".__init__"): path.read_text(encoding="utf-8") for name, path in paths.items()}
    assert len(in_order(texts)) == len(texts) > 400


def test_a_circle_of_types_is_found() -> None:
    circle = {"a": "from b import B", "b": "if TYPE_CHECKING:\n    from a import A"}
    with pytest.raises(CycleError):
        in_order(circle)
    assert in_order({"a": "from b import c", "b": "", "b.c": "import b"})[0] == "b"
