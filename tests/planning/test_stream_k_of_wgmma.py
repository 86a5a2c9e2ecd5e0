"""Kernels of wgmma whose blocks share out the k of the tiles that fill no whole wave."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from simulated import run_plan, simulated_dispatcher

from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.kernels.configuration import from_data, to_data
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.kernels import build_of
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows, launches_of, predict_plan
from tilewright.planning.packing import Groups, Stack
from tilewright.planning.plan import Place, Role
from tilewright.planning.ragged import ragged_plan
from tilewright.planning.ranking import estimate_us, ranked, whole_space
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.epilogue import Activation, Epilogue
from tilewright.problem.reference import Operands, view
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.winners.order import order_of
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
STREAMED = WgmmaConfig(
    (16, 128, 64), consumers=1, stages=5, swap_ab=True, persistent=True, raster_rows=16, subtile=64, stream_k=True
)


@pytest.mark.parametrize("k", [64, 200, 1000])
@pytest.mark.parametrize("options", [{}, {"consumers": 2}, {"subtile": 0}], ids=["", "two", "per thread"])
@pytest.mark.parametrize("b", [Order.COL, Order.ROW])
def test_a_plan_clears_the_flags_of_tiles_and_adds_up_in_the_kernel(
    b: Order, options: dict[str, object], k: int
) -> None:
    gemm = Gemm(13, 392, k, BF16, b=b)
    operands = make_operands(gemm, seed=3)
    config = PlanConfig(replace(STREAMED, **options))  # type: ignore[arg-type]
    plan = plan_of(simulated_dispatcher().kernels, Request(gemm, alignment_of_rows(gemm)), config)
    assert [step.role for step in plan.steps] == [Role.COPY, Role.PRODUCT]
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    run_plan(plan, places)
    assert check(operands, gemm.out.decode(view(gemm, "C", places[Place.OUT]))).ok


@pytest.mark.parametrize("count", [1, 3])
def test_batches_are_one_range_of_k_tiles(count: int) -> None:
    gemm = Gemm(5, 200, 328, BF16, b=Order.ROW)
    alone = [make_operands(gemm, seed=seed) for seed in range(count)]
    steps = {name: gemm.storage_elements(name) for name in ("A", "B", "C")}
    request = Request(gemm, alignment_of_rows(gemm), Stack(count, steps["A"], steps["B"], steps["C"]))
    plan = plan_of(simulated_dispatcher().kernels, request, PlanConfig(STREAMED))
    places = {
        place: np.concatenate([one.storage(name) for one in alone])
        for name, place in (("A", Place.A), ("B", Place.B), ("C", Place.OUT))
    }
    run_plan(plan, places)
    for number, one in enumerate(alone):
        own = places[Place.OUT].reshape(count, -1)[number]
        assert check(one, gemm.out.decode(view(gemm, "C", own))).ok


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"persistent": False}, "are persistent"),
        ({"split_k": 2}, "without split-K"),
        ({"promote_every": 64}, "one sum"),
    ],
)
def test_what_blocks_of_stream_k_cannot_be(options: dict[str, object], told: str) -> None:
    gemm = Gemm(16, 4096, 4096, BF16, b=Order.COL)
    assert told in " ".join(replace(STREAMED, **options).reasons_against(gemm))  # type: ignore[arg-type]
    assert not STREAMED.reasons_against(gemm)
    assert from_data(to_data(STREAMED)) == STREAMED


def test_another_order_of_sums_is_another_order() -> None:
    gemm = Gemm(16, 1024, 4096, BF16, b=Order.COL)
    whole = replace(STREAMED, stream_k=False)
    streamed, plain = (order_of(build_of(gemm, PlanConfig(one)), part_of_k=256) for one in (STREAMED, whole))
    assert streamed.shared_by and not plain.shared_by and streamed.name != plain.name


PING_PONG = WgmmaConfig((128, 192, 64), ping_pong=True, subtile=64, raster_rows=16, stream_k=True)


def test_the_tuner_looks_at_them_where_the_last_wave_leaves_blocks_idle() -> None:
    def proposed(m: int, n: int) -> int:
        gemm = Gemm(m, n, 4096, BF16, out=BF16, b=Order.COL)
        found = whole_space(gemm, H200, alignment_of_rows(gemm), family="wgmma")
        return sum(getattr(config.kernel, "stream_k", False) for _, config in islice(found, 2000))

    assert proposed(1504, 9216) > 0
    assert proposed(64, 512) == 0


def test_the_choice_proposes_none() -> None:
    gemm = Gemm(1504, 9216, 3072, BF16, out=BF16, b=Order.COL)
    assert not any(config.stream_k for _, config in islice(ranked(gemm, H200, alignment_of_rows(gemm)), 2000))


def test_a_cut_last_wave_costs_less_than_a_whole_one_where_most_of_it_is_idle() -> None:
    gemm, few = (Gemm(128 * 12, 192 * columns, 8192, BF16, out=BF16, b=Order.COL) for columns in (45, 22))
    us, alone_us = (estimate_us(PlanConfig(one), gemm, H200, alignment_of_rows(gemm)) for one in (PING_PONG, WHOLE))
    assert us < alone_us
    us, alone_us = (estimate_us(PlanConfig(one), few, H200, alignment_of_rows(few)) for one in (PING_PONG, WHOLE))
    assert us > alone_us


WHOLE = replace(PING_PONG, stream_k=False)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
@pytest.mark.parametrize("b", [Order.COL, Order.ROW])
def test_they_fit_into_registers_with_a_producer_of_24(b: Order, cluster: tuple[int, int]) -> None:
    gemm = Gemm(2048, 3072, 4096, BF16, out=BF16, b=b)
    config = WgmmaConfig((128, 256, 64), subtile=64, subtile_stages=1, raster_rows=16, stream_k=True, cluster=cluster)
    for launch in launches_of(plan_of(PaperKernels(H200), Request(gemm, alignment_of_rows(gemm)), PlanConfig(config))):
        assert compile_cuda(launch.source, H200.arch).resources.spill_store_bytes == 0


def test_the_workspace_is_bound_by_the_number_of_blocks() -> None:
    gemm = Gemm(8192, 8192, 4096, BF16, out=BF16, b=Order.COL)
    plan = plan_of(PaperKernels(H200), Request(gemm, alignment_of_rows(gemm)), PlanConfig(PING_PONG))
    assert plan.scratch_bytes <= 2 * H200.sm_count * (128 * 192 * 4 + 16) + 512


def test_their_time_is_predicted_by_the_model_too() -> None:
    gemm = Gemm(1504, 9216, 3072, BF16, out=BF16, b=Order.COL)
    plan = plan_of(PaperKernels(H200), Request(gemm, alignment_of_rows(gemm)), PlanConfig(PING_PONG))
    assert 90e-6 < predict_plan(plan, gemm.flops, H200).seconds < 180e-6


@pytest.mark.parametrize("rows", [[70, 0, 200, 30], [0, 0, 0, 0], [300, 0, 0, 0]])
def test_a_plan_of_groups_clears_their_flags(rows: list[int]) -> None:
    gemm = Gemm(300, 264, 328, BF16, out=BF16, b=Order.COL)
    whole, each = make_operands(gemm), [make_operands(gemm, seed=seed).b for seed in range(len(rows))]
    config = replace(PING_PONG, tile=(128, 128, 64), stages=4)
    request = Request(gemm, alignment_of_rows(gemm), groups=Groups(len(rows), "m", each[0].size))
    plan = ragged_plan(simulated_dispatcher().kernels, request, PlanConfig(config))
    assert [step.role for step in plan.steps] == [Role.COPY, Role.PRODUCT]
    ends, out = np.cumsum(rows).astype(np.int32), whole.c.copy()
    run_plan(plan, {Place.A: whole.a, Place.B: np.concatenate(each), Place.OUT: out, Place.GROUP_ENDS: ends})
    for group, (count, end) in enumerate(zip(rows, ends.tolist(), strict=True)):
        begin = end - count
        part = replace(gemm, m=count, lda=gemm.lda, ldb=gemm.ldb, ldc=gemm.ldc)
        own = Operands(part, whole.a[begin * gemm.lda :], each[group], whole.c[begin * gemm.ldc :])
        assert check(own, gemm.out.decode(view(part, "C", out[begin * gemm.ldc : end * gemm.ldc]))).ok


def test_the_last_part_of_a_tile_runs_the_epilogue() -> None:
    gemm = Gemm(9, 264, 712, BF16, b=Order.COL, beta=0.5, epilogue=Epilogue(bias="n", activation=Activation.GELU))
    operands = make_operands(gemm, seed=5)
    plan = plan_of(simulated_dispatcher().kernels, Request(gemm, alignment_of_rows(gemm)), PlanConfig(STREAMED))
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    places |= {Place.BIAS: operands.storage("bias"), Place.RESIDUAL: np.zeros(1)}
    run_plan(plan, places)
    assert check(operands, gemm.out.decode(view(gemm, "C", places[Place.OUT]))).ok
