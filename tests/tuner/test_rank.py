"""How well the cost model puts plans in order, held to what an H200 measured; and what it counts."""

from __future__ import annotations

import json
import random
from pathlib import Path

from validation import spearman

from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.ladders.worklog_points import config_at
from tilewright.planning.packing import Alignment
from tilewright.planning.ranking import estimate_us
from tilewright.problem.gemm import Gemm
from tilewright.winners.plan_config import PlanConfig

H200, ALIGNED = device("H200"), Alignment(16, 16, 16)
RECORDED = Path(__file__).parents[2] / "benchmarks" / "results"


def test_estimates_put_recorded_points_in_order() -> None:
    file = RECORDED / "search_worklog_best.jsonl"
    trials = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    some = random.Random(0).sample([trial for trial in trials if trial["median_us"]], 60)
    gemm = Gemm(4096, 4096, 4096)
    plans = [PlanConfig(config_at(trial["point"])) for trial in some]
    predicted = [estimate_us(plan, gemm, H200, ALIGNED) for plan in plans]
    assert spearman([trial["median_us"] for trial in some], predicted) > 0.35


def test_a_plan_is_estimated_with_its_packing_and_the_reduction_of_split_k() -> None:
    gemm = Gemm(512, 512, 16384, BF16, out=BF16)
    kernel = WgmmaConfig((128, 128, 64), stages=6, persistent=False)
    alone, shared = (estimate_us(PlanConfig(kernel.with_split_k(n)), gemm, H200, ALIGNED) for n in (1, 8))
    assert shared < alone / 2  # 16 tiles for 132 SMs
    packed = estimate_us(PlanConfig(kernel.with_split_k(8), frozenset("AB")), gemm, H200, ALIGNED)
    assert 2.0 + 3.0 < packed - shared < 3.0 + 3.0 + 4 * 512 * 16384 * 2 / 4.2e6 + 1  # one launch for both
