"""Code blocks of a Markdown page, run in turn as one program; a `text` block after one is what it prints."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block: its code, the line of the page where it begins, and what the page says it prints; None for nothing."""

    code: str
    line: int
    output: str | None
    span: tuple[int, int]


def blocks(text: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        span = (match.start("output"), match.end("output"))
        found.append(Block(match["code"], line, match["output"], span))
    return found


def run(page: Path, found: list[Block]) -> tuple[dict[str, Any], list[str]]:
    """The names that the blocks define, and what each prints."""
    names: dict[str, Any] = {"__name__": "page"}
    printed = []
    for block in found:
        out = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        with contextlib.redirect_stdout(out):
            exec(code, names)
        printed.append(out.getvalue())
    return names, printed


def with_outputs(text: str, found: list[Block], printed: list[str]) -> str:
    """The page with what was printed in its `text` blocks."""
    for block, said in reversed(list(zip(found, printed, strict=True))):
        if block.output is not None:
            start, end = block.span
            text = text[:start] + said + text[end:]
    return text
