"""Products of complex64 beside cuBLAS (cgemm by torch.mm), B's rewriting included.

    python benchmarks/complex.py
    python benchmarks/complex.py --shapes 4096x4096x4096 --precisions default bf16x6
    python benchmarks/complex.py --device cpu --shapes 64x48x80     # the script itself, no times

Results are checked first: the relative error of both against complex128 in the norm of Frobenius, on some rows. Then
all candidates are captured as CUDA graphs and timed in turn after a rest, operands rotated over more than four times
the L2. Kernels are compiled first, by several processes. TFLOP/s count 8 m n k. One JSON line a row; the first tells
device and command. Ends with 1 where an error is more than 4 times that of cuBLAS, which bf16x3 is not held to.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from recording import origin_of, recorded

from tilewright import extras, matmul
from tilewright.suite.ahead import compile_ahead
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import over
from tilewright.suite.problems import Problem
from tilewright.suite.timing import interleaved

SHAPES = ("1024x1024x1024", "2048x2048x2048", "4096x4096x4096", "4096x1024x8192")
PRECISIONS = ("default", "tf32x3", "bf16x6", "bf16x9", "f16x3", "f32_emulated", "bf16x3")
PEER = "cublas"
LOOSE = ("bf16x3", "tf32")
MOST_ERROR = 4.0
ROTATED_BYTES, ROWS_CHECKED = 250_000_000, 64


def rows_of(torch: Any, shape: str, precisions: list[str], device: str) -> Iterator[dict[str, Any]]:
    m, n, k = (int(part) for part in shape.split("x"))
    copies = max(1, -(-ROTATED_BYTES // (8 * (m * k + k * n))) if device == "cuda" else 1)
    pairs = [
        tuple(torch.randn(*size, dtype=torch.complex64, device=device) for size in ((m, k), (k, n)))
        for _ in range(copies)
    ]
    a, b = pairs[0]
    exact = a[:ROWS_CHECKED].to(torch.complex128) @ b.to(torch.complex128)
    ways: dict[str, Callable[[Any, Any], Any]] = {PEER: torch.mm}
    ways |= {name: lambda a, b, name=name: matmul(a, b, precision=name) for name in precisions}
    errors = {name: float((way(a, b)[:ROWS_CHECKED] - exact).norm() / exact.norm()) for name, way in ways.items()}
    calls = {name: over(way, pairs) for name, way in ways.items()}
    times = interleaved(TorchTimer(torch), calls, copies=copies) if device == "cuda" else {}
    for name, error in errors.items():
        row: dict[str, Any] = {"problem": shape, "precision": name, "relative_error": float(f"{error:.3g}")}
        row["right"] = name in LOOSE or error <= MOST_ERROR * errors[PEER]
        if name in times:
            us = times[name].median_us
            row |= {"us": round(us, 1), "tflops": round(8 * m * n * k / us / 1e6, 1)}
            row["of_cublas"] = round(times[name].share_of(times[PEER]), 3)
        yield row


def real_problems(shapes: list[str], precisions: list[str]) -> list[Problem]:
    """The products of f32 that compute those of complex64."""
    sizes = [tuple(int(part) for part in shape.split("x")) for shape in shapes]
    words = ["f32" if name == "default" else name for name in precisions]
    return [Problem(m, 2 * n, 2 * k, word) for m, n, k in sizes for word in words]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="MxNxK")
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), metavar="PRECISION")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    torch: Any = extras.require("torch", "Timing torch.mm")
    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
    origin = origin_of(torch, name)
    print(json.dumps(origin))
    if asked.device == "cuda":
        compile_ahead(real_problems(asked.shapes, asked.precisions))
    found = (row for shape in asked.shapes for row in rows_of(torch, shape, asked.precisions, asked.device))
    wrong = [row for row in recorded(origin, found, None) if not row["right"]]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
