"""How far a right answer may lie from the float64 reference: the theory of the format, not a chosen epsilon.

A sum of K products, each rounded to unit round-off u in any order, satisfies element by element

    |computed - exact| <= gamma(K + 2) * (|alpha| * |A| @ |B| + |beta| * |C|) + u_out * |result|,
    gamma(n) = n * u / (1 - n * u)

(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1 and 3.5); the `+ 2` pays for
alpha and for the addition of beta * C. The bound holds for every order of summation, so also for split-K.

Tensor cores add exact products in blocks of at least four, together with the sum so far: each addend is aligned to the
largest and cut off at 24 bits or more, and so is the block's sum (M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh,
Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7:e330, 2021, section 4). Cutting off loses up to
2**-23 of the largest, which is no larger than the sum of magnitudes: K products, and twice K / 4 for the sums carried
from block to block. Which unit multiplies is not the problem's to say, so every sum in f32 of narrower products has
this bound. Sums in f16 are rounded at most once a product, which the first bound pays for.

Sums of FP8 products keep 13 fraction bits of each term below the largest exponent of 32 products and the sum so far,
and of the result: an instruction errs by at most 34 * 2**-13 of the sum of magnitudes, and K products by
(K + 2 * ceil(K / 32)) * 2**-13 of it. Nothing is divided by 1 - n * u, because what is cut off makes no magnitude
larger. The exponent of a subnormal factor is that of the smallest normal number: in this bound its magnitude is that
number's. Where the sum of every P of k is added to a sum in f32 (promotion), P takes the place of K, and ceil(K / P)
roundings of f32 are added.

Where K * u nears 1, as for sums kept in f16, that bound says nothing. Rounding errors are then taken as independent,
which gives sqrt(n) in place of n with probability close to 1 (N. J. Higham and T. Mary, A new approach to probabilistic
rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019): gamma = exp(lambda * sqrt(n) * u) - 1, lambda = 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import F32, Array
from tilewright.errors import ProblemError
from tilewright.problem.epilogue import STEEPEST, Activation, Added, evaluate
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import Operands, as_multiplied, reference, summed
from tilewright.units import ceil_div


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of a computed C with the reference.

    relative_error: Frobenius norm of the difference over that of the reference. worst_ratio: the largest
    |difference| / bound of any element; at most 1 for a right answer. worst_at: where (row, column).
    """

    ok: bool
    relative_error: float
    worst_ratio: float
    worst_at: tuple[int, int] | None
    message: str


def _gamma(terms: int, unit: float) -> float:
    """The relative bound for a sum of so many terms: certain where that says something, else probabilistic."""
    if terms * unit < 0.1:
        return terms * unit / (1 - terms * unit)
    return float(np.expm1(8 * np.sqrt(terms) * unit))


def _sum_bound(gemm: Gemm, promote_every: int) -> float:
    """The largest |error| of a sum, as a share of the sum of the magnitudes of its terms."""
    summation = gemm.multiplied.sum_in(gemm.accumulate)
    length = gemm.k * len(gemm.products)
    if summation.fraction_bits >= F32_FRACTION_BITS:
        carried = 2 * ceil_div(length, summation.fewest) if summation.in_blocks else 0
        return _gamma(length + carried + 2, summation.unit_roundoff)
    group = min(length, promote_every) if promote_every else length
    terms = group + 2 * ceil_div(group, summation.fewest)
    promotions = ceil_div(length, promote_every) if promote_every else 0
    return min(terms * summation.unit_roundoff, 2.0) + _gamma(promotions + 2, F32.unit_roundoff)


FUNCTION_ULPS = 32
"""Rounding errors of an activation in f32. Source: CUDA C++ Programming Guide, accuracy of erff, expf and tanhf: at
most 2 ulp each; the rest is for the polynomial around them."""

F32_FRACTION_BITS = 23


def relative_bound(gemm: Gemm, *, promote_every: int = 0) -> float:
    """The largest |error| of an element without an epilogue, as a share of the sum of the magnitudes of its terms.
    promote_every: elements of k whose sum is added to a sum in f32; 0 for all. It matters for FP8 alone.

    Holds against the exact product of the factors as they lie in memory: rounding them first is part of it.
    """
    rounded = 2.01 * gemm.multiplied.unit_roundoff if gemm.multiplied is not gemm.dtype else 0.0
    return _sum_bound(gemm, promote_every) + rounded + gemm.out.unit_roundoff


def error_bound(operands: Operands, *, promote_every: int = 0) -> Array:
    """The largest |error| each element of a right C may have, shape (m, n), float64. promote_every: see
    `relative_bound`."""
    gemm = operands.gemm
    gamma = _sum_bound(gemm, promote_every)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = summed(operands, lambda name: _magnitudes(gemm, as_multiplied(operands, name)))
        found = evaluate(gemm.epilogue.value, _Errors(operands, tuple(_Bounded(one, gamma) for one in sums)))
        # The smallest normal number pays for results that underflow.
        return (found.relative + gemm.out.unit_roundoff) * found.magnitude + gemm.out.tiny


