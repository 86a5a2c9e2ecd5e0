"""`tilewright watch`: one block of a kernel as a page to step through, forward and back."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.arguments import FormatName, RungName, chosen_problem, formats_of
from tilewright.cli.page_files import check_writable
from tilewright.errors import UnknownName
from tilewright.files import write_whole
from tilewright.ir.kernel import Kernel
from tilewright.report.debugger import page_text
from tilewright.report.debugger import watch as watched
from tilewright.report.own_schedules import is_file
from tilewright.simulator.launch import Block
from tilewright.simulator.machine import ORDERS
from tilewright.simulator.recorder import MOST_MOMENTS
from tilewright.toolchain import build

EXAMPLES = (
    "tilewright watch worklog/6",
    "tilewright watch hopper/best --size 512 --open",
    "tilewright watch mine.py:tiled --block 1,0",
    "tilewright watch worklog/3 --without 17",
)

_MORE_ITERATIONS = 4
_LEAST_K = 16


def watch(
    rung: RungName,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="N|MxNxK", help="Default: that of the file, or a few tiles of the block."),
    ] = None,
    block: Annotated[str, typer.Option("--block", metavar="X[,Y[,Z]]", help="The block of the grid.")] = "0",
    file: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: RUNG.html.")] = None,
    without: Annotated[
        int | None, typer.Option(metavar="LINE", help="Leave out a line of `show --kernel`: what is it for?")
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="|".join(ORDERS),
            help="How warps are scheduled: together, each in a drawn order, or with stops at drawn moments, too.",
        ),
    ] = "lockstep",
    seed: Annotated[int, typer.Option(help="Of the order of warps.")] = 0,
    most: Annotated[
        int, typer.Option("--most", metavar="STEPS", min=100, help="Keep so many steps of a longer run.")
    ] = MOST_MOMENTS,
    dtype: FormatName = None,
    opened: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> int:
    """Record a block on the CPU and write a page to step through it, forward and back.

    The page shows a lane for each warp, registers and shared memory at every step, copies in flight, mbarriers, banks
    and sectors of the current access, and schedule, kernel and CUDA with the lines that belong together. Where a
    detector finds a race or a deadlock, it opens there; the command then fails.
    """
    if schedule not in ORDERS:
        raise UnknownName("schedule", schedule, ORDERS)
    formats = formats_of(dtype)
    found, gemm = chosen_problem(rung, size, **formats)
    path = file or Path(f"{found.ladder}-{found.slug}.html")
    check_writable(path)
    built = build(gemm, found)
    if size is None and not is_file(rung):
        built = build(found.gemm(*small_size(built.kernel), **formats), found)
    with output.progress(f"recording {found.name}"):
        one = watched(
            built,
            title=found.title,
            block=parse_block(block),
            without=without,
            schedule=schedule,
            seed=seed,
            most_moments=most,
        )
        text = page_text(one)
    write_whole(path, text)
    errors = [fault for fault in one.recording.faults if fault.is_error]
    for fault in errors:
        output.paragraph(output.out(), f"{fault.kind}: {fault.headline}", style="bold red")
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB, {len(one.recording.moments):,} steps)")
    if opened and not webbrowser.open(path.absolute().as_uri()):
        output.note(f"No browser was found: open {path} yourself.")
    return 1 if errors else 0


def small_size(kernel: Kernel) -> tuple[int, int, int]:
    """Four tiles of C, so that a block has neighbours, and more k iterations than a pipeline has stages."""
    tile = kernel.cluster_tile
    stages = max((buffer.stages for buffer in kernel.shared if buffer.axes[:1] == ("stage",)), default=1)
    return 2 * tile["m"], 2 * tile["n"], max((stages + _MORE_ITERATIONS) * tile["k"], _LEAST_K)


def parse_block(text: str) -> Block:
    """A block of the grid from "1" or "1,0,2"; coordinates that are left out are 0.

    >>> parse_block("3"), parse_block("1,2")
    ((3, 0, 0), (1, 2, 0))
    """
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"\s*\d+\s*", part) for part in parts):
        raise typer.BadParameter(f"{text!r} is not a block: write X, X,Y or X,Y,Z.", param_hint="'--block'")
    x, y, z = (*(int(part) for part in parts), 0, 0)[:3]
    return x, y, z
