"""How tensor cores sum, against the rule computed with fractions: random operands, and those that show each part."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tilewright.dtypes import BF16, F16, F32, TF32, Array, DType
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.summation import BlockSum

NAMES = ("mma.m16n8k16.f32.f16", "mma.m16n8k16.f16.f16", "mma.m16n8k16.f32.bf16", "mma.m16n8k8.f32.tf32")
SMALL = [known for known in INSTRUCTIONS if known.name in (*NAMES, "wmma.m16n16k8.f32.tf32", "wgmma.m64n8k16.f32.f16")]

FRACTION = {"f16": 10, "bf16": 7, "tf32": 10, "f32": 23}


def exponent(value: float, dtype: DType) -> int:
    return max(math.frexp(value)[1] - 1, round(math.log2(dtype.tiny)))


def by_fractions(known: MatrixInstruction, a: Array, b: Array, c: float) -> float:
    """One element of D from a row of A and a column of B."""
    held, at = Fraction(c), 0
    while at < known.k:
        end = at + (known.summed or known.k)
        pairs = [(float(x), float(y)) for x, y in zip(a[at:end], b[at:end], strict=True) if x and y]
        terms = [(Fraction(x) * Fraction(y), exponent(x, known.product) + exponent(y, known.product)) for x, y in pairs]
        terms += [(held, exponent(float(held), known.accumulate))] if held else []
        top = max((power for _, power in terms), default=0)
        unit = Fraction(2) ** (max(top, -133) - 25)
        held = sum((math.trunc(term / unit) * unit for term, _ in terms), Fraction(0))
        if held:
            leading = math.floor(math.log2(abs(held.numerator)) - math.log2(held.denominator))
            leading += (abs(held) >= Fraction(2) ** (leading + 1)) - (abs(held) < Fraction(2) ** leading)
            least = round(math.log2(known.accumulate.tiny))
            unit = Fraction(2) ** (max(leading, least) - FRACTION[known.accumulate.name])
            held = (round if known.accumulate is F16 else math.trunc)(held / unit) * unit
        at = end
    return float(held)


def drawn(known: MatrixInstruction, spread: int, seed: int) -> tuple[Array, Array, Array]:
    """Operands whose elements lie `spread` binades around 1, some of them 0; every fourth product cancels another."""
    rng = np.random.default_rng(seed)

    def numbers(dtype: DType, *shape: int) -> Array:
        values = np.ldexp(rng.uniform(1, 2, shape), rng.integers(-spread, spread + 1, shape)) * rng.choice(
            [-1, 1], shape
        )
        values[rng.random(shape) < 0.05] = 0
        return np.asarray(dtype.decode(dtype.encode(values.astype(np.float32))), np.float32)

    a, b = numbers(known.product, 3, known.m, known.k), numbers(known.product, 3, known.k, known.n)
    a[..., 1::4], b[:, 1::4] = -a[..., ::4], b[:, ::4]
    return a, b, numbers(known.accumulate, 3, known.m, known.n)


@pytest.mark.parametrize("spread", [0, 3, 7, 14, 55])
@pytest.mark.parametrize("known", SMALL, ids=lambda known: known.name)
def test_each_sum_is_that_of_the_rule(known: MatrixInstruction, spread: int) -> None:
    if known.product is F16:
        spread = min(spread, 14 if known.accumulate is F32 else 5)  # operands and sums within the range of f16
    a, b, c = drawn(known, spread, seed=spread)
    d = known.meaning(a, b, c)
    rng = np.random.default_rng(1)
    for _ in range(60):
        t, m, n = rng.integers(3), rng.integers(known.m), rng.integers(known.n)
        assert d[t, m, n] == by_fractions(known, a[t, m], b[t, :, n], float(c[t, m, n])), (t, m, n)


def test_operands_may_come_in_half_precision() -> None:
    known = next(known for known in SMALL if known.name == "mma.m16n8k16.f16.f16")
    operands = drawn(known, 5, seed=1)
    np.testing.assert_array_equal(known.meaning(*(x.astype(np.float16) for x in operands)), known.meaning(*operands))


def one(a: list[float], b: list[float], c: float, dtype: DType = BF16, total: BlockSum | None = None) -> float:
    """D of one row by one column; what is left out of k is 0."""
    left, right = np.zeros((1, 16), np.float32), np.zeros((16, 1), np.float32)
    left[0, : len(a)], right[: len(b), 0] = a, b
    return float((total or BlockSum(16)).of(left, right, np.full((1, 1), c, np.float32), dtype, F32)[0, 0])


def test_terms_are_cut_towards_zero_one_by_one() -> None:
    last = 2.0**-25
    assert one([1, last], [1, 1], 0) == 1  # the sum is cut to 23 bits once more
    assert one([1, last, last, last, last], [1] * 5, 0) == 1 + 2.0**-23
    assert one([1, *[last / 2] * 15], [1] * 16, 0) == 1  # each is cut, together they would count
    assert one([1, *[-last / 2] * 15], [1] * 16, 0) == 1
    assert one([1, -last], [1, 1], 0) == 1 - 2.0**-24  # the exact sum is below 1, where f32 is finer


def test_products_are_not_normalised() -> None:
    """1.5 * 1.5 is 2.25: its exponent counts as 0, so that 25 bits below it are kept, not 24."""
    assert one([1.5, 1.5, 2.0**-25], [1.5, -1.5, 1], 0) == 2.0**-25
    assert one([1.5, 2.0**-25], [1.5, 1], -2.25) == 0  # as a sum 2.25 is normalised: its exponent is 1


def test_the_smallest_terms_are_cut_at_one_place() -> None:
    """Terms are aligned to an exponent of -133 at least."""
    assert one([2.0**-79, -(2.0**-80)], [2.0**-70, 2.0**-78], 0) == 0  # 2**-149 less 2**-158
    assert one([2.0**-79, -(2.0**-80)], [2.0**-70, 2.0**-79], 0) == 2.0**-149


def test_infinities_and_nan_decide() -> None:
    inf, nan = math.inf, math.nan
    assert one([inf, 1], [1, 1], 0) == inf and one([1], [1], -inf) == -inf
    for a, b, c in (([inf, inf], [1, -1], 0), ([inf], [0], 0), ([inf], [1], -inf), ([nan], [1], 0), ([1], [1], nan)):
        assert math.isnan(one(a, b, c))
    huge = 2.0**127
    assert one([huge, huge], [1, 1], 0, TF32) == inf
    assert one([huge, 2.0**126, 2.0**125], [1, 1, 1], 0, TF32) == 1.75 * huge  # below infinity nothing is rounded up


def test_sums_of_nothing_are_zero_without_a_sign() -> None:
    for a, b, c in (
        ([0.0], [-1.0], -0.0),
        ([1, 1], [1, -1], 0.0),
        ([2.0**-130], [2.0**-100], 0.0),
        ([-(2.0**-100)], [2.0**-100], 0.0),
    ):
        found = one(a, b, c)
        assert found == 0 and math.copysign(1, found) == 1


def test_fewer_bits_as_fp8_sums_have() -> None:
    fp22 = BlockSum(32, 13, 13)
    assert one([1, 2.0**-13], [1, 1], 0, total=fp22) == 1 + 2.0**-13
    assert one([1, 2.0**-14, 2.0**-14], [1, 1, 1], 0, total=fp22) == 1
    assert one([3, 2.0**-13], [1, 1], 0, total=fp22) == 3
