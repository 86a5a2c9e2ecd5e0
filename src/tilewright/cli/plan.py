"""`tilewright plan`: what `matmul` runs for a problem on any known GPU."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from tilewright.cli import output
from tilewright.cli.arguments import AsJson
from tilewright.cli.sizes import size_of_words
from tilewright.cli.tables import Column, fitting_table
from tilewright.errors import TilewrightError
from tilewright.frontend.asking import plan as plan_of
from tilewright.frontend.call_plan import CallPlan, ProductPlan, cells_of
from tilewright.frontend.options import PRECISIONS
from tilewright.planning.account import Launch

EXAMPLES = (
    "tilewright plan 4096x4096x4096 --dtype bf16",
    "tilewright plan 4096 --precision f32_emulated --device h200",
    "tilewright plan 64x4096x14336 --dtype f16 --order NT --best 3",
    "tilewright plan 300x4097x4096 --batch 16 --device 'RTX 4090' --json | jq '.estimated_us'",
)


def plan(
    size: Annotated[str, typer.Argument(metavar="M", help="Rows of A and C; or all sizes, N or MxNxK.")],
    columns: Annotated[int | None, typer.Argument(metavar="N", min=0, help="Columns of B and C.")] = None,
    depth: Annotated[int | None, typer.Argument(metavar="K", min=0, help="Columns of A, rows of B.")] = None,
    dtype: Annotated[str, typer.Option(metavar="FORMAT", help="f32, f16, bf16, tf32 or complex64.")] = "f32",
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help=f"Of f32 operands: {', '.join(PRECISIONS)}.")
    ] = "default",
    orders: Annotated[
        str, typer.Option("--order", metavar="NN|NT|TN|TT", help="Which of A and B lie transposed.")
    ] = "NN",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Products of this size.")] = 1,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Any known GPU.")] = "H200",
    best: Annotated[int, typer.Option("--best", min=1, help="So many plans, the next best behind the chosen.")] = 1,
    cuda: Annotated[bool, typer.Option("--cuda", help="Print the CUDA text of every launch.")] = False,
    as_json: AsJson = False,
) -> int:
    """Say what tilewright.matmul runs for a problem: every launch with its kernel and its estimated time.

    The same choice as on the GPU itself: a tuned winner where the database has one, else the estimate. Nothing is
    measured, and no GPU is needed. From Python: tilewright.plan(a, b). docs/accuracy.md has the precisions.
    """
    if cuda and as_json:
        raise typer.BadParameter("--cuda and --json exclude each other.")
    if dtype in PRECISIONS:
        if precision not in ("default", dtype):
            raise typer.BadParameter(f"--dtype {dtype} is --precision {dtype} of f32 operands, not {precision}.")
        dtype, precision = "f32", dtype
    m, n, k = size_of_words(size, columns, depth, "M")
    if not m * n:
        raise TilewrightError(
            f"A product of {m} x {n} results takes no time: nothing is launched.", hint="a larger size."
        )
    many = (batch,) if batch > 1 else ()
    found = plan_of(
        (*many, m, k),
        (*many, k, n),
        device=device,
        dtype=dtype,
        orders=orders.upper(),
        best=best - 1,
        precision=precision,  # type: ignore[arg-type]  # checked there
    )
    if as_json:
        output.print_json(found.as_data())
    elif cuda:
        output.print_code("\n".join(_texts(found)), "cuda")
    else:
        _print(found)
    return 0


def _texts(found: CallPlan) -> list[str]:
    """The text of each launch behind a line that says what it is; a kernel that runs twice is printed once."""
    seen: dict[str, list[str]] = {}
    for number, launch in enumerate(found.launches, 1):
        seen.setdefault(launch.cuda, []).append(f"// launch {number}: {launch.role} {launch.what}")
    return [f"{chr(10).join(titles)}\n{text}" for text, titles in seen.items()]


def _print(found: CallPlan) -> None:
    console = output.out()
    title, *others = found.sentences()
    output.paragraph(console, title, style="bold")
    console.print()
    for sentence in others:
        output.paragraph(console, sentence, hanging=2)
    for product in found.products:
        console.print()
        if len(found.products) > 1:
            output.paragraph(console, product.title, style="bold")
        _print_launches(console, product)


def _print_launches(console: Console, product: ProductPlan) -> None:
    launches = product.runs.launches
    rows = list(enumerate(launches, 1))
    total = product.runs.estimated_us
    columns: list[Column[tuple[int, Launch]]] = [
        Column("", lambda row: str(row[0]), 99),
        Column("launch", lambda row: row[1].role, 98, justify_left=True),
        Column("what", lambda row: row[1].what, 80, justify_left=True),
        Column("estimated", lambda row: f"{row[1].estimated_us:.1f} us", 97),
    ]
    if product.runs.is_guarded:
        columns.append(Column("runs", lambda row: cells_of(row[1])[-1], 90, justify_left=True))
    else:
        columns.append(Column("share", lambda row: f"{row[1].estimated_us / total:.0%}", 60))
    columns += [
        Column("grid", lambda row: cells_of(row[1])[3], 70),
        Column("threads", lambda row: str(row[1].block[0] * row[1].block[1] * row[1].block[2]), 50),
    ]
    console.print(fitting_table(console, columns, rows))
    console.print()
    output.paragraph(console, "kernels", style="dim")
    numbers: dict[str, list[str]] = {}
    for number, launch in rows:
        numbers.setdefault(launch.kernel, []).append(str(number))
    for kernel, of in numbers.items():
        output.paragraph(console, f"{', '.join(of)}: {kernel}", indent=2, hanging=3)
    if product.next_best:
        console.print()
        output.paragraph(console, "next best, by the estimate", style="dim")
        for other in product.next_best:
            output.paragraph(console, f"{other.estimated_us:.1f} us: {other.words}", indent=2, hanging=3)
