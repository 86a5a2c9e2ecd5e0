"""The matrix multiplication to be computed: `C[m, n] = alpha * sum_k A[m, k] * B[k, n] + beta * C[m, n]`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import Any, Literal, get_args

from tilewright.artifacts import Extent
from tilewright.dtypes import ALL, F32, FP8_FORMATS, TF32_FORMATS, DType
from tilewright.enums import Spelled
from tilewright.errors import FormatError, ProblemError, UnknownName
from tilewright.html_text import table
from tilewright.problem.block_scales import NAMES as BLOCK_SCALES
from tilewright.problem.block_scales import BlockScaleName, BlockScales
from tilewright.problem.emulation import Algorithm
from tilewright.problem.epilogue import PLAIN, READY_MADE, Epilogue
from tilewright.problem.problem import Scalar, ScalarKind, TmaMatrix
from tilewright.problem.values import AddedName, Fold
from tilewright.units import ceil_div, integer_of

Dim = Literal["m", "n", "k"]
OperandName = Literal["A", "B", "C", "A1", "A2", "B1", "B2"]

_LATER: tuple[OperandName, ...] = ("A1", "A2", "B1", "B2")
"""Pieces of f32 operands behind the first ones, which are A and B. B1 is also the second B of two accumulators."""

FACTORS: tuple[OperandName, ...] = ("A", "B", *_LATER)
"""The operands that are multiplied, in the order of a kernel's arguments."""

DIMS: dict[str, tuple[Dim, Dim]] = {
    **dict.fromkeys(("A", "A1", "A2"), ("m", "k")),
    **dict.fromkeys(("B", "B1", "B2"), ("k", "n")),
    "C": ("m", "n"),
}
"""The logical index of each operand: (row, column). What an epilogue reads has that of C."""

FORMAT_OPTIONS = ("dtype", "accumulate", "out", "product")
"""The fields of a `Gemm` that say number formats."""


class Order(Spelled):
    """Which index of a matrix is contiguous in memory."""

    ROW = "row"  # the second index is contiguous, rows are `ld` elements apart
    COL = "col"  # the first index is contiguous, columns are `ld` elements apart

    @property
    def letter(self) -> str:
        """As BLAS tells it of row-major matrices: N, or T for a transposed one."""
        return "N" if self is Order.ROW else "T"

    @property
    def other(self) -> Order:
        """That of the transposed matrix."""
        return Order.COL if self is Order.ROW else Order.ROW


ORDERS: dict[str, tuple[Order, Order]] = {a.letter + b.letter: (a, b) for a in Order for b in Order}
"""The orders of A and B by their letters, from NN to TT."""


def orders_of(letters: str) -> tuple[Order, Order]:
    """The orders of A and B that two letters tell, in either case. Raises UnknownName.

    >>> orders_of("NT")
    (Order.ROW, Order.COL)
    """
    if letters.upper() not in ORDERS:
        raise UnknownName("order of A and B", letters, ORDERS)
    return ORDERS[letters.upper()]


@lru_cache(maxsize=256)
def leading_of(name: str) -> str:
    """What the leading dimension of a matrix is called.

    >>> leading_of("A"), leading_of("A1"), leading_of("residual")
    ('lda', 'lda', 'ld_residual')
    """
    return f"ld{name[0].lower()}" if name[0].isupper() else f"ld_{name}"


LEADING = tuple(dict.fromkeys(leading_of(name) for name in (*get_args(OperandName), *READY_MADE)))
"""Every leading dimension that a kernel may take, but for those of operands that a function names."""


@dataclass(frozen=True, slots=True)
class Operand:
    """How one matrix lies in memory. is_vector: it has one number for each index of its contiguous dimension, the same
    in all its lines. is_single: and all of these are one number. is_own: and each problem of a batch has its own."""

    name: OperandName | AddedName | BlockScaleName
    dtype: DType
    order: Order
    is_vector: bool = False
    is_single: bool = False
    is_own: bool = False
    fold: Fold | None = None

    @property
    def dims(self) -> tuple[Dim, Dim]:
        """The logical (row, column) dimensions."""
        return DIMS.get(self.name, DIMS["C"])

    @property
    def contiguous(self) -> Dim:
        """The dimension along which neighbours are adjacent in memory."""
        return self.dims[1] if self.order is Order.ROW else self.dims[0]

    @property
    def strided(self) -> Dim:
        """The dimension along which neighbours are `ld` elements apart."""
        return self.dims[0] if self.order is Order.ROW else self.dims[1]

    @property
    def leading(self) -> str:
        """The name of the leading dimension: `lda`, `ldb`, `ldc` or `ld_residual`."""
        return leading_of(self.name)


