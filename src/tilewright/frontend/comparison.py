"""`matmul` against what people call today, over a suite of shapes: checked, then timed in turn in one run.

Each candidate's calls are captured into a CUDA graph, as many as run some milliseconds, over operands that are random
normal, made on the GPU and rotated over more than four times its L2 cache. Graphs are replayed in turn, a short rest
before each; the figure is the median. The result is held against float64 (some rows of it) before anything is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from tilewright import extras
from tilewright.bench import records
from tilewright.bench.clocks import ClockLog
from tilewright.dtypes import F32
from tilewright.errors import TilewrightError
from tilewright.frontend.calls import matmul
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.nvrtc import compiler_version

SUITE: tuple[tuple[int, int, int], ...] = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 8192, 512),
    (512, 512, 16384),
    (1, 8192, 8192),
    (16, 8192, 8192),
    (64, 4096, 14336),
    (4096, 14336, 4096),
    (1000, 1000, 1000),
    (4095, 4097, 4093),
    (2048, 151936, 2048),
)
ORDERS = ("NN", "NT", "TN")

ROTATED_BYTES = 256 << 20
GRAPH_US = 3000.0
MOST_CALLS = 300
REST_S = 0.01
ROWS_CHECKED = 128
FILE = "suite.jsonl"

_TORCH = {"f32": "float32", "tf32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Compared:
    """One problem: the record, and the times of each candidate in microseconds a call."""

    record: records.Record
    times_us: dict[str, list[float]]


def compare(
    shapes: Sequence[tuple[int, int, int]],
    formats: Sequence[str],
    orders: Sequence[str] = ("NN",),
    *,
    compiled: bool = False,
    rounds: int = 9,
) -> Iterator[Compared]:
    """Records of problems as they are measured. compiled: also torch.compile with max-autotune (slow to start)."""
    torch: Any = extras.require("torch", "Comparing with cuBLAS")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    for name in formats:
        for m, n, k in shapes:
            for order in orders:
                yield _compare(torch, m, n, k, name, order, compiled, rounds)


def _compare(torch: Any, m: int, n: int, k: int, name: str, order: str, compiled: bool, rounds: int) -> Compared:
    gpu = open_gpu(torch.cuda.current_device())
    gemm = Gemm(m, n, k, **format_options(name))
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    operands = _operands(torch, gemm, getattr(torch, _TORCH[name]), order)
    precision: Any = "tf32" if name == "tf32" else "default"

    def ours(a: Any, b: Any) -> Any:
        return matmul(a, b) if precision == "default" else matmul(a, b, precision=precision)

    error = _check(torch, gemm, ours, *operands[0])
    candidates: dict[str, Callable[[Any, Any], Any]] = {"cuBLAS": torch.mm, "tilewright": ours}
    if compiled:
        torch._dynamo.reset()
        candidates["torch.compile"] = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")
    began = time.perf_counter()
    with ClockLog(gpu.index) as log:
        times = _time(torch, gemm, candidates, operands, rounds)
    medians = {one: statistics.median(found) for one, found in times.items()}
    own = times["tilewright"]
    record = records.Record(
        rung="matmul",
        m=m,
        n=n,
        k=k,
        dtype=name,
        orders=order,
        tflops=gemm.flops / medians["tilewright"] / 1e6,
        median_us=medians["tilewright"],
        fastest_us=min(own),
        slowest_us=max(own),
        relative_error=error,
        cublas_us=medians["cuBLAS"],
        share_of_cublas=medians["cuBLAS"] / medians["tilewright"],
        origin=records.Origin(
            device=gpu.name,
            driver=gpu.driver_version,
            compiler=compiler_version(),
            peer=f"torch {torch.__version__}, CUDA {torch.version.cuda}",
            commit=records.commit(),
            command=records.command(),
            date=records.now(),
            clock_mhz=log.median_clock_mhz,
            power_w=log.median_power_w,
        ),
        extra={
            "rounds": rounds,
            "seconds": round(time.perf_counter() - began, 2),
            "plan": _plan_words(operands[0]),
            **({"compiled_us": medians["torch.compile"]} if compiled else {}),
        },
    )
    return Compared(record, times)


def _operands(torch: Any, gemm: Gemm, dtype: Any, order: str) -> list[tuple[Any, Any]]:
    """Enough pairs of A and B that none is in the cache when its turn comes."""
    size_bytes = (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n) * gemm.dtype.bytes
    count = min(64, max(2, -(-ROTATED_BYTES // size_bytes)))

    def matrix(rows: int, columns: int, turned: bool) -> Any:
        if turned:
            return torch.randn(columns, rows, device="cuda", dtype=dtype).t()
        return torch.randn(rows, columns, device="cuda", dtype=dtype)

    return [(matrix(gemm.m, gemm.k, order[0] == "T"), matrix(gemm.k, gemm.n, order[1] == "T")) for _ in range(count)]


def _check(torch: Any, gemm: Gemm, ours: Callable[[Any, Any], Any], a: Any, b: Any) -> float:
    """The relative error of some rows; raises where it is no rounding error."""
    result = ours(a, b)
    rows = torch.linspace(0, gemm.m - 1, min(gemm.m, ROWS_CHECKED), device="cuda").long().unique()
    expected = a[rows].double() @ b.double()
    error = float((result[rows].double() - expected).norm() / expected.norm())
    # Sums of k rounded products grow like sqrt(k) u at most; the result is rounded once more.
    bound = (
        4 * gemm.k**0.5 * F32.unit_roundoff
        + 2 * gemm.out.unit_roundoff
        + 2 * (gemm.multiplied.unit_roundoff if gemm.multiplied is not gemm.dtype else 0.0)
    )
    if not error <= bound or not bool(torch.isfinite(result).all()):
        raise TilewrightError(f"{gemm}: the relative error is {error:.2e}, and at most {bound:.2e} is rounding.")
    return error


def _time(
    torch: Any,
    gemm: Gemm,
    candidates: dict[str, Callable[[Any, Any], Any]],
    operands: list[tuple[Any, Any]],
    rounds: int,
) -> dict[str, list[float]]:
    graphs: dict[str, tuple[Any, int]] = {}
    for name, multiply in candidates.items():
        for a, b in operands[:2]:
            multiply(a, b)
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        multiply(*operands[0])
        end.record()
        end.synchronize()
        once_us = max(start.elapsed_time(end) * 1e3, 2.0)
        calls = int(min(MOST_CALLS, max(2, GRAPH_US / once_us)))
        graph = torch.cuda.CUDAGraph()
        pairs = cycle(operands)
        with torch.cuda.graph(graph):
            for _ in range(calls):
                multiply(*next(pairs))
        graphs[name] = (graph, calls)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds + 1):
        for name, (graph, calls) in graphs.items():
            time.sleep(REST_S)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn:
                times[name].append(start.elapsed_time(end) * 1e3 / calls)
    for graph, _ in graphs.values():
        graph.reset()
    return times


def _plan_words(pair: tuple[Any, Any]) -> str:
    from tilewright.frontend.torch_calls import words_of

    return words_of(*pair)
