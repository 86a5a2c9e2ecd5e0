"""The pages of all rungs and their index, as texts by path; writing them, and finding those that are out of date."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tilewright.ladders import LADDERS
from tilewright.report.collect import Progress
from tilewright.report.figures import TIMED_SIZE, recorded_figure
from tilewright.report.markdown import recorded_formats
from tilewright.report.pages.gather import gather
from tilewright.report.pages.rung import BEGIN, END, file_name, rung_page

INDEX = "README.md"

_ABOUT = {
    "worklog": "FP32 on CUDA cores, from one thread an element to a kernel that keeps up with cuBLAS.",
    "hierarchy": "The levels of the machine one after the other: block, thread, warp, vector, tensor core.",
    "swizzle": "Bank conflicts, asynchronous copies and the order of blocks, each on its own.",
    "te": "The schedule of a tensor compiler's tutorial, step by step.",
    "ampere": "Tensor cores by mma.sync: fragments, ldmatrix, swizzles and rings of copies.",
    "hopper": "wgmma, TMA, roles of warps, clusters and resident blocks.",
}
_COMPILER = re.compile(r"\| compiled for \S+ by ([^|]+?) \|")


def pages(ladders: Iterable[str] = LADDERS, progress: Progress = lambda what, done, total: None) -> dict[str, str]:
    """The pages of ladders and the index of all, by path below the folder."""
    found = {INDEX: _index()}
    for ladder in ladders:
        rungs = LADDERS[ladder]
        for told in gather(rungs, progress):
            found[f"{ladder}/{file_name(told.rung)}"] = rung_page(told, rungs)
    return found


def written(folder: Path, texts: Mapping[str, str]) -> None:
    """Write pages below a folder; those of rungs that are gone are deleted."""
    for path in _others(folder, texts):
        path.unlink()
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def stale(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The pages that are missing, say something else, or are of no rung; by path below the folder."""
    found = [name for name, text in texts.items() if not _is_same(folder / name, text)]
    return sorted([*found, *(path.relative_to(folder).as_posix() for path in _others(folder, texts))])


def _others(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Pages in the folders of these ladders that are none of these."""
    ladders = {name.partition("/")[0] for name in texts if "/" in name}
    there = [path for ladder in ladders for path in (folder / ladder).glob("*.md")]
    return [path for path in there if path.relative_to(folder).as_posix() not in texts]


def _is_same(path: Path, fresh: str) -> bool:
    """Whether a page says the same; what depends on the compiler only where it is the same one."""
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    told, now = _COMPILER.search(text), _COMPILER.search(fresh)
    if told is not None and now is not None and told[1] != now[1]:
        return _without_compiler(text) == _without_compiler(fresh)
    return text == fresh


def _without_compiler(text: str) -> str:
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", "", text, flags=re.DOTALL)


def _index() -> str:
    """Every ladder with its rungs, and the figure of each in the formats it is about."""
    lines = [
        "# The rungs",
        "",
        "A page for every rung of every ladder: what it adds, the program and the CUDA that come of it, what the",
        "simulator counts, and the speed that was recorded. Written by `tilewright pages --write docs/rungs`.",
    ]
    for ladder, rungs in LADDERS.items():
        lines += ["", f"## {ladder}", "", _ABOUT[ladder], "", "| rung | what is new | TFLOP/s |", "|---|---|---:|"]
        for rung in rungs:
            figure = recorded_figure(rung, TIMED_SIZE, recorded_formats(rung)[0])
            speed = "" if figure is None else f"{figure.tflops:.2f}"
            lines.append(f"| [{rung.title}]({ladder}/{file_name(rung)}) | {rung.idea} | {speed} |")
        figures = [recorded_figure(rung, TIMED_SIZE, recorded_formats(rung)[0]) for rung in rungs]
        where = {f"Measured on {f.device} at {' x '.join(map(str, f.size))}." for f in figures if f is not None}
        lines += ["", *sorted(where)] if where else []
    return "\n".join(lines) + "\n"
