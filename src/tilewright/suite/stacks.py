"""Batched and grouped products against PyTorch's: `torch.bmm` and, in bf16, `torch._grouped_mm`, checked and timed in
turn."""

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
    """Rows of a (sum of rows, k) in groups, each multiplied by its own b (k, n), K-major as weights lie.

    gradient: the gradient of such weights instead: a transposed (k, rows) by b (rows, n), a sum over the rows of each
    group.
    """

    rows: tuple[int, ...]
    n: int
    k: int
    format: str = "bf16"
    gradient: bool = False

    @property
    def gemm(self) -> Gemm:
        """All rows as one product, as large as the groups together."""
        formats = format_options(self.format)
        if self.gradient:
            return Gemm(self.k, self.n, sum(self.rows), a=Order.COL, **formats)
        return Gemm(sum(self.rows), self.n, self.k, b=Order.COL, **formats)

    @property
    def flops(self) -> float:
        return 2.0 * sum(self.rows) * self.n * self.k

    def __str__(self) -> str:
        least, most = min(self.rows), max(self.rows)
        told = f"{least}" if least == most else f"{least}..{most}"
        what = "gradients of" if self.gradient else "groups of"
        return f"{len(self.rows)} {what} {told} x {self.n} x {self.k} {self.format}"


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
    Grouped((1024,) * 8, 14336, 4096, gradient=True),
    Grouped((64,) * 64, 1408, 2048, gradient=True),
)
"""Experts of mixtures: even, uneven, many and short; and gradients of their weights."""


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
    """Functions that compute the same: ours and PyTorch's, with a check of one result against float64.

    operands: copies of what they take in turn, the arguments of one call each. ran: what ran of ours, after a call.
    """

    ours: Callable[[], Any]
    peer: Callable[[], Any]
    check: Callable[[str, Any], float]
    operands: Sequence[tuple[Any, ...]]
    ran: Callable[[], str]

    @property
    def copies(self) -> int:
        return len(self.operands)


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
    rows, groups = sum(problem.rows), len(problem.rows)
    return (rows * problem.k + groups * problem.k * problem.n + rows * problem.n) * size


def _batched(torch: Any, problem: Batched, dtype: Any, copies: int) -> Contest:
    from tilewright.frontend import matmul
    from tilewright.frontend.compute import words_of

    def made(*shape: int) -> list[Any]:
        return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(copies)]

    a, b = made(problem.batch, problem.m, problem.k), made(problem.batch, problem.k, problem.n)
    pairs = list(zip(a, b, strict=True))
    ours, theirs = cycle(pairs), cycle(pairs)

    def check(who: str, result: Any) -> float:
        some = range(0, problem.batch, -(-problem.batch // MATRICES_CHECKED))
        return max(_error(torch, problem.gemm, who, result[i], a[0][i], b[0][i]) for i in some)

    return Contest(
        lambda: matmul(*next(ours)),
        lambda: torch.bmm(*next(theirs)),
        check,
        pairs,
        lambda: words_of(*pairs[0]),
    )


def _grouped(torch: Any, problem: Grouped, dtype: Any, copies: int) -> Contest:
    from tilewright.frontend import grouped_matmul
    from tilewright.frontend.options import options_asked
    from tilewright.frontend.ragged import words_of_groups

    ends = torch.tensor(problem.rows).cumsum(0).to(device="cuda", dtype=torch.int32)
    sets = [(*_grouped_operands(torch, problem, dtype), ends) for _ in range(copies)]
    ours, theirs = cycle(sets), cycle(sets)

    precision: Any = "tf32" if problem.gemm.multiplies_tf32 else "default"
    options = options_asked(1.0, None, None, precision, None, False, None, False)

    def mine() -> Any:
        a, b, offsets = next(ours)
        return grouped_matmul(a, b, offsets=offsets, precision=precision)

    def peer() -> Any:
        a, b, offsets = next(theirs)
        if problem.format == "bf16":
            return torch._grouped_mm(a, b, offs=offsets)
        return _group_by_group(torch, problem, a, b)

    def check(who: str, result: Any) -> float:
        (a, b, _), groups = sets[0], len(problem.rows)
        worst, first = 0.0, 0
        for group, count in enumerate(problem.rows):
            some = slice(first, first + count)
            first += count
            if not count or group % -(-groups // MATRICES_CHECKED):
                continue
            if problem.gradient:
                found = _error(torch, problem.gemm, who, result[group], a[:, some], b[some])
            else:
                found = _error(torch, problem.gemm, who, result[some], a[some], b[group])
            worst = max(worst, found)
        return worst

    return Contest(mine, peer, check, sets, lambda: words_of_groups(*sets[0], options))


def _group_by_group(torch: Any, problem: Grouped, a: Any, b: Any) -> Any:
    """The products of all groups, for formats that `torch._grouped_mm` does not take: the host knows the sizes."""
    if problem.gradient:
        parts = zip(a.split(problem.rows, 1), b.split(problem.rows), strict=True)
        return torch.stack([x @ y for x, y in parts])
    return torch.cat([x @ y for x, y in zip(a.split(problem.rows), b, strict=True)])


def _grouped_operands(torch: Any, problem: Grouped, dtype: Any) -> tuple[Any, Any]:
    """a and b as `grouped_matmul` takes them."""
    rows, groups = sum(problem.rows), len(problem.rows)

    def made(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=dtype)

    if problem.gradient:
        return made(rows, problem.k).t(), made(rows, problem.n)
    return made(rows, problem.k), made(groups, problem.n, problem.k).transpose(1, 2)


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
