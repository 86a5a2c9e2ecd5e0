"""Fits estimated times to sweeps, and writes `src/tilewright/planning/cost/{wgmma,wgmma_fp8,simt,mma}_fit.json`.

    pip install scipy scikit-learn
    python benchmarks/fit_choice.py wgmma sweep.jsonl ... [--older SWEEP ...] [--remembered ESTIMATED ...] [--trees]
        [--further | --leaves] [--check]

wgmma_fp8: products of FP8, of which sweeps may hold others beside them.

For wgmma first the constants of `wgmma_terms`, by least squares of logarithms; then, for each family, trees for what
is left. A plan that is far from the best of its problem weighs less, and so does a problem that is far from its peer.
--trees: the constants stay. --further: a share of what the trees say stays (`_KEPT`), and few more learn the rest: a
fit goes on learning; those of wgmma together with those of its FP8, from sweeps of both. --leaves: trees stay too,
and what their leaves add is learned anew, each pulled to what it was: a choice asks no tree more (record 0095). Where
plans were timed sustained as well, a time is the mean of both. --check: how good the choice is on problems that the
fit has not seen, in five parts of the problems in turn; nothing is written.
--older: sweeps of kernels that have changed since; they weigh less. --remembered: estimates of the shipped fit
(`choice_sweep.py --estimated`) in the place of sweeps that are gone; they weigh less than what was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from named_problems import problem_named, request_of
from sweeps import rows_of_sweep
from winners_of_sweep import both_times

from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import FP8_FORMATS
from tilewright.kernels.columns import Columns
from tilewright.planning.assembly import Request
from tilewright.planning.cost import wgmma_terms
from tilewright.planning.cost.correction import FP8_FIT, Fit, Trees, fitted
from tilewright.planning.cost.launches import Around, Sizes, finishing_seconds, packing_seconds
from tilewright.planning.cost.plans import (
    features,
    problem_features,
)
from tilewright.planning.cost.warp_terms import kernels_timed
from tilewright.planning.cost.wgmma_terms import Constants
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Packing, behind_packing
from tilewright.problem.gemm import Gemm
from tilewright.winners.plan_config import PlanConfig

OUT = Path(__file__).parents[1] / "src" / "tilewright" / "planning" / "cost"

SPEC = device("H200")
"""Of estimates, and of sweeps that do not say where they were measured."""

FAMILY = {"wgmma": "wgmma", FP8_FIT: "wgmma", "simt": "simt", "mma": "mma"}
"""The family of kernels of each fit."""

NOTHING = Fit({})
"""Known before a fit."""

_REMEMBERED_WEIGHS = 0.15
"""An estimate of the fit before, by a time that was measured: in 937 problems of f32 that no fit had seen the choice
was 1.0129 of the best measured plan with 0.3, and 1.0120 with this."""

_OLDER_WEIGHS = 0.4
"""A time of a kernel that has changed since, by one of a kernel of today."""

_OUTLIER = 4.0
"""Times of the best of a problem above which a plan is left out: the host was late, or nobody would run it."""

_TREES: dict[str, Any] = {
    "max_iter": 120, "max_leaf_nodes": 31, "max_depth": 8, "learning_rate": 0.12, "min_samples_leaf": 30,
    "early_stopping": False, "random_state": 0,
}  # fmt: skip


_FURTHER: dict[str, Any] = _TREES | {
    "max_iter": 80, "learning_rate": 0.2, "min_samples_leaf": 8, "l2_regularization": 10.0, "max_features": 0.5,
}  # fmt: skip
"""Of trees behind those of a fit (record 0075)."""

_KEPT = 0.6
"""The share of what a fit adds that stays where more trees go on from it: they learn the rest anew, from plans of
today's kernels. Each fifth of the sizes of 1,950 products judged by the others, wgmma: 1.0316 of the best plan with 80
trees more, 1.0335 with 0.7 and 40; of the first 900, 1.0342 with 0.7 and 60, 1.0376 with all of it and 120, 1.036 by
leaves. By 360 trees from these products alone 1.031, which know nothing of an H100, nor of what was not swept."""

_PULL = 30.0
"""By which leaves that learn anew are held to what they were, in plans of weight 1: of 355 problems, each fifth judged
by leaves that learned from the others, the choice was 1.0256, 1.0250 and 1.0281 of the best plan with 30, 100 and 300,
as against 1.0347 before, and 1.0277 with 40 trees more. Of 266 in mma.sync, which learned from 616 others beside:
1.0418, 1.0508 and 1.0520, as against 1.0546; trees learned anew 1.037, but sweeps of short sums were gone, and
7390 x 213 x 15 ran at 0.47 of cuBLAS by them (record 0108)."""

_SOLVED = 1e-8
"""Of the squares of what is to be solved, what may be left."""


@dataclass(frozen=True)
class Measured:
    """Plans of one problem, or of `count` in a batch, behind one packing. us: microseconds of each on a device, without
    the packing. peer_us: cuBLAS's. weighs: `_REMEMBERED_WEIGHS`, or 1 where they were measured. matters: how much it
    does what the plans take beside each other."""

    name: str
    spec: DeviceSpec
    kind: str
    gemm: Gemm
    count: int
    packing: Packing
    columns: Columns
    us: Any
    peer_us: float | None
    weighs: float
    matters: float

    @property
    def weights(self) -> Any:
        return self.weighs * self.matters * np.clip(self.us.min() / self.us, 0.3, 1.0) ** 4

    @property
    def read(self) -> Gemm:
        return behind_packing(self.gemm, self.kind, self.packing)

    @property
    def sizes(self) -> Sizes:
        return Sizes.of(self.gemm, self.columns, self.packing)


def measured(fit: str, paths: Iterable[Path], weighs: float = 1.0) -> list[Measured]:
    """The plans in sweeps that a fit is of."""
    kind, found = FAMILY[fit], list[Measured]()
    for row, spec in rows_of(paths):
        request = request_of(problem_named(row["p"]))
        gemm, count = request.gemm, count_of(request)
        if kind == "wgmma" and (gemm.dtype in FP8_FORMATS) is not (fit == FP8_FIT):
            continue
        times, peer_us = times_of(row)
        best, ways, rivals = min(times.values()), {}, [peer_us] if peer_us else []
        for one, us in times.items():
            if one.kernel.kind == kind and us <= _OUTLIER * best:
                way = Packing(one.packed, one.transposed, one.tile_multiples)
                ways.setdefault(way, []).append((one.kernel, us))
            elif one.kernel.kind != kind:
                rivals.append(us)
        matters = matters_of(min((us for plans in ways.values() for _, us in plans), default=best), rivals)
        for packing, plans in ways.items():
            if len(plans) > 1:
                columns = Columns.of([kernel for kernel, _ in plans], plans[0][0].columns)
                before = 1e6 * packing_seconds(kind, columns, gemm, spec, packing, count)
                us = np.maximum(np.array([us for _, us in plans]) - before, 1.0)
                of_peer = peer_us, weighs, matters
                found.append(Measured(row["p"], spec, kind, gemm, count, packing, columns, us, *of_peer))
    return found


def times_of(row: dict[str, Any]) -> tuple[dict[PlanConfig, float], float | None]:
    """Microseconds of each plan of a row, and of the peer: in bursts; where some were timed sustained too, what they
    take beside each other is the geometric mean of both."""
    burst = {PlanConfig.from_data(told): us for told, _, us in row["plans"]}
    both = both_times(row)
    if not both:
        return burst, row["cublas"]
    loses = statistics.median(us / burst[plan] for plan, us in both.items())
    times = {plan: both.get(plan, us * loses) / loses for plan, us in burst.items()}
    return times, sqrt(row["cublas"] * row["sustained"]["cuBLAS"][0]) / loses


def matters_of(own_us: float, rivals_us: Sequence[float]) -> float:
    """How much it matters what a family's plans take beside each other: less where the peer, or another family, takes
    much longer or much less. Each fifth of 1,370 problems judged by a fit to the others, f32, H200: aligned ones below
    0.95 of cuBLAS 4.5 % instead of 5.8, the choice 1.025 instead of 1.027 of the best plan.

    >>> matters_of(10.0, []), matters_of(10.0, [20.0]), matters_of(10.0, [20.0, 5.0])
    (1.0, 0.25, 0.25)
    """
    ratio = min(rivals_us, default=own_us) / own_us
    return min(ratio, 1 / ratio) ** 2


def count_of(request: Request) -> int:
    """Problems of a batch."""
    return 1 if request.stack is None else request.stack.count


def rows_of(paths: Iterable[Path]) -> Iterator[tuple[dict[str, Any], DeviceSpec]]:
    """The problems of sweeps whose plans were measured, and on which device."""
    for path in paths:
        spec = SPEC
        for row in rows_of_sweep(path):
            if "origin" in row:
                spec = device(row["origin"]["device"])
            elif row.get("plans"):
                yield row, spec


def estimated(one: Measured, at: Constants | None) -> Any:
    """Seconds of each plan by the terms."""
    return timed(one, at)[0]


def timed(one: Measured, at: Constants | None) -> tuple[Any, Any, Any]:
    """Seconds of each plan by the terms, of which behind the kernel; of kernels of warps what the busiest SM does."""
    c, sizes = one.columns, one.sizes
    reduced = np.broadcast_to(finishing_seconds(c, sizes, one.gemm, one.spec), len(c))
    if one.kind == "wgmma":
        packed = bool(one.packing.packed)
        return reduced + wgmma_terms.timed(c, one.read, one.spec, one.count, at, packed=packed).seconds, reduced, None
    alignment = alignment_of_rows(one.gemm)
    around = Around(one.packing, alignment.a, alignment.b, alignment.c, one.count)
    seconds, busiest = kernels_timed(one.kind, c, one.read, one.spec, around, sizes)
    return reduced + seconds, reduced, busiest


def fit_constants(data: Sequence[Measured]) -> Constants:
    from scipy.optimize import least_squares

    names = [field.name for field in fields(Constants)]
    shipped = wgmma_terms.constants(data[0].gemm.dtype)
    start = np.array([getattr(shipped, name) for name in names])
    low, high = np.zeros(len(names)), 3 * np.abs(start) + 1
    for name in ("dependent", "room", "crowded", "waves", "crowd"):
        low[names.index(name)] = -2.0 if name != "crowd" else -0.3
    for name, least, most in (
        ("mma", 1, 1.5),
        ("boxes", 0, 1),
        ("dram", 0.5, 1),
        ("hidden", 0, 1),
        ("busy", 0.1, 1),
        ("l2", 40, 800),
    ):
        low[names.index(name)], high[names.index(name)] = least, most
    start = np.clip(start, low + 1e-6, high - 1e-6)

    def residuals(values: Any) -> Any:
        at = Constants(*map(float, values))
        return np.concatenate([one.weights * np.log(1e6 * estimated(one, at) / one.us) for one in data])

    scale = np.maximum(np.abs(start), 0.05)
    solved = least_squares(residuals, start, bounds=(low, high), x_scale=scale, loss="soft_l1", f_scale=0.1, max_nfev=6)
    return Constants(*(float(f"{value:.4g}") for value in solved.x))


def table(data: Sequence[Measured], at: Constants | None, before: Fit = NOTHING) -> tuple[Any, Any, Any, Any]:
    """Features, what is left of the logarithms, weights, and the number of the problem of each plan. before: what is
    known of them."""
    x, y, w, group = [], [], [], []
    for number, one in enumerate(data):
        seconds, reduced, busiest = timed(one, at)
        found = features_of(one, seconds, reduced, busiest)
        # What all plans of a problem share would take leaves from what tells them apart: `fit_shared`.
        left = np.log(one.us / (1e6 * seconds)) - known_by(before.trees, found)
        x.append(found)
        y.append(left - np.average(left, weights=one.weights))
        w.append(one.weights)
        group.append(np.full(len(one.us), number))
    return np.concatenate(x), np.concatenate(y), np.concatenate(w), np.concatenate(group)


def features_of(one: Measured, seconds: Any, reduced: Any, busiest: Any) -> Any:
    """(plans, features). The others: as `timed` says."""
    sizes = one.sizes
    lengths = tuple(np.broadcast_to(length, len(seconds)) for length in (sizes.m, sizes.n, sizes.k))
    return features(one.kind, one.columns, one.read, one.spec, lengths, seconds, reduced, busiest, one.count)


def known_by(trees: Trees | None, x: Any) -> Any:
    """Logarithms that trees add for each row of features."""
    return 0.0 if trees is None else trees.logarithms(trees.ranks([*x.T], len(x)))


def fit_trees(x: Any, y: Any, w: Any, options: dict[str, Any] = _TREES) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(**options).fit(x, y, sample_weight=w)


def fit_shared(data: Sequence[Measured], at: Constants | None) -> Any:
    """Trees of what the plans of a problem share."""
    problems = [(one.read, one.count) for one in data]
    return trees_of_problems(problems, shared_left(data, at), [one.weighs for one in data])


def shared_left(data: Sequence[Measured], at: Constants | None, before: Fit = NOTHING) -> list[float]:
    """Of the plans of each problem what is left together. before: what is known of it."""
    found = []
    for one in data:
        seconds, reduced, busiest = timed(one, at)
        left = np.log(one.us / (1e6 * seconds))
        left -= known_by(before.trees, features_of(one, seconds, reduced, busiest))
        of_problem = known_by(before.shared, np.array([problem_features(one.read, one.count)]))
        found.append(float(np.average(left - of_problem, weights=one.weights)))
    return found


def trees_of_problems(problems: Sequence[tuple[Gemm, int]], y: Sequence[float], weights: Sequence[float]) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    options = _TREES | {"max_iter": 40, "max_leaf_nodes": 15, "min_samples_leaf": min(30, max(4, len(y) // 30))}
    x = np.array([problem_features(one, count) for one, count in problems])
    return HistGradientBoostingRegressor(**options).fit(x, np.array(y), sample_weight=np.array(weights))


def judged(data: Sequence[Measured], logarithms: Sequence[Any]) -> str:
    """How good the choice by some estimates is."""
    loss, share = [], []
    for one, told in zip(data, logarithms, strict=True):
        chosen = one.us[int(np.argmin(told))]
        loss.append(chosen / one.us.min())
        share.append(one.peer_us / chosen)
    mean, of_peer = np.exp(np.log(loss).mean()), np.exp(np.log(share).mean())
    return (
        f"{mean:.4f} of the best measured (nine of ten within {np.quantile(loss, 0.9):.3f}, worst {max(loss):.2f}); "
        f"of cuBLAS {of_peer:.4f}, below 0.95 {np.mean(np.array(share) < 0.95):.1%}, least {min(share):.3f}"
    )


def check(data: Sequence[Measured], plain: Sequence[Any], found: tuple[Any, Any, Any, Any], options: Any) -> None:
    """How good the choice is on problems that trees have not seen. plain: logarithms of the estimates without them.
    found: as `table` finds them."""
    x, y, w, _ = found
    check_by(data, plain, found, lambda seen: (fit_trees(x[seen], y[seen], w[seen], options).predict(x), None))


def check_by(data: Sequence[Measured], plain: Sequence[Any], found: tuple[Any, Any, Any, Any], learn: Any) -> None:
    """The same for any way to learn. learn: what it adds to the logarithm of each row, from those that it may see."""
    x, _, _, group = found
    parts = np.array([crc32(sizes_of(one.name).encode()) % 5 for one in data])
    guess = np.zeros(len(x))
    for part in range(5):
        seen = parts[group] != part
        guess[~seen] = learn(seen)[0][~seen]
    told = [told + guess[group == number] for number, told in enumerate(plain)]
    judges = [number for number, one in enumerate(data) if one.peer_us is not None]
    print(f"{len(judges)} problems")
    for what, by in (("before:", plain), ("with it:", told)):
        print(what, judged([data[number] for number in judges], [by[number] for number in judges]))


def sizes_of(name: str) -> str:
    """A problem without its format and orders: those of the same sizes are alike, and are judged together.

    >>> sizes_of("8x64x16 bf16 NT"), sizes_of("7 x 8x64x16 bf16")
    ('8x64x16', '7 x 8x64x16')
    """
    return name[: name.index(" ", name.rindex("x"))]


def told_trees(model: Any) -> dict[str, Any]:
    trees = []
    for (predictor,) in model._predictors:
        nodes = predictor.nodes
        leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
        trees.append(
            {
                "feature": np.where(leaf, 0, nodes["feature_idx"]).tolist(),
                "threshold": [float(f"{value:.6g}") for value in np.where(leaf, 0, nodes["num_threshold"])],
                "left": np.where(leaf, own, nodes["left"]).tolist(),
                "right": np.where(leaf, own, nodes["right"]).tolist(),
                "value": [float(f"{value:.3g}") for value in np.where(leaf, nodes["value"], 0)],
            }
        )
    return {"start": float(f"{float(np.ravel(model._baseline_prediction)[0]):.4g}"), "trees": trees}


def go_further(kind: str, sweeps: Sequence[Path], remembered: Sequence[Path], only_check: bool) -> None:
    """Trees behind what stays of a fit, of wgmma of both of its fits that sweeps have problems of: what they leave is
    alike. A check tells what that share says alone ("before"), then with them."""
    alike = [one for one in ("wgmma", FP8_FIT) if FAMILY[one] == FAMILY[kind]] or [kind]
    data: list[Measured] = []
    plain, tables, fits = [], [], dict[str, tuple[dict[str, Any], list[Measured], Constants | None]]()
    for one in alike:
        of_fit = measured(one, sweeps) + measured(one, remembered, _REMEMBERED_WEIGHS)
        if not of_fit:
            continue
        told, at = kept(told_by(one)), constants_of(one, of_fit)
        trees = Trees.from_json(told)
        x, y, w, group = table(of_fit, at, Fit({}, trees))
        known = known_by(trees, x)
        plain += [np.log(estimated(of, at)) + known[group == number] for number, of in enumerate(of_fit)]
        tables.append((x, y, w, group + len(data)))
        fits[one] = told, of_fit, at
        data += of_fit
    found = tuple(np.concatenate(of) for of in zip(*tables, strict=True))
    if only_check:
        check(data, plain, found, _FURTHER)
        return
    learned = told_trees(fit_trees(*found[:3], _FURTHER))
    for one, (told, of_fit, at) in fits.items():
        write_shared(one, {**told, **behind(told, learned)}, of_fit, at)


def learn_leaves(kind: str, sweeps: Sequence[Path], remembered: Sequence[Path], only_check: bool) -> None:
    """What the leaves of a fit add, learned anew; trees and constants stay."""
    told = told_by(kind)
    data = measured(kind, sweeps) + measured(kind, remembered, _REMEMBERED_WEIGHS)
    trees, at = Trees.from_json(told), constants_of(kind, data)
    x, y, w, group = table(data, at, Fit({}, trees))
    if only_check:
        known = known_by(trees, x)
        plain = [np.log(estimated(of, at)) + known[group == number] for number, of in enumerate(data)]
        check_by(data, plain, (x, y, w, group), lambda seen: leaves_added(told["trees"], x, y, w, seen))
        return
    add_to_leaves(told["trees"], leaves_added(told["trees"], x, y, w)[1])
    write_shared(kind, told, data, at)


def told_by(kind: str) -> dict[str, Any]:
    """The data of the fit that ships."""
    told: dict[str, Any] = json.loads((OUT / f"{kind}_fit.json").read_text(encoding="utf-8"))
    return told


def constants_of(kind: str, data: Sequence[Measured]) -> Constants | None:
    return wgmma_terms.constants(data[0].gemm.dtype) if FAMILY[kind] == "wgmma" else None


def write_shared(kind: str, told: dict[str, Any], data: Sequence[Measured], at: Constants | None) -> None:
    """Writes a fit whose trees learned anew: what all plans of a problem share has moved with them."""
    moved = Fit(told["constants"], Trees.from_json(told), Trees.from_json(told["shared"]))
    left, features = np.array(shared_left(data, at, moved)), [problem_features(one.read, one.count) for one in data]
    weights, shared = np.array([one.weighs for one in data]), told["shared"]["trees"]
    add_to_leaves(shared, leaves_added(shared, np.array(features), left, weights)[1])
    write(OUT / f"{kind}_fit.json", told)


def leaves_added(trees: Sequence[dict[str, Any]], x: Any, y: Any, w: Any, seen: Any = None) -> tuple[Any, list[Any]]:
    """What the leaves that rows of features reach add to each row, and what is added to each node of each tree: of w
    times the squares of what is left of y, and of `_PULL` times those of what is added, the least sum. seen: the rows
    that they learn from; None: all."""
    ends = np.cumsum([0, *(len(tree["value"]) for tree in trees)])
    reached = np.stack([leaf_of(tree, x) + start for tree, start in zip(trees, ends, strict=False)], axis=1)
    mine, weights = (reached, w) if seen is None else (reached[seen], w[seen])

    def summed(rows: Any) -> Any:
        """Of each node, over the rows that reach it."""
        return np.bincount(mine.ravel(), np.repeat(rows, mine.shape[1]), minlength=ends[-1])

    added = np.zeros(ends[-1])
    left = summed(weights * (y if seen is None else y[seen]))
    towards, now = left.copy(), left @ left
    least = _SOLVED * now
    while now > least:  # conjugate gradients
        pulled = summed(weights * towards[mine].sum(axis=1)) + _PULL * towards
        step = now / (towards @ pulled)
        added += step * towards
        left -= step * pulled
        before, now = now, left @ left
        towards = left + now / before * towards
    return added[reached].sum(axis=1), np.split(added, ends[1:-1])


def leaf_of(tree: dict[str, Any], x: Any) -> Any:
    """The node of a tree at which each row of features ends.

    >>> tree = {"feature": [1, 0, 0], "threshold": [2.0, 0, 0], "left": [1, 1, 2], "right": [2, 1, 2]}
    >>> leaf_of(tree, np.array([[0.0, 2.0], [0.0, 2.5]])).tolist()
    [1, 2]
    """
    feature, threshold, left, right = (np.array(tree[name]) for name in ("feature", "threshold", "left", "right"))
    at, rows = np.zeros(len(x), dtype=np.int64), np.arange(len(x))
    while True:
        below = np.where(x[rows, feature[at]] <= threshold[at], left[at], right[at])
        if (below == at).all():
            return at
        at = below


def add_to_leaves(trees: Sequence[dict[str, Any]], added: Sequence[Any]) -> None:
    for tree, more in zip(trees, added, strict=True):
        leaf = np.array(tree["left"]) == np.arange(len(more))
        value = np.where(leaf, np.array(tree["value"]) + more, 0)
        tree["value"] = [float(f"{one:.3g}") for one in value]


def kept(told: dict[str, Any]) -> dict[str, Any]:
    """What of a fit stays where others go on from it."""
    trees = [{**tree, "value": [float(f"{_KEPT * one:.3g}") for one in tree["value"]]} for tree in told["trees"]]
    return {**told, "start": _KEPT * told["start"], "trees": trees}


def behind(told: dict[str, Any], trees: dict[str, Any]) -> dict[str, Any]:
    """The trees of a fit, and others that learned what they leave."""
    return {"start": float(f"{told['start'] + trees['start']:.4g}"), "trees": [*told["trees"], *trees["trees"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(FAMILY))
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--older", type=Path, nargs="*", default=[])
    parser.add_argument("--remembered", type=Path, nargs="*", default=[])
    parser.add_argument("--trees", action="store_true")
    parser.add_argument("--further", action="store_true")
    parser.add_argument("--leaves", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    file = OUT / f"{asked.kind}_fit.json"
    if asked.further or asked.leaves:
        (learn_leaves if asked.leaves else go_further)(asked.kind, asked.sweeps, asked.remembered, asked.check)
        return
    data = measured(asked.kind, asked.sweeps)
    data += measured(asked.kind, asked.older, _OLDER_WEIGHS) + measured(
        asked.kind, asked.remembered, _REMEMBERED_WEIGHS
    )
    print(f"{len(data)} problems, {sum(len(one.us) for one in data)} plans")
    at = None
    if FAMILY[asked.kind] == "wgmma":
        at = wgmma_terms.constants(data[0].gemm.dtype) if asked.trees else fit_constants(data)
    if asked.check:
        check(data, [np.log(estimated(one, at)) for one in data], table(data, at), _TREES)
        return
    told = {"constants": {} if at is None else {field.name: getattr(at, field.name) for field in fields(Constants)}}
    file.write_text(json.dumps({**told, "start": 0.0, "trees": []}), encoding="utf-8")
    fitted.cache_clear()
    x, y, w, _ = table(data, at)
    told |= {"shared": told_trees(fit_shared(data, at))}
    write(file, {**told, **told_trees(fit_trees(x, y, w))})


def write(file: Path, told: dict[str, Any]) -> None:
    """A line for each tree."""
    text = json.dumps(told, separators=(",", ":"))
    file.write_text(text.replace('{"feature"', '\n{"feature"') + "\n", encoding="utf-8")
    print(f"{file.name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
