"""How far a right answer may lie from the float64 reference: the theory of the format, not a chosen epsilon.

A sum of K products, each rounded to unit round-off u in any order, satisfies element by element

    |computed - exact| <= gamma(K + 2) * (|alpha| * |A| @ |B| + |beta| * |C|) + u_out * |result|,
    gamma(n) = n * u / (1 - n * u)

(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1 and 3.5); the `+ 2` pays for
alpha and for the addition of beta * C. The bound holds for every order of summation, so also for split-K.

Where K * u nears 1, as for sums kept in f16, that bound says nothing. Rounding errors are then taken as independent,
which gives sqrt(n) in place of n with probability close to 1 (N. J. Higham and T. Mary, A new approach to probabilistic
rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019): gamma = exp(lambda * sqrt(n) * u) - 1, lambda = 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.problem.reference import Operands, reference


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


def error_bound(operands: Operands) -> Array:
    """The largest |error| each element of a right C may have, shape (m, n), float64."""
    gemm = operands.gemm
    gamma = _gamma(gemm.k + 2, gemm.accumulate.unit_roundoff)
    with np.errstate(invalid="ignore", over="ignore"):
        a = np.abs(operands.matrix("A").astype(np.float64))
        b = np.abs(operands.matrix("B").astype(np.float64))
        magnitude: Array = abs(gemm.alpha) * (a @ b)
        if gemm.beta != 0:
            magnitude = magnitude + abs(gemm.beta) * np.abs(operands.matrix("C").astype(np.float64))
        # The smallest normal number pays for results that underflow.
        smallest = float(np.finfo(np.float16 if gemm.out.name == "f16" else np.float32).tiny)
        return gamma * magnitude + gemm.out.unit_roundoff * magnitude + smallest


def check(operands: Operands, computed: Array) -> Verdict:
    """Compare `computed` (logical (m, n) matrix, decoded) with the float64 reference, element by element.

    NaN and infinity must stand exactly where the reference has them.
    """
    expected = reference(operands)
    actual = np.asarray(computed, dtype=np.float64)
    if actual.shape != expected.shape:
        return Verdict(False, float("nan"), float("inf"), None, f"shape {actual.shape}, not {expected.shape}")
    if expected.size == 0:
        return Verdict(True, 0.0, 0.0, None, "empty result")
    bound = error_bound(operands)
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
