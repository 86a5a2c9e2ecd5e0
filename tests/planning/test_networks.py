"""Networks over ramps of features: what one says is what its layers say one unit after another, whatever the
features; and plans with the same features have the same estimate."""

from __future__ import annotations

import json
from importlib import resources
from math import exp, isclose
from typing import Any

import numpy as np
import pytest

from tilewright.planning.cost.correction import Network, fitted, ramps_of, stacked

FITS = ("wgmma", "wgmma_fp8", "mma", "simt")


def told_of(name: str, part: str) -> dict[str, Any]:
    text = resources.files("tilewright.planning.cost").joinpath(f"{name}_fit.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)[part]
    return found


def said(told: dict[str, Any], features: list[float]) -> float:
    """What a network says of one plan, unit by unit."""
    values = [min(1.0, max(0.0, (features[at] - low) / (high - low))) for at, low, high in ramps_of(told["knots"])]
    for number, layer in enumerate(told["layers"]):
        if number:
            values = [one / (1 + exp(-one)) for one in values]
        columns = zip(*layer["weights"], strict=True)
        values = [
            sum(weight * one for weight, one in zip(column, values, strict=True)) + bias
            for column, bias in zip(columns, layer["bias"], strict=True)
        ]
    (found,) = values
    return found


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("part", ["network", "shared"])
def test_what_a_network_says_unit_by_unit(name: str, part: str) -> None:
    told, network = told_of(name, part), getattr(fitted(name), part)
    rng, plans = np.random.default_rng(3), 7
    # At knots, between them, and outside of all.
    features = [
        rng.choice([*of, *np.convolve(of, [0.5, 0.5], "valid"), of[0] - 1, of[-1] + 1] if of else [0.0, 9.0], plans)
        for of in told["knots"]
    ]
    found = network.logarithms(np.array(features).T)
    for plan in range(plans):
        assert isclose(found[plan], said(told, [column[plan] for column in features]), abs_tol=2e-9)
    assert len({*found.tolist()}) > 1


@pytest.mark.parametrize("name", FITS)
def test_plans_with_the_same_features_have_the_same_estimate_wherever_they_stand(name: str) -> None:
    network = fitted(name).network
    assert network is not None
    knots = told_of(name, "network")["knots"]
    one = np.array([0.3 * of[0] + 0.7 * of[-1] if of else 0.0 for of in knots])
    for count in (1, 2, 3, 5, 31, 192, 193):
        found = network.logarithms(np.repeat(one[None], count, axis=0))
        assert len({*found.tolist()}) == 1 and found[0] == network.logarithms(one[None])[0]


def test_features_beyond_the_last_knot_say_no_more_than_it_does() -> None:
    layers = [{"weights": [[1.0], [2.0], [4.0]], "bias": [8.0]}]
    network = Network.from_json({"knots": [[], [0.0, 1.0, 3.0]], "layers": layers})
    asked = np.array([[9.0, -5.0], [9.0, 0.5], [9.0, 2.0], [9.0, 3.0], [9.0, 1e30]])
    assert network.logarithms(asked) == pytest.approx([8, 8.5 + 4 / 6, 10 + 8 / 3, 15, 15])


def test_numbers_and_columns_are_stacked() -> None:
    found = stacked((np.array([1, 2]), 3.5, np.array([True, False])), 2)
    assert found.tolist() == [[1.0, 3.5, 1.0], [2.0, 3.5, 0.0]]
