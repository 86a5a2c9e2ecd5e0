"""f32 products by pieces on tensor cores: speed beside cuBLAS in f32, and errors as a share of the bound.

    python benchmarks/emulation.py --out emulation_h200.jsonl
    python benchmarks/emulation.py --precisions bf16x6 --shapes 4096x4096x4096 --orders NT --out one.jsonl

Times: whole calls, splitting included, over operands rotated through more than four times the L2; all candidates are
CUDA graphs replayed in turn after a rest (burst). --sustained: shapes whose NT calls are also timed in stretches of
half a second on a card that has multiplied for a second. Each result is checked against its bound first, its output
poisoned.
Errors: of 256 x 256 results of a sum over k against float64, over operands of many kinds; of the algorithms the
largest error of an element as a share of its bound, of all the relative error in the norm of Frobenius, and the largest
error in units of 2**-24 |A||B|. A share above 1 is an error of the library: the exit status is 1.
One JSON line a row; the first tells device, date and command. No row is begun after --seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from tilewright import extras, matmul
from tilewright.bench.records import command, commit, now
from tilewright.frontend.compute import words_of
from tilewright.frontend.options import options_asked
from tilewright.problem.emulation import ALGORITHMS, FALLBACK, Algorithm, f32_units
from tilewright.problem.gemm import Gemm, Order
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.operands import operands_of
from tilewright.suite.stretches import stretches_of
from tilewright.suite.timing import interleaved

SHAPES = ("4096x4096x4096", "8192x8192x8192", "4096x14336x4096")
SUSTAINED = ("8192x8192x8192", "4096x14336x4096")
ORDERS = ("NN", "NT", "TN")
PEER = "cublas f32"
EMULATED = "f32_emulated"
ROWS_CHECKED = 64
ERROR_SIZE, ERROR_K = 256, 4096
U = 2.0**-24


def gemm_of(shape: str, orders: str) -> Gemm:
    m, n, k = (int(part) for part in shape.split("x"))
    a, b = (Order.ROW if letter == "N" else Order.COL for letter in orders)
    return Gemm(m, n, k, a=a, b=b)


def words(a: Any, b: Any, precision: str) -> str:
    """What runs for a call that was made."""
    return words_of(a, b, options_asked(1.0, None, None, precision, None, False, None, False))


class Draws:
    """Operands of many kinds, (rows, columns), float32 on the GPU."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(self, rows: int, columns: int) -> Any:
        return self.torch.randn(rows, columns, generator=self.generator, device="cuda")

    def uniform(self, rows: int, columns: int) -> Any:
        return self.torch.rand(rows, columns, generator=self.generator, device="cuda")

    def log_uniform(self, binades: int) -> Callable[[int, int], Any]:
        def draw(rows: int, columns: int) -> Any:
            signs = (self.uniform(rows, columns) < 0.5).float() * 2 - 1
            return (signs * self.torch.exp2((self.uniform(rows, columns) - 0.5) * binades)).float()

        return draw

    def one_huge(self, rows: int, columns: int) -> Any:
        """An element of 2**20 in each row and column."""
        torch, found = self.torch, self.normal(rows, columns)
        row, column = torch.arange(rows, device="cuda"), torch.arange(columns, device="cuda")
        found[row, torch.randint(0, columns, (rows,), generator=self.generator, device="cuda")] *= 2.0**20
        found[torch.randint(0, rows, (columns,), generator=self.generator, device="cuda"), column] *= 2.0**20
        return found

    def hilbert(self, rows: int, columns: int) -> Any:
        i, j = self.torch.arange(rows, device="cuda")[:, None], self.torch.arange(columns, device="cuda")[None]
        return (1.0 / (1 + i + j).double()).float()

    def vandermonde(self, rows: int, columns: int) -> Any:
        short, long = min(rows, columns), max(rows, columns)
        points = self.torch.linspace(-1, 1, short, device="cuda", dtype=self.torch.float64)
        found = points[:, None] ** self.torch.arange(long, device="cuda")[None]
        return (found if rows <= columns else found.t()).float().contiguous()

    def stagnating(self, rows: int, columns: int) -> Any:
        """One and then many that f32 is too short for."""
        found = self.torch.full((rows, columns), 2.0**-13 * (1 - 2.0**-11), device="cuda")
        found[:, 0] = found[0, :] = 1
        return found

    def subnormal(self, rows: int, columns: int) -> Any:
        return (self.normal(rows, columns).double() * 2.0**-135).float()

    def pairs(self, size: int, k: int) -> Iterator[tuple[str, Any, Any]]:
        """Names and operands of products of (size, k) by (k, size)."""
        kinds = {
            "normal": self.normal,
            "uniform": self.uniform,
            "40 binades": self.log_uniform(40),
            "60 binades": self.log_uniform(60),
            "one huge": self.one_huge,
            "Hilbert": self.hilbert,
            "Vandermonde": self.vandermonde,
            "stagnating": self.stagnating,
        }
        for name, draw in kinds.items():
            yield name, draw(size, k), draw(k, size)
        yield "subnormal", self.subnormal(size, k), (self.normal(k, size).double() * 2.0**100).float()
        half, right = self.normal(size, k // 2), self.normal(k // 2, size)
        cat = self.torch.cat
        yield "cancelling", cat([half, half * (1 + 2.0**-20)], 1), cat([right, -right], 0)


def share_of_bound(torch: Any, name: str, a: Any, b: Any, c: Any) -> float | None:
    """The largest error of an element as a share of its bound, that of f32 arithmetic for f32_emulated; infinite where
    c is not finite, None for what has no bound here."""
    if name not in (*ALGORITHMS, EMULATED):
        return None
    how: Algorithm = ALGORITHMS.get(name, FALLBACK)
    units = (f32_units if name == EMULATED else how.units)(a.shape[1])
    wide, other = a.double(), b.double()
    largest = [each.cpu().numpy() for each in (wide.abs().amax(1), other.abs().amax(0))]
    underflow = torch.from_numpy(how.underflow(a.shape[1], *largest)).to(c.device)
    bound = units * U * (wide.abs() @ other.abs()) + underflow
    share = ((c.double() - wide @ other).abs() / bound).amax()
    return float(share) if bool(torch.isfinite(c).all()) else float("inf")


class Bench:
    """What is timed on a GPU. precisions: of `matmul`."""

    def __init__(self, torch: Any, precisions: list[str]) -> None:
        self.torch, self.precisions = torch, precisions
        self.timer = TorchTimer(torch)
        torch.backends.cuda.matmul.allow_tf32 = False

    def multiply(self, precision: Any) -> Callable[[Any, Any, Any], Any]:
        if precision == PEER:
            return lambda a, b, c: self.torch.mm(a, b, out=c)
        return lambda a, b, c: matmul(a, b, out=c, precision=precision)

    def times(self, shape: str, orders: str, *, sustained: bool) -> Iterator[dict[str, Any]]:
        """A row for each precision beside the peer."""
        torch, gemm = self.torch, gemm_of(shape, orders)
        torch.cuda.empty_cache()
        pairs = operands_of(torch, gemm, torch.float32)
        results = [torch.empty(gemm.m, gemm.n, device="cuda") for _ in pairs]
        calls, shares = {}, {}
        for name in (PEER, *self.precisions):
            multiply = self.multiply(name)
            results[0].fill_(float("nan"))
            multiply(*pairs[0], results[0])
            (a, b), rows = pairs[0], slice(0, ROWS_CHECKED)
            shares[name] = share_of_bound(torch, name, a[rows], b, results[0][rows])
            calls[name] = _in_turn(multiply, pairs, results)
        times = interleaved(self.timer, calls, copies=len(pairs))
        device = torch.cuda.current_device()
        stretches = stretches_of(self.timer, calls, times, PEER, device) if sustained else {}
        for name in calls:
            us = times[name].median_us
            row: dict[str, Any] = {"problem": shape, "orders": orders, "precision": name, "us": round(us, 1)}
            row |= {"tflops": round(gemm.flops / us / 1e6, 1), "of_cublas": round(times[name].share_of(times[PEER]), 3)}
            row |= _as_cell(shares[name])
            if name in stretches:
                held = stretches[name]
                of_peer = round(stretches[PEER].us / held.us, 3)
                found = {"us": round(held.us, 1), "tflops": round(gemm.flops / held.us / 1e6, 1), "of_cublas": of_peer}
                row["sustained"] = {**found, "clock_mhz": held.clock_mhz, "power_w": held.power_w}
            yield row if name == PEER else {**row, "kernels": words(*pairs[0], name)}

    def errors(self, size: int, k: int) -> Iterator[dict[str, Any]]:
        """A row for each kind of operands and each precision, and the peer."""
        for kind, a, b in Draws(self.torch).pairs(size, k):
            wide, other = a.double(), b.double()
            exact, magnitude = wide @ other, wide.abs() @ other.abs()
            for name in (PEER, *self.precisions):
                c = self.torch.empty(size, size, device="cuda")
                self.multiply(name)(a, b, c)
                error = (c.double() - exact).abs()
                units = (error / (magnitude * U)).nan_to_num().amax()
                relative = float(error.norm() / exact.norm())
                row: dict[str, Any] = {"operands": kind, "size": size, "k": k, "precision": name}
                row |= {"relative": float(f"{relative:.3g}"), "largest_units": float(f"{float(units):.3g}")}
                row |= _as_cell(share_of_bound(self.torch, name, a, b, c))
                yield row if name == PEER else {**row, "kernels": words(a, b, name)}


def _as_cell(share: float | None) -> dict[str, Any]:
    return {} if share is None else {"share_of_bound": float(f"{share:.3g}")}


def _in_turn(multiply: Callable[[Any, Any, Any], object], pairs: list[Any], results: list[Any]) -> Callable[[], object]:
    turn = cycle(zip(pairs, results, strict=True))

    def call() -> object:
        (a, b), c = next(turn)
        return multiply(a, b, c)

    return call


def rows_of(bench: Bench, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    began = time.monotonic()
    yield from bench.errors(ERROR_SIZE, asked.k)
    for shape in asked.shapes:
        for orders in asked.orders:
            if time.monotonic() - began > asked.seconds:
                print(f"{shape} {orders}: left out", file=sys.stderr)
                continue
            yield from bench.times(shape, orders, sustained=orders == "NT" and shape in asked.sustained)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="*", default=["tf32", *ALGORITHMS, EMULATED], metavar="PRECISION")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="MxNxK")
    parser.add_argument("--orders", nargs="*", default=list(ORDERS), metavar="NN", help="T: stored transposed")
    parser.add_argument("--sustained", nargs="*", default=list(SUSTAINED), metavar="MxNxK", help="in order NT")
    parser.add_argument("--k", type=int, default=ERROR_K, help="of the sums whose errors are measured")
    parser.add_argument("--seconds", type=float, default=110.0, help="no shape is begun after this")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch: Any = extras.require("torch", "Timing torch.mm")
    gpu: Gpu = open_gpu(torch.cuda.current_device())
    origin = {"device": gpu.name, "torch": torch.__version__, "command": command(), "commit": commit(), "date": now()}
    lines, worst = [json.dumps(origin)], 0.0
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for row in rows_of(Bench(torch, asked.precisions), asked):
        worst = max(worst, row.get("share_of_bound", 0.0))
        lines.append(json.dumps(row))
        print(lines[-1], flush=True)
        asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"worst share of a bound: {worst:.3g}")
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
