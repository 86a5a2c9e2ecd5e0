"""Pairs of operands on the GPU, more of them than its caches hold, and results held against float64."""

from __future__ import annotations

from typing import Any

from tilewright.errors import TilewrightError
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.tolerance import relative_bound

ROTATED_BYTES = 256 << 20
"""More than four times the L2 cache of an H200."""

MOST_COPIES = 1024
ALIGNMENT_ELEMENTS = 128
"""Matrices begin at multiples of this, as allocations do."""

ROWS_CHECKED = 128
"""Of C, all its columns: every tile of 64 rows or more is met up to 8192 rows."""


def copies_of(gemm: Gemm) -> int:
    """How many pairs of operands, with their results, are more than the caches hold.

    >>> copies_of(Gemm(4096, 4096, 4096)), copies_of(Gemm(256, 256, 256))
    (2, 342)
    """
    size_bytes = (gemm.m * gemm.k + gemm.k * gemm.n) * gemm.dtype.bytes + gemm.m * gemm.n * gemm.out.bytes
    return min(MOST_COPIES, max(2, -(-ROTATED_BYTES // size_bytes)))


def operands_of(torch: Any, gemm: Gemm, dtype: Any, device: str = "cuda") -> list[tuple[Any, Any]]:
    """Pairs of random normal matrices; one whose columns are contiguous is a transposed view."""
    copies = copies_of(gemm)
    return list(
        zip(
            _matrices(torch, copies, gemm.m, gemm.k, gemm.a, dtype, device),
            _matrices(torch, copies, gemm.k, gemm.n, gemm.b, dtype, device),
            strict=True,
        )
    )


def _matrices(torch: Any, copies: int, rows: int, columns: int, order: Order, dtype: Any, device: str) -> list[Any]:
    step = -(-rows * columns // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
    memory = torch.randn(copies * step, device=device, dtype=dtype)
    parts = [memory[i * step : i * step + rows * columns] for i in range(copies)]
    if order is Order.COL:
        return [part.view(columns, rows).t() for part in parts]
    return [part.view(rows, columns) for part in parts]


def checked(torch: Any, gemm: Gemm, who: str, result: Any, a: Any, b: Any) -> float:
    """The relative error of some rows. Raises TilewrightError where an element is off by more than rounding."""
    rows = torch.linspace(0, gemm.m - 1, min(gemm.m, ROWS_CHECKED), device=a.device).long().unique()
    some, whole = a[rows].double(), b.double()
    expected = some @ whole
    error = (result[rows].double() - expected).abs()
    allowed = relative_bound(gemm) * (some.abs() @ whole.abs()) + float(torch.finfo(result.dtype).tiny)
    wrong = int((~(error <= allowed)).sum())
    if wrong or not bool(torch.isfinite(result).all()):
        raise TilewrightError(
            f"{who} is wrong for {gemm}: {wrong} of {error.numel()} elements that were checked are off by more than "
            "rounding."
        )
    return float(error.norm() / expected.norm())
