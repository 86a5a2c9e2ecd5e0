"""Statements of a kernel taken out, and put in at lines of its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.errors import LoweringError, TilewrightError
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Body, Stmt
from tilewright.ir.text import Line, kernel_lines
from tilewright.ir.verify import verify
from tilewright.ir.visit import edited, rewrite, walk

Placement = tuple[str, str, int]
"""What is put in, "before" or "after", and the line of the kernel where the other statement begins."""


def taken_out(kernel: Kernel, is_taken: Callable[[Stmt], bool]) -> tuple[Kernel, Stmt]:
    """The kernel without the statements that are chosen, and the first of them."""
    taken = next(stmt for _, stmt in walk(kernel.body) if is_taken(stmt))
    return replace(kernel, body=rewrite(kernel.body, lambda stmt: () if is_taken(stmt) else None)), taken


def put_in(kernel: Kernel, parts: Mapping[str, Stmt], placements: Sequence[Placement]) -> Kernel:
    """The kernel with statements put in; all lines are those of `kernel` as it is.

    Raises TilewrightError for a placement that is none, or where the statement cannot stand.
    """
    lines = kernel_lines(kernel)
    for placement in placements:
        _check(placement, parts, lines)
    body = kernel.body
    # From the last line to the first, so that the paths of earlier ones stay as they are.
    for part, side, line in sorted(placements, key=lambda one: (one[2], one[1] == "after"), reverse=True):
        path = lines[line - 1].path
        assert path is not None
        body = edited(body, path, lambda stmt, new=parts[part], side=side: _beside(stmt, new, side))  # type: ignore[misc]
    try:
        verify(body, after="put")
    except LoweringError as error:
        why = error.headline.partition(": ")[2]
        raise TilewrightError(f"The kernel with {list(placements)} is not a kernel: {why}", place=error.place) from None
    return replace(kernel, body=body)


def _beside(stmt: Stmt, new: Stmt, side: str) -> Body:
    return (new, stmt) if side == "before" else (stmt, new)


def _check(placement: object, parts: Mapping[str, Stmt], lines: Sequence[Line]) -> None:
    match placement:
        case (str(part), "before" | "after", int(line)) if part in parts and 1 <= line <= len(lines):
            if lines[line - 1].path is None:
                raise TilewrightError(f"Line {line} is not a statement: {lines[line - 1].text.strip()}")
        case _:
            raise TilewrightError(
                f"{placement!r} cannot be put into the kernel.",
                hint=f'write ({next(iter(parts))!r}, "before" or "after", a line from 1 to {len(lines)}).',
            )
