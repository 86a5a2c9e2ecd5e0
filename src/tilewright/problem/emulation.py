"""Products of f32 operands by tensor cores that multiply narrower formats: algorithms, and what they promise.

An operand is split into pieces, x = x0 + x1 + ..., each the nearest number of a narrower format to what the ones before
leave. C is the sum of products of pieces. Tensor cores sum a group of k at a time: all products of pieces, those that
matter least first. The sum of a group is added to registers of f32, rounded to nearest. `docs/accuracy.md` proves the
bounds.

The names are those of XLA's dot algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import BF16, F16, F32, TF32, Array, DType
from tilewright.errors import UnknownName
from tilewright.units import ceil_div, round_up

INSTRUCTION_BYTES = 32
"""Of k that one wgmma sums, all products and the accumulator at once. Source: PTX ISA 9.0, wgmma.mma_async."""

_U = 2.0**-24
"""The unit roundoff of f32, in which bounds are counted."""

_EXACT_BITS = 24
"""Bits of a significand of f32: pieces that hold as many in all leave nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Algorithm:
    """How a product of f32 operands is computed.

    pieces: the format of a piece. count: pieces of an operand. products: which piece of A by which of B, in the order
    of summation in a group; the last is of the first pieces. promote_every: elements of k of a group, which tensor
    cores sum before their sum is added to registers of f32. shift: pieces behind the first are stored times
    2**shift, and rows of A and columns of B are scaled by powers of two before they are split; 0: neither.
    """

    name: str
    pieces: DType
    count: int
    products: tuple[tuple[int, int], ...]
    promote_every: int
    shift: int = 0

    def __reduce__(self) -> tuple[object, ...]:
        return algorithm, (self.name,)

    def __repr__(self) -> str:
        return self.name

    def padded_k(self, k: int) -> int:
        """Elements of k of a stored piece: whole groups.

        >>> BF16X6.padded_k(100), TF32X3.padded_k(100)
        (128, 128)
        """
        return round_up(k, self.promote_every)

    @property
    def rescale(self) -> float:
        """What the sum of the small products of a group is multiplied by before the last one is added to it."""
        return 2.0**-self.shift

    # -- the bound -----------------------------------------------------------------------------------------------------

    @property
    def magnitudes(self) -> tuple[float, ...]:
        """The largest magnitude of each piece, and of what they leave, as shares of the number that is split."""
        roundoff = self.pieces.unit_roundoff
        # Beside the largest numbers of f32 the first piece is the largest of its format, not the nearest.
        more = 1 + roundoff
        # What a piece leaves is below a power of two, so the next one lies one binade lower.
        after = [1 + roundoff, roundoff * more, roundoff**2 / 2 * more][: self.count]
        bits = self.count * (1 - int(np.log2(roundoff)))
        return (*after, 0.0 if bits > _EXACT_BITS else roundoff**self.count / 2 ** (self.count - 1) * more)

    @property
    def split_units(self) -> float:
        """The error of leaving out products and rests of pieces, in u |A||B|."""
        *sizes, rest = self.magnitudes
        pairs = [(i, j) for i in range(self.count) for j in range(self.count) if (i, j) not in self.products]
        return (sum(sizes[i] * sizes[j] for i, j in pairs) + rest * (2 + rest)) / _U

    @property
    def small_share(self) -> float:
        """The magnitude of all products of pieces but the last, as a share of |A||B|."""
        return sum(self.magnitudes[i] * self.magnitudes[j] for i, j in self.products[:-1])

    def units(self, k: int) -> float:
        """W of the bound |C - AB| <= W u |A||B|, elementwise, u = 2**-24, where no piece underflows.

        It holds for every number of parts of split-K, and with the order in which these are added.

        >>> [round(BF16X6.units(k)) for k in (64, 1024, 4096, 16384)]
        [44, 59, 108, 303]
        """
        step = INSTRUCTION_BYTES // self.pieces.bytes
        summed = min(self.promote_every, round_up(max(k, 1), step))
        small = self.small_share
        total = small + self.magnitudes[0] ** 2
        cut = (0.5 + 2 / step) * summed * (total + small * (len(self.products) - 1))
        groups = ceil_div(max(k, 1), self.promote_every)
        return self.split_units + cut + total * groups * (1 + _U) ** groups

    def underflow(self, k: int, a_rows: Array, b_columns: Array) -> Array:
        """What is added to the bound where pieces or products underflow: of each element of C.

        a_rows, b_columns: the largest magnitudes of the rows of A, shape (m,), and of the columns of B, shape (n,).
        A piece is a multiple of the smallest subnormal number of its format, and tensor cores align even the product
        of a zero as one of 2**-126. Where rows and columns are scaled, underflow is relative to their largest.
        """
        rows, columns = np.asarray(a_rows, np.float64)[:, None], np.asarray(b_columns, np.float64)[None, :]
        if self.shift:
            scaled: Array = k * rows * columns * (2.0**-46 + 2.0**-48) + 2.0**-149
            return scaled
        terms = len(self.products) * self.padded_k(k)
        found: Array = (rows + columns) * (k * smallest(self.pieces) + terms * 2.0**-150) + terms * 2.0**-149
        return found


