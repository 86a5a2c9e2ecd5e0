"""Fits estimated times to sweeps, and writes `src/tilewright/planning/cost/{wgmma,wgmma_fp8,simt,mma}_fit.json`.

    pip install scipy torch
    python benchmarks/fit_choice.py wgmma sweep.jsonl ... [--older SWEEP ...] [--drawn N] [--constants] [--check]

wgmma_fp8: products of FP8, of which sweeps may hold others beside them.

A network learns what the terms leave of measured times (`planning.cost.correction`). Several large ones learn from the
plans of sweeps; what they say together of plans near the best of --drawn problems, whose times nobody measured, teaches
the small one that is written (record 0111). A plan that is far from the best of its problem weighs less, and so does a
problem that is far from its peer. Where plans were timed sustained as well, a time is the mean of both.

--remembered: of sweeps that are gone, what the shipped fit says of the drawn problems weighs so much beside a time that
was measured. --constants: those of `wgmma_terms` are fitted first, by least squares of logarithms. --check: how good
the choice is on problems that the fit has not seen, in five parts of the sizes in turn; nothing is written. --older:
sweeps of kernels that have changed since; they weigh less.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, log, sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from named_problems import problem_named, request_of
from networks import OfProblem, Rows, School, fit_of, knots_of, learn
from sweeps import rows_of_sweep
from winners_of_sweep import both_times

from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import FP8_FORMATS
from tilewright.kernels.columns import Columns
from tilewright.planning.assembly import Request, multiplied_on
from tilewright.planning.cost import plans, wgmma_terms
from tilewright.planning.cost.correction import FP8_FIT, fit_for, fitted
from tilewright.planning.cost.launches import Around, Sizes, finishing_seconds, packing_seconds
from tilewright.planning.cost.wgmma_terms import Constants
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Packing, behind_packing
from tilewright.planning.ranking import ranked, whole_space
from tilewright.problem.gemm import Gemm
from tilewright.suite.stacks import drawn_batched
from tilewright.units import round_up
from tilewright.winners.plan_config import PlanConfig

OUT = Path(__file__).parents[1] / "src" / "tilewright" / "planning" / "cost"

SPEC = device("H200")
"""Of estimates, and of sweeps that do not say where they were measured."""

FAMILY = {"wgmma": "wgmma", FP8_FIT: "wgmma", "simt": "simt", "mma": "mma"}
"""The family of kernels of each fit."""

_TENSOR = ("bf16", "f16", "tf32", "tf32")
FORMATS = {"wgmma": _TENSOR, FP8_FIT: ("e4m3",), "simt": ("f32",), "mma": _TENSOR}
"""Of drawn problems."""

DEVICES = ("H200", "H200", "H100")
"""Of drawn problems in turn."""

_NEAR, _DRAWN, _REMEMBERED = 320, 56, 16
"""Plans of a drawn problem: so many of the least estimates, of which so many are drawn; how many of these stand for
sweeps that are gone."""

_WHOLE, _NEAR_OF_WHOLE = 20, 3000
"""One in so many drawn problems has plans of the whole space, so many of the least estimates. Without them networks of
mma.sync and SIMT kernels put recorded points of a search in no order (tests/tuner/test_rank.py)."""

_REMEMBERED_WEIGHS = 0.15
"""An estimate of the fit before, by a time that was measured: in 937 problems of f32 that no fit had seen the choice
was 1.0129 of the best measured plan with 0.3, and 1.0120 with this."""

_OLDER_WEIGHS = 0.4
"""A time of a kernel that has changed since, by one of a kernel of today."""

_OUTLIER = 4.0
"""Times of the best of a problem above which a plan is left out: the host was late, or nobody would run it."""


@dataclass(frozen=True)
class Measured:
    """Plans of one problem, or of `count` in a batch: kernels behind each packing, or one (`plans.BY_PACKING`).

    us: microseconds of each on a device, one table behind the other. peer_us: cuBLAS's. weighs: `_OLDER_WEIGHS`, or 1.
    matters: `matters_of`.
    """

    name: str
    spec: DeviceSpec
    kind: str
    gemm: Gemm
    count: int
    tables: tuple[tuple[Packing, Columns], ...]
    us: Any
    peer_us: float | None
    weighs: float
    matters: float

    @property
    def weights(self) -> Any:
        """Of plans: less where others are faster."""
        return self.weighs * self.matters * np.clip(self.us.min() / self.us, 0.3, 1.0) ** 4

    @property
    def estimates(self) -> list[plans.Estimate]:
        """Of each table."""
        lie = alignment_of_rows(self.gemm)
        around = (Around(way, lie.a, lie.b, lie.c, self.count) for way, _ in self.tables)
        each = zip(self.tables, around, strict=True)
        return [plans.estimate(self.kind, columns, self.gemm, self.spec, of) for (_, columns), of in each]

    @property
    def seconds(self) -> Any:
        """Of each plan, by the terms."""
        return np.concatenate([one.launches for one in self.estimates])


def measured(fit: str, paths: Iterable[Path], weighs: float = 1.0) -> list[Measured]:
    """The plans in sweeps that a fit is of."""
    kind, found = FAMILY[fit], list[Measured]()
    for row, spec in rows_of(paths):
        request = request_of(problem_named(row["p"]))
        gemm, count = request.gemm, count_of(request)
        if kind == "wgmma" and (gemm.dtype in FP8_FORMATS) is not (fit == FP8_FIT):
            continue
        times, peer_us = times_of(row)
        best, ways, rivals = min(times.values()), {}, [peer_us] if peer_us and kind == "simt" else []
        for one, us in times.items():
            if one.kernel.kind == kind and us <= _OUTLIER * best:
                way = Packing(one.packed, one.transposed, one.tile_multiples)
                ways.setdefault(way, []).append((one.kernel, us))
            elif one.kernel.kind != kind:
                rivals.append(us)
        matters = matters_of(min((us for timed in ways.values() for _, us in timed), default=best), rivals)
        alone = [[one] for one in ways.items()]
        for together in alone if kind in plans.BY_PACKING else [[*ways.items()]]:
            us = np.array([us for _, timed in together for _, us in timed])
            if len(us) > 1:
                tables = tuple((way, columns_of([kernel for kernel, _ in timed])) for way, timed in together)
                found.append(Measured(row["p"], spec, kind, gemm, count, tables, us, peer_us, weighs, matters))
    return found


def columns_of(kernels: Sequence[Any]) -> Columns:
    """Kernels of one family."""
    return Columns.of(kernels, kernels[0].columns)


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
    """How much it matters what a family's plans take beside each other: less where another family takes much longer or
    much less; of FMA kernels also where the peer does. Each fifth of 1,370 problems judged by a fit to the others, f32,
    H200: aligned ones below 0.95 of cuBLAS 4.5 % instead of 5.8, the choice 1.025 instead of 1.027 of the best plan.
    Of kernels of tensor cores, half of whose problems are 1.5 times as fast as the peer, it wins nothing (record 0113).

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


