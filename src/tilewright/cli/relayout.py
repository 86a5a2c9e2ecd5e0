"""`tilewright relayout`: a layout of a shared tile that no access conflicts with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.arguments import AsJson, RungName, chosen_problem
from tilewright.layout_search import relayout_auto

EXAMPLES = ("tilewright relayout worklog/6 A_tile", "tilewright relayout worklog/6 B_tile")
SIZE = "4096"


def relayout(
    rung: RungName,
    tile: Annotated[str, typer.Argument(metavar="TILE", help="A shared tile, such as A_tile.")],
    as_json: AsJson = False,
) -> int:
    """Search a layout of a shared tile that no access conflicts with, and prove it.

    Pads and XOR swizzles are tried, cheapest first, and every access to the tile is counted. Where none is free of
    conflicts, the two accesses are named that cannot both be served; the exit code is then 1.
    """
    found, gemm = chosen_problem(rung, None, default=SIZE)
    result = relayout_auto(gemm, found.schedule(gemm), tile)
    if as_json:
        step = None if result.step is None else repr(result.step)
        accesses = [{**asdict(access), "excess": access.excess} for access in result.best.accesses]
        output.print_json({"rung": found.name, "tile": tile, "step": step, "accesses": accesses})
    else:
        console = output.out()
        console.print(f"{found.title}", style="bold", highlight=False)
        console.print(result.proof, soft_wrap=True, highlight=False, markup=False)
        if result.step is not None:
            console.print(f"\n{result.step!r}", soft_wrap=True, highlight=False, markup=False)
    return 0 if result.step is not None else 1
