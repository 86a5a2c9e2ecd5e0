"""f32 products by pieces on tensor cores: speed beside cuBLAS in f32, and errors as a share of the bound.

    python benchmarks/emulation.py --out emulation_h200.jsonl
    python benchmarks/emulation.py --precisions bf16x6 --shapes 4096x4096x4096 --orders NT --out one.jsonl
    python benchmarks/emulation.py --shapes --k 0 --precisions f16x3 f32_emulated --weights 4096x14336 --out kept.jsonl

Times: whole calls, splitting included, over operands rotated through more than four times the L2; all candidates are
CUDA graphs replayed in turn after a rest (burst). --sustained: shapes whose calls in --sustained-orders are also timed
in stretches of half a second on a card that has multiplied for a second. Each result is checked against its bound
first, its output poisoned. f32_emulated beside f16x3 is the guard beside none.
Errors: of 1024 x 1024 results of a sum over k against float64, over operands of many kinds; of the algorithms the
largest error of an element as a share of its bound, of all the relative error in the norm of Frobenius, and the largest
error in units of 2**-24 |A||B|. A share above 1 is an error of the library: the exit status is 1. ran: what the device
chose.
Weights: skinny products with prepared weights of shape (k, n), burst; pieces_gb_per_s counts the bytes of the
pieces, of_reading is its share of the rate at which PyTorch sums 1 GiB, of_summing the time of a sum of as many bytes,
cold as well, by that of the product.
Examples: what some of examples/ print, residuals and losses beside those of f32 and tf32.
Kernels are compiled first, by several processes. One JSON line a row; the first tells device, date and command. No
shape, weight or example is begun after --seconds, and an example that is not done by then is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from recording import Budget, origin_of, recorded, with_results
from stretches import stretches_of

from tilewright import extras, matmul, plan, prepare
from tilewright.dtypes import F32
from tilewright.problem.emulation import ALGORITHMS, BF16X6, EMULATIONS, Algorithm, f32_units
from tilewright.problem.gemm import Gemm, orders_of
from tilewright.problem.splitting import stored_as
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.suite.ahead import compile_ahead
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.operands import operands_of
from tilewright.suite.peers import over
from tilewright.suite.problems import Problem
from tilewright.suite.timing import interleaved

SHAPES = ("4096x4096x4096", "8192x8192x8192", "4096x14336x4096")
SUSTAINED = ("8192x8192x8192", "4096x14336x4096")
ORDERS = ("NN", "NT", "TN")
PEER = "cublas f32"
EMULATED = "f32_emulated"
ROWS_CHECKED = 64
ERROR_SIZE, ERROR_K = 1024, 4096
"""Large enough for f32_emulated to multiply pieces."""

SKINNY_ROWS = (1, 8, 16, 32, 64)
READ_BYTES = 1 << 30
U = 2.0**-24


def gemm_of(shape: str, orders: str) -> Gemm:
    m, n, k = (int(part) for part in shape.split("x"))
    a, b = orders_of(orders)
    return Gemm(m, n, k, a=a, b=b)


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
    how: Algorithm = ALGORITHMS.get(name, BF16X6)  # which f32_emulated falls back to
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
        calls, checked = {}, {}
        for name in (PEER, *self.precisions):
            multiply = self.multiply(name)
            results[0].fill_(float("nan"))
            multiply(*pairs[0], results[0])
            (a, b), rows = pairs[0], slice(0, ROWS_CHECKED)
            checked[name] = _as_cell(share_of_bound(torch, name, a[rows], b, results[0][rows]))
            checked[name] |= {} if name == PEER else what_ran(a, b, results[0], name)
            calls[name] = over(multiply, with_results(pairs, results))
        times = interleaved(self.timer, calls, copies=len(pairs))
        uuid = open_gpu(torch.cuda.current_device()).uuid
        stretches = stretches_of(self.timer, calls, times, PEER, uuid) if sustained else {}
        for name in calls:
            us = times[name].median_us
            row: dict[str, Any] = {"problem": shape, "orders": orders, "precision": name, "us": round(us, 1)}
            row |= {"tflops": round(gemm.flops / us / 1e6, 1), "of_cublas": round(times[name].share_of(times[PEER]), 3)}
            row |= checked[name]
            if name in stretches:
                held = stretches[name]
                of_peer = round(stretches[PEER].us / held.us, 3)
                found = {"us": round(held.us, 1), "tflops": round(gemm.flops / held.us / 1e6, 1), "of_cublas": of_peer}
                row["sustained"] = {**found, "clock_mhz": held.clock_mhz, "power_w": held.power_w}
            yield row

    def kept(self, n: int, k: int, rows: int) -> Iterator[dict[str, Any]]:
        """A row for each precision that prepares weights: products with one of shape (k, n)."""
        torch, gemm = self.torch, Gemm(rows, n, k)
        torch.cuda.empty_cache()
        pairs = operands_of(torch, gemm, torch.float32)
        results = [torch.empty(rows, n, device="cuda") for _ in pairs]
        calls, checked = {PEER: over(self.multiply(PEER), with_results(pairs, results))}, {}
        for name in (name for name in self.precisions if name in EMULATIONS):
            weights = [(a, prepare(b, precision=name)) for a, b in pairs]  # type: ignore[arg-type]
            (a, b), weight = pairs[0], weights[0][1]
            matmul(a, weight, out=results[0].fill_(float("nan")))
            checked[name] = _as_cell(share_of_bound(torch, name, a, b, results[0]))
            checked[name] |= what_ran(a, weight, results[0], name)
            calls[name] = over(lambda a, weight, c: matmul(a, weight, out=c), with_results(weights, results))
        sizes = {name: n * k * _element_bytes(found["ran"]) for name, found in checked.items()}
        for size_bytes in set(sizes.values()):
            calls[f"sum of {size_bytes}"] = self._sum(size_bytes, len(pairs))
        times = interleaved(self.timer, calls, copies=len(pairs))
        for name, found in checked.items():
            us, size_bytes = times[name].median_us, sizes[name]
            row: dict[str, Any] = {"weight": f"{k}x{n}", "rows": rows, "precision": name, "us": round(us, 2)}
            rate = size_bytes / us / 1e3
            row |= {"pieces_gb_per_s": round(rate, 1), "of_reading": round(rate / self.read_gb_per_s, 3)}
            row["of_summing"] = round(times[name].share_of(times[f"sum of {size_bytes}"]), 3)
            yield row | {"of_cublas": round(times[name].share_of(times[PEER]), 3)} | found

    def _sum(self, size_bytes: int, copies: int) -> Callable[[], object]:
        """PyTorch's sum of so many bytes, of other memory each time."""
        torch = self.torch
        sources = [(torch.ones(size_bytes // F32.bytes, device="cuda"),) for _ in range(copies)]
        total = torch.empty((), device="cuda")
        return over(lambda source: torch.sum(source, dim=0, out=total), sources)

    @cached_property
    def read_gb_per_s(self) -> float:
        """At which PyTorch sums 1 GiB."""
        source = self.torch.ones(READ_BYTES // F32.bytes, device="cuda")
        total = self.torch.empty((), device="cuda")
        times = interleaved(self.timer, {"read": lambda: self.torch.sum(source, dim=0, out=total)})
        return READ_BYTES / times["read"].median_us / 1e3

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
                yield row if name == PEER else row | what_ran(a, b, c, name)


def _element_bytes(ran: str) -> int:
    """Of all pieces of a number of a weight, or of the number itself where f32 arithmetic ran."""
    how = ALGORITHMS.get(ran)
    return F32.bytes if how is None else how.count * stored_as(how).bytes


def what_ran(a: Any, b: Any, out: Any, precision: Any) -> dict[str, str]:
    """Of the call that was just made: the pieces that the device took, or the kernel."""
    return {"ran": ", ".join(plan(a, b, out=out, precision=precision).ran())}


def _as_cell(share: float | None) -> dict[str, Any]:
    return {} if share is None else {"share_of_bound": float(f"{share:.3g}")}


def problems_of(asked: argparse.Namespace) -> list[Problem]:
    """What is going to be multiplied."""
    sizes = [(gemm_of(shape, orders), orders) for shape in asked.shapes for orders in asked.orders]
    sizes += [(Gemm(ERROR_SIZE, ERROR_SIZE, asked.k), "NN")] if asked.k else []
    return [Problem(one.m, one.n, one.k, name, orders) for one, orders in sizes for name in asked.precisions]


def prepared_of(asked: argparse.Namespace) -> list[Problem]:
    """The products with prepared weights."""
    names = [name for name in asked.precisions if name in EMULATIONS]
    return [Problem(rows, n, k, name) for k, n in asked.weights for rows in asked.rows for name in names]


def rows_of(bench: Bench, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    budget = Budget(asked.seconds)
    problems, weights = problems_of(asked), prepared_of(asked)
    if problems:
        compile_ahead(problems)
    if weights:
        compile_ahead(weights, prepared=True)
    if problems or weights:
        print(f"kernels compiled: {asked.seconds - budget.left:.0f} s", file=sys.stderr)

    if asked.k:
        yield from bench.errors(ERROR_SIZE, asked.k)
    for k, n in asked.weights:
        for rows in asked.rows:
            if budget.allows(f"{rows} rows by {k}x{n}"):
                yield from bench.kept(n, k, rows)
    for shape in asked.shapes:
        for orders in asked.orders:
            if budget.allows(f"{shape} {orders}"):
                sustained = shape in asked.sustained and orders in asked.sustained_orders
                yield from bench.times(shape, orders, sustained=sustained)
    for name in asked.examples:
        if budget.allows(name):
            yield from example(name, budget.left)


def example(name: str, seconds: float) -> Iterator[dict[str, Any]]:
    """A row with the lines that an example prints, if it does so in time."""
    script = Path(__file__).parents[1] / "examples" / f"{name}.py"
    try:
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"{name}: left out", file=sys.stderr)
        return
    yield {"example": name, "lines": done.stdout.splitlines()}


def _weight(text: str) -> tuple[int, int]:
    k, n = (int(part) for part in text.split("x"))
    return k, n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="*", default=["tf32", *ALGORITHMS, EMULATED], metavar="PRECISION")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="MxNxK")
    parser.add_argument("--orders", nargs="*", default=list(ORDERS), metavar="NN", help="T: stored transposed")
    parser.add_argument("--sustained", nargs="*", default=list(SUSTAINED), metavar="MxNxK")
    parser.add_argument("--sustained-orders", nargs="*", default=["NT"], metavar="NT")
    parser.add_argument("--weights", nargs="*", type=_weight, default=[], metavar="KxN", help="prepared")
    parser.add_argument("--rows", nargs="*", type=int, default=list(SKINNY_ROWS), help="of products with them")
    parser.add_argument("--k", type=int, default=ERROR_K, help="of the sums whose errors are measured; 0: none")
    parser.add_argument("--examples", nargs="*", default=[], metavar="NAME", help="such as conjugate_gradients")
    parser.add_argument("--seconds", type=float, default=110.0, help="nothing is begun after this")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch: Any = extras.require("torch", "Timing torch.mm")
    gpu: Gpu = open_gpu(torch.cuda.current_device())
    found = recorded(origin_of(torch, gpu.name), rows_of(Bench(torch, asked.precisions), asked), asked.out)
    worst = max((row.get("share_of_bound", 0.0) for row in found), default=0.0)
    print(f"worst share of a bound: {worst:.3g}")
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
