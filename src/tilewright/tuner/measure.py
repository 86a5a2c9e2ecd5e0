"""How a candidate gets its time: held against float64, and only then timed.

The kernel that is timed is the one that is checked, on the operands that it is timed with (`sample`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, Protocol

from tilewright.artifacts import CudaSource
from tilewright.bench.baseline import library
from tilewright.bench.protocol import Launch, RotatedOperands, Timing, measure
from tilewright.errors import LaunchError, TilewrightError
from tilewright.planning.plan import Plan
from tilewright.problem.gemm import Gemm
from tilewright.runtime.driver import Gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.probe import probe
from tilewright.tuner.compiling import Prepared
from tilewright.tuner.sample import RepeatedOperands, Sample, sample_of
from tilewright.winners.plan_config import PlanConfig

ROUNDS = 3
"""Replays of a candidate's graph in the search; the best are timed again, side by side."""

GRAPH_MS = 4.0
FINAL_ROUNDS = 11

HOPELESS, HOST_US = 1.5, 20.0
"""A candidate that takes longer than the best so far by such a factor is timed by its first launches alone. Beside them
the host takes some microseconds for each."""


_SWITCH_S = 0.0005
"""Between threads, while one imports and the other measures."""


class GpuLost(LaunchError):
    """A candidate left the GPU unusable for this process: nothing more can be measured in it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate that gave the right result. relative_error: of what was checked. kernel, order: names of its text
    and of its reduction order."""

    median_us: float
    registers: int
    relative_error: float
    kernel: str
    order: str


class Measurer(Protocol):
    """What a search asks of a GPU. Everything raises TilewrightError for a candidate that fails, and says why."""

    def measure(self, prepared: Any) -> Measured:
        """Checked, then timed; one at a time. Raises GpuLost where nothing more can be measured."""
        ...

    def side_by_side(self, prepared: Mapping[str, Any]) -> Mapping[str, Timing]:
        """Timed in turn, under the names given, and its peers with them."""
        ...


class GpuMeasurer:
    """Candidates of one problem on a GPU.

    find_peers: of what `side_by_side` times with them, such as `cuBLAS`; called when that is first needed.
    """

    def __init__(
        self,
        gpu: Gpu,
        gemm: Gemm,
        find_peers: Callable[[], Mapping[str, Launch]] = dict,
    ) -> None:
        self.gpu, self.gemm = gpu, gemm
        self._find_peers = find_peers
        self._beside = ThreadPoolExecutor(1)
        self._kernels: dict[CudaSource, LoadedKernel] = {}
        self._scratch: DeviceArray | None = None
        self._room_bytes = 0
        self._best_us = inf
        self._few_calls = False

    @contextmanager
    def beside_imports(self) -> Iterator[None]:
        """While another thread imports: each call of the driver gives the interpreter up and waits for it again, a
        millisecond or two where there are others. Results are downloaded in one call, and threads are switched sooner.
        """
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._few_calls = True
        try:
            yield
        finally:
            self._few_calls = False
            sys.setswitchinterval(before)

    def begin(self) -> None:
        """Begin to compute the reference, in a thread of its own."""
        _ = self._sample_made

    def begin_peers(self) -> None:
        """Begin to look for cuBLAS: half a gigabyte to open, which from a cold disk would delay a first measurement."""
        self._beside.submit(library)

    @cached_property
    def _sample_made(self) -> Future[Sample]:
        return self._beside.submit(lambda: sample_of(RepeatedOperands(self.gemm)))

    @cached_property
    def peers(self) -> Mapping[str, Launch]:
        return self._find_peers()

    @cached_property
    def _rotated(self) -> RotatedOperands:
        return RotatedOperands(self.gpu, RepeatedOperands(self.gemm).storages, probe(self.gpu))

    def measure(self, prepared: Prepared) -> Measured:
        with self._alive_after(prepared.candidate):
            self._make_room(prepared.plan.scratch_bytes)
            launch = self._launch(prepared)
            relative_error = self._checked(launch)
            hopeless_us = HOPELESS * self._best_us + HOST_US
            found = measure(
                *(self.gpu, {"it": launch}, self._rotated), rounds=ROUNDS, graph_ms=GRAPH_MS, hopeless_us=hopeless_us
            )
        timing = found["it"]
        self._best_us = min(self._best_us, timing.median_us)
        return Measured(timing.median_us, prepared.registers, relative_error, prepared.kernel, prepared.order)

    def side_by_side(self, prepared: Mapping[str, Prepared]) -> Mapping[str, Timing]:
        self._make_room(max((one.plan.scratch_bytes for one in prepared.values()), default=0))
        candidates = {name: self._launch(one) for name, one in prepared.items()}
        return measure(self.gpu, {**candidates, **self.peers}, self._rotated, rounds=FINAL_ROUNDS, graph_ms=GRAPH_MS)

    def close(self) -> None:
        self._beside.shutdown(wait=False, cancel_futures=True)
        if "_rotated" in self.__dict__:
            self._rotated.close()
        if self._scratch is not None:
            self._scratch.close()

    def _launch(self, prepared: Prepared) -> Launch:
        plan, stream = self.loaded(prepared), int(self.gpu.stream.handle)
        scratch = self._scratch.pointer if self._scratch is not None else 0

        def launch(pointers: Sequence[int]) -> None:
            a, b, c = pointers
            plan.run(stream, (a, b, c, 0, 0, scratch))

        return launch

    def loaded(self, prepared: Prepared) -> Plan:
        """The plan of a candidate with its kernels on the GPU; each is loaded once."""
        launches = []
        for one in prepared.launches:
            kernel = self._kernels.get(one.paper.source)
            if kernel is None:
                kernel = self._kernels[one.paper.source] = load(self.gpu, one.cubin, one.paper.source)
            launches.append(kernel.prepare(one.paper.grid, one.paper.block, one.paper.arguments))
        steps = [replace(step, launch=launch) for step, launch in zip(prepared.plan.steps, launches, strict=True)]
        return replace(prepared.plan, steps=tuple(steps))

    def _make_room(self, size_bytes: int) -> None:
        """A workspace of at least so many bytes, which nothing that is captured uses yet."""
        if size_bytes <= self._room_bytes:
            return
        if self._scratch is not None:
            self._scratch.close()
        self._scratch, self._room_bytes = None, 0
        self._scratch, self._room_bytes = DeviceArray(self.gpu, (size_bytes,)), size_bytes

    def _checked(self, launch: Launch) -> float:
        """The relative error of one launch. Raises TilewrightError for a wrong result."""
        result = self._rotated.results
        result.poison()
        launch(self._rotated.addresses())
        self.gpu.synchronize()
        verdict = self._sample_made.result().verdict_of(result, at_once=self._few_calls)
        if not verdict.ok:
            raise TilewrightError(f"wrong result: {verdict.message}")
        return verdict.relative_error

    @contextmanager
    def _alive_after(self, candidate: PlanConfig) -> Iterator[None]:
        """Raises GpuLost where a candidate failed and took the GPU with it."""
        try:
            yield
        except LaunchError as failure:
            try:
                self.gpu.synchronize()
            except LaunchError:
                raise GpuLost(
                    f"{candidate} left the GPU unusable for this process: {failure.headline}",
                    hint="run the same command again: it goes on without this candidate.",
                ) from None
            raise
