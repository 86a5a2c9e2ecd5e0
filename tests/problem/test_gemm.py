"""The problem as a value: sizes, dtypes, storage orders and leading dimensions."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.dtypes import BF16, F16, F32, F64, I32, TF32, DType
from tilewright.errors import ProblemError, UnknownName
from tilewright.problem import Gemm, Order
from tilewright.problem.formats import FORMATS, format_name, format_options


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"m": 10**30},
            f"m = {10**30} is not a matrix size.\n  Hint: sizes are integers from 0 to 2**31 - 1.",
        ),
        ({"lda": 2**70}, f"lda = {2**70} is more than kernels take.\n  Hint: the largest is 2**31 - 1."),
        ({"m": -1}, "m = -1 is not a matrix size.\n  Hint: sizes are integers from 0 to 2**31 - 1."),
        ({"n": 2.0}, "n = 2.0 is not a matrix size.\n  Hint: sizes are integers from 0 to 2**31 - 1."),
        ({"k": "8"}, "k = '8' is not a matrix size.\n  Hint: sizes are integers from 0 to 2**31 - 1."),
        (
            {"dtype": F64},
            "Cannot multiply f64 into f32.\n  Hint: operands and results are f32, f16, bf16, e4m3, e5m2.",
        ),
        (
            {"out": I32},
            "Cannot multiply f32 into i32.\n  Hint: operands and results are f32, f16, bf16, e4m3, e5m2.",
        ),
        ({"lda": 4}, "lda = 4 is smaller than the 5 elements of one row of A.\n  Hint: use lda >= 5."),
        ({"ldb": 3}, "ldb = 3 is smaller than the 4 elements of one row of B.\n  Hint: use ldb >= 4."),
        ({"ldc": -4}, "ldc = -4 is smaller than the 4 elements of one row of C.\n  Hint: use ldc >= 4."),
        (
            {"a": Order.COL, "lda": 2},
            "lda = 2 is smaller than the 3 elements of one col of A.\n  Hint: use lda >= 3.",
        ),
    ],
)
def test_what_makes_no_problem_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ProblemError) as refused:
        Gemm(**{"m": 3, "n": 4, "k": 5, **wrong})
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("orders", "tight"),
    [
        ({}, (5, 4, 4)),
        ({"a": Order.COL}, (3, 4, 4)),
        ({"b": Order.COL}, (5, 5, 4)),
        ({"c": Order.COL}, (5, 4, 3)),
    ],
)
def test_leading_dimensions_are_tight_unless_given(orders: dict[str, Order], tight: tuple[int, int, int]) -> None:
    gemm = Gemm(3, 4, 5, **orders)
    assert (gemm.lda, gemm.ldb, gemm.ldc) == tight
    assert gemm == Gemm(3, 4, 5, **orders, lda=tight[0], ldb=tight[1], ldc=tight[2])


def test_padding_counts_between_rows_and_not_after_the_last() -> None:
    gemm = Gemm(3, 4, 5, lda=8, ldb=4, ldc=7)
    assert [gemm.storage_elements(name) for name in ("A", "B", "C")] == [2 * 8 + 5, 5 * 4, 2 * 7 + 4]


@pytest.mark.parametrize("sizes", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)])
def test_empty_matrices_have_no_storage_and_a_legal_leading_dimension(sizes: tuple[int, int, int]) -> None:
    gemm = Gemm(*sizes)
    for name in ("A", "B", "C"):
        rows, cols = (gemm.size(dim) for dim in gemm.operand(name).dims)
        assert gemm.storage_elements(name) == rows * cols
        assert gemm.leading(name) >= 1


def test_which_index_is_contiguous() -> None:
    gemm = Gemm(3, 4, 5, a=Order.COL)
    assert [(o.contiguous, o.strided) for o in gemm.operands] == [("m", "k"), ("n", "k"), ("n", "m")]


def test_counts() -> None:
    gemm = Gemm(3, 4, 5, F16, out=BF16)
    assert gemm.flops == 2 * 3 * 4 * 5
    assert gemm.compulsory_bytes == (15 + 20) * 2 + 12 * 2
    assert Gemm(3, 4, 5, beta=1.0).compulsory_bytes == (15 + 20) * 4 + 2 * 12 * 4
    assert gemm.operand("C").dtype is BF16 and gemm.operand("B").dtype is F16


def test_resizing_makes_leading_dimensions_tight_again() -> None:
    gemm = Gemm(3, 4, 5, a=Order.COL, lda=64, beta=0.5)
    assert gemm.resized(6, 7, 8) == Gemm(6, 7, 8, a=Order.COL, beta=0.5)


def test_the_short_text() -> None:
    assert str(Gemm(3, 4, 5, F32, b=Order.COL)) == "3x4x5 f32 NT"


def test_formats_have_names() -> None:
    for name, options in FORMATS.items():
        gemm = Gemm(8, 8, 8, **options)
        assert format_name(gemm) == name and format_options(name) == options
    assert format_name(Gemm(8, 8, 8, F16, out=F32)) == "f16"
    with pytest.raises(UnknownName, match="Known: f32, f16, f16_sums, bf16, tf32"):
        format_options("f8")


@pytest.mark.parametrize(("dtype", "product"), [(F16, TF32), (BF16, F16), (F32, F16)])
def test_only_f32_is_rounded_before_it_is_multiplied(dtype: DType, product: DType) -> None:
    with pytest.raises(ProblemError) as refused:
        Gemm(8, 8, 8, dtype, product=product)
    assert str(refused.value) == (
        f"Cannot round operands of {dtype} to {product} before they are multiplied.\n"
        "  Hint: f32 operands may be rounded to tf32, or cut off (tf32_truncated); leave product out for others."
    )


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_only_f16_is_summed_in_f16(dtype: DType) -> None:
    with pytest.raises(ProblemError, match=f"Cannot sum products of {dtype} in f16"):
        Gemm(8, 8, 8, dtype, accumulate=F16)
