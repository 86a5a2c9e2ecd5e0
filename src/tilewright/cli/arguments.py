"""What several commands take: sizes, ranges of rungs, architectures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tilewright.cli.output import AsJson as AsJson
from tilewright.cli.sizes import parse_size
from tilewright.errors import UnknownName
from tilewright.ladders import LADDERS, find_ladder, find_rung
from tilewright.ladders.rung import Rung
from tilewright.problem.formats import FormatOptions, format_options
from tilewright.problem.gemm import Gemm
from tilewright.report.own_schedules import is_file, rung_of_file, rungs_of_file


def complete_rung(incomplete: str) -> list[str]:
    """Names of rungs for the shell to complete."""
    names = [name for rungs in LADDERS.values() for rung in rungs for name in (rung.name, rung.slug)]
    return [name for name in names if name.startswith(incomplete)]


RungName = Annotated[
    str,
    typer.Argument(
        metavar="RUNG|FILE.py[:NAME]",
        help="`worklog/6`, `worklog/vectorised`, or a schedule of yours: `FILE.py`, `FILE.py:NAME`.",
        autocompletion=complete_rung,
    ),
]
SizeText = Annotated[str, typer.Option("--size", metavar="N|MxNxK", help="The size of the problem.")]
OwnSize = Annotated[
    str | None,
    typer.Option("--size", metavar="N|MxNxK", help="The size of the problem. Default: that of the file, or 256."),
]
ArchName = Annotated[str | None, typer.Option("--arch", metavar="sm_XX", help="The architecture to compile for.")]
LadderOrFile = Annotated[
    str,
    typer.Argument(metavar="LADDER|FILE.py[:NAME]", help=f"One of: {', '.join(LADDERS)}; or schedules of yours."),
]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="FORMAT", help="f32, f16, f16_sums (f16 accumulators), bf16, tf32; else the rung's own."
    ),
]
Alpha = Annotated[float, typer.Option("--alpha", help="C = alpha * A @ B + beta * C.")]
Beta = Annotated[float, typer.Option("--beta", help="With 0, C is not read.")]

Named = TypeVar("Named")

DEFAULT_SIZE = "256"
DEFAULT_ARCH = "sm_90a"


def chosen_rung(text: str) -> Rung:
    """The rung that a word of the command line names: one of a ladder, or a schedule in a file."""
    return rung_of_file(text)[0] if is_file(text) else _found(find_rung, text)


def chosen_ladder(text: str) -> tuple[Rung, ...]:
    """The rungs of a ladder, or the schedules in a file."""
    return rungs_of_file(text) if is_file(text) else _found(find_ladder, text)


def _found(find: Callable[[str], Named], text: str) -> Named:
    """What a name is found to be. Raises UnknownName, which names a file or an option that may be meant."""
    try:
        return find(text)
    except UnknownName as error:
        path, colon, name = text.partition(":")
        file = Path(path if path.endswith(".py") else f"{path}.py")
        if file.is_file():
            error.hint = f"there is a file {str(file)!r}: write {file}{colon if name else ''}{name}."
        elif re.fullmatch(r"\d{3,}|\d+([x×*]\d+){2}", text):
            error.hint = f"a size goes behind --size: --size {text}."
        raise


def chosen_problem(text: str, size: str | None, *, default: str = DEFAULT_SIZE, **options: Any) -> tuple[Rung, Gemm]:
    """A rung and its problem: of the size asked for, or that of the file, or `default`."""
    if not is_file(text):
        rung = _found(find_rung, text)
        return rung, rung.gemm(*parse_size(default if size is None else size), **options)
    rung, gemm = rung_of_file(text)
    sizes = (gemm.m, gemm.n, gemm.k) if size is None else parse_size(size)
    leading = {name: getattr(gemm, name) for name in ("lda", "ldb", "ldc")} if size is None else {}
    return rung, rung.gemm(*sizes, **{**leading, **options})


def formats_of(name: str | None) -> FormatOptions:
    """The formats that `--dtype` asks for; none for None, which leaves those of the rung."""
    return {} if name is None else format_options(name)


def chosen_rungs(ladder: Sequence[Rung], text: str | None) -> list[Rung]:
    """The rungs of a ladder that "1-4,6" or "1,vectorised" names, bottom first; all of them for None."""
    if text is None:
        return list(ladder)
    place = {name: at for at, rung in enumerate(ladder) for name in (rung.slug, rung.label)}

    def find(name: str) -> int:
        if name.strip() not in place:
            raise UnknownName(f"{ladder[0].ladder} rung", name.strip(), [rung.label for rung in ladder])
        return place[name.strip()]

    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        chosen |= set(range(find(first), find(last if dash else first) + 1))
        if dash and find(last) < find(first):
            raise typer.BadParameter(f"{part.strip()!r} runs downwards: write {last}-{first}.", param_hint="'--rungs'")
    return [rung for at, rung in enumerate(ladder) if at in chosen]
