"""Many plans of many drawn problems, measured in turn with cuBLAS: what the choice is judged and corrected by.

    python benchmarks/choice_sweep.py --shapes layers.csv --tokens tokens.txt --dtype bf16 --sample 300 --out out.jsonl

Each problem's plans are what dispatch would take, the three that the cost model prices best, and others drawn near
them. Processes price, build and compile while the GPU measures. Every plan's result is checked against float64 on
sampled rows, its output poisoned. Each is captured into a CUDA graph over rotated operands; graphs are replayed in
turn. A row: problem, cuBLAS's time, and of each plan its key, the model's and the measured microseconds.

    python benchmarks/choice_sweep.py --shapes layers.csv --tokens tokens.txt --dtype e4m3 --sample 100 --out out.jsonl

Products of FP8 stand beside `torch._scaled_mm`, with scales of tensors and of rows (--scales), fast and promoted
(--sums). Where the estimates know little, --spread draws plans from farther away.

    python benchmarks/choice_sweep.py --batched 40 --dtype bf16 --families wgmma,mma --plans 8 --out out.jsonl

Batches stand beside `torch.bmm`; what is drawn is what `tilewright bench --batched` draws.

    python benchmarks/choice_sweep.py --skinny 40 --sample 0 --cluster-k 9 --plans 4 --out out.jsonl

    python benchmarks/choice_sweep.py --asked plans.jsonl --sample 0 --out out.jsonl

The plans of each problem that rows name, such as the choices of two trees: {"p": "8x64x64 bf16 TN", "plans": [...]},
each as `PlanConfig.as_data`.

    python benchmarks/choice_sweep.py --named problems.txt --sample 0 --dtype bf16 --plans 12 --out out.jsonl

Problems of any sort by their names, one a line, the most important first.

    python benchmarks/choice_sweep.py --asked problems.jsonl --near 13 --sample 0 --dtype f32 --out out.jsonl

Few plans of many problems: what the choice must tell apart, its own first. Problems without plans have them drawn.

    python benchmarks/choice_sweep.py --estimated --random 200 --sample 0 --dtype bf16,f16 --out remembered.jsonl

What the shipped fit knows of problems, without a GPU: beside new sweeps a new fit learns from it, where the sweeps
that the old one was fitted to are gone (benchmarks/fit_choice.py --remembered).

    python benchmarks/choice_sweep.py --named problems.txt --kinds 3 --plans 2 --sample 0 --out out.jsonl

The best priced cooperative, ping-pong and swap-AB kernels beside the others, each also with more of C staged: where
estimates are wrong of a kind, draws near the best ones never meet it.

    python benchmarks/choice_sweep.py --random 200 --sample 0 --classes 8 --plans 4 --again 3 --out out.jsonl

What a choice is judged by: its own plan, its next ones, the best priced of each class of kernels, and others drawn. The
least of many noisy times is too low: the fastest of them, the choice and cuBLAS are timed once more ("again").

    python benchmarks/choice_sweep.py --sizes 4096x4096x4096 --plans 24 --sustained 6 --out out.jsonl

The fastest plans of each problem and cuBLAS are also timed in stretches of half a second on a card that has worked for
a second; a row then tells "sustained": of each its key, microseconds, watts and megahertz.

With --cluster-k so many kernels whose clusters share the sum over k are measured beside the other plans of each
problem, and the last line tells how often they win.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import exp, inf, log
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from named_problems import problem_named, request_of
from stretches import stretches_of
from sweep_plans import SPREAD, Drawing, candidates_of

from tilewright.bench.records import Origin, command, commit, now
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.ranking import estimate_us
from tilewright.problem.formats import FP8
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.nvrtc import compiler_version
from tilewright.runtime.probe import probe
from tilewright.suite.contests import contest
from tilewright.suite.drawing import Drawn, drawn, layers_of, random_shapes, shapes_of_layers, tokens_of
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import over, true_to_formats
from tilewright.suite.problems import Problem, problems, with_scales
from tilewright.suite.stacks import Batched, DrawnStack, drawn_batched
from tilewright.suite.sweep import Target
from tilewright.suite.timing import Times
from tilewright.tuner.compiling import Prepared, prepare
from tilewright.tuner.space import Candidate, Space
from tilewright.winners.plan_config import PlanConfig

AGAIN = 7
"""Rounds of what is timed once more."""

MOST_CALLS = 800


@dataclass(frozen=True, slots=True)
class Timing:
    """How plans are timed. graph_us: that a graph of calls takes. rounds: of all graphs in turn. again, sustained: so
    many of the fastest are timed once more, and so."""

    graph_us: float = 2500.0
    rounds: int = 5
    again: int = 0
    sustained: int = 0


QUICK = Timing(graph_us=1000.0, rounds=3)
"""For what a fit learns from: a plan takes half of the time (record 0112)."""


def prepared_for(
    problem: Problem | Batched,
    spec: DeviceSpec,
    arch: str,
    drawing: Drawing,
    asked: Sequence[PlanConfig],
    most_us: float = inf,
) -> list[tuple[float, Prepared | str]]:
    """The candidates of a problem, or the plans that are asked for, compiled; the reason in place of one that cannot
    be. No candidates where all of them take more than `most_us`."""
    if asked:
        request = request_of(problem)
        around = request.gemm, spec, request.alignment, request.stack
        candidates = [Candidate(one, estimate_us(one, *around)) for one in asked]
    else:
        candidates = candidates_of(problem, spec, drawing)
    if min((one.predicted_us for one in candidates), default=0.0) > most_us:
        return []
    space, cache = Space(problem.gemm, spec, candidates, stack=request_of(problem).stack), CubinCache()
    found: list[tuple[float, Prepared | str]] = []
    for one in candidates:
        try:
            found.append((one.predicted_us, prepare(space, one.config, arch, cache)))
        except TilewrightError as refusal:
            found.append((one.predicted_us, f"{one.config}: {refusal.headline}"))
        except Exception as failure:
            found.append((one.predicted_us, f"{one.config}: {type(failure).__name__}: {failure}"))
    return found


class Meter:
    """Plans of one problem after another on the current GPU of PyTorch."""

    def __init__(self, torch: Any, timing: Timing) -> None:
        self.torch, self.gpu, self._timer = torch, open_gpu(torch.cuda.current_device()), TorchTimer(torch)
        self._timing = timing
        self._loaded: dict[Any, Any] = {}
        self._random = random.Random(0)

    def row(self, one: Target, prepared: Sequence[tuple[float, Prepared | str]]) -> dict[str, Any]:
        torch, gemm = self.torch, one.problem.gemm
        true_to_formats(torch, gemm)
        torch.cuda.empty_cache()
        rivals = contest(torch, one.problem)
        pairs, out = rivals.operands, self._result(one.problem)
        calls: dict[str, Callable[[], object]] = {"cuBLAS": rivals.peer}
        told: dict[str, float] = {}
        failed: list[str] = [one for _, one in prepared if isinstance(one, str)]
        scratch_bytes = max([0, *(p.plan.scratch_bytes for _, p in prepared if not isinstance(p, str))])
        scratch = torch.empty(max(16, scratch_bytes), dtype=torch.uint8, device="cuda")
        for predicted, plan in prepared:
            if isinstance(plan, str):
                continue
            FAULT.write_text(plan.candidate.key, encoding="utf-8")
            multiply = self._function(plan, out, scratch, rivals.scales)
            out.fill_(float("nan"))
            try:
                rivals.check("It", multiply(*pairs[0]))
            except TilewrightError as wrong:
                failed.append(f"{plan.candidate}: {wrong}"[:300])
                continue
            torch.cuda.synchronize()
            calls[plan.candidate.key] = over(multiply, pairs)
            told[plan.candidate.key] = predicted
        first = next((p.candidate.key for _, p in prepared[:2] if not isinstance(p, str)), "")
        times, again = self._times(calls, len(pairs), first)
        held = self._stretches(calls, times) if self._timing.sustained else {}
        peer = times.pop("cuBLAS")
        plans = [
            [json.loads(key), round(told[key], 2), round(us, 2)]
            for key, us in sorted(times.items(), key=lambda t: t[1])
        ]
        row: dict[str, Any] = {"p": str(one.problem), "kind": one.kind, "cublas": round(peer, 2), "plans": plans}
        row["choice"] = round(times[first], 2) if first in times else None
        row |= {"sustained": held} if held else {}
        row |= {"again": {name: round(us, 3) for name, us in again.items()}} if again else {}
        return {**row, "failed": failed} if failed else row

    def _stretches(self, calls: Mapping[str, Callable[[], object]], times: Mapping[str, float]) -> dict[str, Any]:
        """Of cuBLAS and the fastest plans: microseconds sustained, watts, megahertz."""
        fastest = sorted((name for name in times if name != "cuBLAS"), key=lambda name: times[name])
        fastest = fastest[: self._timing.sustained]
        asked = {name: calls[name] for name in ("cuBLAS", *fastest)}
        singles = {name: Times((times[name],)) for name in asked}
        found = stretches_of(self._timer, asked, singles, "cuBLAS", self.gpu.uuid)
        return {name: [round(one.us, 2), one.power_w, one.clock_mhz] for name, one in found.items()}

    def _result(self, problem: Problem | Batched) -> Any:
        """Memory that all plans write, one after another."""
        out = problem.gemm.out.array_name
        shape = (problem.batch,) if isinstance(problem, Batched) else ()
        return self.torch.empty((*shape, problem.m, problem.n), dtype=getattr(self.torch, out), device="cuda")

    def _function(self, prepared: Prepared, out: Any, scratch: Any, scales: Sequence[Any]) -> Callable[[Any, Any], Any]:
        launches = []
        for one in prepared.launches:
            kernel = self._loaded.get(one.paper.source)
            if kernel is None:
                kernel = self._loaded[one.paper.source] = load(self.gpu, one.cubin, one.paper.source)
            launches.append(kernel.prepare(one.paper.grid, one.paper.block, one.paper.arguments))
        steps = [replace(step, launch=launch) for step, launch in zip(prepared.plan.steps, launches, strict=True)]
        plan, torch, at = replace(prepared.plan, steps=tuple(steps)), self.torch, scratch.data_ptr()
        device = torch.cuda.current_device()
        factors = (0, 0, *(scale.data_ptr() for scale in scales)) if scales else ()

        def multiply(a: Any, b: Any) -> Any:
            stream = torch._C._cuda_getCurrentRawStream(device)  # `current_stream` takes a third of a call's time
            plan.run(stream, (a.data_ptr(), b.data_ptr(), out.data_ptr(), 0, 0, at, *factors))
            return out

        return multiply

    def _times(
        self, calls: dict[str, Callable[[], object]], copies: int, first: str
    ) -> tuple[dict[str, float], dict[str, float]]:
        """The median microseconds of a call over rounds of replays in turn; hopeless ones are not replayed again. And
        those of the fastest, of the one that is called `first`, and of cuBLAS over as many rounds once more."""
        torch, timing = self.torch, self._timing
        graphs: dict[str, tuple[Any, int]] = {}
        least_us = inf
        for name, call in calls.items():
            FAULT.write_text(name, encoding="utf-8")
            call()
            once = self._timer.elapsed_us(call)
            count = int(min(MOST_CALLS, max(2, timing.graph_us / max(once, 0.5))))
            count = max(count, min(copies, 2 * count))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(count):
                    call()
            graphs[name] = (graph, count)
            least_us = min(least_us, count * once)
        slow = least_us > 8 * timing.graph_us
        if not slow:
            for graph, _ in graphs.values():
                graph.replay()
        times = self._rounds(graphs, 2 if slow else timing.rounds)
        again: dict[str, float] = {}
        if timing.again:
            best = sorted((name for name in times if name != "cuBLAS"), key=lambda name: times[name])[: timing.again]
            kept = dict.fromkeys(name for name in ("cuBLAS", first, *best) if name in graphs)
            again = self._rounds({name: graphs[name] for name in kept}, 3 if slow else AGAIN)
        for graph, _ in graphs.values():
            graph.reset()
        return times, again

    def _rounds(self, graphs: Mapping[str, tuple[Any, int]], rounds: int) -> dict[str, float]:
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for number in range(rounds):
            best = min((min(t) for t in times.values() if t), default=0.0)
            # In any order: what comes behind cuBLAS takes a few per cent longer.
            for name, (graph, count) in sorted(graphs.items(), key=lambda _: self._random.random()):
                if number >= 2 and name != "cuBLAS" and min(times[name]) > 1.3 * best:
                    continue
                times[name].append(self._timer.elapsed_us(graph.replay) / count)
        return {name: statistics.median(found) if len(found) > 2 else min(found) for name, found in times.items()}


def _targets(asked: argparse.Namespace) -> tuple[Target, ...]:
    formats, orders = asked.dtype.split(","), asked.order.split(",")
    found: list[Target] = []
    if asked.shapes is not None:
        layers = shapes_of_layers(layers_of(asked.shapes), tokens_of(asked.tokens))
        found += drawn(layers, formats, orders, seed=asked.seed, sample=asked.sample)
    found += asked_for(asked.sizes.split(",") if asked.sizes else (), formats, orders)
    if asked.batched:
        batches = drawn_batched(asked.batched, asked.seed, formats)
        found += [one for one in batches if one.problem.format in formats]
    if asked.suite:
        found += [Drawn(one, "suite") for one in problems(formats=formats, orders=orders)]
    found += drawn(random_shapes(asked.random, asked.seed), formats, orders, seed=asked.seed)
    found += drawn(skinny_shapes(asked.skinny, asked.seed), formats, orders, seed=asked.seed)
    found += drawn(tiny_shapes(asked.tiny, asked.seed), formats, orders, seed=asked.seed)
    found += drawn(short_k_shapes(asked.short_k, asked.seed), formats, orders, seed=asked.seed)
    random.Random(asked.seed).shuffle(found)  # what a budget cuts off is a fair share of every sort
    if asked.named is not None:
        found = [*map(as_target, asked.named.read_text(encoding="utf-8").splitlines()), *found]
    return tuple(scaled for one in found for scaled in _with_scales(one, asked))


def asked_for(sizes: Iterable[str], formats: Sequence[str], orders: Sequence[str]) -> list[Target]:
    """Problems by their sizes, in each format and order; batches, of four sizes, in each format.

    >>> [str(one.problem) for one in asked_for(["77x4608x1152", "175x304x552x768"], ["bf16"], ["TN", "NT"])]
    ['77x4608x1152 bf16 TN', '77x4608x1152 bf16 NT', '175 x 304x552x768 bf16']
    """
    shapes, batches = list[tuple[tuple[int, int, int], str]](), list[DrawnStack]()
    for one in sizes:
        *batch, m, n, k = map(int, one.split("x"))
        if batch:
            batches += [DrawnStack(Batched(*batch, m, n, k, name), "asked") for name in formats]
        else:
            shapes.append(((m, n, k), "asked"))
    return [*drawn(shapes, formats, orders, seed=0), *batches]


def told_plans(path: Path | None) -> dict[str, tuple[PlanConfig, ...]]:
    """Plans by the names of their problems, as `--asked` gives them."""
    lines = [] if path is None else path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["p"]: tuple(PlanConfig.from_data(one) for one in row["plans"]) for row in rows}


def as_target(name: str) -> Target:
    """A problem by its name."""
    problem = problem_named(name)
    return DrawnStack(problem, "asked") if isinstance(problem, Batched) else Drawn(problem, "asked")


def _with_scales(one: Target, asked: argparse.Namespace) -> Iterator[Target]:
    """A problem as it was drawn; of FP8, with each of the scales, fast and promoted, that are asked for."""
    if isinstance(one, DrawnStack) or one.problem.format not in FP8:
        yield one
        return
    sums = [word == "fast" for word in asked.sums.split(",")]
    for problem in with_scales(one.problem, asked.scales.split(","), sums):
        yield replace(one, problem=problem)


def skinny_shapes(count: int, seed: int) -> Iterator[tuple[tuple[int, int, int], str]]:
    """What split-K is for: M from 2 to 200, N from 512 to 8192, K from 2000 to 30000, the latter multiples of 8."""
    rng = random.Random(seed)
    for _ in range(count):
        m, n, k = (exp(rng.uniform(log(low), log(high))) for low, high in ((2, 200), (512, 8192), (2000, 30000)))
        yield (round(m), round(n / 8) * 8, round(k / 8) * 8), "skinny"


def told_of_clusters(rows: Sequence[Mapping[str, Any]]) -> str:
    """How kernels whose clusters share the sum over k compare with the fastest of the others, and with cuBLAS.

    >>> sharing, alone = ({"config": {"cluster_k": blocks}} for blocks in (4, 1))
    >>> told_of_clusters([{"cublas": 8.0, "plans": [[sharing, 9.0, 8.0], [alone, 9.0, 10.0]]}])
    'clusters along k: the fastest in 1 of 1 problems; 1.250 times as fast as others; of cuBLAS 1.000, without 0.800'
    """
    ratios, best, without = [], [], []
    for row in rows:
        times = {
            sharing: [us for told, _, us in row["plans"] if (told["config"].get("cluster_k", 1) > 1) is sharing]
            for sharing in (False, True)
        }
        if all(times.values()):
            ratios.append(min(times[False]) / min(times[True]))
            without.append(row["cublas"] / min(times[False]))
            best.append(row["cublas"] / min(times[False] + times[True]))
    if not ratios:
        return "clusters along k: no problem had any beside other plans"
    wins = sum(ratio > 1 for ratio in ratios)
    mean = statistics.geometric_mean
    return (
        f"clusters along k: the fastest in {wins} of {len(ratios)} problems; {mean(ratios):.3f} times as fast as "
        f"others; of cuBLAS {mean(best):.3f}, without {mean(without):.3f}"
    )


def tiny_shapes(count: int, seed: int) -> Iterator[tuple[tuple[int, int, int], str]]:
    """Where a start takes longest: sizes from 8 to 1024, two of three multiples of 8."""
    rng = random.Random(seed)
    for number in range(count):
        sizes = (round(exp(rng.uniform(log(8), log(1024)))) for _ in range(3))
        m, n, k = (size // 8 * 8 if number % 3 else size for size in sizes)
        yield (m, n, k), "random tiny"


def short_k_shapes(count: int, seed: int) -> Iterator[tuple[tuple[int, int, int], str]]:
    """Where C takes most of the time and no row is aligned: odd M and N from 65 to 8191, K from 8 to 96.

    >>> [shape for shape, _ in short_k_shapes(2, seed=1)]
    [(123, 3907, 53), (221, 709, 24)]
    """
    rng = random.Random(seed)
    for _ in range(count):
        m, n, k = (exp(rng.uniform(log(low), log(high))) for low, high in ((64, 8191), (64, 8191), (8, 96)))
        yield (int(m) | 1, int(n) | 1, round(k)), "random, short k"


_MOST_FAULTS = 3
"""Plans of one problem that may break the GPU's context before the problem is left."""

