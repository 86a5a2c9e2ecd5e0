"""How things are printed: colour and wrapping on a terminal, plain text in a pipe, progress on stderr only."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:  # each function imports it: a command that measures, or prints JSON, does not wait for it
    from rich.console import Console

PLAIN_WIDTH = 100
"""Columns where the width of the terminal is unknown."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def out() -> Console:
    """Standard output. Text is printed as it is: square brackets are not markup and numbers no highlights."""
    return _plain(width=_width())


def _plain(**options: Any) -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


def _width() -> int | None:
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return None
    return PLAIN_WIDTH


def print_json(data: Any) -> None:
    """`data` as JSON; what JSON has no word for (NaN, infinity) becomes null."""
    print(json.dumps(_finite(data), indent=2, allow_nan=False))


def picked(value: object, *names: str) -> dict[str, Any]:
    """Some attributes of a value, for JSON."""
    return {name: getattr(value, name) for name in names}


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def paragraph(console: Console, text: str, *, style: str = "", indent: int = 0, hanging: int = 0) -> None:
    """A sentence wrapped to the console, `indent` columns in and later lines `hanging` more; no trailing blanks."""
    from rich.text import Text

    lines = textwrap.wrap(
        text,
        max(console.width, indent + hanging + 20),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(Text(line, style), soft_wrap=True)


Language = Literal["python", "cuda", "ptx", "text"]


def print_code(text: str, language: Language) -> None:
    """Program text: highlighted on a terminal, letter by letter the same anywhere else."""
    console = out()
    if not console.is_terminal or language == "text":
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        return
    from rich.syntax import Syntax

    # The colours of the terminal itself, on its own background; long lines are the terminal's to wrap.
    painted = Syntax("", language, theme="ansi_dark", background_color="default").highlight(text)
    painted.rstrip()
    console.print(painted, soft_wrap=True)


def note(text: str) -> None:
    """A remark beside the answer, on stderr."""
    from rich.text import Text

    _plain(stderr=True).print(Text(text, style="dim"), soft_wrap=True)


SECONDS_BETWEEN_WORDS = 10.0
"""Where no bar can be drawn: how often a line says what is being done."""


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """What is being done, on stderr while the block runs: a bar on a terminal, else a line every ten seconds."""
    console = _plain(stderr=True)
    if not console.is_terminal:
        with _progress_in_lines(title) as step:
            yield step
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def step(what: str, done: int, total: int) -> None:
            bar.update(task, description=what or title, completed=done, total=total)

        yield step


@contextmanager
def _progress_in_lines(title: str) -> Iterator[Progress]:
    """For logs and pipes: nothing where the work is short."""
    began, over, said = monotonic(), Event(), title

    def step(what: str, done: int, total: int) -> None:
        nonlocal said
        said = (what or title) + (f", {done / total:.0%}" if total else "")

    def tell() -> None:
        while not over.wait(SECONDS_BETWEEN_WORDS):
            print(f"{said} ({monotonic() - began:.0f} s)", file=sys.stderr, flush=True)

    telling = Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield step
    finally:
        over.set()
        telling.join()
