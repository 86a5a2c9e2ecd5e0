"""Kernels of FMAs whose blocks share out the k of all tiles: what is legal, what a plan computes, who proposes them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from simulated import run_plan, simulated_dispatcher

from tilewright.device.catalog import device
from tilewright.dtypes import F32
from tilewright.kernels.columns import Columns
from tilewright.kernels.configuration import from_data, rows_of, to_data
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.spaces import simt_core, simt_streams
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.candidates import with_simt_options
from tilewright.planning.cost.exchange import shared_out
from tilewright.planning.kernels import build_of
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows, predict_plan
from tilewright.planning.plan import Place, Role
from tilewright.planning.ranking import ranked
from tilewright.planning.sharing import streaming_k
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.reference import view
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.toolchain import check_launchable
from tilewright.winners.order import order_of
from tilewright.winners.plan_config import PlanConfig

H100 = device("H100")
STREAMED = SimtConfig((32, 64, 8), (16, 32), unroll=8, raster_rows=2, persistent=True, stream_k=True)
BY_ASYNC = {"a_transport": "cp_async", "b_transport": "cp_async", "stages": 4}
AHEAD = BY_ASYNC | {"double_buffered_fragments": True, "interleaved_copies": True}


def streams(gemm: Gemm) -> Columns:
    return simt_streams(simt_core(gemm), gemm)


@pytest.mark.parametrize("k", [1, 64, 200, 203])
@pytest.mark.parametrize(
    "options",
    [{}, BY_ASYNC, AHEAD, {"store": "shared", "copied": 1}],
    ids=["", "cp.async", "fragments ahead", "shared"],
)
@pytest.mark.parametrize("packed", ["", "B"])
def test_a_plan_clears_the_flags_of_tiles_and_adds_up_in_the_kernel(
    packed: str, options: dict[str, object], k: int
) -> None:
    gemm = Gemm(70, 131, k, b=Order.COL, beta=0.5)
    operands = make_operands(gemm, seed=3)
    names = frozenset(packed)
    config = PlanConfig(replace(STREAMED, **options), names, names)  # type: ignore[arg-type]
    plan = plan_of(simulated_dispatcher().kernels, Request(gemm, alignment_of_rows(gemm)), config)
    assert [step.role for step in plan.steps] == [*[Role.COPY] * (1 + len(packed)), Role.PRODUCT]
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    run_plan(plan, places)
    assert check(operands, gemm.out.decode(view(gemm, "C", places[Place.OUT]))).ok


def test_what_blocks_of_stream_k_cannot_be() -> None:
    gemm = Gemm(512, 512, 512, b=Order.COL)
    assert "are persistent" in " ".join(replace(STREAMED, persistent=False, raster_rows=1).reasons_against(gemm))
    assert "no tile is split" in " ".join(replace(STREAMED, split_k=2).reasons_against(gemm))
    assert not STREAMED.reasons_against(gemm)
    assert from_data(to_data(STREAMED)) == STREAMED


def test_another_order_of_sums_is_another_order() -> None:
    gemm = Gemm(128, 128, 512, b=Order.COL)
    whole = replace(STREAMED, stream_k=False)
    streamed, plain = (order_of(build_of(gemm, PlanConfig(one)), part_of_k=8) for one in (STREAMED, whole))
    assert streamed.shared_by and not plain.shared_by and streamed.name != plain.name


def test_blocks_share_out_k_tiles_evenly() -> None:
    rows = streams(Gemm(384, 4608, 3584, b=Order.COL))[:3].with_columns(stream_k=np.array([1, 1, 0]))
    blocks, each = shared_out(rows, np.array([108, 2, 108]), np.array([224, 8, 224]), np.array([264, 264, 264]))
    assert (blocks.tolist(), each.tolist()) == ([264, 4, 108], [92, 4, 224])


@pytest.mark.parametrize("sizes", [(384, 4608, 3584), (301, 2049, 4097)])
def test_the_choice_proposes_them_where_tiles_are_no_whole_waves(sizes: tuple[int, int, int]) -> None:
    gemm = Gemm(*sizes, F32, b=Order.COL)
    alignment = alignment_of_rows(gemm)
    assert any(config.stream_k for _, config in islice(ranked(gemm, H100, alignment), 400))
    ordered = ranked(gemm, H100, alignment, keep_order=True)
    assert not any(config.stream_k for _, config in islice(ordered, 400))
    assert not streaming_k(simt_core(gemm), replace(gemm, k=64, lda=0, ldb=0), H100)


@pytest.mark.parametrize("sizes", [(384, 4608, 3584), (301, 2049, 4097)])
def test_they_fit_into_registers(sizes: tuple[int, int, int]) -> None:
    gemm = Gemm(*sizes, F32, b=Order.COL)
    table = streams(gemm)
    for config in rows_of("simt", table, [*range(0, len(table), len(table) // 3)]):
        built = build_of(gemm, PlanConfig(config))
        check_launchable(built, H100, gemm)
        assert compile_cuda(built.source, H100.arch).resources.spill_store_bytes <= 32


def test_their_time_is_predicted_by_the_model_too() -> None:
    gemm = Gemm(384, 4608, 3584, b=Order.COL)
    config = SimtConfig((64, 128, 16), (32, 64), unroll=16, raster_rows=8, persistent=True, stream_k=True)
    request = Request(gemm, alignment_of_rows(gemm))
    plan = plan_of(PaperKernels(H100), request, PlanConfig(config))
    told = predict_plan(plan, gemm.flops, H100)
    assert 230e-6 < told.seconds < 330e-6


def test_no_k_is_guarded_that_tiles_divide() -> None:
    for k, guarded in ((512, False), (508, True)):
        gemm = Gemm(128, 128, k, b=Order.COL)
        assert ("< K" in build_of(gemm, PlanConfig(STREAMED)).cuda) is guarded


@pytest.mark.parametrize(("sizes", "early"), [((73, 116, 20), True), ((300, 1024, 1024), False)])
def test_kernels_of_few_blocks_start_under_the_kernel_before(sizes: tuple[int, int, int], early: bool) -> None:
    gemm = Gemm(*sizes, F32, b=Order.COL)
    plans = [one for _, one in islice(ranked(gemm, H100, alignment_of_rows(gemm)), 30) if not one.shares_k]
    assert plans
    for plan in plans:
        assert isinstance(plan.kernel, SimtConfig)
        blocks = -(-gemm.m // plan.kernel.m) * -(-gemm.n // plan.kernel.n) * plan.kernel.cluster_k
        assert plan.kernel.dependent_launch is (blocks <= H100.sm_count / 4)
    assert any(plan.kernel.dependent_launch for plan in plans) is early  # type: ignore[union-attr]


@pytest.mark.parametrize(("rows", "depth"), [(384, 3584), (380, 3584), (384, 3580)])
def test_copies_lie_between_k_steps_where_none_is_guarded(rows: int, depth: int) -> None:
    gemm = Gemm(rows, 4608, depth, F32, b=Order.COL)
    plans = [one.kernel for _, one in islice(ranked(gemm, H100, alignment_of_rows(gemm)), 200)]
    simt = [one for one in plans if isinstance(one, SimtConfig) and one.a_transport == "registers"]
    between = [one for one in simt if one.interleaved_copies]
    assert bool(between) is (depth == 3584)
    assert all(
        one.tile[:2] in ((128, 128), (96, 128)) or one.warp_tile[0] * one.warp_tile[1] >= 96 * 32 for one in between
    )


@pytest.mark.parametrize(
    ("tile", "warp_tile", "sizes", "between"),
    [
        ((64, 64, 8), (32, 32), (300, 1900, 180), True),  # 5 x 30 blocks of 4 warps on 132 SMs: 8 an SM
        ((64, 64, 8), (32, 32), (3000, 3000, 180), False),  # 17 blocks an SM
        ((128, 64, 16), (32, 64), (3000, 3000, 180), True),  # 64 accumulators, a k of 16
        ((128, 64, 8), (32, 64), (3000, 3000, 180), False),
        ((128, 64, 8), (32, 64), (300, 1900, 180), True),
        ((64, 32, 16), (16, 32), (300, 300, 180), False),  # 16 accumulators
        ((128, 128, 16), (64, 64), (300, 300, 180), True),  # 128, four warps
        ((256, 128, 16), (64, 64), (300, 300, 180), True),  # eight warps
        ((128, 128, 8), (32, 64), (3000, 3000, 180), True),  # eight warps, 64 accumulators, a k of 8
        ((192, 128, 16), (64, 64), (300, 300, 180), False),  # six warps
    ],
)
def test_copies_by_cp_async_lie_between_k_steps_where_few_warps_cover_for_each_other(
    tile: tuple[int, int, int], warp_tile: tuple[int, int], sizes: tuple[int, int, int], between: bool
) -> None:
    one = SimtConfig(tile, warp_tile, stages=4, unroll=tile[2], a_transport="cp_async", b_transport="cp_async")
    table = Columns.of([one, replace(one, a_transport="registers"), replace(one, unroll=4)], SimtConfig.columns)
    found = with_simt_options(table, Gemm(*sizes, F32, b=Order.COL), device("H200"), 1)
    assert found.interleaved_copies.tolist() == [between, False, False]
