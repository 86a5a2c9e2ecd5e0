"""What a call with a known shape costs the host, beside torch's own calls in the same run.

    python benchmarks/host_cost.py --out host_cost.json
    python benchmarks/host_cost.py --no-gpu          # the part of it that is Python, with launches that do nothing

A round starts some hundred calls one after the other and never waits for the GPU, which is done with each before the
next is started, as the problems are tiny; ours and torch's alternate. The figure is the best of the rounds, since
other processes only add. The rows "routed" are calls of PyTorch in a block of `route_torch()`, beside the same calls
alone. Required: `matmul` at most `torch.mm` (the first row), and a routed call at most 2 us over the call alone. Ends
with 1 if the first is not so, with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from tilewright import route_torch
from tilewright.bench.records import this_run
from tilewright.frontend import compute, linear, matmul
from tilewright.frontend.libraries import library_of
from tilewright.frontend.options import PLAIN
from tilewright.runtime.driver import gpu_problem

CALLS, ROUNDS = 300, 40
Call = Callable[[], Any]


def on_gpu() -> dict[str, tuple[Call, Call]]:
    """Ours and torch's for each kind of call."""
    functional = torch.nn.functional

    def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    a, b, bias, out = drawn(128, 128), drawn(128, 128), drawn(128), drawn(128, 128)
    x, y = drawn(128, 128, dtype=torch.float32), drawn(128, 128, dtype=torch.float32)
    stack_a, stack_b = drawn(8, 64, 64), drawn(8, 64, 64)
    long_a, long_b = drawn(64, 8192), drawn(8192, 64)
    compiled = torch.compile(lambda x, y: matmul(x, y))
    return {
        "bf16 128^3": (lambda: matmul(a, b), lambda: torch.mm(a, b)),
        "f32 128^3": (lambda: matmul(x, y), lambda: torch.mm(x, y)),
        "into out": (lambda: matmul(a, b, out=out), lambda: torch.mm(a, b, out=out)),
        "linear with a bias": (lambda: linear(a, b, bias), lambda: functional.linear(a, b, bias)),
        "gelu fused": (
            lambda: linear(a, b, bias, activation="gelu"),
            lambda: functional.gelu(functional.linear(a, b, bias)),
        ),
        "a stack of 8": (lambda: matmul(stack_a, stack_b), lambda: torch.bmm(stack_a, stack_b)),
        "split-K, with a workspace": (lambda: matmul(long_a, long_b), lambda: torch.mm(long_a, long_b)),
        "compiled": (lambda: compiled(a, b), lambda: torch.mm(a, b)),
    }


def host_us(ours: Call, theirs: Call, wait: Call) -> dict[str, list[float]]:
    """Microseconds a call of each round."""
    found: dict[str, list[float]] = {"tilewright": [], "torch": []}
    for call in (ours, theirs):
        for _ in range(20):
            call()
    for _ in range(ROUNDS):
        for name, call in (("tilewright", ours), ("torch", theirs)):
            wait()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            found[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return found


def routed_calls() -> dict[str, Call]:
    """Calls of PyTorch, timed within a block of `route_torch()` and without. The last one is not a product."""
    functional = torch.nn.functional

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    a, b, bias, out = drawn(128, 128), drawn(128, 128), drawn(128), drawn(128, 128)
    layer = torch.nn.Linear(128, 128, device="cuda", dtype=torch.bfloat16)
    stack_a, stack_b = drawn(8, 64, 64), drawn(8, 64, 64)
    return {
        "mm": lambda: torch.mm(a, b),
        "mm into out": lambda: torch.mm(a, b, out=out),
        "linear with a bias": lambda: functional.linear(a, b, bias),
        "nn.Linear": lambda: layer(a),
        "bmm": lambda: torch.bmm(stack_a, stack_b),
        "relu": lambda: torch.relu(a),
    }


def routed_us(call: Call, wait: Call) -> dict[str, list[float]]:
    """Microseconds a call of each round, in a block and without."""
    found: dict[str, list[float]] = {"tilewright": [], "torch": []}
    for _ in range(ROUNDS):
        for name, block in (("tilewright", route_torch()), ("torch", nullcontext())):
            with block:
                call()
                wait()
                began = time.perf_counter()
                for _ in range(CALLS):
                    call()
                found[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return found


def without_gpu() -> tuple[Call, Call, Call]:
    """Known calls of tensors on the host whose launch does nothing, the second into `out`; and the allocation that is
    part of the first."""
    a, b = torch.randn(8, 8, dtype=torch.bfloat16), torch.randn(8, 8, dtype=torch.bfloat16)
    library = library_of(a)
    library.stream = lambda device: 0
    known = object.__new__(compute.Settled)
    known.make = library.maker((8, 8), library.view(a).dtype, a)
    known.launch, known.pick = (lambda stream, *addresses: None), itemgetter(0, 1, 2)
    known.device, known.spans = 0, ((0, 128), (0, 128), (0, 128), (0, 0), (0, 0))
    out = torch.empty_like(a)
    for given in (None, out):
        compute.MEMO[library.key(PLAIN, a, b, None, None, given)] = known
    return (
        lambda: matmul(a, b),
        lambda: matmul(a, b, out=out),
        lambda: torch.empty_strided((8, 8), (8, 1), dtype=a.dtype, device=a.device),
    )


def row(times: dict[str, list[float]]) -> dict[str, Any]:
    best = {name: min(each) for name, each in times.items()}
    return {
        "best_us": {name: round(value, 3) for name, value in best.items()},
        "median_us": {name: round(statistics.median(each), 3) for name, each in times.items()},
        "ours_of_torch": round(best["tilewright"] / best["torch"], 3),
    }


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, help="where the JSON goes")
    asked.add_argument("--no-gpu", action="store_true", help="time the Python of a call, on any machine")
    given = asked.parse_args()
    torch.set_grad_enabled(False)
    if given.no_gpu:
        plain, into, allocation = without_gpu()
        times = host_us(plain, allocation, wait=lambda: None)
        print(f"Python of a known call: {min(times['tilewright']):.2f} us, of which torch's allocation on the host is "
              f"{min(times['torch']):.2f} us")  # fmt: skip
        print(f"Python of one into `out`: {min(host_us(into, allocation, wait=lambda: None)['tilewright']):.2f} us")
        return 0
    missing = gpu_problem() or ("" if torch.cuda.is_available() else "this PyTorch finds none.")
    if missing:
        print(f"There is no GPU: {missing}", file=sys.stderr)
        return 2
    rows = {name: row(host_us(*pair, wait=torch.cuda.synchronize)) for name, pair in on_gpu().items()}
    for name, told in rows.items():
        best = told["best_us"]
        print(f"{name:30} {best['tilewright']:6.2f} us, torch {best['torch']:6.2f} us: {told['ours_of_torch']:.2f}")
    for name, call in routed_calls().items():
        told = rows[f"routed {name}"] = row(routed_us(call, torch.cuda.synchronize))
        best = told["best_us"]
        print(f"routed {name:23} {best['tilewright']:6.2f} us, alone {best['torch']:6.2f} us: "
              f"{best['tilewright'] - best['torch']:+.2f} us")  # fmt: skip
    if given.out is not None:
        origin = {"device": torch.cuda.get_device_name(), "peer": f"torch {torch.__version__}", **this_run()}
        given.out.write_text(json.dumps({"rows": rows, "calls": CALLS, "rounds": ROUNDS, **origin}, indent=2) + "\n")
    return int(next(iter(rows.values()))["ours_of_torch"] > 1.0)


if __name__ == "__main__":
    sys.exit(main())
