"""The pages of all rungs and their index, as texts by path."""

from __future__ import annotations

from collections.abc import Iterable

from pages.markdown import recorded_formats, table

from rung_pages.gather import gather
from rung_pages.rung import file_name, rung_page
from tilewright.ladders import LADDERS
from tilewright.report.collect import Progress
from tilewright.report.figures import TIMED_SIZE, recorded_figure

INDEX = "README.md"

_ABOUT = {
    "worklog": "FP32 on CUDA cores, from one thread an element to a kernel that keeps up with cuBLAS.",
    "hierarchy": "The levels of the machine one after the other: block, thread, warp, vector, tensor core.",
    "swizzle": "Bank conflicts, asynchronous copies and the order of blocks, each on its own.",
    "te": "The schedule of a tensor compiler's tutorial, step by step.",
    "ampere": "Tensor cores by mma.sync: fragments, ldmatrix, swizzles and rings of copies.",
    "hopper": "wgmma, TMA, roles of warps, clusters and resident blocks.",
}


def paths() -> list[str]:
    """The paths of all pages, which nothing need be simulated for."""
    return [INDEX, *(f"{ladder}/{file_name(rung)}" for ladder, rungs in LADDERS.items() for rung in rungs)]


def pages(ladders: Iterable[str] = LADDERS, progress: Progress = lambda what, done, total: None) -> dict[str, str]:
    """The pages of ladders and the index of all, by path below the folder."""
    found = {INDEX: _index()}
    for ladder in ladders:
        rungs = LADDERS[ladder]
        for told in gather(rungs, progress):
            found[f"{ladder}/{file_name(told.rung)}"] = rung_page(told, rungs)
    return found


def _index() -> str:
    """Every ladder with its rungs, and the figure of each in the formats it is about."""
    lines = [
        "# The rungs",
        "",
        "A page for every rung of every ladder: what it adds, the program and the CUDA that come of it, what the",
        "simulator counts, and the speed that was recorded. Written by `make docs`.",
    ]
    for ladder, rungs in LADDERS.items():
        figures = [recorded_figure(rung, TIMED_SIZE, recorded_formats(rung)[0]) for rung in rungs]
        cells = [
            (f"[{rung.title}]({ladder}/{file_name(rung)})", rung.idea, "" if figure is None else f"{figure.tflops:.2f}")
            for rung, figure in zip(rungs, figures, strict=True)
        ]
        lines += ["", f"## {ladder}", "", _ABOUT[ladder], "", *table(("rung", "what is new", "TFLOP/s:"), cells)]
        where = {f"Measured on {f.device} at {' x '.join(map(str, f.size))}." for f in figures if f is not None}
        lines += ["", *sorted(where)] if where else []
    return "\n".join(lines) + "\n"
