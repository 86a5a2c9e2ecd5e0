"""Teaches which kernels of wgmma are worth an estimate, and writes it into `wgmma_fit.json` or `wgmma_fp8_fit.json`.

    pip install torch
    python benchmarks/fit_first_cut.py wgmma [--drawn N] [--check]

Two networks (`planning.cost.first_cut`) learn to order kernels of drawn problems as the whole estimate does, each
kernel with its best options. So they follow each new fit of `fit_choice.py`, and need no times of a GPU. --check: how
much longer the best of the first so many kernels is estimated to take than the best of all, in a tenth of the problems,
which they were not taught; nothing is written.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import exp, log
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from fit_choice import DEVICES, FAMILY, FORMATS, OUT, count_of, drawn_problem, name_of, write
from named_problems import problem_named, request_of
from networks import knots_of, ramps_and_layers, ramps_around_zero

from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Columns
from tilewright.planning.assembly import multiplied_on
from tilewright.planning.candidates import other_options
from tilewright.planning.clusters import in_clusters
from tilewright.planning.cost import first_cut, plans
from tilewright.planning.cost.correction import fit_for
from tilewright.planning.cost.launches import Around
from tilewright.planning.packing import behind_packing
from tilewright.planning.ranking import behind_each, proposed
from tilewright.problem.gemm import Gemm
from tilewright.units import round_up

FITS = tuple(fit for fit, kind in FAMILY.items() if kind == "wgmma")

_LEAST_WORK, _OTHERS, _BEST, _PLANS = 80, 100, 300, 200
"""Kernels of a drawn problem: so many of the least work, and of the others; of their plans so many of the best, and of
the others."""

_UNITS = 64
_EPOCHS, _PROBLEMS, _RATE, _DECAY = 16, 24, 5e-3, 1e-3

_SHARPNESS = 0.04
"""Of logarithms of times, in which kernels differ that a list tells apart. By the distance of each time instead, 32
kernels lose 0.25 % of the estimate in the place of 0.09."""

_JUDGED = (16, 32, 48, 64, 96)


class Drawn(NamedTuple):
    """Kernels, or plans, behind one packing of a problem. about: (1, features). kernels, sized: (kernels, features).
    options: which of `first_cut.OPTIONS` plans have, (plans, options). us: by the whole estimate, of a kernel with its
    best clusters and options."""

    of_plans: bool
    about: Any
    kernels: Any
    sized: Any
    options: Any
    us: Any


def drawn(fit: str, count: int, seed: int) -> list[Drawn]:
    """Kernels and plans of drawn problems, as far as there is a choice between them; by several processes, as each
    keeps tables of all that it has met."""
    names, rng = list[tuple[str, str, int]](), random.Random(seed)
    for number in range(count):
        name = drawn_problem(fit, rng) if rng.random() < 0.5 else large_problem(fit, rng)
        names.append((name, DEVICES[number % len(DEVICES)], number))
    parts = [names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE)]
    with ProcessPoolExecutor(max_tasks_per_child=1, mp_context=get_context("spawn")) as pool:
        return [one for part in pool.map(_of_problems, parts) for one in part]


_AT_ONCE = 500
"""Problems of a process."""


def _of_problems(names: Sequence[tuple[str, str, int]]) -> list[Drawn]:
    found = [one for name, gpu, seed in names for one in of_problem(name, device(gpu), random.Random(seed))]
    return [one for one in found if len(one.us) > _JUDGED[0]]


def large_problem(fit: str, rng: random.Random) -> str:
    """The name of one of any sizes up to those of vocabularies."""
    word, order = rng.choice(FORMATS[fit]), rng.choice(("NT", "NT", "NN", "TN"))
    while True:
        m, n, k = (round(exp(rng.uniform(log(least), log(most)))) for least, most in _LARGE)
        if m * n * k < _MOST_PRODUCTS:
            break
    if rng.random() < 0.8:
        n, k = round_up(n, 8), round_up(k, 8)
    if rng.random() < 0.6:
        m = round_up(m, 8)
    return name_of(fit, (m, n, k), word, order, rng)


_LARGE = ((1, 32768), (64, 262144), (64, 65536))
"""Of m, n and k, the least and the most."""

_MOST_PRODUCTS = 1 << 42


def of_problem(name: str, spec: DeviceSpec, rng: random.Random) -> Iterator[Drawn]:
    """Some kernels of a problem, behind each packing, then some of their plans."""
    request = request_of(problem_named(name))
    gemm, lie, count = multiplied_on(spec, request.gemm), request.alignment, count_of(request)
    found = proposed("wgmma", gemm, spec, lie, stack=request.stack, promote_every=request.promote_every)
    network = fit_for("wgmma", gemm.dtype).network
    if found is None or network is None:
        return
    for c, way in behind_each(found, gemm):
        work, read = first_cut.load_of(c, gemm, spec, count).work, behind_packing(gemm, "wgmma", way)
        order = np.argsort(work, kind="stable")[: int(np.isfinite(work).sum())].tolist()
        least, others = order[:_LEAST_WORK], order[_LEAST_WORK:]
        some = sorted([*least, *rng.sample(others, min(_OTHERS, len(others)))])
        kernels = c[np.array(some, dtype=np.int64)]
        kernels = kernels.with_columns(alone=np.arange(len(kernels)))
        clustered = in_clusters(kernels, gemm, spec, count)
        clustered = clustered.with_columns(kernel=np.arange(len(clustered)))
        options = other_options(clustered, gemm, count)
        estimate = plans.estimate("wgmma", options, gemm, spec, Around(way, lie.a, lie.b, lie.c, count))
        (finite,) = np.isfinite(estimate.launches).nonzero()
        if not len(finite):
            continue
        x = plans.features("wgmma", estimate, finite, spec, count)
        us = 1e6 * estimate.launches[finite] * np.exp(network.logarithms(x))
        least_us = np.full(len(kernels), np.inf)
        np.minimum.at(least_us, options.alone[finite], us)
        runs = np.flatnonzero(np.isfinite(least_us))
        told = np.argsort(us, kind="stable")
        others = rng.sample(range(_BEST, max(_BEST, len(told))), min(_PLANS, max(0, len(told) - _BEST)))
        told = np.sort(told[[*range(min(_BEST, len(told))), *others]])
        yield _told(kernels[runs], None, least_us[runs], read, spec, count)
        some = options[finite[told]]
        yield _told(clustered[some.kernel], some, us[told], read, spec, count)


def _told(kernels: Columns, plans: Columns | None, us: Any, gemm: Gemm, spec: DeviceSpec, count: int) -> Drawn:
    """What networks are asked about kernels, or about plans, of each of which the kernel is given."""
    sized = first_cut.sized_features(kernels, first_cut.load_of(kernels, gemm, spec, count), gemm, count).T
    known = first_cut.kernel_features(kernels, plans=plans is not None)
    options = np.zeros((len(us), len(first_cut.OPTIONS)))
    if plans is not None:
        columns = plans.dependent_launch, plans.raster_rows > 1, plans.staging == 1, plans.staging == 2
        options = np.column_stack(columns)
    each = first_cut.about(gemm, spec, count), known, sized, options
    return Drawn(plans is not None, *(one.astype(np.float32) for one in each), us)


class Lesson:
    """Networks over kernels and problems, and what they are taught."""

    def __init__(self, data: Sequence[Drawn]) -> None:
        import torch

        self.torch = torch
        self.about_knots = knots_of(np.concatenate([one.about for one in data]))
        self.kernel_knots = knots_of(np.concatenate([one.kernels for one in data[::7]]))
        self.about = torch.tensor(ramps_around_zero(self.about_knots, np.concatenate([one.about for one in data])))
        self.kernels = [torch.tensor(ramps_around_zero(self.kernel_knots, one.kernels)) for one in data]
        self.sized = [torch.tensor(one.sized) for one in data]
        self.options = [torch.tensor(one.options) for one in data]
        self.y = [torch.tensor(np.log(one.us / one.us.min()).astype(np.float32)) for one in data]
        torch.manual_seed(0)
        numbers = first_cut.NUMBERS + len(first_cut.OPTIONS) * first_cut.OF_OPTION
        self.problem = self._network(self.about.shape[1], numbers + first_cut.SIZED)
        self.kernel = self._network(self.kernels[0].shape[1], numbers)

    def _network(self, inputs: int, outputs: int) -> Any:
        nn = self.torch.nn
        return nn.Sequential(nn.Linear(inputs, _UNITS), nn.SiLU(), nn.Linear(_UNITS, outputs))

    def said(self, numbers: Sequence[int]) -> list[Any]:
        """Logarithms of the times of each problem's kernels, beside each other."""
        ends = np.cumsum([len(self.y[number]) for number in numbers])[:-1].tolist()
        known = self.kernel(self.torch.cat([self.kernels[number] for number in numbers])).tensor_split(ends)
        found = []
        for number, matters, mine in zip(numbers, self.problem(self.about[list(numbers)]), known, strict=True):
            sized, each = self.sized[number], mine * matters[: -first_cut.SIZED]
            of_options = each[:, first_cut.NUMBERS :].reshape(len(each), len(first_cut.OPTIONS), -1).sum(2)
            of_kernel = each[:, : first_cut.NUMBERS].sum(1) + (self.options[number] * of_options).sum(1)
            found.append(sized[:, 0] + sized @ matters[-first_cut.SIZED :] + of_kernel)
        return found

    def learn(self, numbers: Sequence[int]) -> None:
        """The order of kernels of some problems."""
        torch, rng = self.torch, np.random.default_rng(0)
        by = torch.optim.AdamW([*self.problem.parameters(), *self.kernel.parameters()], lr=_RATE, weight_decay=_DECAY)
        steps = _EPOCHS * -(-len(numbers) // _PROBLEMS)
        schedule = torch.optim.lr_scheduler.OneCycleLR(by, _RATE, total_steps=steps, pct_start=0.1)
        for _ in range(steps):
            some = rng.choice(numbers, _PROBLEMS, replace=False).tolist()
            each = [self._apart(said, self.y[number]) for number, said in zip(some, self.said(some), strict=True)]
            by.zero_grad()
            (sum(each) / _PROBLEMS).backward()
            by.step()
            schedule.step()

    def _apart(self, said: Any, y: Any) -> Any:
        """How far two orders of kernels are apart, above all of the fastest."""
        torch = self.torch
        return -(torch.softmax(-y / _SHARPNESS, 0) * torch.log_softmax(-said / _SHARPNESS, 0)).sum()

    def judged(self, numbers: Sequence[int]) -> str:
        """What the best of the first so many kernels takes, beside the best of all."""
        losses = []
        with self.torch.no_grad():
            for number in numbers:
                y = self.y[number][self.said([number])[0].argsort()]
                losses.append([float(y[:most].min()) for most in _JUDGED])
        each = zip(_JUDGED, np.exp(np.mean(losses, axis=0)), np.exp(np.quantile(losses, 0.99, axis=0)), strict=True)
        return "; ".join(f"{most}: {mean:.4f} (99 of 100 {worst:.3f})" for most, mean, worst in each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fit", choices=FITS)
    parser.add_argument("--drawn", type=int, default=9000, help="problems whose kernels teach")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    data = drawn(asked.fit, asked.drawn, seed=2)
    print(f"{len(data)} lists, {sum(len(one.us) for one in data)} kernels", flush=True)
    lesson = Lesson(data)
    judges = range(0, len(data), 11) if asked.check else range(0)
    lesson.learn([number for number in range(len(data)) if number not in judges])
    if asked.check:
        for of_plans, what in ((False, "kernels"), (True, "plans")):
            print(what, lesson.judged([number for number in judges if data[number].of_plans is of_plans]))
        return
    file = OUT / f"{asked.fit}_fit.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    told["kernel"] = ramps_and_layers(lesson.kernel_knots, lesson.kernel)
    told["problem"] = ramps_and_layers(lesson.about_knots, lesson.problem)
    write(file, told)


if __name__ == "__main__":
    main()
