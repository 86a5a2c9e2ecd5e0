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

import math
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import F32, Array, DType
from tilewright.errors import ProblemError, UnknownName
from tilewright.problem.functions import STEEPEST, Activation, Elementary, Function, Operation
from tilewright.problem.gemm import LARGEST_FACTOR, Gemm, OperandName
from tilewright.problem.quantization import scales_of_blocks, spread_over_blocks
from tilewright.problem.reference import (
    Operands,
    as_multiplied,
    check_integer,
    folded_axis,
    reference,
    scale_of,
    summed,
    unsure,
)
from tilewright.problem.values import Added, Fold, drawn_for, evaluate, rotated_pairs, rounded_to
from tilewright.units import ceil_div, type_name


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
    rounded = promotions + (_SCALED if gemm.block_scales is not None else 0) + 2
    return min(terms * summation.unit_roundoff, 2.0) + _gamma(rounded, F32.unit_roundoff)


FUNCTION_ULPS = 32
"""Rounding errors of an activation in f32. Source: CUDA C++ Programming Guide, accuracy of erff, expf, tanhf and
__fdividef: at most 2 ulp each; the rest is for the polynomial around them."""

F32_FRACTION_BITS = 23

_SCALED = 2
"""Roundings of a sum of a block of k that is multiplied by two scales."""


def relative_bound(gemm: Gemm, *, promote_every: int = 0) -> float:
    """The largest |error| of an element without an epilogue, as a share of the sum of the magnitudes of its terms.
    promote_every: elements of k whose sum is added to a sum in f32; 0 for all. It matters for FP8 alone.

    Holds against the exact product of the factors as they lie in memory: rounding them first is part of it.
    """
    rounded = 2.01 * gemm.multiplied.unit_roundoff if gemm.multiplied is not gemm.dtype else 0.0
    return _sum_bound(gemm, promote_every) + rounded + gemm.out.unit_roundoff


def error_bound(operands: Operands, *, promote_every: int = 0, result: str = "C") -> Array:
    """The largest |error| each element of a right C may have, shape (m, n), float64; infinite where f32 may overflow on
    the way to a finite number, or an epilogue divides by what may be 0. promote_every: see `relative_bound`.
    result: see `reference`."""
    gemm = operands.gemm
    gamma = _sum_bound(gemm, promote_every)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        exact = summed(operands, lambda name: as_multiplied(operands, name) * scale_of(operands, name))
        errors = _of_sums(operands, gamma)
        totals = tuple(made(value, error) for value, error in zip(exact, errors, strict=True))
        found = evaluate(gemm.epilogue.value_of(result), _Errors(operands, totals, gamma))
        operand = gemm.operand(result)
        scales = gemm.epilogue.scales
        if scales is not None and (result == "C" or operand.fold == scales.operand.fold):
            return _of_codes(found, gemm, of_scales=result != "C")
        if operand.fold is not None:
            axes = (0, 1) if operand.fold.whole else (folded_axis(gemm, result),)
            return _of_fold(found, operand.fold, axes, (gemm.m, gemm.n))
        # The smallest normal number pays for results that underflow.
        out = operand.dtype
        bound = found.error + out.unit_roundoff * (np.abs(found.value) + found.error) + out.tiny
        return np.broadcast_to(bound, (gemm.m, gemm.n))


def _of_sums(operands: Operands, gamma: float) -> tuple[Array, ...]:
    """The largest |error| of the sums of each accumulator."""

    def magnitudes(name: OperandName) -> Array:
        scale = np.abs(scale_of(operands, name))
        return _magnitudes(operands.gemm, name, as_multiplied(operands, name)) * scale

    sums = summed(operands, magnitudes)
    ties = {name: unsure(operands, name) for name in operands.gemm.factors}
    if not any(np.any(tie) for tie in ties.values()):
        return tuple(gamma * size for size in sums)
    widest = summed(operands, lambda name: magnitudes(name) + ties[name])
    return tuple(gamma * wide + (wide - size) for wide, size in zip(widest, sums, strict=True))


