"""Leaves of a fit that learn anew: each is pulled to what it was, and the trees ask what they asked."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import fit_choice
import numpy as np
import pytest

from tilewright.planning.cost.correction import Trees

ROWS = 60


@pytest.fixture(scope="module")
def told() -> Any:
    """A few trees of the shipped fit."""
    text = resources.files("tilewright.planning.cost").joinpath("wgmma_fit.json").read_text(encoding="utf-8")
    fit = json.loads(text)
    return {"start": fit["start"], "trees": fit["trees"][:20]}


@pytest.fixture(scope="module")
def features(told: Any) -> Any:
    """Rows whose features lie at thresholds of the trees and around them."""
    rng, trees = np.random.default_rng(5), Trees.from_json(told)
    return np.stack([rng.choice([*steps, *(steps + 1e-3), -9.0], ROWS) for steps in trees.thresholds], axis=1)


def test_rows_end_at_the_leaves_whose_values_are_summed(told: Any, features: Any) -> None:
    at_leaves = (np.array(tree["value"])[fit_choice.leaf_of(tree, features)] for tree in told["trees"])
    assert told["start"] + sum(at_leaves) == pytest.approx(fit_choice.known_by(Trees.from_json(told), features))


def test_what_is_added_is_the_least_sum_of_squares(told: Any, features: Any) -> None:
    rng = np.random.default_rng(6)
    y, w = rng.normal(size=ROWS), rng.uniform(0.1, 1.0, ROWS)
    seen = np.arange(ROWS) % 5 > 0
    rows, nodes = fit_choice.leaves_added(told["trees"], features, y, w, seen)

    reached = [fit_choice.leaf_of(tree, features) for tree in told["trees"]]
    assert rows == pytest.approx(sum(added[at] for added, at in zip(nodes, reached, strict=True)))
    left = np.where(seen, w * (y - rows), 0.0)
    for added, at in zip(nodes, reached, strict=True):  # no node has a slope left
        slope = np.bincount(at, left, minlength=len(added))
        assert fit_choice._PULL * added == pytest.approx(slope, abs=1e-3)


def test_only_leaves_change_and_estimates_by_as_much(told: Any, features: Any) -> None:
    rng = np.random.default_rng(7)
    rows, nodes = fit_choice.leaves_added(told["trees"], features, rng.normal(size=ROWS), np.ones(ROWS))
    learned = json.loads(json.dumps(told))
    fit_choice.add_to_leaves(learned["trees"], nodes)

    without = [{key: tree[key] for key in ("feature", "threshold", "left", "right")} for tree in told["trees"]]
    assert [{key: tree[key] for key in one} for one, tree in zip(without, learned["trees"], strict=True)] == without
    before, after = (fit_choice.known_by(Trees.from_json(one), features) for one in (told, learned))
    assert after - before == pytest.approx(rows, abs=1e-3)  # values are written with three digits


def test_of_a_fit_that_goes_on_a_share_stays(told: Any, features: Any) -> None:
    before, after = (fit_choice.known_by(Trees.from_json(one), features) for one in (told, fit_choice.kept(told)))
    assert np.abs(before).max() > 0.01
    assert after == pytest.approx(fit_choice._KEPT * before, abs=2e-3)


def test_problems_of_the_same_sizes_are_judged_together() -> None:
    names = ("8x64x16 bf16 NT", "8x64x16 tf32 TN", "7 x 8x64x16 f16", "7 x 8x64x16 bf16", "8x64x16 e4m3 NT row fast")
    assert [fit_choice.sizes_of(name) for name in names] == ["8x64x16"] * 2 + ["7 x 8x64x16"] * 2 + ["8x64x16"]
