"""Where fragments of tf32 are rounded, two at a time, and that it is the rounding of the format."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import F32, TF32, Gemm, Order, build
from tilewright.codegen.prelude import PRELUDE
from tilewright.ir.stmt import For, LoadMatrices, Move, MultiplyTiles, RoundPair, Stmt
from tilewright.ir.visit import walk
from tilewright.isa.mma_sync import MMA_TF32_F32
from tilewright.ladders import find_rung
from tilewright.layout.fragment import Fragment
from tilewright.problem import make_operands
from tilewright.problem.reference import view
from tilewright.toolchain import run_on_simulator

EXPONENTS = np.arange(256, dtype=np.uint32) << 23
EDGES = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x2FFF, 0x3000, 0x7FEFFF, 0x7FF000, 0x7FFFFF], np.uint32)
SIGNS = np.array([0, 1 << 31], np.uint32)
BITS = (SIGNS[:, None, None] | EXPONENTS[None, :, None] | EDGES[None, None, :]).reshape(-1)


def as_printed(bits: np.ndarray, beside: np.ndarray) -> np.ndarray:
    """What tensor cores read of a pair: half a bit added where neither is NaN, then 13 bits dropped."""
    numbers = ~(np.isnan(bits.view(np.float32)) | np.isnan(beside.view(np.float32)))
    return np.where(numbers, bits + np.uint32(0x1000), bits) & np.uint32(0xFFFFE000)


def test_half_a_bit_and_a_cut_round_as_the_format_does() -> None:
    numbers = BITS[~np.isnan(BITS.view(np.float32))]
    wanted = TF32.encode(numbers.view(np.float32)).view(np.uint32)
    assert np.array_equal(as_printed(numbers, np.zeros_like(numbers)), wanted)


def test_without_the_check_a_nan_would_become_a_number() -> None:
    nans = BITS[np.isnan(BITS.view(np.float32)) & (BITS & 0x7FE000 != 0)]
    assert np.isnan(as_printed(nans, np.zeros_like(nans)).view(np.float32)).all()
    unchecked = (nans + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    assert not np.isnan(unchecked.view(np.float32)).all()


def test_the_text_adds_half_a_bit_to_two_numbers() -> None:
    text = PRELUDE["round_pair_to_tf32"]
    assert "setp.num.f32 numbers, %0, %1" in text and text.count("@numbers add.u32") == text.count("0x1000") == 2


@pytest.mark.parametrize(("fragment", "line"), [(MMA_TF32_F32.a, 0), (MMA_TF32_F32.b, 1)], ids=["A", "B"])
def test_a_pair_is_of_one_row_of_a_or_one_column_of_b(fragment: Fragment, line: int) -> None:
    pairs = fragment.pairs(0 if line else 1)
    assert sorted(register for pair in pairs for register in pair) == list(range(fragment.registers))
    for lane in range(fragment.lanes):
        assert all(fragment.element(lane, a)[line] == fragment.element(lane, b)[line] for a, b in pairs)


@pytest.mark.parametrize("b", list(Order), ids=lambda order: order.value)
def test_nan_and_infinity_are_what_the_hardware_makes_of_them(b: Order) -> None:
    """Read so from an H200, in `run_on_gpu` of the same operands."""
    gemm = Gemm(32, 32, 16, F32, product=TF32, b=b)
    operands = make_operands(gemm)
    rows = view(gemm, "A", operands.a)
    rows[...] = np.abs(rows) + 1
    view(gemm, "B", operands.b)[...] = 1
    bits = (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7FF00000, 0x7FFFF000, 0x7F800000, 0x7F800001)
    for row, pattern in enumerate(bits):
        rows[row, row + 3] = np.uint32(pattern).view(np.float32)
    computed, _ = run_on_simulator(build(gemm, find_rung("ampere/full")), operands)
    assert np.isnan(computed[:6]).all() and np.isinf(computed[6:8]).all() and np.isfinite(computed[8:]).all()


def names(stmt: Stmt) -> str:
    return {RoundPair: "round", MultiplyTiles: "multiply", LoadMatrices: "load", Move: "load"}.get(type(stmt), "")


def test_fragments_are_rounded_when_they_are_used_not_when_they_are_loaded() -> None:
    kernel = build(Gemm(256, 256, 64, F32, product=TF32, b=Order.COL), find_rung("ampere/full")).kernel
    (loop,) = [stmt for stmt in kernel.body if isinstance(stmt, For) and stmt.carried]
    kinds = [name for _, stmt in walk(loop.body) if (name := names(stmt))]
    assert (
        kinds.index("round") > kinds.index("load")
        and "load" not in kinds[kinds.index("round") : kinds.index("multiply")]
    )
    before = [stmt for _, stmt in walk(kernel.body[: kernel.body.index(loop)])]
    assert not any(isinstance(stmt, RoundPair) for stmt in before)
