"""Batched and grouped products against PyTorch's: `torch.bmm` and `torch._grouped_mm`, checked and timed in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import exp, log
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.tolerance import relative_bound
from tilewright.suite.operands import ROTATED_BYTES

MATRICES_CHECKED = 8
"""Matrices of a batch whose results are compared with float64."""

ROWS_CHECKED = 64

MOST_STACKS = 64


@dataclass(frozen=True, slots=True)
class Batched:
    """`batch` products m x n x k: a (batch, m, k), b (batch, k, n)."""

    batch: int
    m: int
    n: int
    k: int
    format: str = "bf16"

    @property
    def gemm(self) -> Gemm:
        """One of the products."""
        return Gemm(self.m, self.n, self.k, **format_options(self.format))

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.batch} x {self.m}x{self.n}x{self.k} {self.format}"


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows of a (sum of rows, k) in groups, each multiplied by its own b (k, n), K-major as weights lie."""

    rows: tuple[int, ...]
    n: int
    k: int
    format: str = "bf16"

    @property
    def gemm(self) -> Gemm:
        """All rows as one product, as large as the groups together."""
        return Gemm(sum(self.rows), self.n, self.k, b=Order.COL, **format_options(self.format))

    @property
    def flops(self) -> float:
        return 2.0 * sum(self.rows) * self.n * self.k

    def __str__(self) -> str:
        least, most = min(self.rows), max(self.rows)
        told = f"{least}" if least == most else f"{least}..{most}"
        return f"{len(self.rows)} groups of {told} x {self.n} x {self.k} {self.format}"


@dataclass(frozen=True, slots=True)
class DrawnStack:
    """A batched or grouped product and where it comes from: `fixed` or `random`."""

    problem: Batched | Grouped
    source: str

    @property
    def kind(self) -> str:
        return "batched" if isinstance(self.problem, Batched) else "grouped"


BATCHED = (
    Batched(64, 512, 512, 512),
    Batched(128, 1024, 1024, 128),
    Batched(32, 2048, 2048, 64),
    Batched(128, 1024, 128, 1024),
    Batched(16, 1, 4096, 4096),
    Batched(512, 64, 64, 64),
)
"""Attention scores and values, small matrices, and rows of a decoder."""

GROUPED = (
    Grouped((1024,) * 8, 14336, 4096),
    Grouped((5, 64, 257, 800, 1203, 1900, 2500, 3000), 14336, 4096),
    Grouped((64,) * 64, 1408, 2048),
    Grouped((16,) * 128, 2048, 7168),
)
"""Experts of mixtures: even, uneven, many and short."""


