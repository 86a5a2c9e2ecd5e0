"""`tilewright ladder`: every rung verified, counted, compiled, and its figure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tilewright.bench import records
from tilewright.cli import output
from tilewright.cli.arguments import (
    DEFAULT_SIZE,
    ArchName,
    AsJson,
    FormatName,
    LadderOrFile,
    SizeText,
    chosen_ladder,
    chosen_rungs,
    formats_of,
)
from tilewright.cli.ladder_view import print_ladder
from tilewright.cli.sizes import parse_size
from tilewright.errors import LaunchError, TilewrightError
from tilewright.report.collect import collect_ladder, target_for
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu, gpu_problem, open_gpu

EXAMPLES = (
    "tilewright ladder worklog",
    "tilewright ladder worklog --brief",
    "tilewright ladder worklog --rungs 3-6 --size 512x256x128",
    "tilewright ladder worklog --device 'RTX 3090'",
    "tilewright ladder ampere --dtype tf32",
    "tilewright ladder worklog --json | jq '.[] | {rung, tflops, figure}'",
    "tilewright ladder worklog --gpu --record benchmarks/results/ladder_worklog.jsonl",
)


def ladder(
    name: LadderOrFile,
    size: SizeText = DEFAULT_SIZE,
    rungs: Annotated[str | None, typer.Option(metavar="1-4,6", help="Only these rungs.")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Resources, records and predictions of this GPU.")
    ] = None,
    arch: ArchName = None,
    dtype: FormatName = None,
    gpu: Annotated[bool | None, typer.Option("--gpu/--no-gpu", help="Default: use a GPU if there is one.")] = None,
    timed_size: Annotated[str, typer.Option(metavar="N|MxNxK", help="Where TFLOP/s are measured.")] = "4096",
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Append what was measured.")] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only the table, and what fails.")] = False,
    as_json: AsJson = False,
) -> int:
    """Climb a ladder: every rung verified, counted, explained, and its speed.

    Results are held against float64, on the GPU at hand or else on the simulator. Without a GPU the figures are those
    that were recorded, and say so; where there are none they are predicted, and say that. Fails if a result is wrong
    or a claim of a rung does not hold.
    """
    if gpu and (device is not None or arch is not None):
        raise typer.BadParameter("--gpu measures the GPU at hand: leave out --device and --arch.")
    chosen = chosen_rungs(chosen_ladder(name), rungs)
    formats = formats_of(dtype)
    target = target_for(device, arch, _gpu(gpu, is_named=device is not None or arch is not None))
    if record is not None:
        _check_recordable(record, target.gpu)
    cache = CubinCache()
    with output.progress("climbing") as step:
        rows, measured = collect_ladder(
            chosen,
            parse_size(size),
            target,
            formats=formats,
            timed_size=parse_size(timed_size, "--timed-size"),
            cache=cache,
            progress=step,
        )
    if record is not None:
        records.write(record, measured)
    if as_json:
        output.print_json([row.as_dict() for row in rows])
    else:
        print_ladder(rows, target, brief=brief)
    missing = next((row.no_compiler for row in rows if row.no_compiler), "")
    if missing:
        output.note(f"Registers, occupancy and predictions are left out. {missing}")
    if cache.problem is not None:
        output.note(cache.problem)
    return 0 if all(row.ok for row in rows) else 1


def _gpu(asked: bool | None, *, is_named: bool) -> Gpu | None:
    """The GPU to use: the one that is there, unless the user said no or named another target."""
    if asked or (asked is None and not is_named and gpu_problem() is None):
        return open_gpu()
    return None


def _check_recordable(file: Path, gpu: Gpu | None) -> None:
    if gpu is None:
        raise LaunchError(
            "Without a GPU nothing is measured, so there is nothing to record.",
            hint="run this on a machine with a GPU, or leave out --record.",
        )
    parent = next(folder for folder in file.absolute().parents if folder.exists())
    problem = ""
    if file.is_dir() or not parent.is_dir():
        problem = "it is a folder" if file.is_dir() else f"{str(parent)!r} is not a folder"
    elif not os.access(file if file.exists() else parent, os.W_OK):
        problem = "that is not permitted"
    if problem:
        raise TilewrightError(f"Cannot write {str(file)!r}: {problem}.")
