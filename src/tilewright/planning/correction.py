"""What measurements add to estimated times: regression trees over features of a plan, fitted to sweeps of the H200.

The data of a family are `wgmma_fit.json`, `mma_fit.json`, `simt_fit.json`: constants of its terms, then the trees;
those of wgmma with FP8 operands `wgmma_fp8_fit.json`. `benchmarks/fit_choice.py` writes them. A tree asks at each node
whether a feature is at most a threshold; the logarithm of measured over estimated time is the sum of the leaves that a
plan reaches, and of those that its problem reaches in trees which ask about the problem alone: they decide between
families.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from tilewright.dtypes import FP8_FORMATS, DType

FITTED_FOR = (9, 0)
"""The compute capability on which the plans were measured."""


@dataclass(frozen=True, slots=True)
class Trees:
    """feature, threshold, value: of each node of all trees, one after another. children: of each node the two that
    follow it, the one where the feature is above the threshold first; a leaf follows itself.

    start: what is added for every plan. roots: the first node of each tree. depth: steps from a root to the last leaf.
    """

    start: float
    depth: int
    roots: Any
    feature: Any
    threshold: Any
    children: Any
    value: Any

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Trees:
        trees = told["trees"]
        sizes = [len(tree["value"]) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])

        def nodes(name: str, kind: type, first: Any) -> Any:
            return np.concatenate([np.asarray(tree[name], kind) + at for tree, at in zip(trees, first, strict=True)])

        none = np.zeros(len(trees), dtype=np.int64)
        below, above = nodes("left", np.int64, roots), nodes("right", np.int64, roots)
        return cls(
            *(told["start"], told["depth"], roots),
            *(nodes("feature", np.int64, none), nodes("threshold", np.float64, none)),
            *(np.stack([above, below], axis=1).reshape(-1), nodes("value", np.float64, none)),
        )

    def logarithms(self, features: Any) -> Any:
        """Of measured over estimated time. features: (plans, features)."""
        # One flat array of (trees, plans), and `take` instead of indexing: half the time of the obvious arrays.
        plans, width = features.shape
        at, row = np.repeat(self.roots, plans), np.tile(np.arange(plans) * width, len(self.roots))
        told = np.ascontiguousarray(features).reshape(-1)
        for _ in range(self.depth):
            below = told.take(self.feature.take(at) + row) <= self.threshold.take(at)
            at = self.children.take(2 * at + below)
        return self.start + self.value.take(at).reshape(-1, plans).sum(axis=0)


def stacked(features: Sequence[Any], plans: int) -> Any:
    """Features, each a number or a column, as (plans, features)."""
    found = np.empty((len(features), plans))
    for row, feature in zip(found, features, strict=True):
        row[...] = feature
    return found.T


@dataclass(frozen=True, slots=True)
class Fit:
    """What was fitted: constants by name, trees of what tells plans of a problem apart, trees of what they share."""

    constants: dict[str, float]
    trees: Trees | None = None
    shared: Trees | None = None


def fit_for(kind: str, dtype: DType) -> Fit:
    """The fit for a family that multiplies operands of a format."""
    own = fitted(FP8_FIT) if kind == "wgmma" and dtype in FP8_FORMATS else Fit({})
    return own if own.constants else fitted(kind)


FP8_FIT = "wgmma_fp8"
"""The fit of wgmma with FP8 operands."""


@cache
def fitted(kind: str) -> Fit:
    """The fit that is shipped by a name, of a family or `FP8_FIT`; an empty one where there is none."""
    file = resources.files("tilewright.planning").joinpath(f"{kind}_fit.json")
    if not file.is_file():
        return Fit({})
    told = json.loads(file.read_text(encoding="utf-8"))
    shared = told.get("shared")
    trees, shared = (Trees.from_json(one) if one and one["trees"] else None for one in (told, shared))
    return Fit(told["constants"], trees, shared)