def _of_codes(found: Bounded, gemm: Gemm, *, of_scales: bool) -> Array:
    """The bound of codes, or of their scales. A scale errs as the value of the largest error of its block does, over
    the largest number, and by two roundings; codes by that of both, a division and a product, and their own."""
    value, error = (np.broadcast_to(one, (gemm.m, gemm.n)) for one in (found.value, found.error))
    scale = scales_of_blocks(value, gemm.out)
    off = scales_of_blocks(error, gemm.out) + 2 * _U * scale + F32.tiny
    if of_scales:
        return np.where(np.isfinite(scale), off, np.inf)
    scale, off = (spread_over_blocks(one, gemm.n) for one in (scale, off))
    exact = np.abs(value) / scale
    share = (error + exact * off) / np.maximum(scale - off, F32.tiny)
    total: Array = share + (gemm.out.unit_roundoff + 4 * _U) * (exact + share) + gemm.out.tiny * gemm.out.unit_roundoff
    return total


def _of_fold(found: Bounded, fold: Fold, axis: tuple[int, ...], shape: tuple[int, int]) -> Array:
    """The bound of values added in f32 in any order, each with its error; of the largest, the largest error."""
    value, error = (np.broadcast_to(one, shape) for one in (found.value, found.error))
    if fold.operation is Operation.MAXIMUM:
        largest: Array = np.max(error, axis=axis, keepdims=True, initial=0.0)
        return largest
    size = np.sum(np.abs(value) + error, axis=axis, keepdims=True)
    gamma = _gamma(math.prod(shape[one] for one in axis), _U)
    total: Array = np.sum(error, axis=axis, keepdims=True) + gamma * size + F32.tiny
    return np.where(size > LARGEST_FACTOR, np.inf, total)


_U = F32.unit_roundoff


def _magnitudes(gemm: Gemm, name: OperandName, values: Array) -> Array:
    """Those of factors; of FP8, those that the alignment of their products sees."""
    found: Array = np.abs(values)
    if gemm.multiplied.sum_in(gemm.accumulate).fraction_bits < F32_FRACTION_BITS:
        found = np.where(found == 0, 0.0, np.maximum(found, gemm.factor_format(name).tiny))
    return found


@dataclass(frozen=True, slots=True)
class Bounded:
    """An exact value, and the largest |error| of the computed one; of truths, 1 where the computed one may differ."""

    value: Array
    error: Array


def made(value: Array, error: Array) -> Bounded:
    """A value in f32: infinities and NaN are exact, and what may overflow is anything."""
    unknown = np.isnan(error) | (np.abs(value) + error > LARGEST_FACTOR)
    return Bounded(value, np.where(np.isfinite(value), np.where(unknown, np.inf, error), 0.0))


def _rounded_once(value: Array, error: Array) -> Bounded:
    """The result of one operation in f32 on operands that make it wrong by an error."""
    return made(value, error + _U * (np.abs(value) + error) + F32.tiny)