def estimated(one: Measured, at: Constants) -> Any:
    """Seconds of each plan of wgmma by the terms with some constants."""
    found = []
    for way, c in one.tables:
        read = behind_packing(one.gemm, one.kind, way)
        timed = wgmma_terms.timed(c, read, one.spec, one.count, at, packed=bool(way.packed))
        before = packing_seconds(one.kind, c, one.gemm, one.spec, way, one.count)
        behind = finishing_seconds(c, Sizes.of(one.gemm, c, way), one.gemm, one.spec)
        found.append(before + timed.seconds + behind)
    return np.concatenate(found)


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


def rows_of_plans(one: Measured) -> OfProblem:
    """What a network learns from the plans of a problem."""
    seconds = one.seconds
    finite = np.isfinite(seconds)
    y = np.log(one.us[finite] / (1e6 * seconds[finite]))
    estimates = one.estimates
    x = [features_of(one.kind, estimate, one.spec, one.count) for estimate in estimates]
    about = plans.problem_features(plans.that_share(one.kind, one.gemm, estimates[0].read), one.count)
    return OfProblem(np.concatenate(x), y, one.weights[finite], about)


def features_of(kind: str, estimate: plans.Estimate, spec: DeviceSpec, count: int) -> Any:
    """Of the plans of a table whose estimates are finite."""
    return plans.features(kind, estimate, np.flatnonzero(np.isfinite(estimate.launches)), spec, count)


