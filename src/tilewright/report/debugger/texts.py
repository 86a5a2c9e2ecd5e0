"""The three texts of a kernel and how their lines belong together: schedule, statements, CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen import cuda_paths, print_cuda
from tilewright.ir.async_stmt import Wgmma
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, CommitCopies, For, Let, MultiplyTiles, Stmt, WaitCopies
from tilewright.ir.text import kernel_lines
from tilewright.ir.visit import Path, walk
from tilewright.report.costs import Cost
from tilewright.report.explain import owner
from tilewright.schedule import Step, Tensorize, Transfer
from tilewright.simulator.findings import Sites
from tilewright.simulator.line_counts import line_counts


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts by line. steps_of: for each line of the kernel the steps of the schedule behind it, the deciding one
    first; cuda_of: the lines of the CUDA text that print it. All numbers from 0."""

    schedule: tuple[str, ...]
    kernel: tuple[str, ...]
    cuda: tuple[str, ...]
    steps_of: tuple[tuple[int, ...], ...]
    cuda_of: tuple[tuple[int, ...], ...]


def texts_of(kernel: Kernel, steps: Sequence[Step]) -> Texts:
    lines = kernel_lines(kernel)
    statements = dict(walk(kernel.body))
    printed: dict[Path, list[int]] = {}
    for number, path in enumerate(cuda_paths(kernel)):
        if path is not None:
            printed.setdefault(path, []).append(number)
    sites = Sites(kernel)
    return Texts(
        tuple(repr(step) for step in steps),
        tuple(line.text for line in lines),
        tuple(print_cuda(kernel).text.splitlines()),
        tuple(() if line.path is None else _steps(sites, line.path, statements[line.path], steps) for line in lines),
        tuple(() if line.path is None else tuple(printed.get(line.path, ())) for line in lines),
    )


def _steps(sites: Sites, path: Path, stmt: Stmt, steps: Sequence[Step]) -> tuple[int, ...]:
    """The steps behind a statement: the one that decides it, then those that speak of what it comes from."""
    found = [_deciding(sites, path, stmt, steps), *_speaking(stmt, steps)]
    return tuple(dict.fromkeys(step for step in found if step is not None))


def _deciding(sites: Sites, path: Path, stmt: Stmt, steps: Sequence[Step]) -> int | None:
    if isinstance(stmt, (Let, Alloc, For)):
        return None
    if isinstance(stmt, (CommitCopies, WaitCopies)):
        return _first(steps, Transfer)
    if isinstance(stmt, (MultiplyTiles, Wgmma)):
        return _first(steps, Tensorize)
    line = line_counts(sites.place(path, stmt, ()), (), {})
    if line is None or line.kind == "branch":
        return None
    note = line.text.partition("#")[2].strip() or line.text
    cost = Cost(line.origin, line.kind, line.space, line.width_bytes, "", dict(line.opcodes), note=note)
    return owner(cost, steps)


def _first(steps: Sequence[Step], kind: type[Step]) -> int | None:
    return next((at for at, step in enumerate(steps) if isinstance(step, kind)), None)


def _speaking(stmt: Stmt, steps: Sequence[Step]) -> list[int]:
    """The steps that name the loop, the buffer or the origin of a statement; "A_tile_value" comes from "A_tile"."""
    match stmt:
        case For():
            about = (stmt.var,)
        case Let():
            about = (stmt.name,)
        case Alloc():
            about = (stmt.buffer.name,)
        case _:
            about = (getattr(stmt, "origin", ""),)
    exact = [at for at, step in enumerate(steps) if set(step.names()) & set(about)]
    if exact:
        return exact
    return [
        at for at, step in enumerate(steps) if any(one.startswith(f"{name}_") for name in step.names() for one in about)
    ]
