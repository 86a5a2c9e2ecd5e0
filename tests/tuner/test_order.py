"""Kernels of one reduction order give the same bits; what makes another order is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16, F32, Array
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma_presets import PING_PONG
from tilewright.ladders import find_rung
from tilewright.ladders.hopper_points import point_of
from tilewright.planning.on_paper import order_of_plan
from tilewright.planning.packing import Alignment
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reference import make_operands
from tilewright.toolchain import Build, build, run_on_simulator
from tilewright.winners.order import order_of
from tilewright.winners.plan_config import PlanConfig

SMALL = SimtConfig((64, 64, 16), (32, 32), unroll=8)
NINE = [
    {"bm": 64, "bn": 64, "bk": 8, "tm": 4, "tn": 4},
    {"bm": 128, "bn": 128, "bk": 16, "tm": 8, "tn": 8},
]
SUMS_OF_FLOATS = [("worklog/9", NINE[0]), ("worklog/9", NINE[1]), ("worklog/best", None), ("worklog/6", None)]
SUMS_OF_INSTRUCTIONS = [
    ("hopper/5", None),
    ("hopper/best", point_of(replace(PING_PONG, stages=3, raster_rows=4))),
]


def built_at(gemm: Gemm, rung: str, point: dict[str, Any] | None) -> Build:
    found = find_rung(rung)
    if point is None:
        return build(gemm, found)
    assert found.choices is not None
    return build(gemm, found.choices.schedule_at(gemm, point))


def bits(built: Build, gemm: Gemm) -> Array:
    computed, _ = run_on_simulator(built, make_operands(gemm))
    return np.ascontiguousarray(computed, np.float32).view(np.uint32)


@pytest.mark.parametrize(
    ("gemm", "kernels"),
    [
        (Gemm(70, 65, 48), SUMS_OF_FLOATS),
        (Gemm(136, 200, 128, BF16, out=F32), SUMS_OF_INSTRUCTIONS[:1]),
        (Gemm(136, 200, 128, BF16, out=BF16), SUMS_OF_INSTRUCTIONS),
    ],
    ids=str,
)
def test_kernels_of_one_order_give_the_same_bits(gemm: Gemm, kernels: list[Any]) -> None:
    first, *others = (built_at(gemm, *kernel) for kernel in kernels)
    expected = bits(first, gemm)
    for other in others:
        assert order_of(other) == order_of(first), order_of(other).difference_from(order_of(first))
        assert order_of(other).name == order_of(first).name
        assert np.array_equal(bits(other, gemm), expected)


@pytest.mark.parametrize(
    ("gemm", "one", "other", "told"),
    [
        (Gemm(64, 64, 64, BF16, out=BF16), ("hopper/5", None), ("ampere/6", None), "unit 'mma bf16' instead of"),
        (Gemm(64, 64, 68), ("worklog/9", NINE[0]), ("worklog/2", None), "instead of"),
    ],
    ids=str,
)
def test_what_makes_another_order_is_told(gemm: Gemm, one: Any, other: Any, told: str) -> None:
    mine, theirs = order_of(built_at(gemm, *other)), order_of(built_at(gemm, *one))
    assert mine != theirs and mine.name != theirs.name
    assert told in mine.difference_from(theirs)


def test_the_length_of_parts_is_a_part_of_the_order() -> None:
    gemm = Gemm(64, 64, 4096)
    aligned = Alignment(16, 16, 16)
    orders = [order_of_plan(gemm, aligned, PlanConfig(SMALL.with_split_k(splits))) for splits in (1, 2, 4)]
    assert len({order.name for order in orders}) == 3
    assert orders[1].difference_from(orders[2]) == (
        "shared by ('blocks, 2048 of k each',) instead of ('blocks, 1024 of k each',)"
    )


def test_of_few_rows_the_order_is_that_of_the_parts_and_of_who_adds_what() -> None:
    orders = [
        order_of_plan(Gemm(4, 4096, 4096, b=b), Alignment(16, 16, 16), PlanConfig(GemvConfig(split_k=splits))).name
        for b in Order
        for splits in (1, 4)
    ]
    assert len(set(orders)) == 4
