"""ampere/6 by format and alignment: where it stands, and that points found earlier still mean the same."""

from __future__ import annotations

import pytest

from tilewright import BF16, F16, F32, TF32, Gemm, Order
from tilewright.dtypes import TF32_TRUNCATED, DType
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.ladders.ampere.r6_full import (
    BEST,
    DEEP,
    DEEP_TF32,
    FLOWING,
    IN_PARTS,
    UNALIGNED,
    point_for,
    points,
    schedule_at,
    shared_bytes,
)
from tilewright.problem import make_operands
from tilewright.problem.tolerance import check
from tilewright.toolchain import build, run_on_simulator

A100_SHARED_BYTES = 163 * 1024


@pytest.mark.parametrize(
    ("gemm", "point"),
    [
        (Gemm(4096, 4096, 4096, F16, out=F16), FLOWING),
        (Gemm(2048, 2048, 4096, F16, out=F16), DEEP),  # a tile for each block
        (Gemm(4096, 4096, 64, F16, out=F16), DEEP),  # a turn for each tile
        (Gemm(4096, 4104, 4096, F16, out=F16), DEEP),  # rows of B end inside a tile
        (Gemm(4097, 4096, 4096, F16, out=F16), FLOWING),
        (Gemm(4096, 4096, 4096, F16, out=F16, c=Order.COL), IN_PARTS),
        (Gemm(4096, 4096, 4096, BF16, out=F32), BEST),
        (Gemm(4095, 4097, 4093, BF16, out=BF16), {**UNALIGNED, "in_parts": True}),
        (Gemm(4095, 4096, 4095, BF16, out=BF16), {**UNALIGNED, "traded": True}),
        (Gemm(4095, 4097, 4094, BF16, out=BF16, b=Order.COL), IN_PARTS),
        # Of B by rows lanes load pairs: rows of the instruction run along n, of which a warp has four fragments.
        (Gemm(4096, 4096, 4096, product=TF32), {**DEEP_TF32, "outer": "n_frag", "in_place": True}),
        (Gemm(4096, 4096, 4096, product=TF32_TRUNCATED), {**DEEP_TF32, "outer": "m_frag", "in_place": True}),
        (
            Gemm(4096, 4096, 4096, product=TF32, a=Order.COL, b=Order.COL),
            {**DEEP_TF32, "outer": "m_frag", "in_place": True},
        ),
        (Gemm(4096, 4096, 4096, product=TF32, a=Order.COL), {**DEEP_TF32, "outer": "n_frag", "in_place": False}),
        (
            Gemm(4096, 4096, 4096, product=TF32_TRUNCATED, b=Order.COL),
            {**DEEP_TF32, "outer": "n_frag", "in_place": False},
        ),
        (
            Gemm(4096, 4096, 4096, product=TF32, b=Order.COL),
            {**DEEP_TF32, "outer": "m_frag", "in_place": False, "spread": False},
        ),
        (Gemm(4096, 4096, 4093, product=TF32), {**BEST, "spread": False}),  # rows of A begin at any 4 bytes
    ],
)
def test_format_and_alignment_choose_the_point(gemm: Gemm, point: dict[str, object]) -> None:
    assert point_for(gemm) == point
    assert build(gemm, schedule_at(gemm, point)).kernel.shared_bytes <= MAX_SHARED_BYTES  # and it is legal


@pytest.mark.parametrize("point", [BEST, DEEP, DEEP_TF32, FLOWING, IN_PARTS, UNALIGNED])
def test_where_the_rung_stands_there_is_room_on_an_a100_too(point: dict[str, int]) -> None:
    gemm = Gemm(512, 512, 512, F16, out=F16)
    kernel = build(gemm, schedule_at(gemm, point)).kernel
    assert kernel.shared_bytes == shared_bytes(point) <= A100_SHARED_BYTES


def test_the_search_visits_where_the_rung_stands() -> None:
    found = list(points())
    assert all(point in found for point in (BEST, IN_PARTS, DEEP))


def test_a_point_that_does_not_speak_of_parts_stores_from_registers() -> None:
    gemm = Gemm(256, 512, 64, F16, out=F16)
    assert all(buffer.name != "C_tile" for buffer in build(gemm, schedule_at(gemm, BEST)).kernel.shared)


@pytest.mark.parametrize("a", list(Order), ids=lambda order: f"A by {order.value}")
@pytest.mark.parametrize("b", list(Order), ids=lambda order: f"B by {order.value}")
@pytest.mark.parametrize("product", [TF32, TF32_TRUNCATED], ids=str)
def test_of_tf32_a_lane_loads_pairs_where_ldmatrix_does_not_load(a: Order, b: Order, product: DType) -> None:
    gemm = Gemm(128, 256, 64, product=product, a=a, b=b)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, schedule_at(gemm, point_for(gemm))), operands)
    assert check(operands, computed).ok and not run.findings
    opcode = {
        name: next(iter(set(run.counters.of_origin(name).instructions) - {"CVT"})) for name in ("A_frag", "B_frag")
    }
    by_columns = "LDS.64" if b is Order.COL else "LDS"
    assert opcode["A_frag"] == ("LDSM" if a is Order.ROW else by_columns)
    assert opcode["B_frag"] == ("LDSM" if b is Order.COL else "LDS.64")