_PIECES: dict[str, tuple[OperandName, ...]] = {"A": ("A", "A1", "A2"), "B": ("B", "B1", "B2")}
"""The names of the pieces of an operand, the first one's first."""


def piece_of(name: str) -> tuple[OperandName, int]:
    """The operand that a factor is a piece of, and which.

    >>> piece_of("B"), piece_of("A2")
    (('B', 0), ('A', 2))
    """
    return ("A" if name in _PIECES["A"] else "B"), int(name[1:] or 0)


@dataclass(frozen=True, slots=True)
class Product:
    """`a @ b`, one term of accumulator number `into`.

    rescale: what the terms before it are multiplied by, NaN among them replaced by 0, when this one is added; 0: they
    stay as they are.
    """

    a: OperandName
    b: OperandName
    into: int = 0
    rescale: float = 0.0


_PRODUCTS = (Product("A", "B"), Product("A", "B1", into=1))
"""Of operands that have no pieces: of one sum of an element of C, or two."""

LARGEST_SIZE = 2**31 - 1
"""Kernels take sizes and leading dimensions as 32-bit integers."""

LARGEST_FACTOR = (2 - 2**-23) * 2.0**127
"""The largest number of f32, in which kernels take alpha and beta."""


def _check_factor(name: str, value: Any) -> None:
    is_number = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    if not is_number:
        raise ProblemError(f"{name} = {value!r} is not a number.", hint="alpha and beta are real numbers.")
    if LARGEST_FACTOR < abs(value) < float("inf"):
        told = f"{name} = {float(value):g}" if abs(value) <= sys.float_info.max else name
        raise ProblemError(
            f"{told} is more than f32 can hold, in which kernels take it.",
            hint=f"at most {LARGEST_FACTOR:.6g}; scale A or B instead.",
        )


_factor = lru_cache(maxsize=None)(Operand)  # A, B or C: there are few, which are asked for again and again


