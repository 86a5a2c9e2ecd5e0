"""Kernels for FP8 on the simulator, whose tensor cores sum as the hardware does: scales, promotion, formats of C."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, Array, DType
from tilewright.errors import FormatError, LoweringError, ProblemError, ScheduleError
from tilewright.ir.accumulators import accumulator_of
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.ir.work import SplitK
from tilewright.kernels.configuration import GemmConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem import Gemm, Operands, check, make_operands
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.epilogue import Epilogue, Scale
from tilewright.problem.gemm import Order
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.simulator import simulate
from tilewright.toolchain import build

TILE = WgmmaConfig((64, 128, 128), 1, stages=3, subtile=64)
KINDS: dict[str, WgmmaConfig] = {
    "persistent": TILE,
    "per thread": replace(TILE, persistent=False, subtile=0),
    "two consumers": replace(TILE, tile=(128, 64, 128), consumers=2, subtile=32),
    "ping-pong": replace(TILE, consumers=2, ping_pong=True),
    "swap-AB": WgmmaConfig((32, 64, 128), 1, stages=3, swap_ab=True),
    "fragments in turn": replace(TILE, tile=(256, 64, 128), consumers=2, subtile=32),
}

WARPS = MmaConfig((64, 64, 64), (32, 32), stages=3)
OF_WARPS: dict[str, MmaConfig] = {
    "mma.sync": WARPS,
    "mma.sync, persistent": replace(
        WARPS, persistent=True, n_outer=True, double_buffered_fragments=True, in_place_fragments=True
    ),
    "mma.sync, fragments as they come": replace(WARPS, double_buffered_fragments=False),
}


def problem(m: int, n: int, k: int, dtype: DType = E4M3, *scale: Scale, out: DType = BF16, bias: bool = False) -> Gemm:
    epilogue = Epilogue(scale=scale, bias="n" if bias else None)
    return Gemm(m, n, k, dtype, out=out, b=Order.COL, epilogue=epilogue)


def result(gemm: Gemm, config: GemmConfig, operands: Operands) -> Array:
    run = build(gemm, config.schedule(gemm)).simulate(operands)
    assert not run.findings
    found: Array = gemm.out.decode(run.c).reshape(gemm.m, gemm.n)
    return found


@pytest.mark.cross_section("kind", "every", every=3)
@pytest.mark.parametrize("every", [0, 128, 64])
@pytest.mark.parametrize("kind", [*KINDS, *OF_WARPS])
def test_sums_stay_within_the_bound_of_their_promotion(kind: str, every: int) -> None:
    gemm = problem(70, 136, 304, E4M3, "m", "n", bias=True)
    operands = make_operands(gemm)
    verdict = check(
        operands, result(gemm, replace({**KINDS, **OF_WARPS}[kind], promote_every=every), operands), promote_every=every
    )
    assert verdict.ok, verdict.message


HELD = WgmmaConfig((128, 256, 128), consumers=2, stages=2, swap_ab=True, subtile=64)
HOLDERS = {
    "swap-AB": (HELD, {"scale_m", "scale_n", "bias"}),
    "swap-AB, many columns": (replace(HELD, tile=(208, 128, 128)), {"scale_n", "bias"}),
    "two consumers": (replace(HELD, swap_ab=False, subtile=32, stages=3), {"scale_m"}),
    "ping-pong": (replace(TILE, tile=(128, 64, 128), consumers=2, ping_pong=True, subtile=32), {"scale_m"}),
}


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("name", HOLDERS)
def test_a_thread_has_what_belongs_to_its_rows_before_it_stores(name: str, beta: float) -> None:
    """And to its columns, under swap-AB, where it has registers for them; else it reads them again and again."""
    config, held = HOLDERS[name]
    gemm = replace(problem(250, 504, 272, E4M3, "m", "n", bias=True), beta=beta)
    built = build(gemm, config.schedule(gemm))
    for operand in ("scale_m", "scale_n", "bias"):
        loads = {
            stmt.dst.buffer.name
            for _, stmt in walk(built.kernel.body)
            if isinstance(stmt, Move) and stmt.src.buffer.name == f"{operand}_vector"
        }
        assert loads == {f"{operand}_held" if operand in held else f"{operand}_value"}
    operands = make_operands(gemm)
    assert check(operands, result(gemm, config, operands)).ok


def test_a_scale_of_a_whole_operand_is_read_once_a_tile() -> None:
    gemm = problem(64, 128, 128, E4M3, "a", "b")
    built = build(gemm, TILE.schedule(gemm))
    loads = [
        s.dst.buffer.name for _, s in walk(built.kernel.body) if isinstance(s, Move) and "scale" in s.src.buffer.name
    ]
    assert loads == ["scale_a_held", "scale_b_held"]


@pytest.mark.cross_section("scale", "dtype", every=4)
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


@pytest.mark.cross_section("kind", every=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "second"), [(E4M3, E5M2), (E5M2, E4M3)], ids=str)
def test_operands_of_two_formats(first: DType, second: DType, kind: str) -> None:
    gemm = replace(problem(70, 136, 144, first, "m", "n", out=F32), b_dtype=second)
    operands = make_operands(gemm)
    assert (operands.matrix("B") == second.decode(operands.b).reshape(136, 144).T).all()
    others = (WARPS, SimtConfig((64, 64, 16), (32, 32), unroll=8)) if kind == "persistent" else ()
    for config in (KINDS[kind], *others):
        verdict = check(operands, result(gemm, config, operands))
        assert verdict.ok, verdict.message
    text = build(gemm, KINDS[kind].schedule(gemm)).source.text
    formats = (second, first) if kind == "swap-AB" else (first, second)
    assert f".f32.{formats[0]}.{formats[1]} " in text


@pytest.mark.parametrize("promote_every", [0, 128])
@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_kernels_for_mma_sync_compile_without_spills(arch: str, promote_every: int) -> None:
    tile = (128, 128, 64), (64, 32)
    config = MmaConfig(*tile, stages=3, promote_every=promote_every)
    source = build(problem(256, 256, 256, E4M3, "m", "n"), config.schedule(problem(256, 256, 256))).source
    compiled = compile_cuda(source, arch)
    assert compiled.resources.spill_store_bytes == 0


def test_mma_sync_reads_fp8_along_k_only() -> None:
    """ldmatrix transposes elements of 2 bytes."""
    (reason,) = WARPS.reasons_against(replace(problem(64, 64, 64), b=Order.ROW, ldb=64))
    assert reason == "ldmatrix transposes no e4m3: B must have k contiguous"


def test_tma_stores_fp8_in_boxes_of_whole_16_bytes() -> None:
    gemm = problem(64, 272, 128, out=E4M3)
    wide = replace(TILE, tile=(64, 136, 128), subtile=64)
    (reason,) = wide.reasons_against(gemm)
    assert reason == "TMA stores rows of whole 16 bytes, and 136 columns, 64 at once, are of e4m3"
    with pytest.raises(ScheduleError, match="in boxes of whole 16 bytes, and 8 columns of e4m3 are 8"):
        build(gemm, wide.schedule(gemm)).program  # noqa: B018
    kernel = build(gemm, TILE.schedule(gemm)).kernel
    assert all(known.box[0] % 16 == 0 for known in kernel.maps)


def test_only_fp8_is_multiplied_by_another_format() -> None:
    with pytest.raises(FormatError, match="Cannot multiply bf16 by e4m3"):
        Gemm(8, 8, 8, BF16, out=BF16, b_dtype=E4M3)


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


BLOCKS = {"1x128 by 128x128": (1, 128), "1x128 both": (1, 1), "128x128 by 1x128": (128, 1)}


@pytest.mark.cross_section("kind", "blocks", "lie", every=4)
@pytest.mark.parametrize("lie", ["by threads", "side", "k"])
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_blocks_multiply_the_sums_of_their_blocks(kind: str, blocks: str, lie: str) -> None:
    """Blocks that end inside a tile, and a last one of 16 of k; scales that lie in rows with gaps, and in columns; TMA
    loads what lies at multiples of 16 bytes."""
    a, b = BLOCKS[blocks]
    m, n, k = 136, 200, 272
    along_k = (8, 1) if lie == "k" else (1, 204)
    steps = (along_k if a > 1 else (1, 140), (7, 1) if lie == "by threads" else along_k if b > 1 else (1, 204))
    scales = BlockScales(a, b, 128, *steps).lying(m, n, k, (0, 0))
    assert scales.lie == (("", "") if lie == "by threads" else tuple(lie if s > 1 else "side" for s in (a, b)))
    gemm = replace(problem(m, n, k, bias=True, out=F32), block_scales=scales)
    config = replace(KINDS[kind], promote_every=128)
    if kind == "two consumers" and b == 1 < a:
        config = replace(config, tile=(128, 128, 128))
    operands = make_operands(gemm)
    verdict = check(operands, result(gemm, config, operands), promote_every=128)
    assert verdict.ok, verdict.message


def test_fragments_that_are_promoted_in_turn_share_accumulators() -> None:
    """The stage is given back once, behind the MMAs of the last fragment and before its promotion."""
    gemm = replace(problem(256, 64, 256), block_scales=BlockScales())
    config = replace(KINDS["fragments in turn"], promote_every=128)
    built = build(gemm, config.schedule(gemm))
    accumulator = accumulator_of(built.program)
    assert (accumulator.elements, accumulator.parts, accumulator.registers) == (64, 2, 96)
    text = built.source.text
    assert "float sum_group[1][32];" in text
    order = ("wgmma_wait_group<0, 32>", "arrive(&k_tile_empty[k_tile_stage])", "sum[m_frag][fragment] +=")
    assert [text.count(part) for part in order] == [1, 1, 1]
    assert sorted(order, key=text.index) == list(order)
    at_once = build(gemm, replace(config, tile=(128, 64, 128)).schedule(gemm))
    assert accumulator_of(at_once.program).parts == 1


def test_scales_of_blocks_in_split_k() -> None:
    gemm = replace(problem(64, 128, 640, out=F32), block_scales=BlockScales(1, 128))
    config = replace(KINDS["per thread"], promote_every=128)
    partial = replace(build(gemm, config.schedule(gemm)), split_k=SplitK.PARTIALS)
    operands = make_operands(gemm)
    shape = 3, 64, 128
    parts = simulate(partial.kernel, replace(operands, c=np.zeros(3 * 64 * 128, np.float32)), part_of_k=256).c
    total = parts.reshape(shape).sum(axis=0, dtype=np.float32)
    verdict = check(operands, total, promote_every=128)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("kind", ["per thread", "swap-AB"])
def test_scales_of_blocks_in_clusters_that_share_k(kind: str) -> None:
    """Three blocks of k for two blocks of a cluster: the second one's scales begin behind those of the first."""
    gemm = replace(problem(70, 128, 400, out=BF16, bias=True), block_scales=BlockScales(1, 128))
    config = replace(KINDS[kind], promote_every=128, persistent=False, cluster_k=2)
    operands = make_operands(gemm)
    verdict = check(operands, result(gemm, config, operands), promote_every=128)
    assert verdict.ok, verdict.message


