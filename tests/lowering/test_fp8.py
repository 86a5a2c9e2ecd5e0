"""Kernels for FP8 on the simulator, whose tensor cores sum as the hardware does: scales, promotion, formats of C."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, Array, DType
from tilewright.errors import LoweringError
from tilewright.kernels.configuration import GemmConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem import Gemm, Operands, check, make_operands
from tilewright.problem.epilogue import Epilogue, Scale
from tilewright.problem.gemm import Order
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.toolchain import build

TILE = WgmmaConfig((64, 128, 128), 1, stages=3, subtile=64)
KINDS: dict[str, WgmmaConfig] = {
    "persistent": TILE,
    "per thread": replace(TILE, persistent=False, subtile=0),
    "two consumers": replace(TILE, tile=(128, 64, 128), consumers=2, subtile=32),
    "ping-pong": replace(TILE, consumers=2, ping_pong=True),
    "swap-AB": WgmmaConfig((32, 64, 128), 1, stages=3, swap_ab=True),
}


def problem(m: int, n: int, k: int, dtype: DType = E4M3, *scale: Scale, out: DType = BF16, bias: bool = False) -> Gemm:
    epilogue = Epilogue(scale=scale, bias="n" if bias else None)
    return Gemm(m, n, k, dtype, out=out, b=Order.COL, epilogue=epilogue)


def result(gemm: Gemm, config: GemmConfig, operands: Operands) -> Array:
    run = build(gemm, config.schedule(gemm)).simulate(operands)
    assert not run.findings
    found: Array = gemm.out.decode(run.c).reshape(gemm.m, gemm.n)
    return found


@pytest.mark.parametrize("every", [0, 128, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_stay_within_the_bound_of_their_promotion(kind: str, every: int) -> None:
    gemm = problem(70, 136, 304, E4M3, "m", "n", bias=True)
    operands = make_operands(gemm)
    verdict = check(operands, result(gemm, replace(KINDS[kind], promote_every=every), operands), promote_every=every)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("scale", [("a", "b"), ("a", "n"), ("m", "b"), ("m", "n"), ("a",)], ids=str)
@pytest.mark.parametrize(("dtype", "out"), [(E4M3, F32), (E5M2, F16), (E4M3, BF16)], ids=str)
def test_a_scale_of_a_whole_operand_is_read_where_it_lies(scale: tuple[Scale, ...], dtype: DType, out: DType) -> None:
    gemm = problem(65, 48, 144, dtype, *scale, out=out)
    operands = make_operands(gemm)
    counts = {"a": 1, "b": 1, "m": 65, "n": 48}
    assert {one: len(operands.added[f"scale_{one}"]) for one in scale} == {one: counts[one] for one in scale}
    for config in (replace(TILE, subtile=0, persistent=False), SimtConfig((64, 64, 16), (32, 32), unroll=8)):
        verdict = check(operands, result(gemm, config, operands))
        assert verdict.ok, verdict.message


def test_promotion_keeps_what_fast_sums_lose() -> None:
    """Products of one sign, where what is cut off grows with the sum."""
    gemm = problem(64, 64, 2048, out=F32)
    operands = make_operands(gemm)
    operands.a[:] &= 0x7F
    operands.b[:] &= 0x7F
    config = replace(TILE, tile=(64, 64, 128), persistent=False, subtile=0)
    fast, promoted = (
        check(operands, result(gemm, replace(config, promote_every=every), operands), promote_every=every)
        for every in (0, 128)
    )
    assert fast.ok and promoted.ok
    assert fast.relative_error > 8 * promoted.relative_error


@pytest.mark.parametrize("every", [0, 128])
def test_kernels_compile_without_spills(every: int) -> None:
    gemm = problem(4096, 4096, 4096, E4M3, "m", "n")
    for config in (
        WgmmaConfig((128, 192, 128), ping_pong=every == 0, stages=4, raster_rows=16, subtile=16, promote_every=every),
        WgmmaConfig((128, 128, 128), stages=6, raster_rows=16, subtile=64, promote_every=every),
    ):
        assert not config.reasons_against(gemm)
        cubin = compile_cuda(build(gemm, config.schedule(gemm)).source, "sm_90a")
        assert cubin.resources.spill_store_bytes == 0


def test_operands_that_are_not_k_major_are_refused_by_wgmma() -> None:
    gemm = replace(problem(64, 128, 128), b=Order.ROW, ldb=0)
    (reason,) = TILE.reasons_against(gemm)
    assert "transposes 2-byte operands only" in reason
    with pytest.raises(LoweringError, match="takes B in rows along k"):
        _ = build(gemm, TILE.schedule(gemm)).kernel
