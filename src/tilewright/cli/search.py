"""`tilewright search`: the parameters of a rung, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.bench.search import Trial, best_trial, read_trials
from tilewright.bench.search import search as measured_search
from tilewright.cli import output
from tilewright.cli.arguments import AsJson, FormatName, RungName, chosen_problem, formats_of
from tilewright.cli.search_list import print_predicted
from tilewright.device.catalog import device as known_device
from tilewright.errors import LaunchError, TilewrightError
from tilewright.files import parse_json, read_text
from tilewright.ladders import LADDERS, Rung
from tilewright.ladders.rung import Point
from tilewright.problem.gemm import Gemm
from tilewright.report.own_schedules import is_file
from tilewright.runtime.driver import gpu_problem, open_gpu

EXAMPLES = (
    "tilewright search worklog/9",
    "tilewright search worklog/9 --budget 60 --file search.jsonl",
    "tilewright search worklog/9 --file search.jsonl --show",
    "tilewright search mine.py:tuned --list --device 'RTX 4090'   # needs no GPU",
)


DEFAULT_SIZE = "4096"

_TOLD = ("point", "median_us", "tflops", "share_of_cublas", "registers", "device", "date")
_IN_A_FILE = "name the values of some: def {}(gemm: tw.Gemm, depth: Literal[8, 16] = 8) -> tw.Schedule."


def search(
    rung: RungName,
    size: Annotated[
        str | None, typer.Option("--size", metavar="N|MxNxK", help="Default: that of the file, or 4096.")
    ] = None,
    dtype: FormatName = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="The table; a search goes on from it.")
    ] = None,
    points: Annotated[
        Path | None, typer.Option("--points", metavar="FILE", help="Measure only these: a JSON list of points.")
    ] = None,
    budget: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Stop after this time.")] = 600.0,
    show: Annotated[bool, typer.Option("--show", help="Only print what the file holds.")] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="Predict the points, in random order within the budget; needs no GPU.")
    ] = False,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="With --list: for this GPU.")] = "H200",
    as_json: AsJson = False,
) -> int:
    """Measure the parameters of a rung on the GPU; stops and goes on where it was.

    A schedule of yours has parameters where its function names their values: `depth: Literal[8, 16] = 8`.

    Every legal point is compiled, checked against float64 and timed beside cuBLAS, in random order. Each is a line of
    the file, so a search that is interrupted loses nothing; the same command goes on.
    """
    found, gemm = chosen_problem(rung, size, default=DEFAULT_SIZE, **formats_of(dtype))
    if found.choices is None:
        hint = _IN_A_FILE.format(found.slug) if is_file(rung) else f"{_searchable()} have."
        raise TilewrightError(f"{found.name} has no parameters to search.", hint=hint)
    if list_only:
        chosen = None if points is None else _points(points, found)
        return print_predicted(found, gemm, known_device(device), chosen, budget, as_json)
    path = file or Path(f"search_{found.name.replace('/', '_')}.jsonl")
    if show:
        if not path.exists():
            raise TilewrightError(f"There is no file {str(path)!r}.", hint="a search writes it; --file names another.")
        trials = read_trials(path)
    else:
        chosen = None if points is None else _points(points, found)
        problem = gpu_problem()
        if problem is not None:
            raise LaunchError(
                f"A search measures, which needs a GPU: {problem}",
                hint="--list predicts the points without one, --show prints a recorded search.",
            )
        trials = _measure(found, gemm, path, chosen, budget)
    return _print(path, trials, as_json)


def _points(path: Path, rung: Rung) -> list[Point]:
    """The points that a file holds, each with the parameters of the rung."""
    assert rung.choices is not None
    try:
        found = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TilewrightError(f"Cannot read points from {str(path)!r}: {reason}.") from None
    names = sorted(next(iter(rung.choices.points())))
    if not isinstance(found, list) or not all(isinstance(one, dict) and sorted(one) == names for one in found):
        raise TilewrightError(
            f"{str(path)!r} is not a list of points of {rung.name}.", hint=f"each names {', '.join(names)}."
        )
    return found


def _measure(rung: Rung, gemm: Gemm, path: Path, points: list[Point] | None, budget: float) -> list[Trial]:
    with output.progress(f"searching {rung.name}") as advance:

        def step(done: int, total: int, best: Trial | None) -> None:
            told = "measuring" if best is None or best.tflops is None else f"best {best.tflops:.1f} TFLOP/s"
            advance(told, done, total)

        return measured_search(open_gpu(), rung, gemm, path, points=points, budget_s=budget, progress=step)


def _searchable() -> str:
    names = [rung.name for rungs in LADDERS.values() for rung in rungs if rung.choices is not None]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _print(path: Path, trials: list[Trial], as_json: bool) -> int:
    best = best_trial(trials)
    if as_json:
        output.print_json({"trials": len(trials), "best": None if best is None else output.picked(best, *_TOLD)})
        return 0 if best is not None else 1
    if best is None or best.tflops is None:
        raise TilewrightError(f"{str(path)!r} holds no right point yet.", hint="run the search without --show.")
    share = "" if best.share_of_cublas is None else f", {100 * best.share_of_cublas:.1f} % of cuBLAS"
    print(f"{len(trials)} points in {path}; the best: {best.tflops:.2f} TFLOP/s{share}, {best.registers} registers")
    print("  " + ", ".join(f"{name} {value}" for name, value in best.point.items()))
    return 0