def test_scales_of_blocks_need_sums_of_blocks() -> None:
    gemm = replace(problem(64, 128, 256), block_scales=BlockScales())
    for config, why in (
        (TILE, "multiply the sum of a block, not of 0 of k"),
        (replace(TILE, promote_every=256), "multiply the sum of a block, not of 256 of k"),
    ):
        assert why in "; ".join(config.reasons_against(gemm))
        with pytest.raises(LoweringError, match="promoted stage by stage"):
            _ = build(gemm, config.schedule(gemm)).kernel
    with pytest.raises(ProblemError, match="Blocks of 2 rows or 128 columns"):
        BlockScales(2)


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
    for b in (1, 128) if every else ():
        scaled = replace(gemm, epilogue=Epilogue(), block_scales=BlockScales(1, b))
        config = WgmmaConfig((128, 128, 128), stages=6, raster_rows=16, subtile=32, promote_every=128)
        assert not config.reasons_against(scaled)
        cubin = compile_cuda(build(scaled, config.schedule(scaled)).source, "sm_90a")
        assert cubin.resources.spill_store_bytes == 0


def test_operands_that_are_not_k_major_are_refused_by_wgmma() -> None:
    gemm = replace(problem(64, 128, 128), b=Order.ROW, ldb=0)
    (reason,) = TILE.reasons_against(gemm)
    assert "transposes 2-byte operands only" in reason
    with pytest.raises(LoweringError, match="takes B in rows along k"):
        _ = build(gemm, TILE.schedule(gemm)).kernel