def _magnitudes(gemm: Gemm, values: Array) -> Array:
    """Those of factors; of FP8, those that the alignment of their products sees."""
    found: Array = np.abs(values)
    if gemm.multiplied.sum_in(gemm.accumulate).fraction_bits < F32_FRACTION_BITS:
        found = np.where(found == 0, 0.0, np.maximum(found, gemm.multiplied.tiny))
    return found


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A computed value, of at most this magnitude, whose error is at most so large a share of it."""

    magnitude: Array
    relative: float


@dataclass(frozen=True, slots=True)
class _Errors:
    """What the epilogue does to errors. totals: the finished sums, whose share pays for alpha and beta's addend."""

    operands: Operands
    totals: tuple[_Bounded, ...]

    def _read(self, name: str) -> Array:
        return np.abs(self.operands.matrix(name).astype(np.float64))  # type: ignore[arg-type]

    def accumulated(self, number: int) -> _Bounded:
        return self.totals[number]

    def element(self, operand: Added) -> _Bounded:
        return _Bounded(self._read(operand.name), 0.0)

    def times_alpha(self, value: _Bounded) -> _Bounded:
        return _Bounded(abs(self.operands.gemm.alpha) * value.magnitude, value.relative)

    def plus_beta_times(self, value: _Bounded, matrix: str) -> _Bounded:
        beta = abs(self.operands.gemm.beta)
        return value if beta == 0 else _Bounded(value.magnitude + beta * self._read(matrix), value.relative)

    def plus(self, a: _Bounded, b: _Bounded) -> _Bounded:
        return _Bounded(a.magnitude + b.magnitude, max(a.relative, b.relative) + F32.unit_roundoff)

    def times(self, a: _Bounded, b: _Bounded) -> _Bounded:
        relative = (1 + a.relative) * (1 + b.relative) * (1 + F32.unit_roundoff) - 1
        return _Bounded(a.magnitude * b.magnitude, relative)

    def applied(self, function: Activation, value: _Bounded) -> _Bounded:
        # A function steeper than 1 makes errors larger, and is itself computed in f32, in a few operations.
        return _Bounded(STEEPEST * value.magnitude, value.relative + FUNCTION_ULPS * F32.unit_roundoff)


def check(operands: Operands, computed: Array, *, promote_every: int = 0) -> Verdict:
    """Compare `computed` (logical (m, n) matrix, decoded) with the float64 reference, element by element, within
    `error_bound`.

    NaN and infinity must stand exactly where the reference has them. Raises ProblemError for what is no Operands, or
    holds no numbers.
    """
    if not isinstance(operands, Operands):
        raise ProblemError(f"Results are held against Operands, not a {type(operands).__name__}.")
    try:
        np.asarray(computed, np.float64)
    except (TypeError, ValueError):
        raise ProblemError(
            f"A {type(computed).__name__} is not a matrix of numbers.",
            hint="give the M x N result: built.simulate(operands).c.reshape(m, n).",
        ) from None
    expected = reference(operands)
    bound = error_bound(operands, promote_every=promote_every) if expected.size else expected
    return compare(computed, expected, bound)


def compare(computed: Array, expected: Array, bound: Array) -> Verdict:
    """`check` for a reference and its bound that are known already, of the same shape."""
    actual = np.asarray(computed, dtype=np.float64)
    if actual.shape != expected.shape:
        return Verdict(False, float("nan"), float("inf"), None, f"shape {actual.shape}, not {expected.shape}")
    if expected.size == 0:
        return Verdict(True, 0.0, 0.0, None, "empty result")
    finite = np.isfinite(expected) & np.isfinite(bound)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ratio = np.where(finite, np.abs(actual - expected) / bound, 0.0)
        strange = ~finite & ~((actual == expected) | (np.isnan(actual) & np.isnan(expected)))
        ratio = np.where(strange | (finite & ~np.isfinite(actual)), np.inf, ratio)
        norm = np.linalg.norm(expected[finite]) if finite.any() else 0.0
        error = np.linalg.norm((actual - expected)[finite]) if finite.any() else 0.0
    relative = float(error / norm) if norm else float(error)
    row, col = (int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    worst = float(ratio[row, col])
    ok = worst <= 1.0
    wrong = int((ratio > 1).sum())
    message = (
        f"relative error {relative:.1e}, largest element error {worst:.2f} of its bound"
        if ok
        else f"{wrong} of {ratio.size} elements are wrong; the worst is C[{row}, {col}]: "
        f"{actual[row, col]:.7g}, expected {expected[row, col]:.7g} within {bound[row, col]:.1e}"
    )
    return Verdict(ok, relative, worst, (row, col), message)
