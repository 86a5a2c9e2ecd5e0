"""Kernels whose clusters share the sum over k: what is legal, what a plan of one computes, and who proposes them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.planning.simulated import run_plan, simulated_dispatcher
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.kernels.columns import Columns
from tilewright.kernels.configuration import GemmConfig, described, from_data, rows_of, to_data
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.spaces import space, wgmma_core
from tilewright.kernels.wgmma import WgmmaConfig, shared_bytes
from tilewright.planning import ranking
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.cost import warp_terms
from tilewright.planning.cost.launches import Around, Sizes
from tilewright.planning.kernels import build_of
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Packing
from tilewright.planning.plan import Place
from tilewright.planning.ranking import estimate_us, ranked, whole_space
from tilewright.planning.sharing import sharing_k
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.reference import view
from tilewright.suite.problems import Problem
from tilewright.toolchain import check_launchable
from tilewright.winners.order import order_of
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
LONG = Gemm(8, 2048, 8192, BF16, out=BF16, b=Order.COL)
FMAS = SimtConfig((64, 64, 16), (32, 32), unroll=8, cluster_k=4)
MMAS = MmaConfig((64, 64, 32), (32, 32), cluster_k=4)
SKINNY = WgmmaConfig((16, 64, 64), 1, stages=4, swap_ab=True, persistent=False, cluster_k=4)


def drawn(gemm: Gemm, count: int) -> list[WgmmaConfig]:
    """Legal kernels of a problem that leaves room for clusters of 2, 4 and 8."""
    (table,) = sharing_k("wgmma", wgmma_core(gemm), gemm, H200, (2, 4, 8))
    assert set(table.cluster_k.tolist()) == {2, 4, 8}
    return rows_of("wgmma", table, Random(0).sample(range(len(table)), count))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "gemm",
    [
        Gemm(64, 128, 8192, BF16, out=BF16, b=Order.COL),
        Gemm(61, 131, 8192, F16, out=F16, a=Order.COL, lda=64, ldb=136),
        Gemm(64, 128, 8192, product=TF32, b=Order.COL, c=Order.COL),
    ],
    ids=str,
)
def test_what_the_laws_allow_is_lowered(gemm: Gemm) -> None:
    for config in drawn(gemm, 12):
        built = build_of(gemm, PlanConfig(config))
        check_launchable(built, H200, gemm)
        assert built.kernel.cluster == config.cluster_k
        assert built.kernel.shared_bytes <= int(shared_bytes(config)), described(config)


@pytest.mark.parametrize(
    ("kind", "gemm"),
    [
        ("simt", Gemm(61, 131, 2048, b=Order.COL, beta=0.5)),
        ("mma", Gemm(61, 131, 4099, BF16, out=BF16)),
        ("mma", Gemm(64, 128, 4096, F16, out=F32, a=Order.COL)),
    ],
    ids=str,
)
def test_kernels_without_roles_that_the_laws_allow_are_lowered(kind: str, gemm: Gemm) -> None:
    (table,) = sharing_k(kind, space(kind, gemm)[::97], gemm, H200, (2, 4, 8))
    for config in rows_of(kind, table, Random(0).sample(range(len(table)), 8)):
        built = build_of(gemm, PlanConfig(config))
        check_launchable(built, H200, gemm)
        assert built.kernel.cluster == config.cluster_k, described(config)  # type: ignore[union-attr]


def test_no_other_device_is_asked_for_clusters() -> None:
    gemm = Gemm(61, 131, 2048)
    assert sharing_k("simt", space("simt", gemm)[::97], gemm, device("A100"), (2, 4)) == []


@pytest.mark.slow
def test_drawn_kernels_do_not_spill() -> None:
    gemm = Gemm(64, 128, 8192, BF16, out=BF16, b=Order.COL)
    for config in drawn(gemm, 24):
        assert build_of(gemm, PlanConfig(config)).compile("sm_90a").resources.spill_load_bytes == 0, described(config)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cluster_k": 3}, "1, 2, 4 or 8 blocks"),
        ({"persistent": True}, "a block for each part"),
        ({"split_k": 2}, "shares all of the sum"),
        ({"subtile": 64}, "per-thread stores"),
        ({"cluster": (2, 1)}, "a block for each part"),
        ({"tile": (8, 64, 64), "cluster_k": 8}, "4 accumulators of a thread are not 8 equal slices"),
        ({"tile": (192, 128, 64), "stages": 2}, "registers"),
    ],
)
def test_what_the_laws_forbid(change: dict[str, object], why: str) -> None:
    assert SKINNY.reasons_against(LONG) == ()
    assert any(why in reason for reason in replace(SKINNY, **change).reasons_against(LONG))  # type: ignore[arg-type]


def test_what_the_laws_of_fmas_forbid() -> None:
    gemm = Gemm(64, 64, 4096)
    assert FMAS.reasons_against(gemm) == ()
    assert any("slices" in why for why in replace(FMAS, warp_tile=(16, 32), cluster_k=3).reasons_against(gemm))
    assert any("shares all" in why for why in replace(FMAS, split_k=2).reasons_against(gemm))
    assert any("shared memory" in why for why in SimtConfig((256, 256, 16), cluster_k=2).reasons_against(gemm))


def test_what_the_laws_of_mma_forbid() -> None:
    for change in ({"persistent": True}, {"store": "shared"}):
        reasons = replace(MMAS, **change).reasons_against(LONG)  # type: ignore[arg-type]
        assert any("a block for each part" in reason for reason in reasons)


@pytest.mark.parametrize("config", [SKINNY, FMAS, MMAS])
def test_as_data_and_back(config: GemmConfig) -> None:
    assert from_data(to_data(config)) == config
    old = {name: value for name, value in to_data(config).items() if name != "cluster_k"}
    assert from_data(old) == replace(config, cluster_k=1)


@pytest.mark.parametrize(
    ("gemm", "config"),
    [
        (Gemm(13, 72, 456, BF16, out=BF16, beta=0.5, b=Order.COL), SKINNY),
        (Gemm(65, 67, 456, beta=0.5, b=Order.COL), FMAS),
        (Gemm(65, 67, 1000, BF16, out=BF16), MMAS),
    ],
    ids=str,
)
def test_a_plan_is_one_launch_without_a_workspace(gemm: Gemm, config: GemmConfig) -> None:
    dispatcher, operands = simulated_dispatcher(), make_operands(gemm)
    plan = plan_of(dispatcher.kernels, Request(gemm, alignment_of_rows(gemm)), PlanConfig(config))
    assert len(plan.steps) == 1 and plan.scratch_bytes == 0
    c = operands.storage("C").copy()
    run_plan(plan, {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: c})
    assert check(operands, gemm.out.decode(view(gemm, "C", c))).ok


@pytest.mark.parametrize("config", [SKINNY, MMAS])
def test_the_order_of_a_sum_tells_its_cluster(config: WgmmaConfig | MmaConfig) -> None:
    alone, shared = (order_of(build_of(LONG, PlanConfig(replace(config, cluster_k=n)))) for n in (1, 4))
    assert "4 blocks of a cluster" in shared.difference_from(alone)


def sizes(found: ranking.Ranking) -> set[int]:
    return {getattr(config.kernel, "cluster_k", 1) for _, config in found[:400]}


def test_the_choice_proposes_them_where_its_estimates_know_them() -> None:
    alignment = alignment_of_rows(LONG)
    assert sizes(ranked(LONG, H200, alignment)) == {1, 2, 4, 8}
    assert sizes(ranked(LONG, H200, alignment, cluster_k=(2, 4))) == {1, 2, 4}
    assert sizes(ranked(LONG, H200, alignment, cluster_k=())) == {1}
    assert sizes(ranked(LONG, H200, alignment, keep_order=True)) == {1}
    in_f32 = Gemm(160, 3456, 1152, b=Order.COL)
    assert sizes(ranked(in_f32, H200, alignment_of_rows(in_f32))) >= {1, 4, 8}
    in_tf32 = Gemm(64, 64, 8192, product=TF32)  # which mma.sync reads as it lies
    for spec, proposed in ((H200, True), (device("B200"), False)):  # no fit knows those of a B200
        kernels = (one.kernel for _, one in ranked(in_tf32, spec, alignment_of_rows(in_tf32))[:400])
        assert any(getattr(one, "cluster_k", 1) > 1 for one in kernels if one.kind == "mma") is proposed


def test_the_tuner_tries_them() -> None:
    assert sizes(whole_space(LONG, H200, alignment_of_rows(LONG), family="wgmma")) >= {2, 4, 8}


def test_an_exchange_costs_less_than_a_second_launch_and_more_than_nothing() -> None:
    """Of as many clusters as find room on each of 120 SMs; two more than that lie unevenly."""
    even = LONG.resized(LONG.m, 1920, LONG.k)
    alignment = alignment_of_rows(even)

    def us(**change: int) -> float:
        return estimate_us(PlanConfig(replace(SKINNY, tile=(8, 64, 64), **change)), even, H200, alignment)  # type: ignore[arg-type]

    assert us(cluster_k=4) < us(cluster_k=1, split_k=4)
    assert us(cluster_k=4) < us(cluster_k=1)
    short = replace(LONG, k=64, lda=0, ldb=0)
    one, two = (estimate_us(PlanConfig(replace(SKINNY, cluster_k=n)), short, H200, alignment) for n in (1, 2))
    assert np.isfinite([one, two]).all() and two > one


@pytest.mark.parametrize(("columns", "waits"), [(128, True), (32, False)])
def test_a_cluster_of_eight_finds_no_place_beside_fifteen_others(columns: int, waits: bool) -> None:
    """Of mma.sync, where an SM has room for two blocks; not where it has room for more."""
    kernel = MmaConfig((32, columns, 32), (32, 16), stages=4, cluster_k=8)
    c = Columns.of([kernel], kernel.columns)

    def blocks_of_an_sm(clusters: int) -> float:
        read = Gemm(24, clusters * columns, 10944, product=TF32, a=Order.COL)
        seconds, busiest = warp_terms.kernels_timed(
            "mma", c, read, H200, Around(Packing(), 16, 16, 16, 1), Sizes(read.m, read.n, read.k)
        )
        assert np.isfinite(seconds).all()
        return float(busiest.most[0])

    assert (blocks_of_an_sm(15), blocks_of_an_sm(16)) == (1, 2 if waits else 1)


def test_kernels_behind_a_packing_share_the_sum_over_k_as_well() -> None:
    """tf32 with A of shape (k, m): wgmma reads A behind a packing alone, and B through registers."""
    gemm = Problem(192, 1000, 2048, "tf32", "TN").gemm
    plans = [plan for _, plan in ranked(gemm, H200, alignment_of_rows(gemm), corrected=1000)]
    found = {plan.kernel.cluster_k for plan in plans if isinstance(plan.kernel, WgmmaConfig) and plan.packed == {"A"}}
    assert {2, 4, 8} <= found
