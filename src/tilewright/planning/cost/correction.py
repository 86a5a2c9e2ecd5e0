"""What measurements add to estimated times: a small network over features of plans, learned from sweeps of two GPUs.

The data of a family are `wgmma_fit.json`, `mma_fit.json`, `simt_fit.json`, those of wgmma with FP8 operands
`wgmma_fp8_fit.json`: constants of its terms, then knots and layers. `benchmarks/fit_choice.py` writes them. Knots of a
feature make ramps, which rise from 0 to 1 between two of them: so a network knows steps as well as slopes, and of
values beyond the last knot no more than of the knot. Two hidden layers give the logarithm of measured over estimated
time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tilewright.dtypes import FP8_FORMATS, DType

FITTED_FOR = (9, 0)
"""The compute capability on which the plans were measured."""

_DECIMALS = 9
"""Of a logarithm. Where plans have the same features they have the same estimate, on any machine: products of matrices
are not summed in one order everywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """feature, start, per_width: of each ramp the feature that it rises along, where it begins, and the inverse of its
    width. layers: of each layer the weights, (inputs, outputs), and what is added."""

    feature: Any
    start: Any
    per_width: Any
    layers: tuple[tuple[Any, Any], ...]

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Network:
        feature, start, end = (np.array(of) for of in zip(*ramps_of(told["knots"]), strict=True))
        layers = tuple((np.array(one["weights"], float), np.array(one["bias"], float)) for one in told["layers"])
        return cls(feature, start, 1.0 / (end - start), layers)

    def ramps(self, features: Any) -> Any:
        """How far each plan is along each ramp, from 0 to 1, (plans, ramps). features: (plans, features)."""
        along = features.take(self.feature, axis=1)
        along -= self.start
        along *= self.per_width
        return along.clip(0.0, 1.0, out=along)

    def logarithms(self, features: Any) -> Any:
        """Of measured over estimated time of each plan. features: (plans, features)."""
        return self.said(features)[:, 0].round(_DECIMALS)

    def said(self, features: Any) -> Any:
        """What the last layer gives, (plans, outputs). features: (plans, features)."""
        values = self.ramps(features)
        for number, (weights, bias) in enumerate(self.layers):
            if number:
                values = silu(values)
            values = values @ weights
            values += bias
        return values


def ramps_of(knots: Sequence[Sequence[float]]) -> list[tuple[int, float, float]]:
    """The feature of each ramp, and where it begins and ends: between two knots each, then from the first to the last
    of each feature that has more than two.

    >>> ramps_of([[0.0, 1.0], [], [2.0, 3.0, 8.0]])
    [(0, 0.0, 1.0), (2, 2.0, 3.0), (2, 3.0, 8.0), (2, 2.0, 8.0)]
    """
    steps = [(number, *ends) for number, of in enumerate(knots) for ends in pairwise(of)]
    whole = [(number, of[0], of[-1]) for number, of in enumerate(knots) if len(of) > 2]
    return [*steps, *whole]


def silu(values: Any) -> Any:
    """values / (1 + exp(-values)), in their place."""
    below = np.exp(-values)
    below += 1.0
    values /= below
    return values


def stacked(features: Sequence[Any], plans: int) -> Any:
    """Features, each a number or a column, as (plans, features)."""
    found = np.empty((plans, len(features)))
    for column, feature in zip(found.T, features, strict=True):
        column[...] = feature
    return found


class FirstCut(NamedTuple):
    """Networks that know a kernel, and a problem: of `first_cut`."""

    kernel: Network
    problem: Network


@dataclass(frozen=True, slots=True)
class Fit:
    """What was fitted: constants by name, a network of what tells plans of a problem apart, one of what they share; and
    of wgmma those that say which kernels are worth an estimate."""

    constants: dict[str, float]
    network: Network | None = None
    shared: Network | None = None
    first: FirstCut | None = None


def fit_for(kind: str, dtype: DType) -> Fit:
    """The fit for a family that multiplies operands of a format."""
    own = kind == "wgmma" and dtype in FP8_FORMATS and bool(fitted(FP8_FIT).constants)
    return fitted(FP8_FIT if own else kind)


FP8_FIT = "wgmma_fp8"
"""The fit of wgmma with FP8 operands."""


@cache
def fitted(kind: str) -> Fit:
    """The fit that is shipped by a name, of a family or `FP8_FIT`; an empty one where there is none."""
    file = resources.files("tilewright.planning.cost").joinpath(f"{kind}_fit.json")
    if not file.is_file():
        return Fit({})
    told = json.loads(file.read_text(encoding="utf-8"))
    names = ("network", "shared", "kernel", "problem")
    network, shared, kernel, problem = (Network.from_json(told[name]) if name in told else None for name in names)
    first = None if kernel is None or problem is None else FirstCut(kernel, problem)
    return Fit(told["constants"], network, shared, first)
