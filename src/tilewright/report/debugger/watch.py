"""A build watched: one of its blocks recorded, on operands that can be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import For, If, Let
from tilewright.ir.text import kernel_lines
from tilewright.ir.visit import edited
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import Operands, make_operands, view
from tilewright.report.debugger.page import Watched
from tilewright.report.debugger.texts import texts_of
from tilewright.simulator.launch import Block
from tilewright.simulator.machine import Order
from tilewright.simulator.recorder import MOST_MOMENTS, record
from tilewright.toolchain import Build
from tilewright.units import integer_of, type_name

_VALUES = np.array([-3, -2, -1, 1, 2, 3], np.float32)
"""Every format holds them, sums of thousands of their products are exact, and none is 0, which nothing would change."""


def watch(
    built: Build,
    *,
    title: str = "",
    block: Block = (0, 0, 0),
    without: int | None = None,
    schedule: Order = "lockstep",
    seed: int = 0,
    most_moments: int = MOST_MOMENTS,
) -> Watched:
    """Record a block of a build on the simulator, to step through it, forward and back.

    A notebook shows the page of what is returned; `save` writes it. without: a line of the kernel to leave out, which
    shows what it is for. schedule: the order of warps, as for `simulate`. most_moments: steps that are kept.

    Raises TilewrightError for a line that cannot be left out, SimulationError for a block that is not in the grid.
    """
    if not isinstance(built, Build):
        raise TilewrightError(f"A Build is watched, not {type_name(built)}.", hint="build(gemm, schedule).")
    kernel, said = built.kernel, ""
    if without is not None:
        kernel, said = left_out(kernel, without)
    recording = record(
        kernel, small_integers(built.gemm), block=block, schedule=schedule, seed=seed, most_moments=most_moments
    )
    texts = texts_of(kernel, built.schedule.steps)
    return Watched(title or built.name, built.gemm, recording, texts, schedule, said)


def small_integers(gemm: Gemm, *, seed: int = 0) -> Operands:
    """Operands of whole numbers from -3 to 3 without 0; gaps hold NaN, and so does C where beta is 0."""
    operands = make_operands(replace(gemm))
    rng = np.random.default_rng(seed)
    for operand in (*gemm.operands, *gemm.added):
        if operand.name == "C" and gemm.beta == 0:
            continue
        storage = operands.storage(operand.name)
        target = storage if operand.name == "bias" else view(gemm, operand.name, storage)
        target[...] = operand.dtype.encode(rng.choice(_VALUES, target.shape))
    return operands


def left_out(kernel: Kernel, line: int) -> tuple[Kernel, str]:
    """The kernel without the statement at a line of its text, and that statement as text.

    Raises TilewrightError for a line that is none, that declares something, or that holds others.
    """
    lines = kernel_lines(kernel)
    if integer_of(line) is None or not 1 <= line <= len(lines):
        raise TilewrightError(f"There is no line {line!r}: the kernel has {len(lines)}.", hint="see show --kernel.")
    path, text = lines[line - 1].path, lines[line - 1].text.strip()
    if path is None:
        raise TilewrightError(f"Line {line} is not a statement: {text}", hint="see show --kernel.")
    removed = []

    def remove(stmt: object) -> tuple[()]:
        removed.append(stmt)
        return ()

    body = edited(kernel.body, path, remove)
    if isinstance(removed[0], (For, If, Let)) or " register " in f" {text} ":
        raise TilewrightError(
            f"Line {line} cannot be left out: {text}",
            note="what follows needs its name, or it holds other statements.",
            hint="leave out a barrier, a wait, an arrival, a load or a store.",
        )
    return replace(kernel, body=body), text
