"""How a candidate gets its time: held against float64, and only then timed.

The kernel that is timed is the one that is checked, on the operands that it is timed with: all of C where that is
small, else one row of each stretch of rows and all their columns, so that every tile is met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tilewright.bench.protocol import Launch, RotatedOperands, Timing, measure
from tilewright.dtypes import Array
from tilewright.errors import LaunchError, TilewrightError
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reference import Operands, make_operands, reference, view
from tilewright.problem.tolerance import Verdict, compare, error_bound
from tilewright.runtime.driver import Gpu
from tilewright.runtime.launch import load
from tilewright.runtime.probe import probe
from tilewright.toolchain import arguments
from tilewright.tuner.compiling import Prepared
from tilewright.tuner.space import Candidate

ROUNDS = 3
"""Replays of a candidate's graph in the search; the best are timed again, side by side."""

GRAPH_MS = 4.0
FINAL_ROUNDS = 11

_CHECKED_FLOPS = 2e10
"""Of the float64 reference, computed once: about a second on a few cores."""

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
    """Candidates of one problem on a GPU. peers: what `side_by_side` times with them, such as `cuBLAS`."""

    def __init__(self, gpu: Gpu, gemm: Gemm, peers: Mapping[str, Launch] | None = None) -> None:
        self.gpu, self.gemm = gpu, gemm
        self.peers = dict(peers or {})

    def warm(self) -> None:
        """Make operands and their reference now, some seconds for large problems, while compilers work."""
        _ = self._sample, self._rotated

    @cached_property
    def _operands(self) -> Operands:
        return make_operands(self.gemm)

    @cached_property
    def _rotated(self) -> RotatedOperands:
        return RotatedOperands(self.gpu, self._operands, probe(self.gpu))

    @cached_property
    def _sample(self) -> Sample:
        return sample_of(self._operands)

    def measure(self, prepared: Prepared) -> Measured:
        try:
            launch = self._launch(prepared)
            relative_error = self._checked(launch)
            timing = measure(self.gpu, {"it": launch}, self._rotated, rounds=ROUNDS, graph_ms=GRAPH_MS)["it"]
        except LaunchError as failure:
            self._check_alive(prepared.candidate, failure)
            raise
        registers = prepared.cubin.resources.registers
        return Measured(timing.median_us, registers, relative_error, prepared.kernel, prepared.order)

    def side_by_side(self, prepared: Mapping[str, Prepared]) -> Mapping[str, Timing]:
        candidates = {name: self._launch(one) for name, one in prepared.items()}
        return measure(self.gpu, {**candidates, **self.peers}, self._rotated, rounds=FINAL_ROUNDS, graph_ms=GRAPH_MS)

    def close(self) -> None:
        if "_rotated" in self.__dict__:
            self._rotated.close()

    def _launch(self, prepared: Prepared) -> Launch:
        loaded = load(self.gpu, prepared.cubin, prepared.source)

        def launch(pointers: Sequence[int]) -> None:
            loaded.launch(self.gpu.stream, prepared.grid, prepared.block, arguments(self.gemm, pointers))

        return launch

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

    def _check_alive(self, candidate: Candidate, failure: LaunchError) -> None:
        try:
            self.gpu.synchronize()
        except LaunchError:
            raise GpuLost(
                f"{candidate} left the GPU unusable for this process: {failure.headline}",
                hint="run the same command again: it goes on without this candidate.",
            ) from None


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
    """All rows where float64 needs no more than `flops` for them, else the first, the last and one of each stretch."""
    gemm = operands.gemm
    most = max(_FEWEST_ROWS, int(flops / max(1, 2 * gemm.n * gemm.k)))
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
