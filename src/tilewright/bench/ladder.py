"""A whole ladder on a GPU: each rung checked, then all of one problem and cuBLAS timed in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.bench import records
from tilewright.bench.baseline import cublas
from tilewright.bench.clocks import ClockLog, origin_of
from tilewright.bench.protocol import Launch, RotatedOperands, Timing, measure
from tilewright.ladders.rung import Rung
from tilewright.problem.formats import FormatOptions, format_name
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.problem.tolerance import Verdict
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu
from tilewright.runtime.probe import probe
from tilewright.toolchain import Build, arguments, build, grid_of, verify_on_gpu


@dataclass(frozen=True)
class Measured:
    """One rung: its build, the check of its result, and its time."""

    rung: Rung
    built: Build
    verdict: Verdict
    timing: Timing
    record: records.Record


def measure_ladder(
    gpu: Gpu,
    rungs: Sequence[Rung],
    m: int,
    n: int,
    k: int,
    *,
    formats: FormatOptions | None = None,
    cache: CubinCache | None = None,
    rounds: int = 15,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Measured]:
    """Check and time rungs with cuBLAS, those that share a problem interleaved in one run.

    formats: none for those of the rungs.
    """
    problems: dict[Gemm, list[Rung]] = {}
    for rung in rungs:
        problems.setdefault(rung.gemm(m, n, k, **(formats or {})), []).append(rung)
    found: list[Measured] = []
    for gemm, sharing in problems.items():
        found += _measure_problem(gpu, gemm, sharing, cache=cache, rounds=rounds, progress=progress)
    return sorted(found, key=lambda one: rungs.index(one.rung))


def _measure_problem(
    gpu: Gpu,
    gemm: Gemm,
    rungs: Sequence[Rung],
    *,
    cache: CubinCache | None,
    rounds: int,
    progress: Callable[[str, int, int], None] | None,
) -> list[Measured]:
    """The rungs of one problem."""
    operands = make_operands(gemm)
    spec = probe(gpu)
    builds = [build(gemm, rung.on(spec)) for rung in rungs]
    verdicts = []
    for number, built in enumerate(builds):
        verdicts.append(verify_on_gpu(built, gpu, operands, cache=cache))
        if progress is not None:
            progress("checking", number + 1, len(builds))
    peer = cublas(gpu, gemm)
    rotated = RotatedOperands.of(gpu, operands, spec)
    candidates = {rung.name: launcher(built, gpu, cache) for rung, built in zip(rungs, builds, strict=True)}
    if peer is not None:
        candidates["cuBLAS"] = peer.launch
    steps = None if progress is None else lambda done, total: progress("timing", done, total)
    try:
        with ClockLog(gpu.uuid) as log:
            times = measure(gpu, candidates, rotated, rounds=rounds, progress=steps)
    finally:
        rotated.close()
    origin = origin_of(gpu, peer.version if peer is not None else "", log)
    reference = times.get("cuBLAS")
    return [
        Measured(
            rung, built, verdict, times[rung.name], _record(rung, gemm, verdict, times[rung.name], reference, origin)
        )
        for rung, built, verdict in zip(rungs, builds, verdicts, strict=True)
    ]


def launcher(built: Build, gpu: Gpu, cache: CubinCache | None = None) -> Launch:
    """A function that launches a build on the GPU's stream."""
    loaded = built.load(gpu, cache=cache)
    anywhere = arguments(built.gemm, [0] * len(built.gemm.matrices))
    prepared = loaded.prepare(grid_of(built.kernel, built.gemm), built.kernel.block, anywhere)
    return lambda pointers: prepared.launch(int(gpu.stream.handle), *pointers)


def _record(
    rung: Rung, gemm: Gemm, verdict: Verdict, timing: Timing, peer: Timing | None, origin: records.Origin
) -> records.Record:
    return records.Record(
        rung=rung.name,
        m=gemm.m,
        n=gemm.n,
        k=gemm.k,
        dtype=format_name(gemm),
        orders=gemm.orders,
        tflops=timing.tflops(gemm),
        median_us=timing.median_us,
        fastest_us=timing.fastest_us,
        slowest_us=timing.slowest_us,
        relative_error=verdict.relative_error,
        cublas_us=None if peer is None else peer.median_us,
        share_of_cublas=None if peer is None else peer.median_us / timing.median_us,
        origin=origin,
        extra={"verified": verdict.ok, "rounds": timing.rounds, "launches_per_round": timing.launches_per_round},
    )
