"""The float64 reference, the operands that tests multiply, and the verdict on a computed C."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16, F16, F32, TF32, Array, DType
from tilewright.errors import ProblemError
from tilewright.problem import Gemm, Operands, Order, check, make_operands, reference
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.reference import as_multiplied, blank_operands
from tilewright.problem.tolerance import compare, error_bound


def storage(gemm: Gemm, a: Array, b: Array, c: Array) -> Operands:
    """Operands of a row-major problem with tight leading dimensions."""
    return Operands(gemm, *(np.ascontiguousarray(x, np.float32).reshape(-1) for x in (a, b, c)))


def small(**options: Any) -> Operands:
    return storage(
        Gemm(2, 2, 3, **options),
        np.array([[1, 2, 3], [4, 5, 6]]),
        np.array([[1, 0], [0, 1], [1, 1]]),
        np.array([[10, 20], [30, 40]]),
    )


def in_float32(operands: Operands) -> Array:
    """A right answer: the product as float32 arithmetic gives it."""
    gemm = operands.gemm
    a, b = (operands.matrix(name).astype(np.float32) for name in ("A", "B"))
    with np.errstate(invalid="ignore"):
        result = np.float32(gemm.alpha) * (a @ b)
    if gemm.beta != 0:
        result = result + np.float32(gemm.beta) * operands.matrix("C").astype(np.float32)
    return np.asarray(gemm.out.decode(gemm.out.encode(result)))


class TestReference:
    def test_by_hand(self) -> None:
        assert reference(small()).tolist() == [[4, 5], [10, 11]]
        assert reference(small(alpha=2.0)).tolist() == [[8, 10], [20, 22]]
        assert reference(small(alpha=-1.0, beta=0.5)).tolist() == [[1, 5], [5, 9]]

    def test_c_is_not_read_where_beta_is_0(self) -> None:
        operands = replace(small(), c=np.full(4, np.nan, np.float32))
        assert reference(operands).tolist() == [[4, 5], [10, 11]]

    def test_alpha_0_still_multiplies(self) -> None:
        """0 * NaN is NaN: alpha 0 is a factor like any other."""
        operands = small(alpha=0.0)
        operands.a[0] = np.nan
        assert np.isnan(reference(operands)).tolist() == [[True, True], [False, False]]

    @pytest.mark.parametrize("orders", list(product(Order, repeat=3)))
    def test_storage_orders_hold_the_same_matrices(self, orders: tuple[Order, Order, Order]) -> None:
        a, b, c = orders
        gemm = Gemm(5, 3, 4, a=a, b=b, c=c, lda=9, ldb=11, ldc=7, beta=2.0)
        plain, made = make_operands(Gemm(5, 3, 4, beta=2.0)), make_operands(gemm)
        for name in ("A", "B", "C"):
            assert np.array_equal(made.matrix(name), plain.matrix(name))
        assert np.array_equal(reference(made), reference(plain))

    @pytest.mark.parametrize("sizes", [(0, 4, 5), (3, 0, 5), (0, 0, 0)])
    def test_empty_results(self, sizes: tuple[int, int, int]) -> None:
        operands = make_operands(Gemm(*sizes))
        assert reference(operands).shape == sizes[:2]
        assert check(operands, np.zeros(sizes[:2])).ok

    def test_a_sum_of_no_products_is_0(self) -> None:
        assert reference(make_operands(Gemm(3, 4, 0))).tolist() == np.zeros((3, 4)).tolist()
        operands = make_operands(Gemm(3, 4, 0, beta=2.0))
        assert np.array_equal(reference(operands), 2.0 * operands.matrix("C").astype(np.float64))
        assert check(operands, 2.0 * operands.matrix("C")).ok
        assert not check(operands, np.zeros((3, 4))).ok


class TestMadeOperands:
    def test_gaps_hold_nan(self) -> None:
        operands = make_operands(Gemm(3, 4, 5, lda=8))
        assert np.isnan(operands.a.reshape(-1)[[5, 6, 7, 13, 14, 15]]).all()
        assert np.isnan(operands.a).sum() == 6 and np.isfinite(operands.b).all()

    def test_c_holds_nan_unless_beta_reads_it(self) -> None:
        assert np.isnan(make_operands(Gemm(3, 4, 5)).c).all()
        assert np.isfinite(make_operands(Gemm(3, 4, 5, beta=0.5)).c).all()

    def test_a_seed_means_the_same_numbers(self) -> None:
        first, again, other = (make_operands(Gemm(3, 4, 5), seed=seed) for seed in (1, 1, 2))
        assert np.array_equal(first.a, again.a) and not np.array_equal(first.a, other.a)

    @pytest.mark.parametrize(("dtype", "held"), [(F32, np.float32), (F16, np.float16), (BF16, np.uint16)])
    def test_storage_is_of_the_dtype(self, dtype: DType, held: type) -> None:
        operands = make_operands(Gemm(3, 4, 5, dtype, out=dtype))
        assert operands.a.dtype == operands.c.dtype == held
        assert operands.matrix("A").dtype == (np.float16 if dtype is F16 else np.float32)


class TestCheck:
    @pytest.mark.parametrize("dtype", [F32, F16, BF16])
    @pytest.mark.parametrize("factors", [{}, {"alpha": -2.5, "beta": 0.75}])
    @pytest.mark.parametrize("k", [1, 7, 64, 1000])
    def test_a_right_product_passes(self, dtype: DType, factors: dict[str, float], k: int) -> None:
        operands = make_operands(Gemm(17, 19, k, dtype, out=dtype, **factors))
        verdict = check(operands, in_float32(operands))
        assert verdict.ok and verdict.worst_ratio <= 1 and verdict.message.startswith("relative error ")

    @pytest.mark.parametrize(("k", "wrong_by"), [(1, 1e-5), (64, 1e-2), (1000, 0.1), (4000, 1.0)])
    def test_one_wrong_element_is_found(self, k: int, wrong_by: float) -> None:
        """The bound pays for the worst order of summation, so it is looser than K alone would ask."""
        operands = make_operands(Gemm(17, 19, k))
        computed = in_float32(operands)
        computed[3, 5] += np.float32(wrong_by)
        verdict = check(operands, computed)
        assert not verdict.ok and verdict.worst_at == (3, 5)
        assert verdict.message.startswith("1 of 323 elements are wrong; the worst is C[3, 5]: ")

    @pytest.mark.parametrize("times", [0, 2])
    @pytest.mark.parametrize("k", [8, 64, 1000])
    def test_a_dropped_or_doubled_k_is_found(self, k: int, times: int) -> None:
        operands = make_operands(Gemm(17, 19, k))
        a, b = operands.matrix("A"), operands.matrix("B")
        computed = in_float32(operands) + np.float32(times - 1) * np.outer(a[:, k - 1], b[k - 1])
        assert not check(operands, computed).ok

    def test_infinities_and_nan_pass_through(self) -> None:
        operands = small()
        operands.a[0], operands.b[0] = np.inf, -1.0
        expected = in_float32(operands)
        assert np.isinf(expected).any() and np.isnan(expected).any()
        assert check(operands, expected).ok

    @pytest.mark.parametrize("other", [0.0, np.nan, np.inf])
    def test_infinity_must_be_that_infinity(self, other: float) -> None:
        operands = small()
        operands.a[0], operands.b[1] = -np.inf, 1.0
        computed = in_float32(operands)
        assert computed[0, 0] == -np.inf
        computed[0, 0] = other
        verdict = check(operands, computed)
        assert not verdict.ok and verdict.worst_at == (0, 0)

    @pytest.mark.parametrize("other", [np.nan, np.inf, -np.inf])
    def test_what_should_be_finite_must_be(self, other: float) -> None:
        operands = small()
        computed = in_float32(operands)
        computed[1, 0] = other
        verdict = check(operands, computed)
        assert not verdict.ok and verdict.worst_at == (1, 0)

    def test_a_number_in_place_of_nan_is_wrong(self) -> None:
        operands = small()
        operands.a[3] = np.nan
        computed = np.nan_to_num(in_float32(operands))
        assert not check(operands, computed).ok

    def test_another_shape_is_wrong(self) -> None:
        assert check(small(), np.zeros((2, 3))).message == "shape (2, 3), not (2, 2)"
        assert check(small(), np.zeros(4)).message == "shape (4,), not (2, 2); reshape the flat storage"

    def test_the_bound_grows_with_k_and_with_the_round_off(self) -> None:
        bounds = [error_bound(make_operands(Gemm(8, 8, k))).mean() for k in (16, 64, 256)]
        assert bounds == sorted(bounds)
        exact = error_bound(make_operands(Gemm(8, 8, 64))).mean()
        assert error_bound(make_operands(Gemm(8, 8, 64, F16, out=F16))).mean() > 10 * exact

    def test_the_worst_sum_of_the_theory_stays_within_the_bound(self) -> None:
        """Products that cancel: the error is far above an ulp of the result, and still below the bound."""
        gemm = Gemm(1, 1, 2000)
        a = np.random.default_rng(3).standard_normal((1, 2000)).astype(np.float32)
        b = np.concatenate([np.ones(1000), -np.ones(1000)]).astype(np.float32).reshape(2000, 1)
        a[0, 1000:] = a[0, :1000]
        operands = storage(gemm, a, b, np.zeros((1, 1)))
        total = np.float32(0)
        for x, y in zip(a[0], b[:, 0], strict=True):
            total = np.float32(total + x * y)
        assert check(operands, np.array([[total]])).ok
        assert F32.unit_roundoff == 2.0**-24


def test_tensor_cores_may_cut_off_and_no_more() -> None:
    """Every product cut off at 24 bits of the largest addend, in blocks of four, stays inside; twice that does not."""
    gemm = Gemm(4, 4, 64, F32, product=TF32)
    operands = make_operands(gemm)
    a, b = (as_multiplied(operands, name) for name in ("A", "B"))
    sums = np.zeros((gemm.m, gemm.n))
    for start in range(0, gemm.k, 4):
        addends = np.stack([sums, *(np.outer(a[:, k], b[k]) for k in range(start, start + 4))])
        unit = 2.0 ** (np.floor(np.log2(np.abs(addends).max(axis=0))) - 23)
        sums = np.trunc(np.trunc(addends / unit).sum(axis=0)) * unit
        sums = np.float64(np.sign(sums)) * np.abs(sums)
    assert check(operands, sums).ok
    bound = error_bound(operands)
    assert not check(operands, sums + 1.5 * bound).ok
    rounded = error_bound(make_operands(Gemm(4, 4, 64)))
    assert 2 < (bound / rounded).max() < 4  # 1.5 times the terms, twice the unit, other operands


def test_tf32_operands_are_rounded_before_they_are_multiplied() -> None:
    gemm = Gemm(1, 1, 1, product=TF32)
    operands = make_operands(gemm)
    operands.a[:], operands.b[:] = 1 + 2.0**-11, 1.0  # a tie, which goes away from zero
    assert reference(operands)[0, 0] == 1 + 2.0**-10


def test_ties_of_tf32_may_go_to_either_neighbour_and_nothing_else_may() -> None:
    """TMA takes them to the even one, `cvt.rna` away from zero."""
    gemm = Gemm(3, 2, 8, product=TF32)
    operands = make_operands(gemm)
    operands.a[1] = 1 + 2.0**-11  # storage is row-major and tight: one element of A
    up = reference(operands)
    a, b = (operands.matrix(name).astype(np.float64) for name in ("A", "B"))
    assert (a == 1 + 2.0**-11).sum() == 1
    down = np.asarray(TF32.as_mapped(a)).astype(np.float64) @ TF32.encode(b).astype(np.float64)
    assert (np.abs(up - down) > 0).any()
    assert compare(down, up, error_bound(operands)).ok
    off = np.argwhere(a == 1 + 2.0**-11)[0][0]
    for row in range(3):
        wrong = up.copy()
        wrong[row] += 1.5 * 2.0**-10 * np.abs(b).max()
        assert not compare(wrong, up, error_bound(operands)).ok
        if row != off:
            wrong[row] = up[row] + (down - up)[off]
            assert not compare(wrong, up, error_bound(operands)).ok


def test_operands_that_no_memory_holds_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def have(size_bytes: int) -> None:
        monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": size_bytes, "SC_PAGE_SIZE": 1}.__getitem__, raising=False)

    gemm = Gemm(256, 128, 64)  # 64, 32 and 128 KiB
    have((64 + 32 + 3 * 128) << 10)
    assert make_operands(gemm).c.size == 256 * 128
    have(400_000)
    with pytest.raises(ProblemError, match=r"Operands of 224\.0 KiB take 480\.0 KiB .* has 390\.6 KiB of memory"):
        make_operands(gemm)


@pytest.mark.parametrize("epilogue", [Epilogue(), Epilogue("n", True)], ids=["plain", "bias and residual"])
def test_blank_operands_have_the_storages_of_others(epilogue: Epilogue) -> None:
    gemm = Gemm(7, 9, 5, BF16, out=F32, a=Order.COL, lda=11, epilogue=epilogue)
    blank, drawn = blank_operands(gemm), make_operands(gemm)
    for matrix in gemm.matrices:
        ours, theirs = blank.storage(matrix.name), drawn.storage(matrix.name)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype) and not ours.any()


def test_blank_operands_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"more than an address space holds|while they are made"):
        blank_operands(Gemm(1 << 20, 1 << 20, 1 << 20))