FAULT = Path(tempfile.gettempdir()) / f"choice_sweep_{os.getuid()}"
"""The plan that is being looked at: where the process ends, the one at fault."""

_MOST_SECONDS = 30.0
"""For the plans of one problem: a kernel that does not end is a fault as well."""

_METER: list[Meter] = []


def end_all(pool: ProcessPoolExecutor) -> None:
    """Without waiting for what runs: it may be a kernel that does not end."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def measured(one: Target, plans: Sequence[tuple[float, Prepared | str]], timing: Timing) -> dict[str, Any]:
    """The row of a problem, in a process of its own: a kernel that breaks the context ends it."""
    import torch

    if not _METER:
        _METER.append(Meter(torch, timing))
    try:
        row = _METER[0].row(one, plans)
        torch.cuda.synchronize()
    except (TilewrightError, RuntimeError):
        traceback.print_exc()
        os._exit(3)
    return row


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=Path)
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--suite", action="store_true", help="the problems of `tilewright bench` as well")
    parser.add_argument("--sizes", default="", help="of problems, such as 77x4608x1152; of a batch of 7, 7x64x64x128")
    parser.add_argument("--named", type=Path, metavar="TXT", help="names of problems, one a line")
    parser.add_argument("--asked", type=Path, metavar="JSONL", help="problems, and the plans of each that are measured")
    parser.add_argument("--batched", type=int, default=0, help="random batches a format, beside the fixed ones")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--order", default="NT")
    parser.add_argument("--scales", default="tensor,row", help="of e4m3 and e5m2")
    parser.add_argument("--sums", default="fast,promoted", help="of e4m3 and e5m2")
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plans", type=int, default=16, help="of each problem")
    parser.add_argument("--spread", type=float, default=SPREAD, help="of the logarithms of times by which it draws")
    parser.add_argument("--near", type=int, default=0, help="only so many plans, near the best that a choice prices")
    parser.add_argument("--kinds", type=int, default=0, help="of each kind of kernel of wgmma, the best priced")
    parser.add_argument("--classes", type=int, default=0, help="of kernels, the best priced, beside the choice")
    parser.add_argument("--again", type=int, default=0, help="so many of the fastest plans are timed once more")
    parser.add_argument("--families", default="", help="to draw from, such as wgmma,mma")
    parser.add_argument("--skinny", type=int, default=0, help="skinny problems with long sums")
    parser.add_argument("--tiny", type=int, default=0, help="problems of at most 1024 in each direction")
    parser.add_argument("--short-k", type=int, default=0, help="problems with odd m and n, and k from 8 to 96")
    parser.add_argument("--cluster-k", type=int, default=0, help="of each problem, whose clusters share the sum over k")
    parser.add_argument("--sustained", type=int, default=0, help="so many of the fastest plans are timed so, too")
    parser.add_argument("--quick", action="store_true", help="shorter graphs, fewer rounds: for a fit, not for a table")
    parser.add_argument("--most-us", type=float, default=inf, help="leave out problems that are estimated to take more")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--estimated", action="store_true", help="measure nothing: write what the shipped fit says")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def drawing_of(asked: argparse.Namespace) -> Drawing:
    return Drawing(asked.plans, asked.cluster_k, asked.spread, asked.families, asked.near, asked.kinds, asked.classes)


def estimates_of(one: Target, spec: DeviceSpec, drawing: Drawing) -> dict[str, Any]:
    """The row of a problem with what is estimated in the place of what is measured, and no peer."""
    found = sorted(candidates_of(one.problem, spec, drawing), key=lambda plan: plan.predicted_us)
    plans = [[json.loads(plan.config.key), *(2 * [round(plan.predicted_us, 2)])] for plan in found]
    return {"p": str(one.problem), "kind": one.kind, "cublas": None, "plans": plans}


def write_estimates(asked: argparse.Namespace, targets: Sequence[Target]) -> None:
    """A sweep that needs no GPU, of the H200."""
    rows = partial(estimates_of, spec=device("H200"), drawing=drawing_of(asked))
    with asked.out.open("a", encoding="utf-8") as file, ProcessPoolExecutor(asked.workers) as pool:
        for row in pool.map(rows, targets, chunksize=4):
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def main() -> None:
    asked = _asked()
    began, plans_of = time.monotonic(), told_plans(asked.asked)
    timing = replace(QUICK if asked.quick else Timing(), again=asked.again, sustained=asked.sustained)
    targets = (*_targets(asked), *(as_target(name) for name in plans_of))
    if asked.estimated:
        write_estimates(asked, targets)
        return
    import torch

    gpu = open_gpu(0)
    spec, arch = probe(gpu), gpu.arch
    origin = Origin(
        *(gpu.name, gpu.driver_version, compiler_version(), f"torch {torch.__version__}", commit(), command(), now())
    )
    done, on_gpu, rows = 0, 0.0, list[Mapping[str, Any]]()
    context = get_context("spawn")
    with (
        asked.out.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(asked.workers, mp_context=context) as pool,
    ):

        def write(row: Mapping[str, Any]) -> None:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()

        write({"origin": asdict(origin)})
        tasks: dict[Future[Any], Target] = {
            pool.submit(
                *(prepared_for, one.problem, spec, arch),
                drawing_of(asked),
                plans_of.get(str(one.problem), ()),
                asked.most_us,
            ): one
            for one in targets
        }
        measuring = ProcessPoolExecutor(1, mp_context=context)
        for task in as_completed(tasks):
            left, plans = _MOST_FAULTS, task.result()
            while left and plans and time.monotonic() - began < asked.budget:
                started = time.monotonic()
                try:
                    row = measuring.submit(measured, tasks[task], plans, timing).result(_MOST_SECONDS)
                except (BrokenExecutor, TimeoutError):
                    end_all(measuring)
                    row = {"p": str(tasks[task].problem), "fault": FAULT.read_text(encoding="utf-8")}
                on_gpu += time.monotonic() - started
                write(row)
                if "fault" not in row:
                    done += 1
                    rows.append(row)
                    if row.get("plans") and done % 10 == 0:
                        print(f"{done} {row['p']} best {row['cublas'] / row['plans'][0][2]:.3f}", flush=True)
                    break
                print(f"{tasks[task].problem}: {row['fault']}", flush=True)
                measuring = ProcessPoolExecutor(1, mp_context=context)
                plans = [one for one in plans if isinstance(one[1], str) or one[1].candidate.key != row["fault"]]
                left -= 1
            if time.monotonic() - began > asked.budget:
                pool.shutdown(wait=False, cancel_futures=True)
                break
        end_all(pool)
    end_all(measuring)
    if asked.cluster_k:
        print(told_of_clusters(rows), flush=True)
    took = time.monotonic() - began
    print(f"{done} of {len(targets)} problems in {took:.0f} s, {on_gpu:.0f} s of them on the GPU", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
