"""Plans that won, from the tuner through the database to what dispatch launches: the kernels that were measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planned import paper_dispatcher, planned

from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.on_paper import known_device, order_of_plan, version_of
from tilewright.problem.gemm import Gemm, Order
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.tuner.compiling import Prepared, prepare
from tilewright.tuner.space import Space, todays_order, todays_plan
from tilewright.winners.database import Database
from tilewright.winners.keys import DeviceKey, Key, kernel_version
from tilewright.winners.lookup import Lookup
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner

H200 = device("H200")
RING = WgmmaConfig((64, 128, 64), 1, stages=3, persistent=False, dependent_launch=False)
SMALL = SimtConfig((64, 64, 16), (32, 32), unroll=8)
MMA = MmaConfig((128, 128, 32), (64, 32))
WIDE = {"dtype": BF16, "out": BF16}

PLANS = [
    (Gemm(512, 512, 16384, **WIDE), PlanConfig(RING.with_split_k(6)), ["wgmma_64x128", "reduce_bf16_4_by_1_8"]),
    (
        Gemm(256, 257, 1023, **WIDE),
        PlanConfig(RING, frozenset("AB")),
        ["copy_padded_bf16x1_padded_bf16x1", "wgmma_64x128"],
    ),
    (
        Gemm(512, 512, 511, **WIDE),
        PlanConfig(replace(MMA, stages=2), frozenset("A")),
        ["copy_padded_bf16x1", "mma_128x128"],
    ),
    (Gemm(512, 512, 511, **WIDE), PlanConfig(replace(MMA, stages=3)), ["mma_128x128"]),
    (
        Gemm(4, 4096, 4096, **WIDE),
        PlanConfig(GemvConfig(split_k=5)),
        ["gemv_mn_bf16_4x8_1x8_4_8of8_1024_split_early", "reduce_bf16_4_by_1_4"],
    ),
    (Gemm(4, 4096, 4096), PlanConfig(SMALL.with_split_k(3)), ["simt_64x64", "reduce_f32_4_by_1_4"]),
]


def won(folder: Path, gemm: Gemm, config: PlanConfig) -> tuple[Prepared, Lookup]:
    """A plan compiled as a search compiles it, and what dispatch finds after it has won."""
    prepared = prepare(Space(gemm, H200, []), config, "sm_90a", CubinCache(folder / "cubins"))
    database = Database(folder / "winners.sqlite", shipped=())
    figures = {"median_us": 1.0, "tflops": gemm.flops / 1e6, "share_of_cublas": None, "tried": 1}
    written = {"sources": "of another commit", "command": "", "commit": "", "date": ""}
    names = {"order": prepared.order, "kernel": prepared.kernel}
    assert database.record(Winner(Key.of(H200, gemm), config, **names, **figures, **written))
    return prepared, Lookup(version_of, database)


@pytest.mark.cross_section("gemm", every=2)
@pytest.mark.parametrize(("gemm", "config", "launches"), PLANS, ids=str)
def test_what_won_is_what_is_launched(tmp_path: Path, gemm: Gemm, config: PlanConfig, launches: list[str]) -> None:
    prepared, lookup = won(tmp_path, gemm, config)
    assert [launch.paper.source.entry for launch in prepared.launches] == launches
    steps = planned(paper_dispatcher(H200, lookup), gemm).steps
    assert kernel_version(step.launch.source for step in steps) == prepared.kernel
    assert [(step.launch.grid, step.launch.args) for step in steps] == [
        (launch.paper.grid, launch.paper.arguments) for launch in prepared.launches
    ]
    assert prepared.plan.scratch_bytes == planned(paper_dispatcher(H200, lookup), gemm).scratch_bytes


def test_a_neighbour_gets_the_copies_that_it_needs(tmp_path: Path) -> None:
    _, lookup = won(tmp_path, *PLANS[1][:2])
    beside = Gemm(256, 257, 1024, **WIDE)  # rows of A are wide here
    plan = planned(paper_dispatcher(H200, lookup), beside)
    assert [step.launch.source.entry for step in plan.steps] == ["copy_padded_bf16x1", "wgmma_64x128"]


@pytest.mark.parametrize(("gemm", "config", "launches"), [PLANS[0], PLANS[4]], ids=str)
def test_a_sum_in_parts_is_left_alone_where_one_order_is_asked_for(
    tmp_path: Path, gemm: Gemm, config: PlanConfig, launches: list[str]
) -> None:
    _, lookup = won(tmp_path, gemm, config)
    assert len(planned(paper_dispatcher(H200, lookup), gemm, fixed_order=True).steps) == 1


def test_what_won_is_what_the_next_search_begins_with_and_whose_bits_it_can_keep(tmp_path: Path) -> None:
    gemm, config, _ = PLANS[0]
    prepared, lookup = won(tmp_path, gemm, config)
    assert todays_plan(gemm, H200, lookup) == config
    like = todays_order(gemm, config)
    assert like.name == prepared.order
    space = Space(gemm, H200, [], like=like)
    same, other = (PlanConfig(replace(RING, stages=4, split_k=parts)) for parts in (6, 8))
    assert space.is_legal(same)
    assert space.reasons(other)[0].startswith("it sums in another order: shared by")
    assert order_of_plan(gemm, space.alignment, same) == like


def test_a_winner_is_known_by_how_its_kernels_start_on_its_device(tmp_path: Path) -> None:
    """A GEMV kernel starts under the one before on an H200, and on a GPU of fewer SMs as its blocks are shared out."""
    gemm = Gemm(1, 6528, 4096, BF16, out=BF16, b=Order.COL)
    versions = {}
    for sm_count in (132, 114):
        spec = replace(H200, sm_count=sm_count)
        prepared = prepare(Space(gemm, spec, []), PlanConfig(GemvConfig()), "sm_90a", CubinCache(tmp_path / "cubins"))
        versions[sm_count] = version_of(Key.of(spec, gemm), PlanConfig(GemvConfig()))
        assert prepared.kernel == versions[sm_count]
    assert versions[132] != versions[114]


def test_a_device_that_nobody_lists_has_plans_all_the_same() -> None:
    assert known_device(DeviceKey("of next year", "13.0", 200)) is None
    assert known_device(DeviceKey.of(H200)) == H200
