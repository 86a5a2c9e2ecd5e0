"""Tiles of C that mma.sync computes turned, and rows of an instruction that are neighbours in memory."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright import BF16, F32, TF32, Gemm, Order
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Route
from tilewright.problem import make_operands
from tilewright.problem.tolerance import check
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Vectorize,
)
from tilewright.toolchain import Build, build, run_on_simulator


def of_one_warp(gemm: Gemm, using: str, *more: Step, turned: bool) -> Build:
    """Tiles of 32 x 32, two steps over k deep, by blocks of one warp."""
    m, n = (8, 16) if turned else (16, 8)
    depth = 32 // gemm.dtype.bytes
    inner = ("n_mma", "m_mma", "k_mma") if turned else ("m_mma", "n_mma", "k_mma")
    steps: tuple[Step, ...] = (
        *(Split("m", 32, into=("m_block", "m_own")), Split("n", 32, into=("n_block", "n_own"))),
        *(Split("m_own", m, into=("m_frag", "m_mma")), Split("n_own", n, into=("n_frag", "n_mma"))),
        *(Split("k", 2 * depth, into=("k_tile", "k_in")), Split("k_in", depth, into=("k_step", "k_mma"))),
        Reorder("m_block", "n_block", "k_tile", "k_step", "m_frag", "n_frag", *inner),
        *(Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X)),
        *(Tensorize(*inner, using=using), Accumulate("k_tile"), Epilogue()),
    )
    for name in ("A", "B"):
        steps = (
            *steps,
            *(Stage(name, Space.SHARED, under="k_tile"), Distribute(f"{name}_tile", vector=16 // gemm.dtype.bytes)),
            *(Relayout(f"{name}_tile", pad=8), Stage(name, Space.REGISTER, under="k_step")),
        )
    return build(gemm, Schedule(*steps, *more))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("c", list(Order), ids=lambda order: order.value)
@pytest.mark.parametrize(("a", "b"), list(product(Order, Order)), ids=str)
def test_pairs_of_results_are_right(a: Order, b: Order, c: Order, turned: bool) -> None:
    """A lane of rows in pairs holds two neighbours in both directions, whichever way the tile lies."""
    gemm = Gemm(41, 39, 24, F32, product=TF32, a=a, b=b, c=c, alpha=1.5, beta=0.5)
    operands = make_operands(gemm)
    built = of_one_warp(gemm, "mma.m16n8k8.paired", Vectorize("C", 2), turned=turned)
    computed, run = run_on_simulator(built, operands)
    assert check(operands, computed).ok and not run.errors


@pytest.mark.parametrize("c", list(Order), ids=lambda order: order.value)
def test_formats_of_two_bytes_are_turned_too_by_ldmatrix(c: Order) -> None:
    gemm = Gemm(41, 39, 40, BF16, out=BF16, c=c)
    operands = make_operands(gemm)
    steps = (Transfer("A_frag", Route.MATRICES), Transfer("B_frag", Route.MATRICES), Vectorize("B_frag", 4))
    built = of_one_warp(gemm, "mma.m16n8k16", *steps, turned=True)
    computed, run = run_on_simulator(built, operands)
    assert check(operands, computed).ok and not run.errors
    assert run.counters.instructions["LDSM"] == 4 * 4 * (4 + 2)  # blocks, steps over k, fragments


def test_two_elements_of_b_are_loaded_at_once_without_conflicts() -> None:
    gemm = Gemm(32, 32, 32, F32, product=TF32)
    steps = (Vectorize("B_frag", 2), Vectorize("C", 2))
    _, run = run_on_simulator(of_one_warp(gemm, "mma.m16n8k8.paired", *steps, turned=True), make_operands(gemm))
    fragments, c = run.counters.of_origin("B_frag"), run.counters.of_origin("C")
    assert fragments.instructions["LDS.64"] == gemm.n // 16 * (gemm.k // 8) * 2 and "LDS" not in fragments.instructions
    assert fragments.shared_loads.excess_wavefronts == 0
    assert c.instructions["STG.64"] * 64 == gemm.m * gemm.n
    assert c.global_stores.sectors * 8 == gemm.m * gemm.n  # each sector whole, and once


def test_the_program_says_which_way_the_tile_lies() -> None:
    text = of_one_warp(Gemm(32, 32, 32, F32, product=TF32), "mma.m16n8k8.paired", turned=True).text
    assert "mma.m16n8k8.paired.f32.tf32, rows along n" in text
