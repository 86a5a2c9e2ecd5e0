"""The numbers of the simulated machine are those of the GPU: every operation rounded once."""

from __future__ import annotations

import ctypes
import ctypes.util
from fractions import Fraction

import numpy as np
import pytest

from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, F64, Array, DType
from tilewright.errors import SimulationError
from tilewright.ir.expr import Op
from tilewright.simulator.arithmetic import FloatArithmetic, ModularArithmetic, round_to_odd

FLOATS = FloatArithmetic()


def fma(a: Array, b: Array, c: Array, dtype: DType = F32) -> Array:
    out = np.empty(a.shape, np.float32)
    with np.errstate(all="ignore"):
        FLOATS.fma(a, b, c, dtype, out)
    return out


def random_floats(rng: np.random.Generator, count: int) -> Array:
    """Any finite float32, every exponent alike."""
    bits = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(1))


def near_ties(rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """a * b is half a unit in the last place of c, plus or minus something far below float64: the hard cases."""
    low = rng.integers(1, 64, count)
    a = ((2**23 + low) * 2.0**-23).astype(np.float32)
    b = ((2**23 - low + rng.integers(-1, 2, count)) * 2.0**-23).astype(np.float32)
    c = (rng.integers(2**23, 2**24, count) * rng.choice([-1, 1], count)).astype(np.float32)
    scale = rng.integers(-140, 90, count)
    factor = np.ldexp(np.float64(1), scale)
    small = np.ldexp(np.float64(0.5), scale // 2), np.ldexp(np.float64(1), scale - scale // 2)
    return (a * small[0]).astype(np.float32), (b * small[1]).astype(np.float32), (c * factor).astype(np.float32)


def nearest_float32(exact: Fraction) -> float:
    """The float32 nearest to an exact value, ties to even, by search among neighbours."""
    guess = np.float32(float(exact))
    candidates = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    finite = [x for x in candidates if np.isfinite(x)]
    best = min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(np.float32(x).view(np.uint32)) & 1))
    return float(best)


def test_a_multiply_add_is_rounded_once() -> None:
    rng = np.random.default_rng(1)
    wide = [random_floats(rng, 3000) for _ in range(3)]
    hard = near_ties(rng, 3000)
    a, b, c = (np.concatenate(pair) for pair in zip(wide, hard, strict=True))
    computed = fma(a, b, c)
    for x, y, z, got in zip(a, b, c, computed, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if abs(exact) < Fraction(float(np.finfo(np.float32).max)):
            assert float(got) == nearest_float32(exact), (x, y, z)


def test_two_roundings_would_fail_that_test() -> None:
    a, b, c = near_ties(np.random.default_rng(1), 3000)
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (twice != fma(a, b, c)).any()


def test_ties_between_subnormals_are_rounded_once() -> None:
    """Just above and just below half-way between two subnormals: float64 rounds both to the middle itself."""
    c = np.array([2.0**-127 + last * 2.0**-149 for last in (0, 0, 1, 1)], np.float32)
    a = np.array([2.0**-75 * (1 + 2.0**-20), 2.0**-75 * (1 + 2.0**-12)] * 2, np.float32)
    b = np.array([2.0**-75 * (1 - 2.0**-20), 2.0**-75 * (1 - 2.0**-12 + 2.0**-24)] * 2, np.float32)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert all(float(value) == float(z) + 2.0**-150 for value, z in zip(exact, c, strict=True))
    assert [float(value) for value in fma(a, b, c)] == [nearest_float32(value) for value in exact]


def test_a_multiply_add_equals_fmaf_of_the_c_library() -> None:
    library = ctypes.util.find_library("m")
    if library is None:
        pytest.skip("no C math library")
    fmaf = ctypes.CDLL(library).fmaf
    fmaf.argtypes, fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
    rng = np.random.default_rng(2)
    count = 150_000
    normal = [rng.standard_normal(count).astype(np.float32) for _ in range(3)]
    tiny = [np.ldexp(rng.standard_normal(count), rng.integers(-80, -60, count)).astype(np.float32) for _ in range(2)]
    subnormal = [*tiny, np.ldexp(rng.standard_normal(count), -140).astype(np.float32)]
    for operands in (normal, subnormal, near_ties(rng, count), [random_floats(rng, count) for _ in range(3)]):
        a, b, c = operands
        expected = np.array([fmaf(*row) for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], np.float32)
        computed = fma(a, b, c)
        same = (computed.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(computed) & np.isnan(expected))
        assert same.all()


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (np.inf, 1, 1, np.inf),
        (np.inf, 0, 1, np.nan),
        (np.inf, 1, -np.inf, np.nan),
        (3e38, 2, 0, np.inf),
        (3e38, 2, -np.inf, -np.inf),
        (1, 0, -0.0, 0.0),
        (1, -0.0, -0.0, -0.0),
        (2.0**-149, 0.5, 0, 0.0),
        (2.0**-149, 0.75, 0, 2.0**-149),
    ],
)
def test_special_values(a: float, b: float, c: float, expected: float) -> None:
    got = fma(*(np.array([x], np.float32) for x in (a, b, c)))[0]
    assert (np.isnan(got) and np.isnan(expected)) or (got == expected and np.signbit(got) == np.signbit(expected))