def random_batched(count: int, seed: int, formats: Sequence[str]) -> tuple[Batched, ...]:
    """`count` random batches a format: 2 to 256 products, log-uniform sizes of 16 .. 2048 in multiples of 8."""
    found = []
    for name in formats:
        rng = random.Random(seed)
        for _ in range(count):
            batch = _log_uniform(rng, 2, 256)
            m, n, k = (max(8, _log_uniform(rng, 16, 2048) // 8 * 8) for _ in range(3))
            found.append(Batched(batch, m, n, k, name))
    return tuple(found)


def random_grouped(count: int, seed: int) -> tuple[Grouped, ...]:
    """`count` random groupings in bf16: 2 to 128 groups of 0 to 2048 rows, n and k in multiples of 64."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        groups, most = _log_uniform(rng, 2, 128), _log_uniform(rng, 16, 2048)
        rows = tuple(rng.randint(0, most) for _ in range(groups))
        n, k = (_log_uniform(rng, 256, 8192) // 64 * 64 for _ in range(2))
        found.append(Grouped(rows if any(rows) else (1, *rows[1:]), n, k))
    return tuple(found)


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return round(exp(rng.uniform(log(least), log(most))))


@dataclass(frozen=True)
class Contest:
    """Functions that compute the same: ours and PyTorch's, with a check of one result against float64."""

    ours: Callable[[], Any]
    peer: Callable[[], Any]
    check: Callable[[str, Any], float]
    copies: int


def contest(torch: Any, problem: Batched | Grouped, dtype: Any) -> Contest:
    """The functions of a problem over rotated random operands on the current GPU."""
    size_bytes = _operand_bytes(problem)
    copies = min(MOST_STACKS, max(2, -(-ROTATED_BYTES // size_bytes)))
    if isinstance(problem, Batched):
        return _batched(torch, problem, dtype, copies)
    return _grouped(torch, problem, dtype, copies)


def _operand_bytes(problem: Batched | Grouped) -> int:
    size = problem.gemm.dtype.bytes
    if isinstance(problem, Batched):
        return problem.batch * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n) * size
    rows = sum(problem.rows)
    return (rows * problem.k + len(problem.rows) * problem.k * problem.n + rows * problem.n) * size


def _batched(torch: Any, problem: Batched, dtype: Any, copies: int) -> Contest:
    from tilewright.frontend import matmul

    def made(*shape: int) -> list[Any]:
        return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(copies)]

    a, b = made(problem.batch, problem.m, problem.k), made(problem.batch, problem.k, problem.n)
    ours, theirs = cycle(zip(a, b, strict=True)), cycle(zip(a, b, strict=True))

    def check(who: str, result: Any) -> float:
        some = range(0, problem.batch, -(-problem.batch // MATRICES_CHECKED))
        return max(_error(torch, problem.gemm, who, result[i], a[0][i], b[0][i]) for i in some)

    return Contest(lambda: matmul(*next(ours)), lambda: torch.bmm(*next(theirs)), check, copies)


def _grouped(torch: Any, problem: Grouped, dtype: Any, copies: int) -> Contest:
    from tilewright.frontend import grouped_matmul

    rows, groups = sum(problem.rows), len(problem.rows)
    a = [torch.randn((rows, problem.k), device="cuda", dtype=dtype) for _ in range(copies)]
    weights = [torch.randn((groups, problem.n, problem.k), device="cuda", dtype=dtype) for _ in range(copies)]
    b = [weight.transpose(1, 2) for weight in weights]
    ends = torch.tensor(problem.rows).cumsum(0).to(device="cuda", dtype=torch.int32)
    ours, theirs = cycle(zip(a, b, strict=True)), cycle(zip(a, b, strict=True))

    def mine() -> Any:
        x, y = next(ours)
        return grouped_matmul(x, y, offsets=ends)

    def peer() -> Any:
        x, y = next(theirs)
        return torch._grouped_mm(x, y, offs=ends)

    def check(who: str, result: Any) -> float:
        worst, first = 0.0, 0
        for group, count in enumerate(problem.rows):
            if count and group % -(-groups // MATRICES_CHECKED) == 0:
                some = slice(first, first + count)
                worst = max(worst, _error(torch, problem.gemm, who, result[some], a[0][some], b[0][group]))
            first += count
        return worst

    return Contest(mine, peer, check, copies)


def _error(torch: Any, gemm: Gemm, who: str, result: Any, a: Any, b: Any) -> float:
    """The relative error of some rows of one product. Raises TilewrightError beyond the bound of the format."""
    count = min(result.shape[0], ROWS_CHECKED)
    rows = torch.linspace(0, result.shape[0] - 1, count, device=a.device).long().unique()
    some, whole = a[rows].double(), b.double()
    expected = some @ whole
    error = (result[rows].double() - expected).abs()
    allowed = relative_bound(gemm) * (some.abs() @ whole.abs()) + float(torch.finfo(result.dtype).tiny)
    if not bool((error <= allowed).all()):
        raise TilewrightError(f"{who} is wrong: {int((~(error <= allowed)).sum())} of {error.numel()} elements.")
    return float(error.norm() / expected.norm())