def smallest(pieces: DType) -> float:
    """The smallest subnormal number of the format of a piece."""
    return pieces.tiny * pieces.unit_roundoff * 2


BF16X9 = Algorithm("bf16x9", BF16, 3, ((2, 2), (2, 1), (1, 2), (2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)), 64)
BF16X6 = Algorithm("bf16x6", BF16, 3, ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)), 64)
BF16X3 = Algorithm("bf16x3", BF16, 2, ((1, 0), (0, 1), (0, 0)), 64)
TF32X3 = Algorithm("tf32x3", TF32, 2, ((1, 0), (0, 1), (0, 0)), 32)
F16X3 = Algorithm("f16x3", F16, 2, ((1, 0), (0, 1), (0, 0)), 64, shift=11)
ALGORITHMS = {one.name: one for one in (BF16X9, BF16X6, BF16X3, TF32X3, F16X3)}

EMULATIONS: tuple[str, ...] = (*ALGORITHMS, "f32_emulated")
"""The precisions that multiply pieces of f32 operands; the last is the fastest of those that are as good as f32."""

_LEAST_GUARDED_K = 1024
"""Of scaled pieces in the place of f32 arithmetic: a group of 64 of uniform numbers is off by 2e-7, as f32 for that."""

_DEEPEST = 8
"""Binades below the range of f16 that a guard may allow."""

SCALED_TO = 2.0**12
"""The least that the largest magnitude of a scaled row or column is; it is below 4 times that, as a scale is applied
twice, and numbers of f16 end at 2**16."""

LARGEST_SCALE = 2.0**81
"""Of a row or column whose largest number is the smallest of f32, or 0."""

MOST_SPLIT_UNITS = 9.0
"""Of an algorithm in the place of f32 arithmetic: rounding errors of f32 grow like the square root of k, and what a
product leaves out does not become less likely with k."""


