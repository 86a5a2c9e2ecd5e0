"""What is multiplied: shapes of which each stands for a kind of problem, in several formats and orders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.errors import UnknownName
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm, Order

SHAPES: tuple[tuple[int, int, int], ...] = (
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
"""M, N, K: squares; short and long sums; skinny; layers of models; rows that vectors do not divide."""

ORDERS: dict[str, tuple[Order, Order]] = {
    "NN": (Order.ROW, Order.ROW),
    "NT": (Order.ROW, Order.COL),
    "TN": (Order.COL, Order.ROW),
}
"""Which operand is a transposed view: its columns are contiguous."""

FORMATS = ("bf16", "f16", "f32")
OPTIONAL_FORMATS = ("tf32",)


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the suite. format: a word of `problem.formats`. orders: a key of ORDERS."""

    m: int
    n: int
    k: int
    format: str
    orders: str = "NN"

    @property
    def gemm(self) -> Gemm:
        a, b = ORDERS[self.orders]
        return Gemm(self.m, self.n, self.k, a=a, b=b, **format_options(self.format))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.format} {self.orders}"


def problems(
    shapes: Iterable[tuple[int, int, int]] = SHAPES,
    formats: Iterable[str] = FORMATS,
    orders: Iterable[str] = ORDERS,
) -> tuple[Problem, ...]:
    """Every shape in every format and order. Raises UnknownName.

    >>> len(problems())
    135
    """
    known = (*FORMATS, *OPTIONAL_FORMATS)
    shapes, orders = tuple(shapes), tuple(orders)
    found = []
    for name in formats:
        if name not in known:
            raise UnknownName("dtype", name, known)
        for order in orders:
            if order not in ORDERS:
                raise UnknownName("order", order, ORDERS)
            found += [Problem(m, n, k, name, order) for m, n, k in shapes]
    return tuple(found)
