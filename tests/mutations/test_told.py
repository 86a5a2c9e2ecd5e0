"""What is told of every fault that can be planted in small kernels, word for word: a golden file for each kernel.

Other tests ask whether a fault is found. Here the place, the lanes, the loops, the earlier access, the note, the hint
and how often it happened stand beside it, so that a fault of a detector or of a report moves a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hopper_kernels import ring
from simulated_kernels import naive, register_tiled, tiled

from tests.mutations.broken import edited, in_memory, weaker
from tilewright.dtypes import BF16
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import AsyncStmt, SharedMatrix, StoreMatrices
from tilewright.ir.expr import Const, Ref
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Barrier, For, Let, LoadMatrices, Move, Stmt
from tilewright.ir.text import ExprText, stmt_text
from tilewright.ir.visit import walk
from tilewright.ir.work import SplitK
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import at_depth, persistent
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import simulate
from tilewright.simulator.machine import Order
from tilewright.toolchain import build

RUNGS = {"swizzle/async_copy": (20, 130, 20), "ampere/2": (132, 40, 24), "hierarchy/v07": (128, 128, 32)}
ORDERS: tuple[Order, ...] = ("lockstep", "moments")


def of_rung(name: str) -> tuple[Kernel, Gemm]:
    rung = find_rung(name)
    gemm = rung.gemm(*RUNGS[name])
    return build(gemm, rung).kernel, gemm


KERNELS: dict[str, Callable[[], tuple[Kernel, Gemm]]] = {
    "naive": lambda: (naive(side=8), Gemm(9, 11, 3)),
    "tiled": lambda: (tiled(8), Gemm(9, 11, 10)),
    "tiled by quads": lambda: (tiled(8, quads=True), Gemm(9, 12, 8)),
    "register tiled": lambda: (register_tiled(), Gemm(20, 132, 12)),
    "ring": lambda: (ring(), Gemm(72, 64, 192, dtype=BF16, out=BF16)),
    "ring of a cluster": lambda: (ring(cluster=2), Gemm(128, 64, 320, dtype=BF16, out=BF16)),
    **{name: lambda name=name: of_rung(name) for name in RUNGS},  # type: ignore[misc]
    "two warpgroups": lambda: of_config(persistent(128, 128, 2, subtile=64), split_k=SplitK.NONE),
    "ordered sums": lambda: of_config(persistent(64, 128, 1, subtile=64), split_k=SplitK.ORDERED),
}
LARGE: dict[str, dict[str, Any]] = {
    "two warpgroups": {"resident_blocks": 1},
    "ordered sums": {"part_of_k": 64, "resident_blocks": 2},
}
"""Kernels of which only what orders threads is left out or changed, and how they are launched."""


def of_config(config: WgmmaConfig, split_k: SplitK) -> tuple[Kernel, Gemm]:
    gemm = Gemm(128, 128, 192, BF16, out=BF16)
    return replace(build(gemm, at_depth(config, gemm).schedule(gemm)), split_k=split_k).kernel, gemm


def further(place: Ref) -> Ref:
    *outer, last = place.index
    return replace(place, index=(*outer, last + 1))


def faults(kernel: Kernel, *kinds: type) -> Iterator[tuple[str, Kernel]]:
    """Each statement left out, each part of a guard, each place and each number one further. kinds: only of those."""
    for path, stmt in walk(kernel.body):
        if kinds and not isinstance(stmt, kinds):
            continue
        text = stmt_text(stmt).partition("\n")[0].partition("  #")[0]
        if not isinstance(stmt, Let | Alloc):
            yield f"left out: {text}", edited(kernel, path, lambda _: ())
        for what, other in changes(stmt):
            yield f"{what}: {text}", edited(kernel, path, lambda _, other=other: (other,))  # type: ignore[misc]


def changes(stmt: Stmt) -> Iterator[tuple[str, Stmt]]:
    if isinstance(stmt, Move):
        if stmt.guard is not None:
            for part, left in weaker(stmt.guard):
                yield f"without {ExprText()(part)}", replace(stmt, guard=left)
        place = in_memory(stmt)
        moved: Any = {"src": further(place)} if place is stmt.src else {"dst": further(place)}
        yield f"one further in {place.buffer.name}", replace(stmt, **moved)
        return
    if isinstance(stmt, For) and isinstance(stmt.extent, Const):
        yield "one turn less", replace(stmt, extent=stmt.extent - 1)
    if isinstance(stmt, LoadMatrices | StoreMatrices):  # no other count has an instruction
        return
    for field in fields(stmt):
        value = getattr(stmt, field.name)
        if type(value) is int:
            yield f"{field.name} one more", replace(stmt, **{field.name: value + 1})
        if isinstance(value, SharedMatrix):
            yield f"{field.name} beyond the tile", replace(stmt, **{field.name: replace(value, place=beyond(value))})
    if hasattr(stmt, "parity"):
        yield "another phase", replace(stmt, parity=stmt.parity ^ 1)  # type: ignore[call-arg]


def beyond(matrix: SharedMatrix) -> Ref:
    return replace(matrix.place, index=(matrix.place.index[0] + 100, *matrix.place.index[1:]))


def told(broken: Kernel, gemm: Gemm, order: Order, right: np.ndarray[Any, Any], options: dict[str, Any]) -> str:
    """What is found, and how many elements of C are wrong."""
    try:
        run = simulate(
            broken,
            make_operands(gemm),
            on_finding="collect",
            schedule=order,
            seed=1,
            listeners=(),
            **options,
        )
    except SimulationError as refused:
        return f"refused: {refused}"
    first = [f"{one.kind.name} x {one.occurrences}: {one}" for one in run.findings[:1]]
    more = [f"{one.kind.name} x {one.occurrences}: {one.headline}" for one in run.findings[1:4]]
    wrong = int(np.count_nonzero(run.c != right))
    return "\n".join([*first, *more, f"{len(run.findings)} findings, {wrong} elements of C differ"])


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_told_of_each_fault(name: str, golden: Callable[[str, str], None]) -> None:
    kernel, gemm = KERNELS[name]()
    options = LARGE.get(name, {"resident_blocks": kernel.cluster})
    right = simulate(kernel, make_operands(gemm), listeners=(), **options).c
    kinds = (AsyncStmt, Barrier) if name in LARGE else ()
    text: list[str] = []
    for number, (what, broken) in enumerate(faults(kernel, *kinds)):
        text.append(f"== {what}\n{told(broken, gemm, ORDERS[number % len(ORDERS)], right, options)}\n")
    golden(f"findings/{name.replace('/', '_').replace(' ', '_')}.txt", "\n".join(text))