def drawn_plans(fit: str, count: int, seed: int) -> Rows:
    """Plans near the best of drawn problems, and what the fit that ships says of them."""
    rng, found = random.Random(seed), list[OfProblem]()
    for number in range(count):
        problem, spec = drawn_problem(fit, rng), device(DEVICES[number % len(DEVICES)])
        found += [*plans_near(fit, problem, spec, rng, whole=number % _WHOLE == 0)]
    return Rows.of(found)


def plans_near(fit: str, name: str, spec: DeviceSpec, rng: random.Random, *, whole: bool) -> Iterator[OfProblem]:
    """As `rows_of_plans`, of plans near the best behind each packing, if there are any; whole: of all legal ones, which
    tuners order."""
    request, kind = request_of(problem_named(name)), FAMILY[fit]
    gemm, alignment = multiplied_on(spec, request.gemm), request.alignment
    around_it, count = {"stack": request.stack, "promote_every": request.promote_every}, count_of(request)
    if whole:
        found, most = whole_space(gemm, spec, alignment, family=kind, **around_it), _NEAR_OF_WHOLE
    else:
        found, most = ranked(gemm, spec, alignment, corrected=_NEAR, **around_it), _NEAR
    network, told = fit_for(kind, gemm.dtype).network, list[OfProblem]()
    for one in found.tables:
        if one.kind != kind:
            continue
        around = Around(one.packing, alignment.a, alignment.b, alignment.c, count)
        near = plans.least_of([one.seconds], most)[0]
        rows = np.sort(rng.sample(near.tolist(), min(_DRAWN, len(near)))).astype(np.int64)
        estimate = plans.estimate(kind, one.columns[rows], gemm, spec, around)
        x = features_of(kind, estimate, spec, count)
        share = plans.that_share(kind, gemm, estimate.read)
        known = np.zeros(len(x)) if network is None else network.logarithms(x)
        known += log(plans.shared_factor(kind, share, count))
        told.append(OfProblem(x, known, np.ones(len(x)), plans.problem_features(share, count)))
    told = [one for one in told if len(one.y)]
    if kind in plans.BY_PACKING or len(told) < 2:
        yield from told
    else:
        yield OfProblem(*(np.concatenate(of) for of in (*zip(*told, strict=True),)[:3]), told[0].about)


