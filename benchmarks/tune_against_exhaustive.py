"""How near `tilewright tune` comes in a minute to a search over every candidate, on this GPU.

    python benchmarks/tune_against_exhaustive.py --out tune.json

For each shape: a search with its budget and an empty cache of kernels; then every candidate of the same space, plans of
several launches among them; then the best few of both, timed side by side in one run, from which the ratio comes. The
exhaustive search is kept in --storage, and its kernels in the usual cache, which shapes of one class share: it can be
spread over several runs, the same command goes on. On 16 cores some 500 kernels take 2 minutes the first time.
Shapes that --out holds already, and that are not measured again, stay there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from tilewright.bench import records
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import FOLDER_VARIABLE, CubinCache
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.probe import probe
from tilewright.tuner.compiling import Compilers, prepare
from tilewright.tuner.measure import GpuMeasurer
from tilewright.tuner.processes import Processes
from tilewright.tuner.session import begun, tune
from tilewright.tuner.space import Space, make_space
from tilewright.tuner.tune import FINALISTS, Outcome
from tilewright.winners.plan_config import PlanConfig

SHAPES = ("4096x4096x4096:bf16", "8192x8192x512:bf16", "4096x14336x4096:bf16")
"""A large square, a short sum, and a wide result: of one class, whose kernels are compiled once."""


@dataclass(frozen=True)
class Comparison:
    """One shape. ratio: of the tuned winner's time to the best time of all candidates, side by side; 1 is perfect."""

    shape: str
    candidates: int
    tuned_candidates: int
    tuned_s: float
    tuned: str
    tuned_us: float
    exhaustive_candidates: int
    exhaustive_failures: int
    exhaustive_is_complete: bool
    exhaustive_s: float
    exhaustive: str
    exhaustive_us: float
    ratio: float
    commit: str
    command: str
    date: str


def compare(gpu: Gpu, shape: str, budget: float, most: float, storage: str, workers: int) -> Comparison:
    sizes, _, dtype = shape.partition(":")
    gemm = Gemm(*(int(size) for size in sizes.split("x")), **format_options(dtype))  # type: ignore[arg-type]
    space = make_space(gemm, probe(gpu))
    with tempfile.TemporaryDirectory() as folder, kernels_in(folder):
        tuned = searched(gpu, space, f"sqlite:///{folder}/tuned.sqlite", budget, workers)
    every = searched(gpu, space, storage, most, workers)
    times = side_by_side(gpu, space, tuned, every)
    # What tune answers is its own winner; what it might have answered is the fastest of all that anybody found.
    mine, best = str(tuned.best.candidate), min(times, key=lambda name: times[name])
    return Comparison(
        shape,
        len(space.candidates),
        len(tuned.results),
        tuned.elapsed_s,
        mine,
        times[mine],
        len(every.results),
        len(every.failures),
        every.exhausted,
        every.elapsed_s,
        best,
        times[best],
        times[mine] / times[best],
        records.commit(),
        records.command(),
        records.now(),
    )


def kept(out: Path, new: Comparison, origin: dict[str, Any]) -> None:
    """Written beside the other shapes of a record of the same machine. Ends the program where it is of another."""
    old = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {**origin, "shapes": []}
    shapes = old.pop("shapes")
    if old != origin:
        raise SystemExit(f"{out} is of {old}, this is {origin}: give another --out.")
    others = [row for row in shapes if row["shape"] != new.shape]
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**origin, "shapes": [*others, asdict(new)]}, indent=2)
    out.write_text(text + "\n", encoding="utf-8")


@contextmanager
def kernels_in(folder: str) -> Iterator[None]:
    """Compiled kernels are kept in a folder, and none is there yet."""
    usual = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[FOLDER_VARIABLE]
        if usual is not None:
            os.environ[FOLDER_VARIABLE] = usual


def searched(gpu: Gpu, space: Space, storage: str, seconds: float, workers: int) -> Outcome:
    measurer = GpuMeasurer(gpu, space.gemm)
    try:
        with Processes(workers) as processes:
            processes.start(workers)
            builds = begun(measurer, space.spec, Compilers(processes))
            return tune(space, builds, measurer, storage=storage, seconds=seconds, started=monotonic())
    finally:
        measurer.close()


def side_by_side(gpu: Gpu, space: Space, *outcomes: Outcome) -> dict[str, float]:
    """Microseconds of the best few of several searches, in one run."""
    finalists: dict[str, PlanConfig] = {}
    for outcome in outcomes:
        for result in (outcome.best, *outcome.results[:FINALISTS]):
            finalists[str(result.candidate)] = result.candidate
    prepared = {name: prepare(space, one, gpu.arch, CubinCache()) for name, one in finalists.items()}
    measurer = GpuMeasurer(gpu, space.gemm)
    try:
        return {name: time.median_us for name, time in measurer.side_by_side(prepared).items()}
    finally:
        measurer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=SHAPES, metavar="MxNxK:DTYPE")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds of each tuning")
    parser.add_argument("--most", type=float, default=math.inf, help="seconds of each exhaustive search")
    parser.add_argument("--storage", default="sqlite:///exhaustive.sqlite")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    origin = {"device": gpu.name, "driver": gpu.driver_version, "workers": given.workers}
    for shape in given.shape:
        one = compare(gpu, shape, given.budget, given.most, given.storage, given.workers)
        kept(given.out, one, origin)
        share = f"{one.tuned_candidates} of {one.candidates} candidates in {one.tuned_s:.1f} s"
        print(f"{shape}: {share}; {one.ratio:.4f} of the best of {one.exhaustive_candidates}", flush=True)


if __name__ == "__main__":
    main()
