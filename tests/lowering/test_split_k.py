"""Blocks along z share out the sum over k: the parts add up, whatever is left of k at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import LoweringError
from tilewright.ir.work import SplitK
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.reference import Operands
from tilewright.toolchain import build

AMPERE = {
    "m": 64, "n": 64, "k_bytes": 64, "warp_m": 32, "warp_n": 32, "stages": 2, "raster_rows": 1,
    "double_buffered_fragments": False, "interleaved_copies": False, "serpentine": False,
}  # fmt: skip
HOPPER = {"m": 64, "n": 64, "consumers": 1, "stages": 2}


def summed(gemm: Gemm, rung: str, point: dict[str, object] | None, part_of_k: int) -> None:
    found = find_rung(rung)
    assert found.choices is not None or point is None
    schedule = found.schedule(gemm) if point is None else found.choices.schedule_at(gemm, point)  # type: ignore[union-attr]
    built = replace(build(gemm, schedule), split_k=SplitK.PARTIALS)
    operands = make_operands(gemm)
    parts = -(-gemm.k // part_of_k)
    stacked = Operands(gemm, operands.a, operands.b, np.full(parts * gemm.m * gemm.ldc, np.nan, np.float32))
    run = built.simulate(stacked, part_of_k=part_of_k, listeners=())
    total = run.c.reshape(parts, gemm.m, gemm.ldc)[:, :, : gemm.n].sum(axis=0, dtype=np.float32)
    verdict = check(operands, total)
    assert verdict.ok, verdict.message


@pytest.mark.cross_section("k", "orders", every=2)
@pytest.mark.parametrize("k", [64, 80, 93])
@pytest.mark.parametrize("orders", [(Order.ROW, Order.ROW), (Order.COL, Order.COL), (Order.ROW, Order.COL)])
def test_parts_add_up(k: int, orders: tuple[Order, Order]) -> None:
    a, b = orders
    summed(Gemm(70, 68, k, a=a, b=b), "worklog/6", None, 32)
    summed(Gemm(70, 72, k, F16, out=F32, a=a, b=b), "ampere/full", AMPERE, 32)


def test_parts_brought_by_tma_add_up() -> None:
    summed(Gemm(72, 72, 200, BF16, out=F32), "hopper/shared_b", HOPPER, 128)
    summed(Gemm(64, 64, 192, BF16, out=F32, a=Order.COL, b=Order.COL), "hopper/shared_b", HOPPER, 64)


def test_parts_are_refused_where_results_are_no_sums() -> None:
    gemm = Gemm(64, 64, 64, F16, out=F16)
    with pytest.raises(LoweringError, match="partial sums of f16"):
        _ = replace(build(gemm, find_rung("ampere/full")), split_k=SplitK.PARTIALS).kernel
