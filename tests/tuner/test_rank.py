"""How well predictions put plans in order, held to what an H200 measured; and what they count."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.ladders import find_rung
from tilewright.ladders.hopper.r9_best import walks
from tilewright.problem.gemm import Gemm, Order
from tilewright.report.validation import spearman
from tilewright.tuner.encoding import Encoding
from tilewright.tuner.rank import look, predicted_us, spread
from tilewright.tuner.space import Space, make_space
from tilewright.winners.choice import THIN, Choice

H200 = device("H200")
RECORDED = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.cross_section("rung", every=2)
@pytest.mark.parametrize(("rung", "least"), [("worklog/9", 0.75), ("worklog/best", 0.35)])
def test_predictions_put_recorded_points_in_order(rung: str, least: float) -> None:
    file = RECORDED / f"search_{rung.replace('/', '_')}.jsonl"
    trials = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    measured = [trial for trial in trials if trial["median_us"]]
    some = random.Random(0).sample(measured, 30)
    space = Space(Gemm(4096, 4096, 4096), H200, [find_rung(rung)])
    predicted = [predicted_us(space, Choice(rung, trial["point"])) for trial in some]
    assert spearman([trial["median_us"] for trial in some], predicted) > least


def test_a_plan_is_predicted_with_its_copies_and_the_sum_of_its_parts() -> None:
    gemm = Gemm(512, 512, 16384, BF16, out=BF16)
    space = Space(gemm, H200, [])
    point = {"m": 128, "n": 128, "groups": 2, "stages": 6}
    alone, shared = (predicted_us(space, Choice("hopper/4", point, splits)) for splits in (1, 8))
    assert shared < alone / 2  # 16 tiles for 132 SMs
    copied = predicted_us(space, Choice("hopper/4", point, 8, frozenset("AB")))
    assert 2 * 3.0 < copied - shared < 2 * 3.0 + 4 * 512 * 16384 * 2 / 4.2e6 + 1


def test_the_space_holds_what_the_library_can_run_beside_points_of_rungs() -> None:
    found = make_space(Gemm(16, 2048, 4096), H200).candidates
    assert {choice.splits for choice in found if choice.rung == THIN} >= {1, 2, 16}
    assert any(choice.splits > 1 for choice in found if choice.rung == "worklog/best")


def test_where_rows_are_narrow_copies_before_are_held_against_narrow_copies() -> None:
    space = make_space(Gemm(512, 512, 511, BF16, out=BF16), H200)  # C's rows are wide: what is narrow is A
    pads = {(choice.rung, choice.pads) for choice in space.candidates}
    assert ("ampere/6", frozenset()) in pads and ("ampere/6", frozenset("A")) in pads
    assert ("hopper/best", frozenset()) not in pads and ("hopper/best", frozenset("A")) in pads
    for choice in space.candidates[:: len(space.candidates) // 10]:
        assert space.is_legal(choice)


def test_b_by_columns_is_tried_as_it_lies_and_turned() -> None:
    space = make_space(Gemm(512, 512, 512, b=Order.COL), H200, rung="worklog/best")
    ways = Counter((choice.pads, choice.turned) for choice in space.candidates)
    assert set(ways) == {(frozenset(), frozenset()), (frozenset("B"), frozenset("B"))}
    assert len(set(ways.values())) == 1
    assert {choice.turned for choice in spread(space.candidates, 24)} == {frozenset(), frozenset("B")}
    turned = next(choice for choice in space.candidates if choice.turned)
    looked = [look(space, one) for one in (turned, replace(turned, pads=frozenset(), turned=frozenset()))]
    assert not any(one.refusal for one in looked) and looked[0].kind != looked[1].kind
    assert len({tuple(Encoding.of(space.candidates).params(one.candidate).values()) for one in looked}) == 2


def test_what_is_tried_split_is_legal_also_in_persistent_kernels() -> None:
    space = make_space(Gemm(512, 512, 16384, BF16, out=BF16), H200)
    split = [choice for choice in space.candidates if choice.splits > 1]
    first = {choice.rung: choice for choice in reversed(split)}
    assert {"hopper/4", "hopper/5", "hopper/best", "ampere/6"} <= first.keys()
    best = [choice for choice in split if choice.rung == "hopper/best"]
    assert all(not walks(choice.point) for choice in best)
    assert all(map(space.is_legal, (*first.values(), *best[:8])))
