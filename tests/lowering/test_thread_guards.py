"""Guards of copies that compare a thread's own row with what is left of the matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.dtypes import F32
from tilewright.ir.expr import Binary, Expr, Op
from tilewright.ir.stmt import Move
from tilewright.ir.visit import variables, walk
from tilewright.kernels.simt import ROW_BY_ROW, SimtConfig
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.schedule import Distribute, Schedule
from tilewright.toolchain import Build, build, run_on_simulator

LARGE = SimtConfig(
    (96, 128, 8), (48, 64), 4, 4, "cp_async", 8, fma_order=ROW_BY_ROW, a_transport="cp_async",
    double_buffered_fragments=True, interleaved_copies=True, store="shared",
)  # fmt: skip
BLOCK = {"m_block", "n_block", "k_tile", "M", "N", "K"}


def guarded(gemm: Gemm, config: SimtConfig, *, apart: bool) -> Build:
    steps = (
        replace(step, thread_guards=apart) if isinstance(step, Distribute) else step for step in config.schedule(gemm)
    )
    return build(gemm, Schedule(*steps))


def conditions(guard: Expr | None) -> list[Binary]:
    if not isinstance(guard, Binary):
        return []
    return [*conditions(guard.a), *conditions(guard.b)] if guard.op is Op.LAND else [guard]


def compared(built: Build) -> list[Binary]:
    """The comparisons that guard copies of A and B."""
    moves = [one for _, one in walk(built.kernel.body) if isinstance(one, Move) and one.origin in ("A_tile", "B_tile")]
    return [told for one in moves if one.src.buffer.name in ("A", "B") for told in conditions(one.guard)]


@pytest.mark.parametrize("a", Order)
@pytest.mark.parametrize("b", Order)
@pytest.mark.parametrize("transport", ["cp_async", "registers"])
def test_they_say_the_same(a: Order, b: Order, transport: str) -> None:
    """To the bit, and with every detector on, at edges in each direction."""
    gemm = Gemm(101, 203, 53, F32, a=a, b=b)
    operands = make_operands(gemm)
    config = replace(LARGE, a_transport=transport, b_transport=transport, copied=1)
    expected, _ = run_on_simulator(guarded(gemm, config, apart=False), operands)
    found, run = run_on_simulator(guarded(gemm, config, apart=True), operands)
    assert not run.findings and check(operands, found).ok and np.array_equal(found, expected)


def test_a_thread_compares_its_own_row_with_what_all_threads_share() -> None:
    gemm = Gemm(101, 203, 53, F32, b=Order.COL)
    apart, before = (compared(guarded(gemm, LARGE, apart=told)) for told in (True, False))
    assert apart and len(apart) == len(before)
    assert not any(variables(one.a) & BLOCK for one in apart)
    assert any(variables(one.a) & BLOCK for one in before)
    assert all(variables(one.b) for one in apart)


@pytest.mark.parametrize(
    ("config", "apart"),
    [
        (LARGE, True),
        (replace(LARGE, a_transport="registers"), False),
        (replace(LARGE, tile=(64, 128, 8), warp_tile=(32, 64)), False),
    ],
)
def test_kernels_of_many_accumulators_by_cp_async_have_them(config: SimtConfig, apart: bool) -> None:
    steps = [step for step in config.schedule(Gemm(101, 203, 53, F32, b=Order.COL)) if isinstance(step, Distribute)]
    assert [step.thread_guards for step in steps if step.tile != "C_tile"] == [apart, apart]
