"""How we measure, stated once.

Correctness comes first, and is the caller's. Then: every candidate is captured into a CUDA graph of enough launches to
run some milliseconds; operands are rotated over at least four times the L2 cache; the candidates' graphs are replayed
in turn, round by round, so that heat and power fall on all alike; the figure is the median over rounds, with its
spread. Ratios are taken inside one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Self

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import Array
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import Operands
from tilewright.runtime.driver import Gpu
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.timer import LaunchGraph, time_launches

ROUNDS = 15
GRAPH_MS = 8.0
"""About how long one replay of a graph runs: long against its start, short against the power controller."""
MAX_LAUNCHES_PER_GRAPH = 400
FIRST_LAUNCHES = 2
L2_MULTIPLE = 4
PITCH_BYTES = 512
"""What copies of an operand are aligned to, as allocations are."""

Launch = Callable[[Sequence[int]], None]
"""Starts one multiplication on the measuring stream, given the addresses of A, B and C."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds a multiplication: the median over rounds, the fastest and slowest round, and how many launches."""

    median_us: float
    fastest_us: float
    slowest_us: float
    rounds: int
    launches_per_round: int

    def tflops(self, gemm: Gemm) -> float:
        """Achieved TFLOP/s of a problem."""
        return gemm.flops / self.median_us / 1e6

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median, 0 .. ."""
        return (self.slowest_us - self.fastest_us) / self.median_us


@dataclass(frozen=True, slots=True)
class Repeated:
    """What a matrix holds: a pattern, again and again, for so many elements."""

    pattern: Array
    elements: int

    @property
    def nbytes(self) -> int:
        return self.elements * self.pattern.itemsize


class RotatedOperands:
    """Copies of A, B and C on the GPU, more of them than the L2 cache holds."""

    def __init__(self, gpu: Gpu, storages: Sequence[Repeated], spec: DeviceSpec) -> None:
        set_bytes = sum(max(storage.nbytes, 1) for storage in storages)
        self.copies = max(1, -(-L2_MULTIPLE * spec.l2_bytes // set_bytes))
        self._pitches = [-(-max(storage.nbytes, 1) // PITCH_BYTES) * PITCH_BYTES for storage in storages]
        self._arrays = [
            DeviceArray.repeated(gpu, storage.pattern, storage.elements, copies=self.copies, pitch_bytes=pitch)
            for storage, pitch in zip(storages, self._pitches, strict=True)
        ]
        self._turn = count()

    @classmethod
    def of(cls, gpu: Gpu, operands: Operands, spec: DeviceSpec) -> Self:
        """Of matrices that lie on the host."""
        return cls(gpu, [Repeated(one, one.size) for one in (operands.a, operands.b, operands.c)], spec)

    def next(self) -> tuple[int, int, int]:
        """The addresses of the next copy of A, B and C."""
        return self.addresses(next(self._turn) % self.copies)

    def addresses(self, copy: int = 0) -> tuple[int, int, int]:
        """The addresses of one copy of A, B and C."""
        a, b, c = (array.pointer + copy * pitch for array, pitch in zip(self._arrays, self._pitches, strict=True))
        return a, b, c

    @property
    def results(self) -> DeviceArray:
        """All copies of C, that of copy 0 first."""
        return self._arrays[2]

    def close(self) -> None:
        for array in self._arrays:
            array.close()


def measure(
    gpu: Gpu,
    candidates: Mapping[str, Launch],
    operands: RotatedOperands,
    *,
    rounds: int = ROUNDS,
    graph_ms: float = GRAPH_MS,
    hopeless_us: float = inf,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Timing]:
    """Time candidates on one problem, interleaved. hopeless_us: a candidate whose first launches take longer each, the
    host's pace included, is not timed any more."""

    def launcher(launch: Launch) -> Callable[[], None]:
        return lambda: launch(operands.next())

    graphs: dict[str, LaunchGraph] = {}
    result: dict[str, Timing] = {}
    for name, launch in candidates.items():
        step = launcher(launch)
        step()  # loads the module, fills handles and workspaces
        once_us = time_launches(gpu.stream, step, launches=FIRST_LAUNCHES)
        if once_us > hopeless_us:
            result[name] = Timing(once_us, once_us, once_us, 1, FIRST_LAUNCHES)
            continue
        launches = int(min(MAX_LAUNCHES_PER_GRAPH, max(1, round(graph_ms * 1e3 / max(once_us, 0.5)))))
        graphs[name] = LaunchGraph.capture(gpu.stream, step, launches=launches)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for name in graphs:
        graphs[name].time(gpu.stream)  # one unmeasured replay each
    for number in range(rounds):
        for name, graph in graphs.items():
            times[name].append(graph.time(gpu.stream))
        if progress is not None:
            progress(number + 1, rounds)
    for name, t in times.items():
        result[name] = Timing(statistics.median(t), min(t), max(t), rounds, graphs[name].launches)
    for graph in graphs.values():
        graph.close()
    return result