def algorithm(name: str) -> Algorithm:
    """The algorithm of a name. Raises UnknownName."""
    if name not in ALGORITHMS:
        raise UnknownName("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def guarded_units(how: Algorithm, k: int, depth: int) -> float:
    """W of scaled pieces where no scaled number but 0 is below 2**(-13 - depth): there is no underflow then, but that
    of the result.

    Pieces of such numbers are off by 2**(depth - 23) of them at most, the product of second pieces, which is dropped,
    by 4**depth u, and subnormal numbers make tensor cores cut off 5 * 2**depth u at most.
    """
    return how.units(k) + 1.01 * 4.0**depth + 2.0 ** (depth + 2) + 5 * 2.0**depth


def guarded_depth(how: Algorithm, k: int) -> int | None:
    """The binades below the range of f16 that leave the bound of scaled pieces not above that of f32; None for none, or
    where a typical error is not below that of f32.

    >>> [guarded_depth(F16X3, k) for k in (512, 1024, 4096, 16384)]
    [None, 4, 5, 6]
    """
    if k < _LEAST_GUARDED_K:
        return None
    fine = [depth for depth in range(1, _DEEPEST + 1) if guarded_units(how, k, depth) <= f32_units(k)]
    return max(fine, default=None)


def least_scaled(how: Algorithm, k: int) -> float:
    """The least magnitude of scaled numbers but 0 for which `guarded_units` is not above the bound of f32.

    >>> least_scaled(F16X3, 4096) == 2.0**-18
    True
    """
    return 2.0 ** (-13 - (guarded_depth(how, k) or 0))


def f32_units(k: int) -> float:
    """W of the bound of f32 arithmetic, by FMAs in any order."""
    return float(k)


def at_least_f32(k: int) -> tuple[Algorithm, ...]:
    """The algorithms whose bound is not above that of f32 arithmetic, the fastest first: tensor cores take as long for
    a product as its operands have bytes. Of equally fast ones that which leaves out less. Not those that scale rows and
    columns, whose bound has a part relative to the largest numbers of these.

    >>> at_least_f32(4096), at_least_f32(8)
    ((bf16x6, tf32x3, bf16x9), ())
    """
    bounded = (one for one in ALGORITHMS.values() if not one.shift and one.units(k) <= f32_units(k))
    found = [one for one in bounded if one.split_units <= MOST_SPLIT_UNITS]
    return tuple(sorted(found, key=lambda one: (len(one.products) * one.pieces.bytes, one.split_units)))


def scales_of(values: Array, axis: int) -> Array:
    """Powers of two, as float32, that bring the largest finite magnitude along an axis to 2**12 and above, below 2**14,
    where it is multiplied by them twice: once would not do for subnormal numbers.

    >>> scales_of(np.float32([[5.0, -np.inf], [0.0, 0.0]]), axis=1).tolist() == [2.0**5, 2.0**81]
    True
    """
    largest = np.where(np.isfinite(values), np.abs(values), 0).astype(np.float64).max(axis, initial=0.0)
    half = (np.frexp(np.maximum(largest, 2.0**-149))[1] - 1) // 2
    found: Array = (SCALED_TO**0.5 * np.exp2(-half.astype(np.float64))).astype(np.float32)
    return found


def first_piece(values: Array, pieces: DType, unscaled: Array) -> Array:
    """The nearest number of a narrower format, as float32: finite where the value is, and 0 only where the unscaled
    one is."""
    bound = largest(pieces)
    finite = np.isfinite(values)
    clamped = np.clip(np.where(finite, values, np.float32(0)), -bound, bound).astype(np.float32)
    nearest = pieces.decode(pieces.encode(clamped)).astype(np.float32)
    lost = finite & (nearest == 0) & (unscaled != 0)
    nearest = np.where(lost, np.copysign(np.float32(smallest(pieces)), unscaled), nearest)
    return np.where(finite, nearest, values).astype(np.float32)


def split(values: Array, how: Algorithm, scale: Array | float = 1.0) -> tuple[Array, ...]:
    """The pieces of f32 numbers times their scale, twice, as float32. Infinities and NaN stand in the first piece, NaN
    in the others: the small products of their group are NaN, which kernels replace by 0, so that the product of first
    pieces decides.

    >>> [float(piece[0]) for piece in split(np.float32([1 + 2.0**-8 + 2.0**-20]), BF16X6)]
    [1.0078125, -0.00390625, 9.5367431640625e-07]
    """
    values = np.asarray(values, F32.numpy)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        scaled = (values * np.float32(scale) * np.float32(scale)).astype(np.float32)
    first = first_piece(scaled, how.pieces, values)
    values = scaled
    found = [first]
    with np.errstate(invalid="ignore"):
        rest = (values - first).astype(np.float32)
        for _ in range(how.count - 1):
            rest = rest * np.float32(2.0**how.shift)
            piece = how.pieces.decode(how.pieces.encode(rest)).astype(np.float32)
            found.append(piece)
            rest = rest - piece
    return tuple(found)


def largest(pieces: DType) -> np.float32:
    """The largest finite number of the format of a piece."""
    return np.float32((2 - 2 * pieces.unit_roundoff) * 2 / pieces.tiny)
