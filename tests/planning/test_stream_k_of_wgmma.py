"""Kernels of wgmma whose blocks share out the k of all tiles in equal parts."""

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
from tilewright.planning.packing import Stack
from tilewright.planning.plan import Place, Role
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.epilogue import Activation, Epilogue
from tilewright.problem.reference import view
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
        ({"cluster": (1, 2)}, "without ping-pong, clusters"),
        ({"split_k": 2}, "and split-K"),
        ({"promote_every": 64}, "which is not promoted"),
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


@pytest.mark.parametrize(("sizes", "proposed"), [((16, 28672, 4096), True), ((16, 512, 512), False)])
def test_the_choice_knows_them_where_memory_bounds_a_product(sizes: tuple[int, int, int], proposed: bool) -> None:
    gemm = Gemm(*sizes, BF16, b=Order.COL)
    alignment = alignment_of_rows(gemm)
    assert any(config.stream_k for _, config in islice(ranked(gemm, H200, alignment), 2000)) is proposed
    ordered = ranked(gemm, H200, alignment, keep_order=True)
    assert not any(config.stream_k for _, config in islice(ordered, 2000))


def test_they_fit_into_registers_in_batches_too() -> None:
    gemm = Gemm(1, 4096, 4096, BF16, b=Order.ROW)
    request = Request(gemm, alignment_of_rows(gemm), Stack(16, gemm.k, gemm.n * gemm.k, gemm.n))
    config = PlanConfig(replace(STREAMED, tile=(8, 256, 64), stages=6))
    for launch in launches_of(plan_of(PaperKernels(H200), request, config)):
        assert compile_cuda(launch.source, H200.arch).resources.spill_store_bytes == 0


def test_their_time_is_predicted_by_the_model_too() -> None:
    gemm = Gemm(16, 28672, 4096, BF16, b=Order.COL)
    plan = plan_of(PaperKernels(H200), Request(gemm, alignment_of_rows(gemm)), PlanConfig(replace(STREAMED, stages=12)))
    assert 45e-6 < predict_plan(plan, gemm.flops, H200).seconds < 75e-6


def test_the_last_part_of_a_tile_runs_the_epilogue() -> None:
    gemm = Gemm(9, 264, 712, BF16, b=Order.COL, beta=0.5, epilogue=Epilogue(bias="n", activation=Activation.GELU))
    operands = make_operands(gemm, seed=5)
    plan = plan_of(simulated_dispatcher().kernels, Request(gemm, alignment_of_rows(gemm)), PlanConfig(STREAMED))
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    places |= {Place.BIAS: operands.storage("bias"), Place.RESIDUAL: np.zeros(1)}
    run_plan(plan, places)
    assert check(operands, gemm.out.decode(view(gemm, "C", places[Place.OUT]))).ok
