"""Walks, problems, split-K, raster orders and clusters in every combination, on sizes that no tile divides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lowering.work_items import (
    BY_THREADS,
    by_threads,
    check_batch,
    check_groups_along_k,
    check_groups_along_m,
)
from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import LoweringError
from tilewright.ir.kernel import Variant
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent
from tilewright.ladders import find_rung
from tilewright.lowering import products
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.functions import Activation
from tilewright.problem.problem import values_of
from tilewright.problem.reference import view
from tilewright.schedule import Schedule
from tilewright.simulator.launch import arguments, launched_grid
from tilewright.toolchain import build, run_on_simulator


def schedule_at(gemm: Gemm, config: WgmmaConfig) -> Schedule:
    return at_depth(config, gemm).schedule(gemm)


ONE_TILE, PERSISTENT = one_tile(64, 128, 1), persistent(128, 128, 2, subtile=64)
BY_TMA: dict[str, WgmmaConfig] = {
    "one tile": ONE_TILE,
    "one tile, cluster": clustered(ONE_TILE),
    "one tile, TMA store": one_tile(64, 128, 1, subtile=64),
    "one tile, whole rows by warps": one_tile(64, 128, 1, subtile=128),
    "persistent, TMA store": PERSISTENT,
    "persistent, cluster": clustered(persistent(64, 128, 1, subtile=64)),
    "one tile, cluster of 4 x 2": replace(ONE_TILE, cluster=(4, 2), stages=3),
    "persistent, cluster of 2 x 2": replace(persistent(64, 128, 1, subtile=64), cluster=(2, 2), stages=3),
    "ping-pong": replace(PING_PONG, tile=(128, 128, 64), subtile=64, stages=3),
    "ping-pong, whole rows by warps": replace(PING_PONG, tile=(64, 128, 64), subtile=128, subtile_stages=1, stages=3),
}


@pytest.mark.cross_section("name", "shared", every=6)
@pytest.mark.parametrize("shared", ["", "A", "B"])
@pytest.mark.parametrize("name", BY_TMA)
def test_a_strided_batch_by_tma(name: str, shared: str) -> None:
    gemm = Gemm(200, 136, 200, BF16, out=BF16)
    built = check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 3, shared=shared, resident_blocks=4)
    assert all(one.rank == 3 for one in built.kernel.maps)


def test_a_shared_matrix_by_tma_is_asked_for_as_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor map of it has no second one: the hardware reads zeros there, and so does the simulator."""
    gemm = Gemm(64, 64, 64, BF16, out=BF16)
    check_batch(gemm, schedule_at(gemm, one_tile(64, 64, 1)), 2, shared="B")
    monkeypatch.setattr(products, "shared_matrix_of", products.matrix_of)
    with pytest.raises(AssertionError):
        check_batch(gemm, schedule_at(gemm, one_tile(64, 64, 1)), 2, shared="B")


@pytest.mark.cross_section("name", every=3)
@pytest.mark.parametrize("name", BY_TMA)
def test_each_matrix_of_a_batch_is_added_to_what_lay_there(name: str) -> None:
    gemm = Gemm(136, 136, 64, BF16, out=BF16, b=Order.COL, beta=0.5)
    check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 3, resident_blocks=2, schedule="warps")


@pytest.mark.cross_section("name", every=3, at=1)
@pytest.mark.parametrize("name", BY_TMA)
def test_each_problem_of_a_batch_has_a_residual_and_all_share_a_bias(name: str) -> None:
    gemm = Gemm(136, 136, 64, BF16, out=BF16, beta=0.5, epilogue=Epilogue("n", True, Activation.RELU))
    check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 3, resident_blocks=2)


@pytest.mark.cross_section("rung", "k", every=3)
@pytest.mark.parametrize("k", [1, 41, 64])
@pytest.mark.parametrize("rung", ["worklog/6", "worklog/best", "ampere/full"])
def test_a_strided_batch_by_threads(rung: str, k: int) -> None:
    gemm = Gemm(70, 66, k) if rung.startswith("worklog") else Gemm(70, 72, k, F16, out=F16, b=Order.COL)
    check_batch(gemm, find_rung(rung), 3, resident_blocks=2)


@pytest.mark.parametrize("name", ["one tile", "one tile, cluster"])
def test_a_strided_batch_whose_k_is_split(name: str) -> None:
    gemm = Gemm(136, 136, 200, BF16, out=F32)
    check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 2, part_of_k=128)


@pytest.mark.cross_section("k", every=2)
@pytest.mark.parametrize("k", [192, 696])
def test_a_persistent_kernel_splits_k(k: int) -> None:
    """Parts that end early are filled with zeros, so that every item uses the ring as often."""
    gemm = Gemm(200, 136, k, BF16, out=F32)
    check_batch(gemm, schedule_at(gemm, persistent(128, 128, 2, subtile=0)), 2, part_of_k=256, resident_blocks=3)
    threads = Gemm(136, 136, k, F16, out=F32)
    check_batch(threads, find_rung("ampere/full"), 2, part_of_k=256, resident_blocks=3)


@pytest.mark.cross_section("seed", every=2)
@pytest.mark.parametrize("seed", range(4))
def test_empty_sums_of_a_ping_pong_kernel_come_in_turn(seed: int) -> None:
    """No MMA makes the warps of a warpgroup wait for each other: one may not pass the order on before all have it."""
    gemm = Gemm(384, 256, 0, BF16, out=BF16, beta=0.5, lda=8)
    operands = make_operands(gemm)
    built = build(gemm, schedule_at(gemm, BY_TMA["ping-pong"]))
    computed, _ = run_on_simulator(built, operands, listeners=(), resident_blocks=1, schedule="warps", seed=seed)
    assert check(operands, computed).ok


