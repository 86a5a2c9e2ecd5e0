"""Algorithms of pieces hold their bounds, by sums that are cut off as tensor cores cut them off."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from fused_sums import emulated, fused_sum
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.dtypes import Array
from tilewright.errors import UnknownName
from tilewright.problem.emulation import (
    ALGORITHMS,
    BF16X3,
    BF16X6,
    BF16X9,
    F16X3,
    LARGEST_SCALE,
    MOST_SPLIT_UNITS,
    SCALED_TO,
    TF32X3,
    Algorithm,
    algorithm,
    at_least_f32,
    f32_units,
    guarded_depth,
    guarded_units,
    least_scaled,
    scales_of,
    split,
)

U = 2.0**-24
Draw = Callable[[np.random.Generator, int, int], Array]
HOWS = pytest.mark.parametrize("how", ALGORITHMS.values(), ids=str)


def normal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return rng.standard_normal((rows, columns)).astype(np.float32)


def uniform(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return rng.random((rows, columns), np.float32)


def log_uniform(binades: int) -> Draw:
    def draw(rng: np.random.Generator, rows: int, columns: int) -> Array:
        signs = rng.choice([-1.0, 1.0], (rows, columns))
        return (signs * np.exp2(rng.uniform(-binades / 2, binades / 2, (rows, columns)))).astype(np.float32)

    return draw


def one_huge(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Of each row, or of each column of what is transposed."""
    drawn = normal(rng, rows, columns)
    drawn[np.arange(rows), rng.integers(0, columns, rows)] *= 2.0**20
    drawn[rng.integers(0, rows, columns), np.arange(columns)] *= 2.0**20
    return drawn


