"""A user's own matrices: what is taken as it lies, what is copied, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import F16, Array
from tilewright.errors import ProblemError
from tilewright.problem import Operands, Order, check, reference
from tilewright.toolchain import operands_from


def matrix(rows: int, cols: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(rows * 1000 + cols).standard_normal((rows, cols)).astype(dtype)


def product(operands: Operands, a: Array, b: Array) -> Array:
    """The reference, after a look that both matrices came through unchanged."""
    assert np.array_equal(operands.matrix("A"), a) and np.array_equal(operands.matrix("B"), b)
    return reference(operands)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (
            matrix(3, 4),
            matrix(5, 6),
            "Cannot multiply 3 x 4 by 5 x 6: A has 4 columns and B has 5 rows.",
        ),
        (np.zeros(3, np.float32), matrix(3, 4), "A has 1 dimension, and a matrix has 2: shape (3,)."),
        (matrix(3, 4), np.zeros((2, 4, 5), np.float32), "B has 3 dimensions, and a matrix has 2: shape (2, 4, 5)."),
        (
            matrix(3, 4, np.float64),
            matrix(4, 5),
            "A is float64, which no kernel here multiplies.\n"
            "  Hint: use float32, float16, bfloat16: a.astype('float32').",
        ),
        (
            matrix(3, 4),
            np.zeros((4, 5), np.int64),
            "B is int64, which no kernel here multiplies.\n"
            "  Hint: use float32, float16, bfloat16: b.astype('float32').",
        ),
        (
            matrix(3, 4),
            matrix(4, 5, np.float16),
            "A is float32 and B is float16.\n  Hint: convert one to the other's dtype.",
        ),
    ],
)
def test_what_cannot_be_multiplied_is_refused(a: Array, b: Array, text: str) -> None:
    with pytest.raises(ProblemError) as refused:
        operands_from(a, b)
    assert str(refused.value) == text


@pytest.mark.parametrize("c", [np.zeros((3, 4), np.float32), np.zeros((3, 5), np.float16), np.zeros(15, np.float32)])
def test_a_c_that_does_not_fit_is_refused(c: Array) -> None:
    with pytest.raises(ProblemError) as refused:
        operands_from(matrix(3, 4), matrix(4, 5), c, beta=1.0)
    assert str(refused.value) == f"C is {c.dtype.name} {c.shape}, not float32 (3, 5)."


def test_row_major_matrices_are_used_as_they_lie() -> None:
    a, b = matrix(3, 4), matrix(4, 5)
    operands = operands_from(a, b, alpha=2.0)
    assert np.shares_memory(operands.a, a) and np.shares_memory(operands.b, b)
    assert (operands.gemm.a, operands.gemm.lda, operands.gemm.ldb) == (Order.ROW, 4, 5)
    assert np.allclose(product(operands, a, b), 2.0 * (a.astype(np.float64) @ b))


def test_transposed_views_are_not_copied() -> None:
    held_a, held_b = matrix(4, 3), matrix(5, 4)
    operands = operands_from(held_a.T, held_b.T)
    assert np.shares_memory(operands.a, held_a) and np.shares_memory(operands.b, held_b)
    assert (operands.gemm.a, operands.gemm.b) == (Order.COL, Order.COL)
    assert (operands.gemm.lda, operands.gemm.ldb) == (3, 4)
    product(operands, held_a.T, held_b.T)


def test_padded_views_are_not_copied() -> None:
    held_a, held_b = matrix(3, 16), matrix(8, 7)
    a, b = held_a[:, 2:6], held_b[2:6].T[:7]
    operands = operands_from(a, held_b[1:5, :5])
    assert np.shares_memory(operands.a, held_a) and operands.gemm.lda == 16
    assert np.shares_memory(operands.b, held_b) and operands.gemm.ldb == 7
    product(operands, a, held_b[1:5, :5])
    transposed = operands_from(b, held_a[:3, :5].T[:4, :3])
    assert np.shares_memory(transposed.a, held_b) and transposed.gemm.a is Order.COL
    product(transposed, b, held_a[:3, :5].T[:4, :3])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1],
        lambda x: x[:, ::-1],
        lambda x: x[::-1, ::-1],
        lambda x: x[:, ::2],
        lambda x: x[::2, ::3],
        lambda x: np.broadcast_to(x[:1], (8, 12)),
        lambda x: np.broadcast_to(x[:, :1], (8, 12)),
    ],
    ids=["rows reversed", "columns reversed", "both", "every second column", "steps", "one row", "one column"],
)
def test_other_strides_are_copied(view: Any) -> None:
    a = view(matrix(8, 12))
    b = matrix(a.shape[1], 5)
    operands = operands_from(a, b)
    assert np.allclose(product(operands, a, b), a.astype(np.float64) @ b)


def test_every_second_row_is_a_padded_view() -> None:
    held = matrix(8, 12)
    operands = operands_from(held[::2], matrix(12, 5))
    assert np.shares_memory(operands.a, held) and operands.gemm.lda == 24


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 1), (3, 1, 1), (1, 1, 5), (1, 4, 5), (3, 4, 1)])
def test_single_rows_and_columns(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    wide_a, wide_b = matrix(m, 2 * k + 3), matrix(2 * k, n + 2)
    a, b = wide_a[:, 1 : 1 + k], wide_b[::2, :n]
    product(operands_from(a, b), a, b)
    product(operands_from(a.copy().T.copy().T, b), a, b)


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)])
def test_empty_matrices(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    operands = operands_from(np.zeros((m, k), np.float32), np.zeros((k, n), np.float32))
    assert (operands.gemm.m, operands.gemm.n, operands.gemm.k) == (m, n, k)
    assert check(operands, np.zeros((m, n))).ok


def test_half_precision() -> None:
    operands = operands_from(matrix(3, 4, np.float16), matrix(4, 5, np.float16))
    assert operands.gemm.dtype is operands.gemm.out is F16 and operands.c.dtype == np.float16


def test_c_is_a_copy_or_nan() -> None:
    c = matrix(3, 5)
    operands = operands_from(matrix(3, 4), matrix(4, 5), np.asfortranarray(c), beta=0.5)
    assert np.array_equal(operands.matrix("C"), c)
    assert np.isnan(operands_from(matrix(3, 4), matrix(4, 5)).c).all()


def test_beta_without_c_is_refused_or_nan() -> None:
    """There is no C to scale: the result cannot be a number."""
    assert np.isnan(reference(operands_from(matrix(3, 4), matrix(4, 5), beta=1.0))).all()
