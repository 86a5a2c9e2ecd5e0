"""Kernels that wait for rows of A: what cannot wait, which tiles come first, and machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lowering.test_ordered_sums import KINDS, schedule_at
from tests.lowering.test_persistent import SMALL
from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import LoweringError
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.wgmma_presets import one_tile
from tilewright.problem import Gemm
from tilewright.toolchain import build

GEMM = Gemm(256, 256, 128, BF16, out=BF16)


def test_a_kernel_of_one_tile_a_block_cannot_wait() -> None:
    with pytest.raises(LoweringError, match="Only a persistent kernel whose producer loads A by TMA"):
        _ = replace(build(GEMM, schedule_at(GEMM, one_tile(64, 128, 1))), arriving=True).kernel


def test_a_kernel_without_a_producer_cannot_wait() -> None:
    gemm = Gemm(128, 128, 64, F16, out=F16, accumulate=F32)
    with pytest.raises(LoweringError, match="Only a persistent kernel whose producer loads A by TMA"):
        _ = replace(build(gemm, SMALL.schedule(gemm)), arriving=True).kernel


@pytest.mark.parametrize("other", [{"problems": Problems.STRIDED}, {"split_k": SplitK.ORDERED}])
def test_rows_arrive_for_one_problem_whose_k_is_whole(other: dict[str, object]) -> None:
    with pytest.raises(LoweringError, match="Rows of A can arrive in a product of one problem"):
        _ = replace(build(GEMM, schedule_at(GEMM, KINDS["cooperative"])), arriving=True, **other).kernel  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cooperative", "cluster", "ping-pong"])
def test_kernels_that_wait_have_the_registers_of_those_that_do_not(name: str) -> None:
    plain = build(GEMM, schedule_at(GEMM, KINDS[name]))
    found = replace(plain, arriving=True).compile("sm_90a").resources
    assert found.spill_load_bytes == 0 and found.registers == plain.compile("sm_90a").resources.registers