@dataclass(frozen=True, slots=True)
class _Errors:
    """What the epilogue does to errors. totals: the finished sums; gamma: of their terms, which pays for alpha and for
    the addition of what beta multiplies."""

    operands: Operands
    totals: tuple[Bounded, ...]
    gamma: float

    def _read(self, name: str) -> Array:
        return self.operands.matrix(name).astype(np.float64)

    def accumulated(self, number: int) -> Bounded:
        return self.totals[number]

    def element(self, operand: Added) -> Bounded:
        value = self._read(operand.name)
        return Bounded(value, np.zeros_like(value))

    def times_alpha(self, value: Bounded) -> Bounded:
        alpha = self.operands.gemm.alpha
        return made(alpha * value.value, abs(alpha) * value.error)

    def plus_beta_times(self, value: Bounded, matrix: str) -> Bounded:
        beta = self.operands.gemm.beta
        if beta == 0:
            return value
        added = beta * self._read(matrix)
        return made(value.value + added, value.error + self.gamma * np.abs(added))

    def constant(self, number: float) -> Bounded:
        return Bounded(np.asarray(number, np.float64), np.zeros(()))

    def factor(self, name: str) -> Bounded:
        gemm = self.operands.gemm
        return self.constant(float(np.float32(gemm.numbers[gemm.epilogue.factors.index(name)])))

    def combined(self, operation: Operation, a: Bounded, b: Bounded) -> Bounded:
        value = operation.of(a.value, b.value)
        match operation:
            case Operation.PLUS | Operation.MINUS:
                return _rounded_once(value, a.error + b.error)
            case Operation.TIMES:
                return _rounded_once(value, _product_error(a, b))
            case Operation.OVER:
                least = np.abs(b.value) - b.error
                error = (a.error + np.abs(value) * b.error) / least
                return _rounded_once(value, np.where((least > 0) | np.isinf(b.value), error, np.inf))
            case Operation.MINIMUM | Operation.MAXIMUM:
                return made(value, np.maximum(a.error, b.error))
            case Operation.BOTH | Operation.EITHER:
                return Bounded(value, _unsure(operation, a, b))
            case _:
                apart = np.abs(a.value - b.value)
                return Bounded(value, np.where(apart <= a.error + b.error, (a.error + b.error > 0) * 1.0, 0.0))

    def where(self, condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
        value = np.where(condition.value, a.value, b.value)
        error = np.where(condition.value, a.error, b.error)
        other = np.where(condition.value, b.value, a.value), np.where(condition.value, b.error, a.error)
        either = np.maximum(error, np.abs(other[0] - value) + other[1])
        return made(value, np.where(condition.error > 0, either, error))

    def rounded(self, dtype: DType, value: Bounded) -> Bounded:
        size = np.abs(value.value) + value.error
        error = value.error + 2 * dtype.unit_roundoff * size + 2 * dtype.tiny
        return made(rounded_to(dtype, value.value), np.where(np.isfinite(rounded_to(dtype, size)), error, np.inf))

    def drawn(self, seed: Bounded, offset: Bounded) -> Bounded:
        gemm = self.operands.gemm
        found = drawn_for((gemm.m, gemm.n), seed.value, offset.value)
        return Bounded(found, np.zeros_like(found))

    def rotated(self, value: Bounded) -> Bounded:
        gemm = self.operands.gemm
        number, error = (np.broadcast_to(one, (gemm.m, gemm.n)) for one in (value.value, value.error))
        return Bounded(rotated_pairs(number), np.abs(rotated_pairs(error)))

    def applied(self, function: Function, value: Bounded) -> Bounded:
        result = function.of(value.value)
        if isinstance(function, Activation):
            # Steeper than 1, it makes errors larger; it is computed in f32, in a few operations on the value.
            size = np.abs(value.value) + value.error
            return made(result, STEEPEST * (value.error + FUNCTION_ULPS * _U * size) + F32.tiny)
        if function in (Elementary.NEGATIVE, Elementary.ABSOLUTE):
            return made(result, value.error)
        error = _error_of(function, value, result)
        return made(result, error + _FUNCTION_UNITS * _U * (np.abs(result) + error) + F32.tiny)


_FUNCTION_UNITS = 16
"""Unit round-offs of an elementary function in f32. Source: CUDA C++ Programming Guide, accuracy of expf, logf, tanhf,
erff, sqrtf and __fdividef: at most 2 ulp, 4 unit round-offs; the rest is for the sum and the quotient of a sigmoid."""


def _product_error(a: Bounded, b: Bounded) -> Array:
    """Of a product; nothing of what one operand that is exactly 0 multiplies."""
    of_b = np.where(b.error == 0, 0.0, np.abs(a.value) * b.error)
    of_a = np.where(a.error == 0, 0.0, np.abs(b.value) * a.error)
    return of_a + of_b + np.where((a.error == 0) | (b.error == 0), 0.0, a.error * b.error)


def _unsure(operation: Operation, a: Bounded, b: Bounded) -> Array:
    """1 where two truths together may come out otherwise."""
    sure = [(x.value == (operation is Operation.EITHER)) & (x.error == 0) for x in (a, b)]
    return np.where(sure[0] | sure[1], 0.0, np.maximum(a.error, b.error))


def _error_of(function: Elementary, value: Bounded, result: Array) -> Array:
    """What an error of its argument makes of a function."""
    x, error = value.value, value.error
    match function:
        case Elementary.EXP:
            return np.where(error == 0, 0.0, result * np.expm1(error))
        case Elementary.LOG:
            return np.where(x > error, error / (x - error), np.where(error == 0, 0.0, np.inf))
        case Elementary.SQRT:
            return np.where(x > error, error / result, np.where(error == 0, 0.0, np.inf))
        case Elementary.ERF:
            return 2 / math.sqrt(math.pi) * error
        case Elementary.SIGMOID:
            return 0.25 * error
        case _:  # the hyperbolic tangent
            return error


def check(operands: Operands, computed: Array, *, promote_every: int = 0, result: str = "C") -> Verdict:
    """Compare `computed` (logical (m, n) matrix, decoded) with the float64 reference, element by element, within
    `error_bound`. result: see `reference`.

    NaN and infinity must stand exactly where the reference has them. Raises ProblemError for what is no Operands, or
    holds no numbers.
    """
    if not isinstance(operands, Operands):
        raise ProblemError(f"Results are held against Operands, not {type_name(operands)}.")
    try:
        np.asarray(computed, np.float64)
    except (TypeError, ValueError):
        raise ProblemError(
            f"{type_name(computed, 'A')} is not a matrix of numbers.",
            hint="give the M x N result: built.simulate(operands).c.reshape(m, n).",
        ) from None
    results = ["C", *(one.operand.name for one in operands.gemm.epilogue.results)]
    if result not in results:
        raise UnknownName("result", result, results)
    check_integer("promote_every", promote_every, "number of products")
    expected = reference(operands, result)
    bound = error_bound(operands, promote_every=promote_every, result=result) if expected.size else expected
    return compare(computed, expected, bound)


def _norm(values: Array) -> float:
    """Euclidean. Not by BLAS, which wakes up all cores for it: 15 ms of a check that takes 3 (100,000 elements)."""
    return float(np.sqrt(np.sum(np.square(values))))


def compare(computed: Array, expected: Array, bound: Array) -> Verdict:
    """`check` for a reference and its bound that are known already, of the same shape."""
    actual = np.asarray(computed, dtype=np.float64)
    if actual.shape != expected.shape:
        told = "; reshape the flat storage" if actual.shape == (expected.size,) else ""
        return Verdict(False, float("nan"), float("inf"), None, f"shape {actual.shape}, not {expected.shape}{told}")
    if expected.size == 0:
        return Verdict(True, 0.0, 0.0, None, "empty result")
    finite = np.isfinite(expected) & ~np.isnan(bound)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ratio = np.where(finite, np.abs(actual - expected) / bound, 0.0)
        strange = ~finite & ~((actual == expected) | (np.isnan(actual) & np.isnan(expected)))
        ratio = np.where(np.isfinite(bound), ratio, 0.0)  # where f32 overflows on the way, anything may come out
        ratio = np.where(strange | (finite & np.isfinite(bound) & ~np.isfinite(actual)), np.inf, ratio)
        known = finite & np.isfinite(bound)
        norm, error = _norm(expected[known]), _norm((actual - expected)[known])
    relative = error / norm if norm else error
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
