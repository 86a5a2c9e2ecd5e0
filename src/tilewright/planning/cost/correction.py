"""What measurements add to estimated times: regression trees over features of plans, fitted to sweeps of two GPUs.

The data of a family are `wgmma_fit.json`, `mma_fit.json`, `simt_fit.json`: constants of its terms, then the trees;
those of wgmma with FP8 operands `wgmma_fp8_fit.json`. `benchmarks/fit_choice.py` writes them. A tree asks at each node
whether a feature is at most a threshold; the logarithm of measured over estimated time is the sum of the leaves that a
plan reaches, and of those that its problem reaches in trees which ask about the problem alone: they decide between
families.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from tilewright.dtypes import FP8_FORMATS, DType
from tilewright.kernels.columns import Columns, distinct

FITTED_FOR = (9, 0)
"""The compute capability on which the plans were measured."""


_LEAVES = 32
"""Of a tree, at most: a bit of a number for each."""


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """start: what is added for every plan. thresholds, listed: of each feature, ascending, all that trees ask about.

    masks: a row for each feature and number of its thresholds that a value exceeds, (rows, trees): which leaves, as
    bits, the comparisons of this feature leave to a tree. first: the row of each feature that exceeds none. values: of
    each leaf of each tree, from left to right; leaves: 1023 less than where those of each tree begin. The leaf that a
    plan reaches is the first that no feature takes away.
    """

    start: float
    thresholds: tuple[Any, ...]
    listed: tuple[list[float], ...]
    first: Any
    masks: Any
    values: Any
    leaves: Any

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Trees:
        trees = told["trees"]
        nodes = [(number, *_nodes_of(tree)) for number, tree in enumerate(trees)]
        feature, threshold, lost, owner = (
            np.concatenate(of)
            for of in zip(*((f, t, lost, np.full(len(f), tree)) for tree, f, t, lost, _ in nodes), strict=True)
        )
        values = np.zeros((len(trees), _LEAVES))
        for number, *_, leaves in nodes:
            values[number, : len(leaves)] = leaves
        thresholds, tables = [], []
        for number in range(int(feature.max()) + 1):
            mine = feature == number
            steps = distinct(threshold[mine])
            place = steps.searchsorted(threshold[mine])
            rows = np.full((len(steps) + 1, len(trees)), 2**_LEAVES - 1, dtype=np.uint32)
            np.bitwise_and.at(rows, (place + 1, owner[mine]), ~lost[mine])
            thresholds.append(steps)
            tables.append(np.bitwise_and.accumulate(rows, axis=0))
        first = np.cumsum([0, *(len(table) for table in tables[:-1])])
        listed = tuple(steps.tolist() for steps in thresholds)
        leaves = np.arange(-1023, values.size - 1023, _LEAVES)
        return cls(told["start"], tuple(thresholds), listed, first, np.concatenate(tables), values, leaves)

    def ranks(self, features: Sequence[Any], plans: int, at: int = 0) -> Any:
        """The rows of `masks` of some features, each a number or a column, (features, plans). at: the number of the
        first of them. No tree asks about those behind the last one."""
        known = self.thresholds[at : at + len(features)]
        found = np.empty((len(known), plans), dtype=np.int64)
        for number, (steps, feature) in enumerate(zip(known, features, strict=False)):
            if isinstance(feature, np.ndarray):
                found[number] = steps.searchsorted(feature)
            else:
                found[number] = bisect_left(self.listed[at + number], feature)
        found += self.first[at : at + len(known), None]
        return found

    def logarithm(self, features: Sequence[float]) -> float:
        """Of measured over estimated time of one plan, by all features."""
        ranks = [bisect_left(steps, one) for steps, one in zip(self.listed, features, strict=False)]
        left = np.bitwise_and.reduce(self.masks.take(self.first + ranks, axis=0), axis=0)
        return float(self._sums(left[None])[0])

    def logarithms(self, ranks: Any, left: Any = None) -> Any:
        """Of measured over estimated time, by the ranks of all features. left: what those before leave, as `left`."""
        own = self.left(ranks)
        return self._sums(own if left is None else np.bitwise_and(left, own, out=own))

    def left(self, ranks: Any) -> Any:
        """The leaves that some features leave to each plan, by their ranks, as `masks`, (plans, trees)."""
        alike = (ranks == ranks[:, :1]).all(axis=1)  # what all plans share, such as sizes, is asked once
        shared = np.bitwise_and.reduce(self.masks.take(ranks[alike, 0], axis=0), axis=0)
        left = np.repeat(shared[None], ranks.shape[1], axis=0)
        for rows in ranks[~alike]:
            left &= self.masks.take(rows, axis=0)
        return left

    def left_by_class(
        self, c: Columns, key: tuple[Hashable, ...], features: Callable[[Columns], Sequence[Any]]
    ) -> tuple[Any, int]:
        """What the first features, which no size changes, leave to kernels, as `left`; and how many these are.
        key: what they depend on beside the kernels."""
        if c.table is None or c.rows is None:
            told = features(c)
            return self.left(self.ranks(told, len(c))), len(told)
        ranks = c.table.known((self, *key), lambda kept: self.ranks(features(kept), len(kept)))
        kernels = {*c.rows.tolist()}
        if 2 * len(kernels) > len(c):
            return self.left(ranks.take(c.rows, axis=1)), len(ranks)
        rows = np.array(sorted(kernels))  # plans of one kernel share them
        return self.left(ranks.take(rows, axis=1)).take(rows.searchsorted(c.rows), axis=0), len(ranks)

    def _sums(self, left: Any) -> Any:
        """Of the leaves that plans reach. left: those that no feature takes away, as `masks`, (plans, trees)."""
        leaf = (left & -left).astype(np.float64).view(np.int64) >> 52  # the exponent of the lowest bit, and 1023
        leaf += self.leaves
        # Along the trees of each plan: the sum of one does not depend on the others.
        return self.start + self.values.take(leaf).sum(axis=1)


def _nodes_of(tree: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Of each inner node of a tree the feature, the threshold, and the leaves, as bits, that a value above it cannot
    reach; then the values of all leaves, from left to right. Nodes stand in the order of a walk, left before right."""
    left, right = np.asarray(tree["left"], np.int64), np.asarray(tree["right"], np.int64)
    leaf = left == np.arange(len(left))
    inner = np.flatnonzero(~leaf)
    before = (np.cumsum(leaf) - leaf).astype(np.uint64)
    one = np.uint64(1)
    lost = (one << before[right[inner]]) - (one << before[left[inner]])
    feature, threshold, value = (np.asarray(tree[name]) for name in ("feature", "threshold", "value"))
    return feature[inner], threshold[inner].astype(np.float64), lost.astype(np.uint32), value[leaf]


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
    shared = told.get("shared")
    trees, shared = (Trees.from_json(one) if one and one["trees"] else None for one in (told, shared))
    return Fit(told["constants"], trees, shared)
