"""The model of overlap: what must hold whatever the figures, and the measured times of today's ways."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from overlap_costs import alone_us, in_turn_us

from tilewright.device.catalog import H200, device
from tilewright.device.links import NETWORK_400, NVLINK_4, Link
from tilewright.distributed.overlap import Costs, Work
from tilewright.distributed.plans import ARRIVING, SHARED, Plan, candidates, chosen, plan_us, ranked

NVLINK = Costs(H200)
LARGE = {True: Work((2048, 2048), 4096, 7168), False: Work((2048, 2048), 2048, 14336)}


def overlapped(gathers: bool, work: Work, costs: Costs) -> float:
    return plan_us(chosen(gathers, work, costs), work, costs)


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_product_never_ends_before_its_data_and_its_tiles(gathers: bool, ranks: int) -> None:
    for link in (NVLINK_4, NETWORK_400):
        costs = Costs(H200, link)
        work = Work((512,) * ranks, 4096, 4096)
        sent = (ranks - 1) * 512 * 4096 * 2 / link.gb_per_s / 1e3
        count, each = costs.tiles(512, work)
        for plan in candidates(gathers):
            assert plan_us(plan, work, costs) >= max(sent, count * each / costs.sms)


@pytest.mark.parametrize("gathers", [True, False])
def test_a_faster_link_is_never_slower(gathers: bool) -> None:
    for plan in candidates(gathers):
        times = [
            plan_us(plan, LARGE[gathers], Costs(H200, replace(NVLINK_4, gb_per_s=rate))) for rate in (25, 100, 400)
        ]
        assert times == sorted(times, reverse=True) and times[0] > times[-1]


def test_large_products_hide_most_of_what_they_wait_for() -> None:
    for gathers, work in LARGE.items():
        alone, in_turn = alone_us(work, NVLINK), in_turn_us(gathers, work, NVLINK)
        assert overlapped(gathers, work, NVLINK) - alone < 0.4 * (in_turn - alone)


def test_few_rows_are_one_product() -> None:
    assert chosen(True, Work((32, 32), 4096, 7168), NVLINK) == Plan("gather exchanged")
    assert chosen(False, Work((32, 32), 2048, 14336), NVLINK) == Plan("scatter exchanged")


def test_over_a_network_data_are_not_hidden() -> None:
    costs = Costs(H200, NETWORK_400)
    assert overlapped(True, LARGE[True], costs) > 1.5 * alone_us(LARGE[True], costs)


def test_uneven_rows() -> None:
    for gathers in (True, False):
        for rows in ((0, 512), (1, 300, 7), (512, 0)):
            work = Work(rows, 256, 512)
            assert overlapped(gathers, work, NVLINK) > 0
            assert plan_us(ARRIVING if gathers else SHARED, work, NVLINK) > 0


def test_a_link_needs_longer_for_more() -> None:
    assert all(isinstance(link, Link) and link.gb_per_s < link.nominal_gb_per_s for link in (NVLINK_4, NETWORK_400))
    assert NVLINK_4.copy_us(0) == NVLINK_4.latency_us < NVLINK_4.copy_us(1 << 20)


@pytest.fixture
def overlap() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import overlap
    finally:
        sys.path.pop(0)
    return overlap


def test_the_model_is_near_what_was_measured(overlap: Any) -> None:
    """Every way of the record, in CUDA graphs; a GPU that has been busy for long is slower than the model says."""
    found = overlap.record(overlap.RECORD)
    costs = Costs(device(found["origin"]["gpu"]))
    for one in found["times"]:
        gathers = one["kind"] == "gather"
        work = overlap.work_of(tuple(one["shape"]), gathers, found["origin"]["ranks"])
        us = {str(plan): plan_us(plan, work, costs) for plan in candidates(gathers)}
        us |= {"alone": alone_us(work, costs), "in turn": in_turn_us(gathers, work, costs)}
        for name in us.keys() & one["graph"].keys():
            assert 0.7 < us[name] / one["graph"][name] < 1.2, (one["shape"], name)


def test_the_chosen_plan_is_near_the_fastest_that_was_measured(overlap: Any) -> None:
    found = overlap.record(overlap.RECORD)
    costs = Costs(device(found["origin"]["gpu"]))
    for one in found["times"]:
        gathers, graph = one["kind"] == "gather", one["graph"]
        plans = ranked(gathers, overlap.work_of(tuple(one["shape"]), gathers, found["origin"]["ranks"]), costs)
        times = [graph[str(plan)] for plan in plans if str(plan) in graph]
        assert times[0] <= 1.15 * min(times), (one["shape"], plans[0])


@pytest.mark.slow
def test_the_page_is_what_the_model_says() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "overlap.py"
    subprocess.run([sys.executable, script, "--check"], check=True)
