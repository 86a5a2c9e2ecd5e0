"""Regression trees by masks of leaves: the leaf that a walk from the root reaches, whatever the features."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import numpy as np
import pytest

from tilewright.planning.cost.correction import fitted


def walked(tree: dict[str, Any], features: Any) -> float:
    """The value of the leaf that a plan reaches."""
    at = 0
    while tree["left"][at] != at:
        below = features[tree["feature"][at]] <= tree["threshold"][at]
        at = tree["left" if below else "right"][at]
    return float(tree["value"][at])


@pytest.mark.parametrize("name", ["wgmma", "wgmma_fp8", "mma", "simt"])
@pytest.mark.parametrize("part", ["trees", "shared"])
def test_the_sum_of_the_leaves_that_walks_reach(name: str, part: str) -> None:
    told = json.loads(
        resources.files("tilewright.planning.cost").joinpath(f"{name}_fit.json").read_text(encoding="utf-8")
    )
    told = told if part == "trees" else told["shared"]
    trees = getattr(fitted(name), part)
    rng, plans = np.random.default_rng(3), 7
    # At a threshold, or between two: where one comparison decides.
    features = [
        rng.choice([*steps, *(steps + 1e-9), -np.inf, np.inf, np.nan] if len(steps) else [0.0], plans)
        for steps in trees.thresholds
    ]
    ranks = trees.ranks([*features, np.zeros(plans)], plans)
    found = trees.logarithms(ranks)
    for plan in range(plans):
        alone = trees.logarithms(ranks[:, [plan]])  # where all plans share every feature
        assert alone == pytest.approx(found[[plan]], abs=1e-12)
        own = [float(column[plan]) for column in features]
        assert np.isnan(own).any() or trees.logarithm(own) == alone[0]
        total = sum(walked(tree, [column[plan] for column in features]) for tree in told["trees"])
        assert found[plan] == pytest.approx(told["start"] + total, abs=1e-9)


def test_ranks_of_parts_of_the_features_are_those_of_all() -> None:
    trees = fitted("wgmma").trees
    assert trees is not None
    values = [float(np.mean(steps)) if len(steps) else 0.0 for steps in trees.thresholds]
    apart = np.concatenate([trees.ranks(values[:20], 3), trees.ranks(values[20:], 3, 20)])
    assert np.array_equal(apart, trees.ranks(values, 3))
    assert np.array_equal(apart, trees.ranks([np.full(3, value) for value in values], 3))
