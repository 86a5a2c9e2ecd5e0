"""`tilewright predict`: a kernel's run time and its bottleneck on any known GPU."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.arguments import AsJson, FormatName, complete_rung
from tilewright.cli.page_files import check_writable
from tilewright.cli.predict_many import all_devices, parse_sweep, sweep
from tilewright.cli.predict_subjects import DEFAULT_SIZE, chosen_subject
from tilewright.cli.tables import Column, fitting_table
from tilewright.device.catalog import device as known_device
from tilewright.errors import TilewrightError
from tilewright.prediction import Prediction, Term
from tilewright.problem.emulation import EMULATIONS
from tilewright.units import format_seconds

MOST_MHZ = 5000
"""No SM runs faster: the fastest of the catalogue boosts to little more than half of it."""

MOST_W = 5000
"""No board draws more: the hungriest of the catalogue is allowed 1000 W."""

EXAMPLES = (
    "tilewright predict worklog/6 --device 'RTX 3090'",
    "tilewright predict hopper/best --size 8192x8192x512",
    "tilewright predict mine.py --sweep 512-8192 --output sweep.html",
    "tilewright predict worklog/6 --all-devices",
    "tilewright predict worklog/6 --device a100 --power 250",
    "tilewright predict f16x3 --size 4096x14336x4096",
    "tilewright predict worklog/6 --device a100 --clock 1200 --json | jq '.tflops'",
)


def predict(
    rung: Annotated[
        str,
        typer.Argument(
            metavar="RUNG|FILE.py[:NAME]|PRECISION",
            help="`worklog/6`, `worklog/vectorised`; a schedule of yours, `FILE.py`, `FILE.py:NAME`; or `f16x3`.",
            autocompletion=complete_rung,
        ),
    ],
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Any known GPU. Default: H200.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", metavar="N|MxNxK", help="Default: that of the file, or 4096.")
    ] = None,
    dtype: FormatName = None,
    clock: Annotated[
        int | None,
        typer.Option(
            "--clock", metavar="MHz", min=1, max=MOST_MHZ, help="Of the SMs. Default: that of the data sheet."
        ),
    ] = None,
    power: Annotated[
        int | None,
        typer.Option("--power", metavar="W", min=1, max=MOST_W, help="The board's limit. Default: of the data sheet."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--sweep", metavar="512-8192|512-4096:256|N,N", help="Many square sizes, as a table with bars."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="With --sweep: a chart, too.")
    ] = None,
    every: Annotated[bool, typer.Option("--all-devices", help="Every known GPU, the fastest first.")] = False,
    as_json: AsJson = False,
) -> int:
    """Predict the time of a rung on a GPU, and say its bottleneck.

    In a burst, at the clock of the data sheet, and sustained, at the clock that the board's power limit leaves.
    Counted on the simulator, compiled for that GPU; nothing is measured. docs/predictions.md lays predictions beside
    measurements. --sweep predicts many sizes, --all-devices every known GPU. Of a precision that multiplies pieces of
    f32 operands (bf16x9, bf16x6, bf16x3, tf32x3, f16x3, f32_emulated) it predicts all launches of matmul.
    """
    _check_options(sizes, size, page, every, {"device": device, "clock": clock, "power": power})
    _check_is_predictable(rung, size, dtype)
    spec = known_device("H200" if device is None else device)
    if power is not None:
        spec = replace(spec, board_power_w=power)
    subject = chosen_subject(rung, size, dtype)
    if sizes is not None:
        return sweep(subject, spec, parse_sweep(sizes), clock, page, as_json)
    if every:
        return all_devices(subject, as_json)
    predicted = subject.predict(spec, clock)
    if as_json:
        output.print_json({**subject.as_data(), **as_dict(predicted)})
        return 0
    sizes_told = " x ".join(map(str, subject.sizes))
    _print(f"{subject.title} on {spec.name}, {subject.formats}, {sizes_told}: predicted, not measured", predicted)
    return 0


def _print(title: str, predicted: Prediction) -> None:
    console = output.out()
    output.paragraph(console, title, style="bold")
    console.print()
    output.paragraph(console, headline(predicted))
    output.paragraph(console, predicted.sustained)
    console.print()
    columns: tuple[Column[Term], ...] = (
        Column("term", lambda term: Text(term.name, _style(term, predicted)), 99, justify_left=True),
        Column("time", lambda term: format_seconds(term.seconds), 98),
        Column("share", lambda term: f"{term.seconds / predicted.seconds:.0%}", 97),
        Column("what", lambda term: term.what, 50, justify_left=True),
    )
    console.print(fitting_table(console, columns, predicted.bounds))
    console.print()
    output.paragraph(console, "Each alone would take as long. The largest, and what is exposed beside it:")
    console.print(fitting_table(console, columns, predicted.stacked))
    console.print()
    output.paragraph(console, f"Bound by {predicted.binding.name}. {predicted.relief}", style="bold")


def _check_options(
    sizes: str | None, size: str | None, page: Path | None, every: bool, of_one_gpu: dict[str, object]
) -> None:
    """Options that contradict each other are told before any work is done."""
    if sizes is not None and every:
        raise typer.BadParameter("--sweep and --all-devices exclude each other.")
    if sizes is not None and size is not None:
        raise typer.BadParameter("--sweep has sizes of its own: leave out --size.")
    for name, value in of_one_gpu.items():
        if every and value is not None:
            raise typer.BadParameter(f"--{name} is of one GPU: leave out --all-devices, or the {name}.")
    if page is not None:
        if sizes is None:
            raise typer.BadParameter("--output is for --sweep.")
        check_writable(page)


def _check_is_predictable(rung: str, size: str | None, dtype: str | None) -> None:
    """Sizes are for another command, and a rung does not multiply pieces of f32 operands."""
    if re.fullmatch(r"\d+([x×*,]\d+[x×*,]\d+)?", rung):
        raise TilewrightError(
            f"{rung!r} is the size of a problem, and predict takes a rung, a file or a precision.",
            hint=f"`tilewright plan {rung}` says what matmul runs for it, and estimates its time.",
        )
    if dtype in EMULATIONS and rung != dtype:
        raise TilewrightError(
            f"{dtype} is a precision, of matmul of f32 operands, and {rung} does not have it.",
            hint=f"`tilewright predict {dtype} --size {size or DEFAULT_SIZE}` predicts what matmul runs.",
        )


def _style(term: Term, predicted: Prediction) -> str:
    return "bold yellow" if term is predicted.binding else ""


def headline(predicted: Prediction) -> str:
    """The time, its interval, and what is assumed, in a sentence."""
    low, high = format_seconds(predicted.low_s), format_seconds(predicted.high_s)
    blocks = f"{predicted.blocks_per_sm} block{'s' if predicted.blocks_per_sm > 1 else ''} an SM"
    return (
        f"{format_seconds(predicted.seconds)} ({low} to {high}), {predicted.tflops:.3g} TFLOP/s, at an assumed "
        f"{predicted.clock_hz / 1e6:.0f} MHz, {blocks}."
    )


def as_dict(predicted: Prediction) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "figure": "predicted",
        **asdict(predicted),
        **output.picked(predicted, "tflops_low", "tflops_high", "sustained_tflops"),
    }
