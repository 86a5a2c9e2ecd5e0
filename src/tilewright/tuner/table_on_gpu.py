"""Short lists checked and timed on a GPU, one problem after another; the next one's reference is made meanwhile."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from tilewright.artifacts import CudaSource
from tilewright.bench.baseline import cublas
from tilewright.errors import TilewrightError
from tilewright.runtime.driver import Gpu
from tilewright.runtime.launch import LoadedKernel
from tilewright.suite.problems import Problem
from tilewright.tuner.measure import GpuLost, GpuMeasurer
from tilewright.tuner.sample import RepeatedOperands, Sample, sample_of
from tilewright.tuner.table import PEER, Ready, Timed


class GpuTable:
    """Used in a `with` block."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._host = ThreadPoolExecutor(1)
        self._made: dict[Problem, Future[Sample]] = {}
        self._kernels: dict[CudaSource, LoadedKernel] = {}

    def __enter__(self) -> GpuTable:
        return self

    def __exit__(self, *exception: object) -> None:
        self._host.shutdown(wait=False, cancel_futures=True)

    def ahead(self, problem: Problem) -> None:
        if problem not in self._made:
            self._made[problem] = self._host.submit(sample_of, RepeatedOperands(problem.gemm))

    def measure(self, problem: Problem, ready: Ready) -> Timed:
        self.ahead(problem)
        gemm, given = problem.gemm, self._made.pop(problem).result()
        peer = cublas(self.gpu, gemm)
        peers = {} if peer is None else {PEER: peer.launch}
        measurer = GpuMeasurer(self.gpu, gemm, lambda: peers, given=given, kernels=self._kernels)
        try:
            right, failures = {}, {}
            for name, prepared in ready.prepared.items():
                try:
                    measurer.check(prepared)
                    right[name] = prepared
                except GpuLost:
                    raise
                except TilewrightError as failure:
                    failures[name] = failure.headline
            return Timed(measurer.side_by_side(right) if right else {}, failures)
        finally:
            measurer.close()
