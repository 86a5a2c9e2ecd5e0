"""Batched and grouped products: those that frameworks make, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from tilewright.planning.packing import Stack
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm, Order


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
    def stack(self) -> Stack:
        """How the products lie, one behind the other."""
        return Stack(self.batch, self.m * self.k, self.k * self.n, self.m * self.n)

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


def drawn_batched(count: int, seed: int, formats: Sequence[str]) -> tuple[DrawnStack, ...]:
    """The fixed batches, and `count` random ones a format.

    >>> [str(one.problem) for one in drawn_batched(1, 0, ["f32"])][-1]
    '120 x 632x120x56 f32'
    """
    random_ones = random_batched(count, seed, formats)
    return (*(DrawnStack(one, "fixed") for one in BATCHED), *(DrawnStack(one, "random") for one in random_ones))


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
