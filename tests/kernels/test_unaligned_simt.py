"""SIMT kernels whose lanes copy and store neighbours one by one: for rows that are not multiples of 16 bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import F32
from tilewright.kernels.simt import SimtConfig, loads_unaligned_rows, stores_unaligned_rows
from tilewright.planning.candidates import candidates
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.toolchain import build, run_on_simulator

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
        {1, 4} if stores else {4},
    )
    assert set(candidates(gemm, device("A100"))["simt"].copied.tolist()) == {4}