@pytest.mark.cross_section("name", "k", "stream_k", every=9)
@pytest.mark.parametrize("k", [0, 8, 136])
@pytest.mark.parametrize("stream_k", [False, True])
@pytest.mark.parametrize("name", BY_THREADS)
def test_threads_that_copy_for_themselves_add_up_in_order(name: str, stream_k: bool, k: int) -> None:
    """The same bits for any order of blocks and warps; of split-K for any number of blocks as well."""
    gemm, schedule = by_threads(name, 72, 136, k, beta=0.5)
    built, operands = build(gemm, schedule), make_operands(gemm)
    built = replace(built, split_k=SplitK.ORDERED, stream_k=stream_k)
    results = []
    for blocks, order in ((3, "lockstep"), (3 if stream_k else 30, "warps")):
        options: dict[str, Any] = {"part_of_k": 64, "resident_blocks": blocks, "schedule": order}
        run = built.simulate(operands, listeners=(), **options)
        verdict = check(operands, gemm.out.decode(view(gemm, "C", run.c)))
        assert verdict.ok, verdict.message
        assert not run.flags.any()
        results.append(run.c)
    np.testing.assert_array_equal(*results)


@pytest.mark.cross_section("name", every=6)
@pytest.mark.parametrize("name", BY_THREADS)
def test_persistent_threads_compute_batches(name: str) -> None:
    gemm, schedule = by_threads(name, 72, 72, 40, beta=0.5)
    check_batch(gemm, schedule, 3, resident_blocks=2, schedule="warps")
    check_batch(gemm, schedule, 2, stream_k=True, resident_blocks=3)


GROUPS_OF = [66, 0, 1, 0, 37]


@pytest.mark.cross_section("name", every=8, at=2)
@pytest.mark.parametrize("name", BY_THREADS)
def test_groups_by_offsets_of_threads_that_copy_for_themselves(name: str) -> None:
    gemm, schedule = by_threads(name, 116, 72, 40, beta=0.5)
    check_groups_along_m(gemm, schedule, GROUPS_OF, of_a_launch=3, resident_blocks=2, schedule="warps")
    gemm, schedule = by_threads(name, 40, 72, 116, beta=0.5, a=Order.COL)
    check_groups_along_k(gemm, schedule, GROUPS_OF, resident_blocks=2, schedule="warps")


@pytest.mark.cross_section("name", every=3)
@pytest.mark.parametrize("name", ["one stage", "registers and cp.async", "fragments ahead"])
def test_groups_that_begin_anywhere_in_a_row(name: str) -> None:
    """Operands contiguous along the ragged dimension are read element by element, and by the same resident blocks."""
    options: dict[str, Any] = {"variant": Variant(alignment_bytes=1), "resident_blocks": 3}
    gemm, schedule = by_threads(name, 116, 40, 40, a=Order.COL, b=Order.COL)
    built = check_groups_along_m(gemm, schedule, GROUPS_OF, **options)
    assert built.kernel.resident
    gemm, schedule = by_threads(name, 40, 40, 116, b=Order.COL)
    check_groups_along_k(gemm, schedule, GROUPS_OF, **options)
    with pytest.raises(LoweringError, match="Groups along k begin at any element of A and B, contiguous along k"):
        check_groups_along_k(gemm, schedule, GROUPS_OF)


COMPILED: dict[str, dict[str, Any]] = {
    "registers and cp.async": {"split_k": SplitK.ORDERED, "stream_k": True},
    "in place": {"problems": Problems.GROUPED_K},
    "quad shuffle": {"problems": Problems.GROUPED_M},
}


@pytest.mark.cross_section("arch", "name", every=3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", COMPILED)
def test_work_items_of_threads_compile_without_spills(name: str, arch: str) -> None:
    gemm, schedule = by_threads(name, 168, 72, 168, beta=0.5, a=Order.COL if name == "in place" else Order.ROW)
    built = replace(build(gemm, schedule), **COMPILED[name])
    assert built.compile(arch).resources.spill_load_bytes == 0


def test_batched_kernels_compile_without_spills() -> None:
    gemm = Gemm(256, 256, 256, BF16, out=BF16)
    for name in ("persistent, TMA store", "persistent, cluster"):
        built = check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 1, resident_blocks=2)
        assert built.compile("sm_90a").resources.spill_load_bytes == 0


def test_items_are_equal_unless_the_device_cuts_them() -> None:
    """Where they are, a launch starts no more blocks than finish in as few rounds: 6 of 8 for 12."""
    gemm = Gemm(768, 256, 64, BF16, out=BF16, b=Order.COL)
    built = build(gemm, schedule_at(gemm, PERSISTENT))
    assert built.kernel.equal_items and not build(gemm, schedule_at(gemm, ONE_TILE)).kernel.equal_items
    for unequal in ({"problems": Problems.GROUPED_M}, {"split_k": SplitK.ORDERED, "stream_k": True}):
        assert not replace(built, **unequal).kernel.equal_items
    for config in (PERSISTENT, clustered(PERSISTENT)):
        kernel = build(gemm, schedule_at(gemm, config)).kernel
        assert launched_grid(kernel, arguments(kernel, values_of(gemm)), 8) == (6, 1, 1)