@dataclass(frozen=True, slots=True)
class Gemm:
    """One problem. Sizes in elements; `a`, `b`, `c` are storage orders; leading dimensions default to tight.

    dtype: of A and B; b_dtype: of B, where both are FP8 and of two formats. accumulate: of the running sum. out: of C.
    product: what A and B are rounded to before they are multiplied, by default nothing; tf32 or tf32_truncated for f32
    operands on tensor cores. epilogue: what is added to
    the finished sum, and what function is taken of it; ld_added: of the matrices that it reads, in their order;
    numbers: its scalars, in the order of `Epilogue.factors`, each 1 by default.
    pieces: A and B are the first pieces of f32 operands, as an algorithm splits them; the others, A1, A2, B1 and B2,
    have their sizes and leading dimensions. block_scales: of blocks of A and B.

    >>> Gemm(512, 512, 256).flops
    134217728
    """

    m: int
    n: int
    k: int
    dtype: DType = F32
    accumulate: DType = F32
    out: DType = F32
    a: Order = Order.ROW
    b: Order = Order.ROW
    c: Order = Order.ROW
    alpha: float = 1.0
    beta: float = 0.0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    product: DType | None = None
    epilogue: Epilogue = PLAIN
    ld_added: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    pieces: Algorithm | None = None
    block_scales: BlockScales | None = None
    b_dtype: DType | None = None

    def __hash__(self) -> int:
        """Of its sizes: a problem is looked up again and again, among few of the same sizes."""
        return hash((self.m, self.n, self.k, self.lda, self.ldb, self.ldc))

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            size = integer_of(getattr(self, name))
            if size is None or not 0 <= size <= LARGEST_SIZE:
                raise ProblemError(
                    f"{name} = {getattr(self, name)!r} is not a matrix size.",
                    hint="sizes are integers from 0 to 2**31 - 1.",
                )
            object.__setattr__(self, name, size)
        for name in ("alpha", "beta"):
            _check_factor(name, getattr(self, name))
        for name in FORMAT_OPTIONS:
            if not isinstance(getattr(self, name), DType) and not (name == "product" and self.product is None):
                raise ProblemError(
                    f"{name} = {getattr(self, name)!r} is not a number format.",
                    hint="use tilewright.F32, F16, BF16 or TF32.",
                )
        for name in ("a", "b", "c"):
            if not isinstance(getattr(self, name), Order):
                raise ProblemError(f"{name} = {getattr(self, name)!r} is not an Order.", hint="use Order.ROW or COL.")
        if not isinstance(self.epilogue, Epilogue):
            raise ProblemError(f"epilogue = {self.epilogue!r} is not an Epilogue.", hint="leave it out for none.")
        if not (self.dtype.is_factor and self.out.is_result):
            factors, results = ([d.name for d in ALL if d.is_factor], [d.name for d in ALL if d.is_result])
            raise FormatError(
                f"Cannot multiply {self.dtype} into {self.out}.",
                hint=f"operands and results are {', '.join(factors)}."
                if factors == results
                else f"operands are {', '.join(factors)}, results {', '.join(results)}.",
            )
        if self.b_dtype is not None and not {self.dtype, self.b_dtype} <= set(FP8_FORMATS):
            raise FormatError(
                f"Cannot multiply {self.dtype} by {self.b_dtype}.", hint="operands of two formats are e4m3 and e5m2."
            )
        if self.product not in (None, self.dtype) and self.product.name not in self.dtype.products:
            raise FormatError(
                f"Cannot round operands of {self.dtype} to {self.product} before they are multiplied.",
                hint="f32 operands may be rounded to tf32, or cut off (tf32_truncated); leave product out for others.",
            )
        self.multiplied.sum_in(self.accumulate)
        if self.pieces is not None and self.multiplied is not self.pieces.pieces:
            raise FormatError(
                f"Pieces of {self.pieces} are {self.pieces.pieces}, and operands are multiplied as {self.multiplied}."
            )
        for operand in self.operands:
            leading = self._checked_leading(operand, getattr(self, operand.leading))
            object.__setattr__(self, operand.leading, leading)
        self._check_added()

    def _check_added(self) -> None:
        """Of what the epilogue reads."""
        if self.ld_added == self.numbers == () and not self.epilogue:
            return
        matrices, factors = [one.name for one in self.epilogue.matrices], self.epilogue.factors
        if len(self.ld_added) > len(matrices) or len(self.numbers) > len(factors):
            raise ProblemError(
                f"ld_added = {self.ld_added} and numbers = {self.numbers} are more than the epilogue reads: "
                f"{len(matrices)} matrices and {len(factors)} scalars."
            )
        given = (*self.ld_added, *(0,) * (len(matrices) - len(self.ld_added)))
        leading = (self._checked_leading(self.operand(name), ld) for name, ld in zip(matrices, given, strict=True))
        object.__setattr__(self, "ld_added", tuple(leading))
        numbers = (*self.numbers, *(1.0,) * (len(factors) - len(self.numbers)))
        for name, number in zip(factors, numbers, strict=True):
            _check_factor(name, number)
        object.__setattr__(self, "numbers", numbers)

    def _checked_leading(self, operand: Operand, asked: object) -> int:
        tight, given = self.tight_leading(operand.name), integer_of(asked)
        if given is None:
            raise ProblemError(
                f"{operand.leading} = {asked!r} is not a leading dimension.",
                hint=f"give an integer of at least {tight}, or 0 for as few elements as can be.",
            )
        if given > LARGEST_SIZE:
            raise ProblemError(
                f"{operand.leading} = {given} is more than kernels take.", hint="the largest is 2**31 - 1."
            )
        if given and given < tight:
            raise ProblemError(
                f"{operand.leading} = {given} is smaller than the {tight} elements "
                f"of one {operand.order.value} of {operand.name}.",
                hint=f"use {operand.leading} >= {tight}.",
            )
        return given or max(tight, 1)

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        return self.operand("A"), self.operand("B"), self.operand("C")

    @property
    def products(self) -> tuple[Product, ...]:
        """What is summed over k, in the order in which it is added."""
        if self.pieces is None:
            return _PRODUCTS if self.epilogue.accumulators > 1 else _PRODUCTS[:1]
        *small, last = (Product(_PIECES["A"][i], _PIECES["B"][j]) for i, j in self.pieces.products)
        return *small, replace(last, rescale=self.pieces.rescale)

    @property
    def factors(self) -> tuple[OperandName, ...]:
        """The operands of the products, in the order of a kernel's arguments."""
        used = {name for product in self.products for name in (product.a, product.b)}
        return tuple(name for name in FACTORS if name in used)

    @property
    def accumulators(self) -> int:
        """Sums that an element of C is made of."""
        return 1 + max(product.into for product in self.products)

    @property
    def later_pieces(self) -> tuple[Operand, ...]:
        """The factors behind A and B: further pieces, or a second B."""
        return tuple(self.operand(name) for name in self.factors if name in _LATER)

    @property
    def added(self) -> tuple[Operand, ...]:
        """What the epilogue reads beside C."""
        return tuple(self.operand(one.name) for one in self.epilogue.operands)

    @property
    def matrices(self) -> tuple[Operand, ...]:
        """Every matrix that a kernel takes, in the order of its arguments."""
        scales = () if self.block_scales is None else tuple(self.operand(name) for name in BLOCK_SCALES)
        return *self.operands, *self.later_pieces, *self.added, *scales

    @property
    def results(self) -> tuple[str, ...]:
        """The matrices that are written."""
        return "C", *(one.name for one in self.epilogue.written)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The scalar arguments of a kernel, in order."""
        sizes = [Scalar(dim.upper(), self.size(dim), ScalarKind.SIZE) for dim in ("m", "n", "k")]
        leading = [Scalar(o.leading, self.leading(o.name), ScalarKind.OFFSET) for o in self.operands]
        factors = [Scalar(name, getattr(self, name), ScalarKind.FACTOR) for name in ("alpha", "beta")]
        added = [Scalar(o.leading, self.leading(o.name), ScalarKind.OFFSET) for o in self.added if not o.is_vector]
        numbers = zip(self.epilogue.factors, self.numbers, strict=True)
        scales = () if self.block_scales is None else self.block_scales.scalars(self.m, self.n, self.k)
        return *sizes, *leading, *factors, *added, *(Scalar(*one, ScalarKind.FACTOR) for one in numbers), *scales

    def operand(self, name: OperandName | AddedName | BlockScaleName) -> Operand:
        """A, B or C, or what the epilogue reads: a vector is contiguous along its dimension."""
        match name:
            case "A" | "A1" | "A2":
                return _factor(name, self.dtype, self.a)
            case "B" | "B1" | "B2":
                return _factor(name, self.b_dtype or self.dtype, self.b)
            case "C":
                return _factor(name, self.out, self.c)
            case "block_scale_a" | "block_scale_b":
                own = self.block_scales is not None and name in self.block_scales.own
                return Operand(name, F32, Order.ROW, is_vector=True, is_own=own)
        added = next(one for one in self.epilogue.operands if one.name == name)
        order = {None: self.c, "m": Order.COL, "n": Order.ROW}[added.along]
        return Operand(name, added.dtype or self.out, order, added.is_vector, added.single, added.own, added.fold)

    def groups_of(self, operand: Operand) -> int:
        """Partial results of each element of a fold."""
        assert operand.fold is not None
        return ceil_div(self.size(operand.strided), max(operand.fold.group, 1))

    def line_of(self, operand: Operand) -> int:
        """Elements of a fold, each of which has `groups_of` partial results."""
        assert operand.fold is not None
        extent, partials = operand.fold.of_tiles
        return ceil_div(self.size(operand.contiguous), extent) * partials

    @property
    def multiplied(self) -> DType:
        """The format in which A and B are multiplied."""
        return self.product or self.dtype

    def factor_format(self, name: str) -> DType:
        """The format in which A or B is multiplied."""
        return self.b_dtype if self.b_dtype is not None and name[0] == "B" else self.multiplied

    @property
    def rounds_to(self) -> DType | None:
        """The format to which a kernel itself rounds A and B; None where the multiplier takes them as they are."""
        return None if self.multiplied is self.dtype or self.multiplied.truncates else self.multiplied

    @property
    def multiplies_tf32(self) -> bool:
        """Whether the tf32 multipliers of tensor cores are asked for, however their operands get there."""
        return self.multiplied in TF32_FORMATS

    def size(self, dim: Dim) -> int:
        return int(getattr(self, dim))

    def tma_matrix(self, name: str) -> TmaMatrix:
        """A matrix by its lines; TMA rounds what f32 operands become on tensor cores."""
        if self.block_scales is not None and name in BLOCK_SCALES:
            return self.block_scales.tma_matrix(name)
        operand = next(one for one in self.matrices if one.name == name)
        mapped = self.rounds_to or operand.dtype if name in FACTORS else operand.dtype
        length, lines = Extent(operand.contiguous.upper()), Extent(operand.strided.upper())
        return TmaMatrix(length, lines, Extent(operand.leading), operand.dtype, mapped)

    def tight_leading(self, name: OperandName | AddedName) -> int:
        """The smallest leading dimension that `name` can have, in elements."""
        return self.size(self.operand(name).contiguous)

    def leading(self, name: OperandName | AddedName | BlockScaleName) -> int:
        """Elements from line to line; 0 for a vector, all of whose lines are one."""
        if name in DIMS:
            return int(getattr(self, leading_of(name)))
        if self.operand(name).is_vector:
            return 0
        return self.ld_added[[one.name for one in self.epilogue.matrices].index(name)]

    def storage_elements(self, name: str) -> int:
        """Elements from the first to the last of the matrix, gaps between rows included."""
        operand = next(one for one in self.matrices if one.name == name)
        if operand.is_single:
            return 1
        if self.block_scales is not None and name in BLOCK_SCALES:
            return self.block_scales.elements(name, self.m, self.n, self.k)
        runs, length = self.size(operand.strided), self.size(operand.contiguous)
        if operand.fold is not None:
            return self.groups_of(operand) * self.line_of(operand)
        return (runs - 1) * self.leading(operand.name) + length if runs and length else 0

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each (m, n, k) of each sum."""
        return 2 * self.m * self.n * self.k * self.accumulators

    @property
    def compulsory_bytes(self) -> int:
        """Each operand read once, also matrices that a function reads, and results written once (C read as well when
        beta is not 0)."""
        result = self.m * self.n * self.out.bytes * (1 if self.beta == 0 else 2)
        pieces = 1 if self.pieces is None else self.pieces.count
        matrices = (one for one in (*self.epilogue.named, *self.epilogue.written) if not one.is_vector)
        beside = sum(self.m * self.n * (one.dtype or self.out).bytes for one in matrices)
        factors = pieces * (self.m * self.k + self.accumulators * self.k * self.n) * self.dtype.bytes
        return factors + beside + result

    def resized(self, m: int, n: int, k: int) -> Gemm:
        """The same problem at another size, with tight leading dimensions."""
        return replace(self, m=m, n=n, k=k, lda=0, ldb=0, ldc=0, ld_added=())

    def _repr_html_(self) -> str:
        rows = [
            (
                operand.name,
                " x ".join(str(self.size(dim)) for dim in operand.dims),
                operand.dtype.name,
                "row-major" if operand.order is Order.ROW else "column-major",
                self.leading(operand.name),
            )
            for operand in self.operands
        ]
        title = f"{self.alpha:g} * A @ B + {self.beta:g} * C" if self.beta else f"{self.alpha:g} * A @ B"
        return table(title, ("matrix", "size", "format", "stored", "leading dimension"), rows, below=str(self))

    @property
    def orders(self) -> str:
        """The letters of A's and B's order."""
        return self.a.letter + self.b.letter

    def formula(self, *, indexed: bool = False) -> str:
        """C as text.

        >>> Gemm(8, 8, 8).formula()
        'alpha * A @ B + beta * C'
        """
        sums = [""] * self.accumulators
        for one in self.products:
            term = f"sum_k {one.a}[m, k] * {one.b}[k, n]" if indexed else f"{one.a} @ {one.b}"
            if self.block_scales is not None:
                term = f"sum_blocks block_scale_a * block_scale_b * ({term})"
            sums[one.into] += f" + {term}" if sums[one.into] else term
        return self.epilogue.formula(*sums, indexed=indexed)

    def __str__(self) -> str:
        other = "" if self.b_dtype is None else f" by {self.b_dtype}"
        return f"{self.m}x{self.n}x{self.k} {self.multiplied}{other} {self.orders}"