def test_nests_are_cut_into_pieces_without_a_seam() -> None:
    rng = np.random.default_rng(3)
    for shape in ((5, 7, 1024), (3, 40000), (50000,)):
        a = rng.standard_normal((*shape[:-2], *([1] if len(shape) > 1 else []), shape[-1])).astype(np.float32)
        b = rng.standard_normal(shape[1:] if len(shape) == 3 else shape).astype(np.float32)
        c = rng.standard_normal(shape).astype(np.float32)
        out = np.empty(shape, np.float32)
        FLOATS.fma(a, b, c, F32, out)
        wide = np.broadcast_to(a, shape).ravel(), np.broadcast_to(b, shape).ravel(), c.ravel()
        assert (
            out.ravel() == np.concatenate([fma(*(x[i : i + 999] for x in wide)) for i in range(0, c.size, 999)])
        ).all()


@pytest.mark.parametrize(("dtype", "digits"), [(F16, 11), (BF16, 8)])
def test_narrow_multiply_adds_are_rounded_once(dtype: DType, digits: int) -> None:
    rng = np.random.default_rng(4)
    significand = rng.integers(2 ** (digits - 1), 2**digits, (3, 4000)) * rng.choice([-1, 1], (3, 4000))
    exponents = rng.integers(-digits - 4, -digits + 4, (3, 4000))
    a, b, c = np.ldexp(significand.astype(np.float64), exponents).astype(np.float32)
    computed = fma(a, b, c, dtype)
    for x, y, z, got in zip(a, b, c, computed, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact == 0:
            assert got == 0
            continue
        unit = Fraction(2) ** (int(np.floor(np.log2(abs(float(exact))))) - digits + 1)
        steps = exact / unit
        assert Fraction(float(got)) == round(steps) * unit  # Python's round is to even


def test_casts_round_to_nearest_even() -> None:
    halfway = np.float32([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.0, 65520.0, -(2.0**-25)])
    assert FLOATS.cast(halfway, F16).tolist() == [1.0, 1 + 2.0**-9, 65504.0, np.inf, -0.0]
    assert FLOATS.cast(np.float32([1 + 2.0**-8, 1 + 3 * 2.0**-8]), BF16).tolist() == [1.0, 1 + 2.0**-6]
    assert np.isnan(FLOATS.cast(np.float32([np.nan]), BF16)).all()


def test_a_cast_from_float64_to_bf16_is_rounded_once() -> None:
    above = np.float64([1 + 2.0**-8 + 2.0**-40])  # float32 would drop the last bit and leave a tie
    assert FLOATS.cast(above, BF16).tolist() == [1 + 2.0**-7]


def test_every_float64_near_a_tie_of_bf16_is_cast_as_its_exact_value() -> None:
    """Two float32 numbers on each side of a tie, and what lies between them, with both last bits of bf16."""
    ties = np.array([float.fromhex("0x1.01p0"), float.fromhex("0x1.03p0"), float.fromhex("0x1.fdp-126")])
    steps = np.array([-2, -1, 0, 1, 2])[:, None] * 2.0**-23 * np.exp2(np.floor(np.log2(ties)))
    off = np.array([0, 1e-30, -1e-30, 0.4, -0.4, 0.6, -0.6])[:, None, None] * 2.0**-24
    values = np.concatenate([sign * (ties + steps + off * ties).reshape(-1) for sign in (1, -1)])
    for value, got in zip(values, FLOATS.cast(values, BF16), strict=True):
        unit = Fraction(2) ** (int(np.floor(np.log2(abs(value)))) - 7)
        assert Fraction(float(got)) == round(Fraction(float(value)) / unit) * unit, value.hex()


def test_operators_round_to_their_dtype() -> None:
    third = FLOATS.binary(Op.DIV, np.float32([1.0]), np.float32([3.0]), F32)
    assert third.dtype == np.float32 and third[0] == np.float32(1) / np.float32(3)
    assert FLOATS.binary(Op.ADD, np.float32([2048.0]), np.float32([1.0]), F16).tolist() == [2048.0]
    assert FLOATS.binary(Op.MAX, np.float32([np.nan]), np.float32([1.0]), F32).tolist() == [1.0]


def test_rounding_to_odd_leaves_exact_sums_alone() -> None:
    assert round_to_odd(np.float64([1.0]), np.float64([2.0**-52])).tolist() == [1 + 2.0**-52]
    assert round_to_odd(np.float64([1.0]), np.float64([2.0**-80])).tolist() == [1 + 2.0**-52]
    assert round_to_odd(np.float64([1.0]), np.float64([-(2.0**-80)])).tolist() == [1 - 2.0**-53]


def test_a_float64_multiply_add_is_refused() -> None:
    with pytest.raises(SimulationError, match="no f64 multiply-add"):
        FLOATS.fma(np.ones(1), np.ones(1), np.ones(1), F64, np.empty(1))


class TestModular:
    def test_sums_do_not_depend_on_their_order(self) -> None:
        numbers = ModularArithmetic(1_000_003)
        rng = np.random.default_rng(5)
        a, b = rng.integers(0, 1_000_003, (2, 500))
        sums = []
        for order in (np.arange(500), rng.permutation(500)):
            total = np.zeros(1, np.int64)
            for k in order:
                numbers.fma(a[k : k + 1], b[k : k + 1], total, F32, total)
            sums.append(int(total[0]))
        assert sums[0] == sums[1] == int((a.astype(object) * b).sum() % 1_000_003)

    def test_gaps_become_a_residue_that_shows(self) -> None:
        numbers = ModularArithmetic(97)
        assert numbers.import_storage(np.float32([1, np.nan, -1]), F32).tolist() == [1, 97 // 3, 96]

    @pytest.mark.parametrize("dtype", [F32, F16, BF16, E4M3, E5M2], ids=str)
    def test_what_is_stored_is_the_residue_of_its_value(self, dtype: DType) -> None:
        values = np.float32([0, 1, -1, 2, -4, 14, 64, -96])
        stored = dtype.encode(values)
        assert ModularArithmetic(97).import_storage(stored, dtype).tolist() == [int(value) % 97 for value in values]

    def test_fractions_are_refused(self) -> None:
        with pytest.raises(SimulationError, match=r"0\.5 is not an integer"):
            ModularArithmetic().constant(0.5, F32)


def test_the_modulus_is_a_prime_whose_sums_of_products_fit_64_bits() -> None:
    prime = ModularArithmetic().prime
    assert 2**30 < prime < 2**31 and all(prime % factor for factor in range(2, int(prime**0.5) + 1))
