"""`tilewright exercise`: puzzles about kernels, each a file to edit and a check by the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.page_files import write_new
from tilewright.errors import TilewrightError
from tilewright.exercises import EXERCISES, Exercise, Judgement, find_exercise, judge

EXAMPLES = (
    "tilewright exercise",
    "tilewright exercise conflicts",
    "tilewright exercise conflicts --hint 1",
    "tilewright exercise conflicts --check conflicts.py",
)


def complete_exercise(incomplete: str) -> list[str]:
    """Names of exercises for the shell to complete."""
    return [name for name in EXERCISES if name.startswith(incomplete)]


def exercise(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Default: list all.", autocompletion=complete_exercise),
    ] = None,
    checked: Annotated[
        Path | None, typer.Option("--check", metavar="FILE", help="Say whether this file solves the exercise.")
    ] = None,
    hint: Annotated[int | None, typer.Option("--hint", metavar="N", help="Print a hint: 1, then 2, ...")] = None,
) -> int:
    """List the exercises, write one as a file to edit, check the file, or print a hint.

    NAME alone writes NAME.py in this folder. The check runs the kernel on the simulator, compares C with float64, looks
    for races and deadlocks, and counts. It fails until all goals are met. Needs no GPU.
    """
    if name is None:
        if checked is not None or hint is not None:
            raise typer.BadParameter("say which exercise.", param_hint="'NAME'")
        return _list()
    found = find_exercise(name)
    if checked is not None and not checked.is_file():
        raise TilewrightError(f"There is no file {str(checked)!r}.", hint=f"`tilewright exercise {name}` writes one.")
    if hint is not None:
        return _print_hint(found, hint)
    return _write(found) if checked is None else _print_judgement(found, checked, judge(found, checked))


def _list() -> int:
    console = output.out()
    for one in EXERCISES.values():
        console.print(f"{one.name:<12} {one.title}", soft_wrap=True)
    console.print("\ntilewright exercise NAME writes one as a file to edit.")
    return 0


def _write(found: Exercise) -> int:
    path = Path(f"{found.name}.py")
    write_new(path, found.start().replace("FILE", path.name))
    console = output.out()
    console.print(f"{path} is written: {found.title[0].lower()}{found.title[1:]}.", soft_wrap=True)
    console.print(f"Read {found.page}, change the file, and check it:", soft_wrap=True)
    console.print(f"  tilewright exercise {found.name} --check {path}", soft_wrap=True)
    return 0


def _print_hint(found: Exercise, number: int) -> int:
    count = len(found.hints)
    if not 1 <= number <= count:
        raise TilewrightError(f"{found.name} has hints 1 to {count}, not {number}.")
    output.paragraph(output.out(), f"{number} of {count}: {found.hints[number - 1]}")
    return 0


def _print_judgement(found: Exercise, path: Path, judgement: Judgement) -> int:
    console = output.out()
    for one in judgement.checked:
        word, style = ("ok  ", "green") if one.holds else ("FAIL", "bold red")
        output.paragraph(console, f"{word} {one.sentence}", style=style, hanging=5)
    for finding in judgement.findings:
        console.print()
        for line in str(finding).splitlines():
            output.paragraph(console, line.strip(), indent=len(line) - len(line.lstrip()), hanging=2)
    if judgement.solved:
        output.paragraph(console, f"{found.name} is solved.{_next(found)}", style="bold green")
        return 0
    advice = f"\nA hint: tilewright exercise {found.name} --hint 1"
    if found.gap is None:
        advice += f"\nEvery line's costs: tilewright explain {path}"
    console.print(advice, soft_wrap=True)
    return 1


def _next(found: Exercise) -> str:
    names = list(EXERCISES)
    after = names[names.index(found.name) + 1 :]
    return f" Next: tilewright exercise {after[0]}" if after else ""
