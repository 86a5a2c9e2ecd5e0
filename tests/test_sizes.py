"""Files and functions of the package stay small enough to be read whole."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
FILE_LINES, FUNCTION_LINES = 500, 80


def too_long(text: str) -> list[str]:
    """What of a module is longer than is allowed, with its lines."""
    lines = len(text.splitlines())
    found = [f"{lines} lines"] if lines > FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{node.name}: {length} lines")
    return found


def test_no_file_and_no_function_is_too_long() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 100
    found = {path.relative_to(SOURCE).as_posix(): too_long(path.read_text(encoding="utf-8")) for path in modules}
    assert {name: long for name, long in found.items() if long} == {}


def test_what_is_too_long_is_found() -> None:
    body = "\n".join(["    pass"] * FUNCTION_LINES)
    assert too_long(f"class A:\n  def f():\n{body}\n") == ["f: 81 lines"]
    assert too_long("a = 1\n" * 501) == ["501 lines"]
