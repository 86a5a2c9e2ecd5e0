"""The simulator is quick enough to be used: whole arrays are computed at once, by few calls of Python functions.

The limits are twice the calls that were counted when they were set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from simulated_kernels import naive, register_tiled, tiled

from tilewright.dtypes import F16
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Kernel
from tilewright.ir.program import Level, Route
from tilewright.problem import Gemm, Operands, make_operands
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Reorder,
    Schedule,
    Split,
    Stage,
    Tensorize,
    Transfer,
)
from tilewright.simulator import Run, simulate
from tilewright.toolchain import build


def counted(kernel: Kernel, operands: Operands) -> tuple[Run, int]:
    """A run, and how often a function written in Python was called."""
    calls = 0

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        run = simulate(kernel, operands)
    finally:
        sys.setprofile(before)
    return run, calls


@pytest.mark.parametrize(("make", "most"), [(register_tiled, 280_000), (naive, 190_000), (tiled, 220_000)])
def test_a_run_with_all_listeners_and_detectors(make: Callable[[], Kernel], most: int) -> None:
    assert 0 < counted(make(), make_operands(Gemm(256, 256, 256)))[1] < most


def tensor_cores() -> Schedule:
    """128 x 128 x 32 tiles, 8 warps of 64 x 32 each, ldmatrix and mma.sync."""
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_own")),
        Split("n_in", 32, into=("n_warp", "n_own")),
        Split("m_own", 16, into=("m_frag", "m_mma")),
        Split("n_own", 8, into=("n_frag", "n_mma")),
        Split("k", 32, into=("k_tile", "k_in")),
        Split("k_in", 16, into=("k_step", "k_mma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step"),
            *("m_frag", "n_frag", "m_mma", "n_mma", "k_mma"),
        ),
        Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k16"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Stage("A", Space.REGISTER, under="k_step"),
        Stage("B", Space.REGISTER, under="k_step"),
        Transfer("A_frag", Route.MATRICES),
        Transfer("B_frag", Route.MATRICES),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Epilogue(),
    )


def test_a_run_of_tensor_cores_with_all_listeners_and_detectors() -> None:
    gemm = Gemm(512, 512, 512, dtype=F16)
    run, calls = counted(build(gemm, tensor_cores()).kernel, make_operands(gemm))
    assert calls < 260_000
    assert run.counters.instructions["HMMA"] == 512**3 // (16 * 8 * 16)
