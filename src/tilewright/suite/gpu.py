"""A GPU that checks and times one problem after another, through PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright import extras
from tilewright.bench import records
from tilewright.bench.clocks import ClockLog, origin_of
from tilewright.errors import LaunchError, TilewrightError
from tilewright.problem.gemm import Gemm
from tilewright.runtime.driver import open_gpu
from tilewright.suite.contests import contest
from tilewright.suite.cublaslt import CublasLt
from tilewright.suite.operands import checked, operands_of
from tilewright.suite.peers import (
    Multiply,
    by_tilewright,
    compiled,
    over,
    through_cublaslt,
    true_to_formats,
    words_of_problem,
)
from tilewright.suite.problems import Problem
from tilewright.suite.running import COMPILED, CUBLAS, CUBLASLT, OURS, Measured
from tilewright.suite.sweep import SweepRow, Target
from tilewright.suite.timing import fastest, interleaved

WORTH_A_NAME = 0.98
"""Shares of cuBLAS below which its kernel's name is recorded."""

LT_KEPT = 2
"""Algorithms of cuBLASLt that are timed with the others; the better of them counts."""


class TorchBench:
    """The current GPU of PyTorch."""

    def __init__(self) -> None:
        self._torch: Any = extras.require("torch", "Timing cuBLAS")
        if not self._torch.cuda.is_available():
            raise LaunchError("torch.cuda.is_available() is False.", hint="install a PyTorch that is built for CUDA.")
        self._gpu = open_gpu(self._torch.cuda.current_device())
        self._library: CublasLt | None = None
        self._timer = TorchTimer(self._torch)

    @property
    def device(self) -> str:
        return self._gpu.name

    def measure(self, problem: Problem, peers: Sequence[str]) -> Measured:
        """Everybody's result is checked before anything is timed."""
        torch, gemm = self._torch, problem.gemm
        true_to_formats(torch, gemm)
        torch.cuda.empty_cache()  # the graphs of the problem before held memory of their own
        pairs = operands_of(torch, gemm, getattr(torch, gemm.dtype.array_name))
        a, b = pairs[0]
        ours = by_tilewright(problem)
        error = checked(torch, gemm, OURS, ours(a, b), a, b)
        candidates, notes = {OURS: ours}, {}
        for peer in peers:
            try:
                for name, multiply in self._peer(peer, gemm, pairs).items():
                    checked(torch, gemm, peer, multiply(a, b), a, b)
                    candidates[name] = multiply
            except (TilewrightError, RuntimeError) as failure:
                notes[peer] = str(failure).partition("\n")[0][:200]
        with ClockLog(self._gpu.uuid) as log:
            calls = {name: over(multiply, pairs) for name, multiply in candidates.items()}
            times = interleaved(self._timer, calls, copies=len(pairs))
        kept = [name for name in times if name.startswith(CUBLASLT)]
        if kept:
            best = min(kept, key=lambda name: times[name].median_us)
            times = {name: found for name, found in times.items() if name not in kept} | {CUBLASLT: times[best]}
        return Measured(times, error, words_of_problem(problem, a, b), self._origin(log), notes)

    @property
    def origin(self) -> records.Origin:
        """Where and how rows are measured; clocks are not logged."""
        return self._origin(None)

    def row(self, drawn: Target) -> SweepRow:
        """One problem of a sweep beside cuBLAS; where cuBLAS is faster, the names of its kernels."""
        torch = self._torch
        true_to_formats(torch, drawn.problem.gemm)
        torch.cuda.empty_cache()
        one = contest(torch, drawn.problem)
        error = one.check(OURS, one.ours())
        ran = one.ran()
        one.check(CUBLAS, one.peer())
        times = interleaved(self._timer, {OURS: one.ours, CUBLAS: one.peer}, copies=one.copies)
        share = times[OURS].share_of(times[CUBLAS])
        return SweepRow(
            problem=str(drawn.problem),
            kind=drawn.kind,
            source=drawn.source,
            us=round(times[OURS].median_us, 2),
            peer_us=round(times[CUBLAS].median_us, 2),
            share=round(share, 4),
            error=float(f"{error:.2g}"),
            ran=ran,
            peer_ran=kernel_names(torch, one.peer) if share < WORTH_A_NAME else "",
        )

    def _peer(self, peer: str, gemm: Gemm, pairs: Sequence[tuple[Any, Any]]) -> dict[str, Multiply]:
        """The candidates that stand for a peer, by name."""
        if peer == CUBLAS:
            return {CUBLAS: self._torch.mm}
        if peer == COMPILED:
            return {COMPILED: compiled(self._torch)}
        if self._library is None:
            self._library = CublasLt()
        found = through_cublaslt(self._torch, self._library, gemm)
        if not found:
            raise LaunchError("cuBLASLt offers no algorithm.")
        kept = fastest(self._timer, [over(multiply, pairs) for multiply in found], keep=LT_KEPT)
        return {f"{CUBLASLT} {number}": found[number] for number in kept}

    def _origin(self, log: ClockLog | None) -> records.Origin:
        torch = self._torch
        lt = f", cuBLASLt {self._library.version}" if self._library is not None else ""
        return origin_of(self._gpu, f"torch {torch.__version__}, CUDA {torch.version.cuda}{lt}", log)


def kernel_names(torch: Any, call: Callable[[], object]) -> str:
    """The names of the kernels that a call launches, by the profiler; cuBLAS's tell tile, stages, cluster and split."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    names = (event.key for event in profile.key_averages())
    calls = ("cuda", "cuLaunch", "Mem", "Activity")
    return "; ".join(name.partition("(")[0][:90] for name in names if not name.startswith(calls))


BLOCKED_CLOCKS = 2_000_000
"""About a millisecond, in which the host launches a graph of a thousand kernels."""


class TorchTimer:
    """Events and CUDA graphs of PyTorch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def once_us(self, call: Callable[[], object]) -> float:
        call()
        call()
        return self.elapsed_us(call)

    def capture(self, call: Callable[[], object], calls: int) -> TorchReplay:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return TorchReplay(self, graph, calls)

    def elapsed_us(self, work: Callable[[], object]) -> float:
        """Of what `work` enqueues, from its first kernel's start to its last one's end."""
        torch = self._torch
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The stream is blocked until the work is enqueued: else the host's time to launch a graph is measured, some
        # tenths of a millisecond behind a rest, and more for kernels with tensor maps.
        torch.cuda._sleep(BLOCKED_CLOCKS)
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3


class TorchReplay:
    """A captured graph of `calls` calls."""

    def __init__(self, timer: TorchTimer, graph: Any, calls: int) -> None:
        self._timer, self._graph, self._calls = timer, graph, calls

    def time_us(self) -> float:
        return self._timer.elapsed_us(self._graph.replay) / self._calls

    def close(self) -> None:
        self._graph.reset()