def hilbert(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return (1.0 / (1 + np.arange(rows)[:, None] + np.arange(columns)[None])).astype(np.float32)


def vandermonde(rng: np.random.Generator, rows: int, columns: int) -> Array:
    points, long = np.linspace(-1, 1, min(rows, columns)), max(rows, columns)
    found = points[:, None] ** np.arange(long)[None]
    return (found if rows <= columns else found.T).astype(np.float32)


def stagnating(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """One and then many that f32 is too short for."""
    found = np.full((rows, columns), 2.0**-13 * (1 - 2.0**-11), np.float32)
    found[:, 0] = found[0, :] = 1
    return found


def subnormal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return (rng.standard_normal((rows, columns)) * 2.0**-135).astype(np.float32)


DRAWS: dict[str, Draw] = {
    "normal": normal,
    "uniform": uniform,
    "40 binades": log_uniform(40),
    "60 binades": log_uniform(60),
    "one huge": one_huge,
    "Hilbert": hilbert,
    "Vandermonde": vandermonde,
    "stagnating": stagnating,
    "subnormal": subnormal,
}


def share(how: Algorithm, a: Array, b: Array, c: Array) -> float:
    """The largest error of an element, as a share of the bound."""
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = how.units(a.shape[1]) * U * (abs(wide[0]) @ abs(wide[1]))
    bound = bound + how.underflow(a.shape[1], abs(wide[0]).max(1), abs(wide[1]).max(0))
    return float((abs(c - wide[0] @ wide[1]) / bound).max())


def relative(a: Array, b: Array, c: Array) -> float:
    """The error in the norm of Frobenius."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.linalg.norm(c - exact) / np.linalg.norm(exact))


def operands(name: str, k: int, seed: int = 0, rows: int = 12) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    draw = DRAWS[name]
    a, b = draw(rng, rows, k), draw(rng, k, rows)
    return a, (b * np.float32(2.0**100) if name == "subnormal" else b)


@pytest.mark.parametrize("name", DRAWS)
@HOWS
def test_no_error_exceeds_the_bound(how: Algorithm, name: str) -> None:
    for k in (1, 17, 64, 300):
        a, b = operands(name, k)
        assert share(how, a, b, emulated(how, a, b)) <= 1, (name, k)


@HOWS
def test_cancelling_sums(how: Algorithm) -> None:
    """Results that are 2**-20 of |A||B|."""
    rng = np.random.default_rng(1)
    half = normal(rng, 8, 256)
    a = np.concatenate([half, half * np.float32(1 + 2.0**-20)], axis=1)
    right = normal(rng, 256, 8)
    b = np.concatenate([right, -right], axis=0)
    assert share(how, a, b, emulated(how, a, b)) <= 1


@HOWS
@given(st.integers(0, 2**32 - 1), st.integers(1, 130), st.integers(0, 90), st.integers(0, 90))
@settings(max_examples=10, deadline=None)
def test_drawn_operands_of_any_range(how: Algorithm, seed: int, k: int, binades_a: int, binades_b: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = log_uniform(binades_a)(rng, 5, k), log_uniform(binades_b)(rng, k, 5)
    a[rng.random(a.shape) < 0.1], b[rng.random(b.shape) < 0.1] = 0, 0
    assert share(how, a, b, emulated(how, a, b)) <= 1


def test_the_bound_is_near_what_happens() -> None:
    """No bound is a figure that nothing comes near: pieces left out, and what sums of a group cut off."""
    rng = np.random.default_rng(2)
    a, b = (np.float32(1 + 2.0**-8 - 2.0**-16) * np.ones(shape, np.float32) for shape in ((1, 64), (64, 1)))
    assert share(BF16X3, a, b, emulated(BF16X3, a, b)) > 0.25
    a, b = np.abs(log_uniform(40)(rng, 40, 64)), np.abs(log_uniform(40)(rng, 64, 40))
    assert share(BF16X6, a, b, emulated(BF16X6, a, b)) > 0.1


@pytest.mark.parametrize(("name", "limit"), [("normal", 2.5e-7), ("uniform", 2.2e-7)])
def test_the_typical_error_at_1024(name: str, limit: float) -> None:
    """f32 by FMAs one after another: 5.7e-7 and 4.2e-7."""
    a, b = operands(name, 1024, rows=24)
    sequential = np.zeros((24, 24), np.float32)
    for k in range(1024):
        sequential = (sequential.astype(np.float64) + np.outer(a[:, k].astype(np.float64), b[k])).astype(np.float32)
    for how in (BF16X6, BF16X9, TF32X3, F16X3):
        error = relative(a, b, emulated(how, a, b))
        assert error < limit and error < relative(a, b, sequential)


@pytest.mark.parametrize("depth", range(1, 7))
def test_what_a_guard_lets_pass_keeps_its_bound(depth: int) -> None:
    """Numbers down to the least that a guard allows, among zeros, on one side or both."""
    rng = np.random.default_rng(depth)
    deepest, worst = -25 - depth, 0.0
    for sides in ((0,), (1,), (0, 1)):
        for k in (16, 64, 200):
            drawn = [np.exp2(rng.uniform(0, 1, (10, k))) for _ in range(2)]
            for side in sides:
                drawn[side] = np.exp2(rng.uniform(deepest, 1, (10, k)))
                drawn[side][:5] = np.exp2(rng.uniform(deepest, deepest + 2, (5, k)))
            signs = [rng.choice([-1.0, 0.0, 1.0], (10, k), p=[0.45, 0.1, 0.45]) for _ in range(2)]
            a, b = ((one * sign).astype(np.float32) for one, sign in zip(drawn, signs, strict=True))
            a[:, 0], b[:, 0], a[:, 1], b[:, 1] = 1, 0, 0, 1  # the largest of each meets a zero
            b = b.T
            for values, axis in ((a, 1), (b, 0)):
                scaled = abs(values * np.expand_dims(scales_of(values, axis), axis).astype(np.float64) ** 2)
                assert scaled[values != 0].min() >= 2.0 ** (-13 - depth)
            wide = a.astype(np.float64), b.astype(np.float64)
            bound = guarded_units(F16X3, k, depth) * U * (abs(wide[0]) @ abs(wide[1])) + 2.0**-149
            worst = max(worst, float((abs(emulated(F16X3, a, b) - wide[0] @ wide[1]) / bound).max()))
    assert 0.02 < worst <= 1


@pytest.mark.parametrize("binade", [-149, -140, -130, -100, 0, 100])
def test_rows_of_any_magnitude_are_scaled_alike(binade: int) -> None:
    """Those of subnormal numbers, too: only the result of a product may underflow."""
    rng = np.random.default_rng(5)
    a = np.ldexp(rng.integers(1, 2**9, (6, 128)), binade).astype(np.float32)
    b = normal(rng, 128, 6) * np.float32(2.0**-binade if binade > -127 else 2.0**126)
    scaled = a * np.expand_dims(scales_of(a, 1), 1).astype(np.float64) ** 2
    assert scaled.min() >= 2.0**3 and scaled.max() < 2.0**14
    assert relative(a, b, emulated(F16X3, a, b)) < 3e-7


def test_guards_leave_the_bound_of_f32() -> None:
    for k in (1024, 4096, 10_000):
        depth = guarded_depth(F16X3, k)
        assert depth is not None and guarded_units(F16X3, k, depth) <= f32_units(k)
        assert least_scaled(F16X3, k) == 2.0 ** (-13 - depth)
    assert guarded_depth(F16X3, 500) is None


def test_without_promotion_errors_grow_with_k() -> None:
    a, b = operands("uniform", 512)
    assert relative(a, b, emulated(BF16X6, a, b, grouped=False)) > 3 * relative(a, b, emulated(BF16X6, a, b))


@HOWS
@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_pieces_add_up(how: Algorithm, numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    finite = np.isfinite(values)
    scale = scales_of(values[None], 1) if how.shift else np.float32([1.0])
    pieces = split(values, how, scale)
    rest = how.magnitudes[-1]
    scaled, stored = values * scale.astype(np.float64) ** 2, [1.0, *[2.0**how.shift] * (how.count - 1)]
    with np.errstate(invalid="ignore"):
        left = abs(sum(piece.astype(np.float64) / by for piece, by in zip(pieces, stored, strict=True)) - scaled)
    least = how.pieces.tiny * how.pieces.unit_roundoff  # half of the smallest subnormal number
    assert (left[finite] <= np.maximum(rest * abs(scaled[finite]), least / stored[-1])).all()
    for piece, largest, by in zip(pieces, how.magnitudes, stored, strict=False):
        np.testing.assert_array_equal(how.pieces.decode(how.pieces.encode(piece)), piece)
        bound = largest * by * abs(scaled[finite]) + 2 * least * by
        assert (abs(piece[finite].astype(np.float64)) <= bound).all()
    np.testing.assert_array_equal(pieces[0] == 0, values == 0)
    np.testing.assert_array_equal(pieces[0][~finite], values[~finite])


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_scales_bring_the_largest_number_to_its_binade(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    (scale,) = scales_of(values[None], 1)
    largest = np.where(np.isfinite(values), abs(values), 0).max().astype(np.float64)
    assert np.frexp(scale)[0] == 0.5 and scale <= LARGEST_SCALE
    brought = largest * scale.astype(np.float64) ** 2
    assert SCALED_TO <= brought < 4 * SCALED_TO if largest else scale == LARGEST_SCALE


@HOWS
def test_infinities_and_nan_stand_in_the_first_piece_before_nan(how: Algorithm) -> None:
    values = np.float32([1.1, np.inf, -np.inf, np.nan])
    first, *later = split(values, how)
    assert all(np.isnan(piece[1:]).all() for piece in later)
    np.testing.assert_array_equal(first[1:], values[1:])


@HOWS
def test_the_products_are_those_of_the_name(how: Algorithm) -> None:
    assert how.name.endswith(f"x{len(how.products)}") and how.name.startswith(how.pieces.name)
    assert how.products[-1] == (0, 0) and len(set(how.products)) == len(how.products)
    orders = [sum(product) for product in how.products]
    assert orders == sorted(orders, reverse=True)  # small products come first
    assert pickle.loads(pickle.dumps(how)) is how is algorithm(how.name)


def test_which_algorithms_are_as_good_as_f32() -> None:
    for k in (32, 100, 4096, 100_000):
        found = at_least_f32(k)
        assert found[0] is BF16X6 and BF16X3 not in found
        assert all(how.units(k) <= f32_units(k) and how.split_units <= MOST_SPLIT_UNITS for how in found)
    assert at_least_f32(4) == ()
    with pytest.raises(UnknownName, match="bf16x7"):
        algorithm("bf16x7")


def test_the_emulated_instruction_cuts_off_as_the_rule_says() -> None:
    one = np.ones((1, 1), np.float32)
    for depth, kept in ((24, True), (25, True), (26, False)):
        a, b = np.float32([[1, 2.0**-depth]]), np.float32([[1], [1]])
        total = fused_sum(a, b, np.float32([[-1]]))
        assert bool(total[0, 0] == 2.0**-depth) is kept
    zero_beside_huge = fused_sum(np.float32([[0, 2.0**-30]]), np.float32([[2.0**120], [1]]), 0 * one)
    assert zero_beside_huge[0, 0] == 2.0**-30 and 2.0**-30 >= 2.0 ** (120 - 126 - 25)
    assert fused_sum(np.float32([[0, 2.0**-40]]), np.float32([[2.0**120], [1]]), 0 * one)[0, 0] == 0