def drawn_problem(fit: str, rng: random.Random) -> str:
    """The name of one: sizes of any sort, half of them multiples of 8, or long sums, or a batch."""
    word, order = rng.choice(FORMATS[fit]), rng.choice(("NT", "NT", "NN", "TN"))

    def size(least: int, most: int) -> int:
        return round(exp(rng.uniform(log(least), log(most))))

    most = 2048 if fit == "mma" and rng.random() < 0.5 else 16384
    m, n, k = size(1, 8192), size(8, most), size(8, most)
    sort = rng.random()
    if sort < 0.1 and fit != FP8_FIT:
        batches = drawn_batched(1, rng.randrange(2**31), [word])
        return str(next(one.problem for one in reversed(batches) if one.problem.format == word))
    if sort < 0.2:
        m, n, k = size(2, 200), size(512, 8192), size(2000, 30000)
    if sort < 0.7:
        n, k = (max(8, one // 8 * 8) for one in (n, k))
    if sort < 0.45:
        m = max(8, m // 8 * 8)
    return name_of(fit, (m, n, k), word, order, rng)


def name_of(fit: str, sizes: tuple[int, int, int], word: str, order: str, rng: random.Random) -> str:
    """The name of a problem of some sizes; of FP8, which PyTorch multiplies NT in multiples of 16, with scales."""
    m, n, k = sizes
    if fit == FP8_FIT:
        scales, sums = rng.choice((" tensor", " row")), rng.choice(("", " fast"))
        return f"{m}x{round_up(n, 16)}x{round_up(k, 16)} {word} NT{scales}{sums}"
    return f"{m}x{n}x{k} {word} {order}"


def remembered(drawn: Rows, rng: Any) -> Rows:
    """Some plans of each problem."""
    order = np.lexsort((rng.random(len(drawn.problem)), drawn.problem))  # by problem, at random within one
    starts = np.flatnonzero(np.diff(drawn.problem, prepend=-1))
    place = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    return drawn.where(np.sort(order[place < _REMEMBERED]))


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


def check(data: Sequence[Measured], rows: Rows, memory: Rows | None, drawn: Rows) -> None:
    """How good the choice is on problems that the fit has not seen."""
    parts = np.array([crc32(sizes_of(one.name).encode()) % 5 for one in data])
    school, alone = School(knots_of(np.concatenate([rows.x, drawn.x[::8]]))), np.zeros(len(rows.y))
    for part in range(5):
        own = parts[rows.problem] == part
        seen = rows.where(~own)
        network = learn(school, seen if memory is None else seen.beside(memory, _REMEMBERED_WEIGHS), drawn)
        alone[own] = school.said([network], school.ramps(rows.x[own])).numpy()
    judges = [number for number, one in enumerate(data) if one.peer_us is not None]
    print(f"{len(judges)} problems")
    for what, added in (("by the terms:", 0 * alone), ("by the network:", alone)):
        told = [with_added(data[number], added[rows.problem == number]) for number in judges]
        print(what, judged([data[number] for number in judges], told))


def with_added(one: Measured, added: Any) -> Any:
    """Logarithms of the estimates of all plans of a problem. added: to each of those that are finite."""
    told = np.log(one.seconds)
    told[np.isfinite(told)] += added
    return told


def sizes_of(name: str) -> str:
    """A problem without its format and orders: those of the same sizes are alike, and are judged together.

    >>> sizes_of("8x64x16 bf16 NT"), sizes_of("7 x 8x64x16 bf16")
    ('8x64x16', '7 x 8x64x16')
    """
    return name[: name.index(" ", name.rindex("x"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(FAMILY))
    parser.add_argument("sweeps", type=Path, nargs="*")
    parser.add_argument("--older", type=Path, nargs="*", default=[])
    parser.add_argument("--drawn", type=int, default=9000, help="problems whose plans teach the network")
    parser.add_argument("--remembered", action="store_true")
    parser.add_argument("--constants", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if missing := [one for one in (*asked.sweeps, *asked.older) if not one.is_file()]:
        parser.error(f"no file {missing[0]}: give sweeps, such as benchmarks/sweeps/h200.jsonl.xz")
    if asked.constants and FAMILY[asked.kind] != "wgmma":
        parser.error(f"--constants: the terms of {asked.kind} have none that are fitted")
    if not asked.sweeps and (asked.constants or asked.check):
        parser.error("--constants and --check need sweeps, such as benchmarks/sweeps/h200.jsonl.xz")
    file = OUT / f"{asked.kind}_fit.json"
    data = measured(asked.kind, asked.sweeps) + measured(asked.kind, asked.older, _OLDER_WEIGHS)
    print(f"{len(data)} problems, {sum(len(one.us) for one in data)} plans", flush=True)
    told = json.loads(file.read_text(encoding="utf-8"))
    if asked.constants:
        told["constants"] = asdict(fit_constants(data))
        write(file, told)
        fitted.cache_clear()
        wgmma_terms.constants.cache_clear()
    drawn = drawn_plans(asked.kind, asked.drawn, seed=1)
    rows = Rows.of([rows_of_plans(one) for one in data]) if data else None
    memory = remembered(drawn, np.random.default_rng(0)) if asked.remembered else None
    if rows is not None and asked.check:
        check(data, rows, memory, drawn)
        return
    known = rows if rows is None or memory is None else rows.beside(memory, _REMEMBERED_WEIGHS)
    write(file, {**told, **fit_of(known, drawn)})


def write(file: Path, told: dict[str, Any]) -> None:
    """A line for each unit of a layer, and for the knots of each feature."""
    text = json.dumps(told, separators=(",", ":"))
    file.write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")
    print(f"{file.name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
