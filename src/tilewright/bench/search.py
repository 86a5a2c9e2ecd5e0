"""A search over the parameters of a rung: every point compiled, checked and timed, each a line of a file.

Compiling runs ahead in a thread pool while the GPU measures. A point that cannot be built, spills or gives a wrong
result is recorded with the reason and never wins. The file is the state: a search that was stopped goes on where it
was, and the winner is the fastest right line. It is the evidence of what a ladder says of its best rung; the fastest
kernel for a problem, for `matmul` to use, is what `tilewright tune` looks for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from os import cpu_count
from pathlib import Path
from time import monotonic

from tilewright.bench import records
from tilewright.bench.baseline import cublas
from tilewright.bench.ladder import launcher
from tilewright.bench.protocol import Launch, RotatedOperands, measure
from tilewright.errors import ProblemError, TilewrightError
from tilewright.files import parse_json, read_text
from tilewright.ladders.rung import Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu
from tilewright.runtime.probe import probe
from tilewright.toolchain import Build, build, verify_on_gpu

CHECK_SIZE = (257, 383, 65)
"""A small awkward problem on which each point is checked before it is timed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One point: its time and share of cuBLAS, or why it has none."""

    point: Point
    median_us: float | None
    tflops: float | None
    share_of_cublas: float | None
    registers: int | None
    failure: str
    device: str
    date: str

    @property
    def key(self) -> str:
        return json.dumps(self.point, sort_keys=True)


def read_trials(path: Path) -> list[Trial]:
    """The trials of a file; a line that was cut off by a kill is dropped."""
    found = []
    for line in read_text(path, errors="replace").splitlines() if path.exists() else ():
        try:
            found.append(Trial(**parse_json(line)))
        except (ValueError, TypeError):
            continue
    return found


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The fastest right one."""
    right = [trial for trial in trials if trial.median_us is not None]
    return min(right, key=lambda trial: trial.median_us or 0.0, default=None)


def search(
    gpu: Gpu,
    rung: Rung,
    gemm: Gemm,
    path: Path,
    *,
    points: Sequence[Point] | None = None,
    budget_s: float | None = None,
    rounds: int = 3,
    progress: Callable[[int, int, Trial | None], None] | None = None,
) -> list[Trial]:
    """Measure the points of a rung that `path` does not hold yet, in random order, within a budget in seconds."""
    if rung.choices is None:
        raise ProblemError(f"{rung.name} has no parameters to search.")
    done = read_trials(path)
    seen = {trial.key for trial in done}
    wanted = list(rung.choices.points() if points is None else points)
    open_points = [point for point in wanted if json.dumps(point, sort_keys=True) not in seen]
    random.Random(0).shuffle(open_points)
    started = monotonic()
    bench = _Bench(gpu, gemm, rounds)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("a", encoding="utf-8") as file:
            for number, (point, built) in enumerate(_built_ahead(rung, gemm, open_points, gpu.arch)):
                if budget_s is not None and monotonic() - started > budget_s:
                    break
                trial = bench.trial(point, built)
                done.append(trial)
                file.write(json.dumps(asdict(trial)) + "\n")
                file.flush()
                if progress is not None:
                    progress(number + 1, len(open_points), best_trial(done))
    finally:
        bench.close()
    return done


def _built_ahead(
    rung: Rung, gemm: Gemm, points: Sequence[Point], arch: str
) -> Iterator[tuple[Point, Build | TilewrightError]]:
    """Points with their builds, compiled some way ahead of where the search is."""
    assert rung.choices is not None
    at = rung.choices.schedule_at
    cache = CubinCache()

    def make(point: Point) -> Build | TilewrightError:
        try:
            built = build(gemm, at(gemm, point), name="candidate")
            built.compile(arch, cache=cache)
            build(gemm.resized(*CHECK_SIZE), built.schedule).compile(arch, cache=cache)
            return built
        except TilewrightError as error:
            return error

    ahead = 4 * (cpu_count() or 2)
    pool = ThreadPoolExecutor(cpu_count())
    try:
        futures: list[Future[Build | TilewrightError]] = [pool.submit(make, point) for point in points[:ahead]]
        for number, point in enumerate(points):
            if number + ahead < len(points):
                futures.append(pool.submit(make, points[number + ahead]))
            yield point, futures[number].result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Bench:
    """The problem on the GPU, with cuBLAS beside every point."""

    def __init__(self, gpu: Gpu, gemm: Gemm, rounds: int) -> None:
        self.gpu, self.gemm, self.rounds = gpu, gemm, rounds
        self.rotated = RotatedOperands.of(gpu, make_operands(gemm), probe(gpu))
        self.peer = cublas(gpu, gemm)
        self.cache = CubinCache()

    def trial(self, point: Point, built: Build | TilewrightError) -> Trial:
        if isinstance(built, TilewrightError):
            return self._failed(point, built.headline)
        try:
            cubin = built.compile(self.gpu.arch, cache=self.cache)
            if cubin.resources.spill_load_bytes:
                return self._failed(point, f"spills {cubin.resources.spill_load_bytes} bytes")
            small = build(self.gemm.resized(*CHECK_SIZE), built.schedule)
            verdict = verify_on_gpu(small, self.gpu, make_operands(small.gemm), cache=self.cache)
            if not verdict.ok:
                return self._failed(point, f"wrong: {verdict.message}")
            candidates: dict[str, Launch] = {"point": launcher(built, self.gpu, self.cache)}
            if self.peer is not None:
                candidates["cuBLAS"] = self.peer.launch
            times = measure(self.gpu, candidates, self.rotated, rounds=self.rounds)
        except TilewrightError as error:
            return self._failed(point, error.headline)
        time, peer = times["point"], times.get("cuBLAS")
        share = None if peer is None else peer.median_us / time.median_us
        return Trial(
            point=dict(point),
            median_us=time.median_us,
            tflops=time.tflops(self.gemm),
            share_of_cublas=share,
            registers=cubin.resources.registers,
            failure="",
            device=self.gpu.name,
            date=records.now(),
        )

    def close(self) -> None:
        self.rotated.close()

    def _failed(self, point: Point, why: str) -> Trial:
        return Trial(dict(point), None, None, None, None, why, self.gpu.name, records.now())
