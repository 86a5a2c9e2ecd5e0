"""What is multiplied: shapes of which each stands for a kind of problem, in several formats and orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from tilewright.errors import UnknownName
from tilewright.frontend.options import Precision
from tilewright.frontend.scaled import PROMOTE_EVERY
from tilewright.problem.emulation import EMULATIONS
from tilewright.problem.epilogue import PLAIN, Epilogue, Scale
from tilewright.problem.formats import FP8, format_options
from tilewright.problem.gemm import Gemm, orders_of
from tilewright.units import round_up

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

ORDERS = ("NN", "NT", "TN")
"""Which operand is a transposed view: its columns are contiguous."""

FORMATS = ("bf16", "f16", "f32")
OPTIONAL_FORMATS = ("tf32",)
SCALES: Mapping[str, tuple[Scale, ...]] = {"": (), "tensor": ("a", "b"), "row": ("m", "n")}
"""What FP8 operands have scales for: none, each operand, or each row of A and column of B."""

_FAST = "fast"


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the suite.

    format: a word of `problem.formats` or of `EMULATIONS`. orders: a key of ORDERS. scales: a key of SCALES. fast: sums
    of FP8 products stay in the tensor cores, as with `fast_accumulation`.
    """

    m: int
    n: int
    k: int
    format: str
    orders: str = "NN"
    scales: str = ""
    fast: bool = False

    @property
    def gemm(self) -> Gemm:
        a, b = orders_of(self.orders)
        epilogue = Epilogue(scale=SCALES[self.scales]) if self.scales else PLAIN
        return Gemm(self.m, self.n, self.k, a=a, b=b, epilogue=epilogue, **format_options(self.arithmetic))

    @property
    def arithmetic(self) -> str:
        """The format of the operands, and of the bound of the result."""
        return "f32" if self.format in EMULATIONS else self.format

    @property
    def precision(self) -> Precision:
        """As `matmul` takes it."""
        return precision_of(self.format)

    @property
    def promote_every(self) -> int:
        """Elements of k after which sums are added to sums in f32; 0 for never."""
        return PROMOTE_EVERY if self.format in FP8 and not self.fast else 0

    @classmethod
    def of(cls, text: str) -> Problem:
        """The problem that a text names.

        >>> str(Problem.of("64x128x256 e4m3 NT row fast"))
        '64x128x256 e4m3 NT row fast'
        """
        shape, format_word, orders, *words = text.split()
        m, n, k = (int(size) for size in shape.split("x"))
        scales = next((word for word in words if word in SCALES), "")
        return cls(m, n, k, format_word, orders, scales, _FAST in words)

    def __str__(self) -> str:
        words = [f"{self.m}x{self.n}x{self.k}", self.format, self.orders, self.scales, _FAST if self.fast else ""]
        return " ".join(word for word in words if word)


def precision_of(format_word: str) -> Precision:
    """What `matmul` is asked for where a problem names a format.

    >>> precision_of("bf16"), precision_of("tf32"), precision_of("f32_emulated")
    ('default', 'tf32', 'f32_emulated')
    """
    return cast("Precision", format_word) if format_word in (*OPTIONAL_FORMATS, *EMULATIONS) else "default"


def with_scales(one: Problem, scales: Iterable[str], sums: Iterable[bool]) -> tuple[Problem, ...]:
    """A problem of FP8 with each of some scales, fast and promoted, as far as `torch._scaled_mm` takes it: n and k are
    rounded up to multiples of 16.

    >>> [str(made) for made in with_scales(Problem(8, 8, 40, "e4m3", "NT"), ["row"], [True, False])]
    ['8x16x48 e4m3 NT row fast', '8x16x48 e4m3 NT row']
    """
    whole = replace(one, n=round_up(one.n, _VECTOR), k=round_up(one.k, _VECTOR))
    return tuple(replace(whole, scales=scale, fast=fast) for scale in scales for fast in sums)


_VECTOR = 16
"""Elements of FP8 of which rows of operands of `torch._scaled_mm` are multiples."""


def problems(
    shapes: Iterable[tuple[int, int, int]] = SHAPES,
    formats: Iterable[str] = FORMATS,
    orders: Iterable[str] = ORDERS,
) -> tuple[Problem, ...]:
    """Every shape in every format and order. Raises UnknownName.

    >>> len(problems())
    135
    """
    known = (*FORMATS, *OPTIONAL_FORMATS, *EMULATIONS)
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
