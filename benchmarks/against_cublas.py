"""Rungs against cuBLAS over shapes: in a burst of some 30 ms on a card that has rested, and sustained for a second.

    python benchmarks/against_cublas.py --rungs hopper/7 hopper/8 --out benchmarks/results/hopper_h200.jsonl

Operands are random normal, made on the GPU, rotated over at least 240 MB. All candidates are captured into CUDA graphs
and replayed in turn; before each replay of a burst the card rests for 30 ms. Each result is compared with the product
in float64 first, its output poisoned. Sustained figures interleave half-second stretches, on a card that has multiplied
for a second, and log clock and power.
A rung may be given with a point of its choices: hopper/7@group=16,stages=4.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from tilewright import extras
from tilewright.bench.clocks import ClockLog
from tilewright.bench.records import command, commit, now
from tilewright.ladders import find_rung
from tilewright.problem.formats import format_name, format_options
from tilewright.problem.gemm import ORDERS, Gemm, Order, orders_of
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.timer import LaunchGraph
from tilewright.schedule import Schedule
from tilewright.toolchain import arguments, build, grid_of

SHAPES = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (4096, 14336, 4096),
    (8192, 8192, 512),
    (2048, 151936, 2048),
)
ROTATED_BYTES = 250_000_000
GRAPH_US = 4000.0
REST_S = 0.03
STRETCH_S = 0.5
WARM_S = 1.0
ROWS_CHECKED = 256
MOST_ERROR = 1e-2
"""As norms: rounding the result alone is 2e-3 for bf16."""

_TORCH = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "tf32_truncated": "float32"}


@dataclass
class Candidate:
    """Something that multiplies: its graph, and the times of its replays in microseconds a multiplication."""

    name: str
    graph: LaunchGraph
    burst_us: list[float] = field(default_factory=list)
    sustained_us: list[float] = field(default_factory=list)
    states: list[tuple[float | None, float | None]] = field(default_factory=list)


def schedule_of(spec: str, gemm: Gemm) -> Schedule:
    """`hopper/7` or `hopper/7@group=16,stages=4`: the schedule of a rung, at a point of its choices."""
    name, _, point = spec.partition("@")
    rung = find_rung(name)
    if not point:
        return rung.schedule(gemm)
    assert rung.choices is not None, f"{name} has no choices"
    given: dict[str, Any] = dict(next(iter(rung.choices.points())))
    for part in point.split(","):
        key, _, value = part.partition("=")
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[key] = value
    return rung.choices.schedule_at(gemm, given)


class Shape:
    """The operands of one problem on the GPU, and the candidates that multiply them."""

    def __init__(self, gpu: Gpu, gemm: Gemm, torch_dtype: Any) -> None:
        torch: Any = extras.require("torch", "Measuring against cuBLAS")
        self.gpu, self.gemm, self.torch = gpu, gemm, torch
        one = (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n) * gemm.dtype.bytes
        self.stream = torch.cuda.ExternalStream(int(gpu.stream.handle))

        def matrix(rows: int, columns: int, order: Order, leading: int, make: Callable[..., Any]) -> Any:
            lines, length = (rows, columns) if order is Order.ROW else (columns, rows)
            made = make(lines, leading, device="cuda", dtype=torch_dtype)[:, :length]
            return made if order is Order.ROW else made.t()

        self.sets = [
            (
                matrix(gemm.m, gemm.k, gemm.a, gemm.lda, torch.randn),
                matrix(gemm.k, gemm.n, gemm.b, gemm.ldb, torch.randn),
                matrix(gemm.m, gemm.n, gemm.c, gemm.ldc, torch.empty),
            )
            for _ in range(max(1, -(-ROTATED_BYTES // one)))
        ]
        self._turn = count()
        torch.cuda.synchronize()
        self.launches = int(min(200, max(1, GRAPH_US / (gemm.flops / 650e6))))

    def next(self) -> Any:
        return self.sets[next(self._turn) % len(self.sets)]

    def cublas(self) -> Callable[[], None]:
        def launch() -> None:
            a, b, c = self.next()
            with self.torch.cuda.stream(self.stream):
                self.torch.mm(a, b, out=c)

        return launch

    def ours(self, spec: str) -> Callable[[], None]:
        built = build(self.gemm, schedule_of(spec, self.gemm))
        kernel, grid = built.load(self.gpu), grid_of(built.kernel, self.gemm)

        def launch() -> None:
            pointers = [tensor.data_ptr() for tensor in self.next()]
            kernel.launch(self.gpu.stream, grid, built.kernel.block, arguments(self.gemm, pointers))

        return launch

    def error(self, launch: Callable[[], None]) -> float:
        """The relative error of the first rows of one result, and whether all of it is finite."""
        self._turn = count()
        a, b, c = self.sets[0]
        c.fill_(float("nan"))
        self.torch.cuda.synchronize()
        launch()
        self.gpu.synchronize()
        right = a[:ROWS_CHECKED].double() @ b.double()
        found = float((c[:ROWS_CHECKED].double() - right).norm() / right.norm())
        return found if bool(self.torch.isfinite(c).all()) else float("inf")

    def candidate(self, name: str, launch: Callable[[], None]) -> Candidate:
        launch()
        self.gpu.synchronize()
        return Candidate(name, LaunchGraph.capture(self.gpu.stream, launch, launches=self.launches))


def measure(shape: Shape, specs: list[str], rounds: int, sustained: bool) -> list[dict[str, Any]]:
    """One row a candidate."""
    launches = {"cuBLAS": shape.cublas(), **{spec: shape.ours(spec) for spec in specs}}
    errors = {name: shape.error(launch) for name, launch in launches.items()}
    wrong = [name for name, error in errors.items() if not error < MOST_ERROR]
    if wrong:
        raise SystemExit(f"wrong results at {shape.gemm}: {', '.join(wrong)}")
    candidates = [shape.candidate(name, launch) for name, launch in launches.items()]
    stream = shape.gpu.stream
    for candidate in candidates:
        candidate.graph.time(stream)
    for number in range(rounds):
        for candidate in candidates[number % len(candidates) :] + candidates[: number % len(candidates)]:
            time.sleep(REST_S)
            candidate.burst_us.append(candidate.graph.time(stream))
    if sustained:  # the first stretch would otherwise have a cooler card than all others
        begin = time.monotonic()
        while time.monotonic() - begin < WARM_S:
            candidates[0].graph.time(stream)
    for _ in range(2 if sustained else 0):
        for candidate in (*candidates, *reversed(candidates)):
            begin, times = time.monotonic(), []
            with ClockLog(shape.gpu.uuid) as log:
                while time.monotonic() - begin < STRETCH_S:
                    times.append(candidate.graph.time(stream))
            candidate.sustained_us.append(statistics.median(times[len(times) // 2 :]))
            candidate.states.append((log.median_clock_mhz, log.median_power_w))
    rows = [row(shape.gemm, candidate, candidates[0], errors[candidate.name]) for candidate in candidates]
    for candidate in candidates:
        candidate.graph.close()
    return rows


def row(gemm: Gemm, candidate: Candidate, peer: Candidate, error: float) -> dict[str, Any]:
    def figures(times: list[float], of_peer: list[float]) -> dict[str, float]:
        own, other = statistics.median(times), statistics.median(of_peer)
        return {
            "us": round(own, 2),
            "tflops": round(gemm.flops / own / 1e6, 1),
            "share_of_cublas": round(other / own, 4),
        }

    made: dict[str, Any] = {
        "shape": [gemm.m, gemm.n, gemm.k],
        "dtype": format_name(gemm),
        "orders": gemm.orders,
        "gap": gemm.ldc - gemm.n,
        "candidate": candidate.name,
        "relative_error": float(f"{error:.3g}"),
        "burst": figures(candidate.burst_us, peer.burst_us),
    }
    if candidate.sustained_us:
        made["sustained"] = figures(candidate.sustained_us, peer.sustained_us)
        for name, values in zip(("clock_mhz", "power_w"), zip(*candidate.states, strict=True), strict=True):
            known = [value for value in values if value is not None]
            made["sustained"][name] = round(statistics.mean(known), 1) if known else None
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=list(_TORCH), default="bf16")
    parser.add_argument("--orders", choices=list(ORDERS), default="NN", help="T: stored transposed")
    parser.add_argument("--gap", type=int, default=0, help="elements between the rows of each matrix")
    parser.add_argument("--rungs", nargs="+", required=True)
    parser.add_argument("--shapes", nargs="*", help="MxNxK, by default the seven of the goal")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    torch: Any = extras.require("torch", "Measuring against cuBLAS")
    torch.backends.cuda.matmul.allow_tf32 = True  # what the peer does with float32
    a, b = orders_of(given.orders)
    shapes = [tuple(int(part) for part in text.split("x")) for text in given.shapes or []] or list(SHAPES)
    origin = {"device": gpu.name, "peer": f"torch {torch.__version__}", "commit": commit(), "command": command()}
    for m, n, k in shapes:
        gemm = Gemm(m, n, k, a=a, b=b, **format_options(given.dtype))
        gemm = replace(gemm, **{name: getattr(gemm, name) + given.gap for name in ("lda", "ldb", "ldc")})
        shape = Shape(gpu, gemm, getattr(torch, _TORCH[given.dtype]))
        for made in measure(shape, given.rungs, given.rounds, given.sustained):
            print(made, flush=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**made, **origin, "date": now()}) + "\n")
        del shape
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
