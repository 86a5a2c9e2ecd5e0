"""No kernel declares a register that it never writes: each costs a thread a place, and hides a wrong size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from planned import alignment_of
from test_dispatch import problem

from tests.lowering.test_epilogue_results import CONFIGS, FOLDS, MATRICES, built_for, epilogue_of, gemm_of
from tilewright.device.catalog import device
from tilewright.errors import TilewrightError
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const
from tilewright.ir.kernel import Kernel
from tilewright.ir.ranges import Interval, interval
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let, Move
from tilewright.ir.visit import bodies, walk, written
from tilewright.ladders import LADDERS, Rung
from tilewright.planning.kernels import build_of
from tilewright.planning.ranking import ranked
from tilewright.problem.epilogue import Activation, Epilogue
from tilewright.problem.gemm import Order
from tilewright.toolchain import build

Known = dict[str, Interval]


def last_written(body: Body, known: Known) -> Iterator[tuple[str, int | None]]:
    """Registers that statements write: the array, and the last of its elements (None: any)."""
    known = dict(known)
    for stmt in body:
        if isinstance(stmt, Let):
            known[stmt.name] = interval(stmt.value, known)
        for ref in written(stmt):
            if ref.buffer.space is Space.REGISTER:
                single = isinstance(stmt, Move | Assign)
                high = interval(ref.flat, known).high if single else None
                wide = stmt.width - 1 if isinstance(stmt, Move) else 0
                yield ref.buffer.name, None if high is None else high + wide
        if isinstance(stmt, For) and isinstance(stmt.extent, Const):
            known[stmt.var] = Interval(0, int(stmt.extent.value) - 1)
        for _, inner in bodies(stmt):
            yield from last_written(inner, known)


def idle(kernel: Kernel) -> list[str]:
    """Arrays whose last elements nothing writes."""
    last: dict[str, int] = {}
    declared = {stmt.buffer.name: stmt.buffer for _, stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    for name, element in last_written(kernel.body, {}):
        if name in declared:
            last[name] = max(last.get(name, -1), declared[name].elements - 1 if element is None else element)
    return [
        f"{buffer.name}: {last.get(buffer.name, -1) + 1} of {buffer.elements}"
        for buffer in declared.values()
        if last.get(buffer.name, -1) < buffer.elements - 1
    ]


@pytest.mark.parametrize("rung", [rung for ladder in LADDERS.values() for rung in ladder], ids=lambda rung: rung.name)
def test_rungs(rung: Rung) -> None:
    assert idle(build(rung.gemm(264, 136, 72), rung).kernel) == []


@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_that_write_more_than_c(name: str) -> None:
    for results in (MATRICES, (FOLDS["rows"], FOLDS["largest"])):
        assert (
            idle(built_for(CONFIGS[name], gemm_of(CONFIGS[name], 70, 75, epilogue=epilogue_of(*results))).kernel) == []
        )


@pytest.mark.parametrize("orders", ["NN", "NT", "TN"])
@pytest.mark.parametrize("format", ["bf16", "f32", "tf32"])
@pytest.mark.parametrize("gpu", ["H200", "A100"])
def test_drawn_kernels(gpu: str, format: str, orders: str) -> None:
    epilogue = Epilogue(bias="n" if orders == "NN" else "m", activation=Activation.GELU, residual=orders == "NT")
    c = Order.COL if orders == "TN" else Order.ROW
    gemm, spec = problem(301, 520, 77, format, orders, epilogue=epilogue, c=c), device(gpu)
    for _, config in ranked(gemm, spec, alignment_of(gemm)).drawn(3, seed=2, spread=0.5):
        try:
            kernel = build_of(gemm, config).kernel
        except TilewrightError:
            continue
        assert idle(kernel) == [], config
