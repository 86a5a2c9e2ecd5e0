"""How a candidate gets its time: held against float64, and only then timed.

The kernel that is timed is the one that is checked, on the operands that it is timed with: all of C where that is
small, else one row of each stretch of rows and all their columns, so that every tile is met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tilewright.artifacts import CudaSource
from tilewright.bench.protocol import Launch, RotatedOperands, Timing, measure
from tilewright.dtypes import Array
from tilewright.errors import LaunchError, TilewrightError
from tilewright.planning.plan import Plan
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reference import Operands, make_operands, reference, view
from tilewright.problem.tolerance import Verdict, compare, error_bound
from tilewright.runtime.driver import Gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.probe import probe
from tilewright.tuner.compiling import Prepared
from tilewright.winners.plan_config import PlanConfig

ROUNDS = 3
"""Replays of a candidate's graph in the search; the best are timed again, side by side."""

GRAPH_MS = 4.0
FINAL_ROUNDS = 11

_CHECKED_FLOPS = 2e10
"""Of the float64 reference, computed once: about a second on a few cores."""

_CHECKED_ELEMENTS = 2_000_000
"""Of C, that each candidate's are compared with: some hundredths of a second."""

_FEWEST_ROWS = 16


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

    peers: what `side_by_side` times with them, such as `cuBLAS`. given: operands and their reference, where they are
    made already. kernels: that are loaded already, by their text; those of this problem are added.
    """

    def __init__(
        self,
        gpu: Gpu,
        gemm: Gemm,
        peers: Mapping[str, Launch] | None = None,
        *,
        given: tuple[Operands, Sample] | None = None,
        kernels: dict[CudaSource, LoadedKernel] | None = None,
    ) -> None:
        self.gpu, self.gemm = gpu, gemm
        self.peers = dict(peers or {})
        self._given = given
        self._kernels = {} if kernels is None else kernels
        self._scratch: DeviceArray | None = None
        self._room_bytes = 0

    def warm(self) -> None:
        """Make operands and their reference now, some seconds for large problems, while compilers work; and let each
        peer load what it loads at its first call."""
        _ = self._sample
        for peer in self.peers.values():
            peer(self._rotated.addresses())
        self.gpu.synchronize()

    @cached_property
    def _operands(self) -> Operands:
        return make_operands(self.gemm) if self._given is None else self._given[0]

    @cached_property
    def _rotated(self) -> RotatedOperands:
        return RotatedOperands(self.gpu, self._operands, probe(self.gpu))

    @cached_property
    def _sample(self) -> Sample:
        return sample_of(self._operands) if self._given is None else self._given[1]

    def measure(self, prepared: Prepared) -> Measured:
        with self._alive_after(prepared.candidate):
            launch, relative_error = self._right(prepared)
            timing = measure(self.gpu, {"it": launch}, self._rotated, rounds=ROUNDS, graph_ms=GRAPH_MS)["it"]
        return Measured(timing.median_us, prepared.registers, relative_error, prepared.kernel, prepared.order)

    def check(self, prepared: Prepared) -> float:
        """The relative error. Raises TilewrightError for a wrong result."""
        with self._alive_after(prepared.candidate):
            return self._right(prepared)[1]

    def _right(self, prepared: Prepared) -> tuple[Launch, float]:
        self._make_room(prepared.plan.scratch_bytes)
        launch = self._launch(prepared)
        return launch, self._checked(launch)

    def side_by_side(self, prepared: Mapping[str, Prepared]) -> Mapping[str, Timing]:
        self._make_room(max((one.plan.scratch_bytes for one in prepared.values()), default=0))
        candidates = {name: self._launch(one) for name, one in prepared.items()}
        return measure(self.gpu, {**candidates, **self.peers}, self._rotated, rounds=FINAL_ROUNDS, graph_ms=GRAPH_MS)

    def close(self) -> None:
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
        result = self._rotated.result()
        result.poison()
        launch(self._rotated.addresses())
        self.gpu.synchronize()
        verdict = self._sample.verdict(result.download())
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


@dataclass(frozen=True)
class Sample:
    """Rows of C with their float64 reference and bound."""

    gemm: Gemm
    rows: Array
    expected: Array
    bound: Array

    def verdict(self, stored: Array) -> Verdict:
        """The stored C, flat, held against the reference; `Verdict.worst_at` counts rows of the sample."""
        computed = self.gemm.out.decode(view(self.gemm, "C", stored)[self.rows])
        return compare(computed, self.expected, self.bound)


def sample_of(operands: Operands, *, flops: float = _CHECKED_FLOPS, seed: int = 0) -> Sample:
    """All rows where that is little work: for float64, once, no more than `flops`, and few elements to compare with
    each candidate. Else the first, the last and one of each stretch.
    """
    gemm = operands.gemm
    most = max(_FEWEST_ROWS, int(min(flops / max(1, 2 * gemm.n * gemm.k), _CHECKED_ELEMENTS / max(1, gemm.n))))
    rows = sampled_rows(gemm.m, most, seed)
    part = gemm.resized(len(rows), gemm.n, gemm.k)
    part = Gemm(
        *(part.m, part.n, part.k, gemm.dtype, gemm.accumulate, gemm.out, Order.ROW, gemm.b, Order.ROW),
        alpha=gemm.alpha,
        beta=gemm.beta,
        ldb=gemm.ldb,
        product=gemm.product,
    )
    a = np.ascontiguousarray(view(gemm, "A", operands.a)[rows]).reshape(-1)
    c = np.ascontiguousarray(view(gemm, "C", operands.c)[rows]).reshape(-1)
    few = Operands(part, a, operands.b, c)
    return Sample(gemm, rows, reference(few), error_bound(few))


def sampled_rows(m: int, most: int, seed: int = 0) -> Array:
    """
    >>> sampled_rows(5, 16).tolist(), len(sampled_rows(4096, 64))
    ([0, 1, 2, 3, 4], 64)
    """
    if m <= most:
        return np.arange(m)
    within = np.random.default_rng(seed).random(most)
    rows = ((np.arange(most) + within) * m / most).astype(np.int64)
    rows[0], rows[-1] = 0, m - 1
    return np.minimum(rows, m - 1)
