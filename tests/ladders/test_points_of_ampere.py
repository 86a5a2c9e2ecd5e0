"""ampere/6 by format and alignment: where it stands, and that points found earlier still mean the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright import BF16, F16, F32, TF32, Gemm, Order
from tilewright.device.catalog import RTX_3090
from tilewright.dtypes import TF32_TRUNCATED, DType
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.kernels.mma import MmaConfig, shared_bytes
from tilewright.kernels.mma_presets import (
    BEST,
    DEEP,
    DEEP_TF32,
    PERSISTENT,
    THROUGH_SHARED,
    UNALIGNED,
    at_depth,
    best_for,
)
from tilewright.ladders import find_rung
from tilewright.ladders.ampere_points import configurations
from tilewright.problem import make_operands
from tilewright.problem.tolerance import check
from tilewright.toolchain import build, run_on_simulator

A100_SHARED_BYTES = 163 * 1024


@pytest.mark.parametrize(
    ("gemm", "config"),
    [
        (Gemm(4096, 4096, 4096, F16, out=F16), PERSISTENT),
        (Gemm(2048, 2048, 4096, F16, out=F16), DEEP),  # a tile for each block
        (Gemm(4096, 4096, 64, F16, out=F16), DEEP),  # a turn for each tile
        (Gemm(4096, 4104, 4096, F16, out=F16), DEEP),  # rows of B end inside a tile
        (Gemm(4097, 4096, 4096, F16, out=F16), PERSISTENT),
        (Gemm(4096, 4096, 4096, F16, out=F16, c=Order.COL), THROUGH_SHARED),
        (Gemm(4096, 4096, 4096, BF16, out=F32), BEST),
        (Gemm(4095, 4097, 4093, BF16, out=BF16), replace(UNALIGNED, store="shared")),
        (Gemm(4095, 4096, 4095, BF16, out=BF16), replace(UNALIGNED, store="quad_shuffle")),
        (Gemm(4095, 4097, 4094, BF16, out=BF16, b=Order.COL), THROUGH_SHARED),
        # Of a row-major B lanes load pairs: rows of the instruction run along n, of which a warp has four fragments.
        (Gemm(4096, 4096, 4096, product=TF32), replace(DEEP_TF32, n_outer=True, in_place_fragments=True)),
        (Gemm(4096, 4096, 4096, product=TF32_TRUNCATED), replace(DEEP_TF32, n_outer=False, in_place_fragments=True)),
        (
            Gemm(4096, 4096, 4096, product=TF32, a=Order.COL, b=Order.COL),
            replace(DEEP_TF32, n_outer=False, in_place_fragments=True),
        ),
        (Gemm(4096, 4096, 4096, product=TF32, a=Order.COL), replace(DEEP_TF32, n_outer=True, in_place_fragments=False)),
        (
            Gemm(4096, 4096, 4096, product=TF32_TRUNCATED, b=Order.COL),
            replace(DEEP_TF32, n_outer=True, in_place_fragments=False),
        ),
        (
            Gemm(4096, 4096, 4096, product=TF32, b=Order.COL),
            replace(DEEP_TF32, n_outer=False, in_place_fragments=False, interleaved_copies=False),
        ),
        (
            Gemm(4096, 4096, 4093, product=TF32),
            replace(BEST, interleaved_copies=False),
        ),  # rows of A begin at any 4 bytes
    ],
)
def test_format_and_alignment_choose_the_kernel(gemm: Gemm, config: MmaConfig) -> None:
    assert best_for(gemm) == at_depth(config, gemm)
    assert build(gemm, best_for(gemm).schedule(gemm)).kernel.shared_bytes <= MAX_SHARED_BYTES  # and it is legal


@pytest.mark.parametrize("config", [BEST, DEEP, DEEP_TF32, PERSISTENT, THROUGH_SHARED, UNALIGNED])
def test_where_the_rung_stands_there_is_room_on_an_a100_too(config: MmaConfig) -> None:
    gemm = Gemm(512, 512, 512, F16, out=F16)
    kernel = build(gemm, config.schedule(gemm)).kernel
    assert kernel.shared_bytes == shared_bytes(config, 2) <= A100_SHARED_BYTES


@pytest.mark.parametrize(
    ("gemm", "tile", "stages"),
    [
        (Gemm(4096, 4096, 4096, F16, out=F16), (128, 256, 32), 4),
        (Gemm(4095, 4097, 4093, BF16, out=BF16), (128, 256, 32), 2),
        (Gemm(4096, 4096, 4096, F16, out=F16, c=Order.COL), (128, 256, 32), 2),
        (Gemm(4096, 4096, 4096, product=TF32), (128, 256, 16), 4),
        (Gemm(4096, 4096, 4096, product=TF32, a=Order.COL), (128, 256, 16), 3),  # lanes load both: padded rows
    ],
)
def test_a_gpu_with_less_shared_memory_has_shorter_tiles_or_fewer_stages(
    gemm: Gemm, tile: tuple[int, int, int], stages: int
) -> None:
    config = best_for(gemm, RTX_3090.max_shared_bytes_per_block)
    assert (config.tile, config.stages) == (tile, stages)
    kernel = build(gemm, find_rung("ampere/6").on(RTX_3090)).kernel
    assert kernel.tile == dict(zip("mnk", tile, strict=True))
    assert kernel.shared_bytes <= RTX_3090.max_shared_bytes_per_block
    assert best_for(gemm, A100_SHARED_BYTES) == best_for(gemm)


def test_the_rung_is_right_where_shared_memory_is_small() -> None:
    gemm = Gemm(136, 264, 72, F16, out=F16)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, find_rung("ampere/6").on(RTX_3090)), operands)
    assert check(operands, computed).ok and not run.findings


def test_the_search_visits_where_the_rung_stands() -> None:
    found = list(configurations())
    assert all(config in found for config in (BEST, THROUGH_SHARED, DEEP))


def test_a_point_that_does_not_speak_of_parts_stores_from_registers() -> None:
    gemm = Gemm(256, 512, 64, F16, out=F16)
    assert all(buffer.name != "C_tile" for buffer in build(gemm, BEST.schedule(gemm)).kernel.shared)


@pytest.mark.cross_section("a", "b", "product", every=2)
@pytest.mark.parametrize("a", list(Order), ids=lambda order: f"A by {order.value}")
@pytest.mark.parametrize("b", list(Order), ids=lambda order: f"B by {order.value}")
@pytest.mark.parametrize("product", [TF32, TF32_TRUNCATED], ids=str)
def test_of_tf32_a_lane_loads_pairs_where_ldmatrix_does_not_load(a: Order, b: Order, product: DType) -> None:
    gemm = Gemm(128, 256, 64, product=product, a=a, b=b)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, best_for(gemm).schedule(gemm)), operands)
    assert check(operands, computed).ok and not run.findings
    opcode = {
        name: next(iter(set(run.counters.of_origin(name).instructions) - {"CVT"})) for name in ("A_frag", "B_frag")
    }
    by_columns = "LDS.64" if b is Order.COL else "LDS"
    assert opcode["A_frag"] == ("LDSM" if a is Order.ROW else by_columns)
    assert opcode["B_frag"] == ("LDSM" if b is Order.COL else "LDS.64")
