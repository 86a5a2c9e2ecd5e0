"""Which matrix of a skinny product is long, and how the two lie."""

from __future__ import annotations

from typing import Literal

from tilewright.problem.gemm import Dim, Gemm, Order


def long_of(gemm: Gemm) -> Literal["A", "B"]:
    """The matrix that is read once."""
    return "B" if gemm.m <= gemm.n else "A"


def short_of(gemm: Gemm) -> Literal["A", "B"]:
    """The skinny operand."""
    return "A" if long_of(gemm) == "B" else "B"


def is_k_major(gemm: Gemm) -> bool:
    """Whether neighbours of k lie side by side in the long matrix."""
    return gemm.b is Order.COL if gemm.m <= gemm.n else gemm.a is Order.ROW


def few_order(gemm: Gemm) -> Dim:
    """The dimension whose neighbours lie side by side in the skinny operand."""
    return gemm.operand(short_of(gemm)).contiguous
