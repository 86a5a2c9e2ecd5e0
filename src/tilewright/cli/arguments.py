"""What several commands take: sizes, ranges of rungs, architectures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from tilewright.errors import UnknownName
from tilewright.ladders import find_rung
from tilewright.ladders.rung import Rung

RungName = Annotated[str, typer.Argument(metavar="RUNG", help="`worklog/6`, `worklog/vectorised`, or `vectorised`.")]
SizeText = Annotated[str, typer.Option("--size", metavar="N|MxNxK", help="The size of the problem.")]
ArchName = Annotated[str | None, typer.Option("--arch", metavar="sm_XX", help="The architecture to compile for.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Alpha = Annotated[float, typer.Option("--alpha", help="C = alpha * A @ B + beta * C.")]
Beta = Annotated[float, typer.Option("--beta", help="With 0, C is not read.")]

DEFAULT_SIZE = "256"
DEFAULT_ARCH = "sm_90a"


def parse_size(text: str) -> tuple[int, int, int]:
    """M, N and K from "256" or "512x256x64".

    >>> parse_size("256"), parse_size("512x256x64")
    ((256, 256, 256), (512, 256, 64))
    """
    parts = re.split(r"[x×*,]", text.strip().lower())
    if len(parts) not in (1, 3) or not all(re.fullmatch(r"\s*\d+\s*", part) for part in parts):
        raise typer.BadParameter(
            f"{text!r} is no size: write 256 for 256 x 256 x 256, or 512x256x64 for M x N x K.", param_hint="'--size'"
        )
    m, *rest = (int(part) for part in parts)
    n, k = rest or (m, m)
    return m, n, k


def chosen_rungs(ladder: Sequence[Rung], text: str | None) -> list[Rung]:
    """The rungs of a ladder that "1-4,6" names, bottom first; all of them for None."""
    if text is None:
        return list(ladder)
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if found is None:
            raise typer.BadParameter(f"{text!r} names no rungs: write 1-4,6.", param_hint="'--rungs'")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise typer.BadParameter(f"{part.strip()!r} runs backwards: write {last}-{first}.", param_hint="'--rungs'")
        numbers |= set(range(first, min(last, first + 999) + 1))
    known = {rung.number for rung in ladder}
    for number in sorted(numbers - known):
        raise UnknownName("rung", f"{ladder[0].ladder}/{number}", [rung.name for rung in ladder])
    return [rung for rung in ladder if rung.number in numbers]


def complete_rung(incomplete: str) -> list[str]:
    """Names of rungs for the shell to complete."""
    from tilewright.ladders import LADDERS

    names = [name for rungs in LADDERS.values() for rung in rungs for name in (rung.name, rung.slug)]
    return [name for name in names if name.startswith(incomplete)]


__all__ = ["find_rung"]
