"""SIMT kernels whose lanes copy and store neighbours one by one: for rows that are not multiples of 16 bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import F32
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import ROW_BY_ROW, SERPENTINE, SimtConfig, loads_unaligned_rows, stores_unaligned_rows
from tilewright.planning.candidates import candidates
from tilewright.planning.kernels import Shape, build_of, variant_of
from tilewright.planning.packing import Alignment
from tilewright.prediction.counting import work_of as counted
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.toolchain import build, run_on_simulator
from tilewright.winners.plan_config import PlanConfig

WHOLE: dict[Any, int] = {"m": 64, "n": 64, "k": 16}
WIDE = SimtConfig((64, 64, 16), (32, 32), unroll=8, fma_order="m2 ~n2 m1 m0 ~n1 ~n0")


@pytest.mark.parametrize("b", [Order.ROW, Order.COL])
@pytest.mark.parametrize(("copied", "together"), [(1, 4), (4, 1), (1, 1)])
def test_they_give_the_same_bits_and_are_clean(b: Order, copied: int, together: int) -> None:
    gemm = Gemm(70, 67, 37, F32, b=b)
    operands = make_operands(gemm)
    expected, wide = run_on_simulator(build(gemm, WIDE.schedule(gemm)), operands)
    alone = replace(WIDE, copied=copied, columns_together=together)
    found, run = run_on_simulator(build(gemm, alone.schedule(gemm)), operands)
    assert not run.errors and check(operands, found).ok and np.array_equal(found, expected)
    if together == 1:
        assert run.counters.global_stores.sectors < wide.counters.global_stores.sectors


@pytest.mark.parametrize("fma_order", [SERPENTINE, ROW_BY_ROW])
@pytest.mark.parametrize("columns", [67, 68])
@pytest.mark.parametrize("config", [SimtConfig((64, 64, 16), (32, 32)), SimtConfig((64, 48, 16), (32, 16), 8)])
def test_what_goes_through_shared_memory_is_stored_in_whole_lines(
    fma_order: str, columns: int, config: SimtConfig
) -> None:
    gemm = Gemm(70, columns, 37, F32, b=Order.COL, beta=0.5)
    operands = make_operands(gemm)
    config = replace(config, unroll=8, fma_order=fma_order, copied=1)
    expected, own = run_on_simulator(build(gemm, config.schedule(gemm)), operands)
    through = replace(config, store="shared")
    found, run = run_on_simulator(build(gemm, through.schedule(gemm)), operands)
    assert not run.findings and check(operands, found).ok and np.array_equal(found, expected)
    if columns % 4:
        assert run.counters.global_stores.sectors < 0.4 * own.counters.global_stores.sectors


@pytest.mark.parametrize("columns", [4096, 4097])
def test_stores_are_counted_as_the_simulator_counts_them(columns: int) -> None:
    gemm = Gemm(4096, columns, 4096, F32, b=Order.COL)
    config = SimtConfig((96, 128, 8), (48, 64), unroll=8, copied=1)
    alone = () if columns % 4 == 0 else (replace(config, columns_together=1),)
    for one in (config, *alone, *([replace(config, store="shared")] if alone else [])):
        theirs = counted(build_of(gemm, PlanConfig(one)))
        setting = Setting(
            np.array([theirs.blocks]), np.array([int(theirs.steps)]), result_bytes=16 if columns % 4 == 0 else 4
        )
        ours = work_of("simt", Columns.of([one], one.columns), gemm, setting)
        told = {(a.name, a.kind): a for a in ours.rest.accesses if np.max(a.requests) > 0}
        for access in theirs.rest.accesses:
            if access.name in ("C", "C_tile"):
                mine = told[access.name, access.kind]
                assert float(np.max(mine.requests)) == access.requests, (one, access)
                assert float(np.max(mine.wavefronts)) == access.wavefronts, (one, access)
                assert float(np.max(mine.sectors)) == pytest.approx(access.sectors, rel=0.2), (one, access)


def test_a_tile_that_blocks_of_a_cluster_share_does_not_go_through_shared_memory() -> None:
    config = SimtConfig((64, 64, 16), (32, 32), cluster_k=2, store="shared")
    assert "store='per_thread'" in " ".join(config.reasons_against(Gemm(64, 64, 64, F32)))


def test_other_counts_are_refused() -> None:
    assert "1 or 4 neighbours" in " ".join(replace(WIDE, copied=2).reasons_against(Gemm(64, 64, 64)))


@pytest.mark.parametrize(
    ("sizes", "loads", "stores"), [((64, 64, 64), 0, 0), ((64, 64, 63), 1, 0), ((64, 63, 64), 1, 1)]
)
def test_they_are_candidates_where_rows_are_unaligned(sizes: tuple[int, int, int], loads: int, stores: int) -> None:
    gemm = Gemm(*sizes, F32)
    assert (loads_unaligned_rows(gemm), stores_unaligned_rows(gemm)) == (loads, stores)
    table = candidates(gemm, device("H200"))["simt"]
    assert (set(table.copied.tolist()), set(table.columns_together.tolist())) == (
        {1, 4} if loads else {4},
        {4},
    )
    assert set(table.store.tolist()) == {"shared" if stores else "per_thread"}
    assert set(candidates(gemm, device("A100"))["simt"].copied.tolist()) == {4}


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("c", [Order.ROW, Order.COL])
@pytest.mark.parametrize(
    "more", [{}, {"cluster_k": 2}, {"persistent": True, "stream_k": True, "raster_rows": 8}], ids=str
)
def test_neighbours_of_c_change_places_on_their_way_alone(more: dict[str, Any], c: Order, beta: float) -> None:
    """Through shared memory, to other blocks of a cluster, and as partial sums: the same bits as without. Tiles inside
    of C, and those at its edges."""
    gemm = Gemm(140, 131, 100, F32, b=Order.COL, c=c, beta=beta)
    operands = make_operands(gemm)
    config = SimtConfig((64, 64, 16), (32, 32), unroll=8, fma_order=ROW_BY_ROW, copied=1)
    expected, _ = run_on_simulator(build_of(gemm, PlanConfig(config)), operands)
    store = "per_thread" if "cluster_k" in more or c is Order.COL else "shared"
    one = replace(config, **{"store": store, **more})
    found, run = run_on_simulator(build_of(gemm, PlanConfig(one)), operands)
    assert not run.findings and check(operands, found).ok
    if not more:
        assert np.array_equal(found, expected)


def test_where_c_is_overwritten_its_elements_are_stored_by_predicates() -> None:
    gemm = Gemm(140, 131, 37, F32, b=Order.COL)
    config = SimtConfig((64, 64, 16), (32, 32), unroll=8, fma_order=ROW_BY_ROW, copied=1, store="shared")
    text = build_of(gemm, PlanConfig(config)).cuda
    overwriting, adding = text[text.rindex("C_tile complete") :].split("} else {", 1)
    assert "if (beta == 0.0f) {" in overwriting and overwriting.count("store_where(") == 1
    assert "if" not in overwriting.split("if (beta == 0.0f) {", 1)[1]
    assert "store_where(" not in adding and "beta != 0.0f" in adding


@pytest.mark.parametrize("transport", ["registers", "cp_async"])
@pytest.mark.parametrize(
    ("columns", "rows", "a_bytes", "b_bytes"), [(68, 67, 16, 4), (67, 68, 4, 16), (70, 68, 8, 16), (70, 66, 8, 8)]
)
def test_each_operand_is_copied_by_its_own_rows(
    columns: int, rows: int, a_bytes: int, b_bytes: int, transport: str
) -> None:
    """A of `columns` columns, B of `rows`, both along their rows: whatever the other's are, no access is narrower."""
    gemm = Gemm(columns, rows, 37, F32, a=Order.COL)
    one = {"a_transport": transport, "b_transport": transport, "stages": 2, "copied": 1}
    config = SimtConfig((64, 64, 16), (32, 32), unroll=16, fma_order=ROW_BY_ROW, **one)
    built = build_of(gemm, PlanConfig(config))
    variant = variant_of(gemm, Alignment(a_bytes, b_bytes, 4), Shape(WHOLE, reads_vectors=True), PlanConfig(config))
    assert [max(variant.aligned_bytes(name), 4) for name in ("A", "B")] == [a_bytes, b_bytes]
    built = built.changed(asked_variant=variant)
    widths = {
        (stmt.src.buffer.name, 4 * stmt.width)
        for _, stmt in walk(built.kernel.body)
        if isinstance(stmt, Move) and stmt.src.buffer.name in ("A", "B")
    }
    assert {("A", a_bytes), ("B", b_bytes)} <= widths
    operands = make_operands(gemm)
    found, run = run_on_simulator(built, operands)
    assert not run.findings and check(operands, found).ok
    other = MmaConfig((64, 64, 32), (32, 32))
    assert variant_of(gemm, Alignment(8, 16, 4), Shape(WHOLE, reads_vectors=True), PlanConfig(other)).b_bytes == 0


def test_partial_sums_are_stored_and_never_read() -> None:
    gemm, shape = Gemm(70, 68, 37, F32), Shape(WHOLE, reads_vectors=True)
    found = [variant_of(gemm, Alignment(4, 16, 16), shape, PlanConfig(replace(WIDE, split_k=of))) for of in (1, 4)]
    assert [one.overwrites for one in found] == [False, True]
