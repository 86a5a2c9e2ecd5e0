"""Pairs of operands on the GPU, more of them than its caches hold, and results held against float64."""

from __future__ import annotations

from collections.abc import Sequence
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
    drawn = torch.bfloat16 if dtype.itemsize == 1 else dtype  # PyTorch draws no FP8
    memory = torch.randn(copies * step, device=device, dtype=drawn).to(dtype)
    parts = [memory[i * step : i * step + rows * columns] for i in range(copies)]
    if order is Order.COL:
        return [part.view(columns, rows).t() for part in parts]
    return [part.view(rows, columns) for part in parts]


def scales_of(torch: Any, gemm: Gemm, device: str = "cuda") -> tuple[Any, ...]:
    """Random scales of the operands, as `scaled_matmul` takes them: one each, or of rows of A and columns of B; none
    where the epilogue has none."""
    shapes = {"a": (1, 1), "b": (1, 1), "m": (gemm.m, 1), "n": (1, gemm.n)}
    return tuple(torch.rand(*shapes[one], device=device) + 0.5 for one in gemm.epilogue.scale)


def checked(
    torch: Any,
    gemm: Gemm,
    who: str,
    result: Any,
    a: Any,
    b: Any,
    *,
    scales: Sequence[Any] = (),
    promote_every: int = 0,
) -> float:
    """The relative error of some rows. scales: of `scales_of`. promote_every: see `relative_bound`. Raises
    TilewrightError where an element is off by more than rounding."""
    count = result.shape[0]
    rows = torch.linspace(0, count - 1, min(count, ROWS_CHECKED), device=a.device).long().unique()
    if gemm.dtype.bytes == 1:  # PyTorch takes no rows of FP8
        a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    some, whole = a[rows].double(), b.double()
    factor: Any = 1.0
    for scale in scales:
        factor = factor * (scale[rows] if scale.shape[0] > 1 else scale).double()
    expected = some @ whole * factor
    error = (result[rows].double() - expected).abs()
    magnitudes = _magnitudes(gemm, some) @ _magnitudes(gemm, whole) * factor
    allowed = relative_bound(gemm, promote_every=promote_every) * magnitudes + float(torch.finfo(result.dtype).tiny)
    wrong = int((~(error <= allowed)).sum())
    if wrong or not bool(torch.isfinite(result).all()):
        raise TilewrightError(
            f"{who} is wrong for {gemm}: {wrong} of {error.numel()} elements that were checked are off by more than "
            "rounding."
        )
    return float(error.norm() / expected.norm())


def _magnitudes(gemm: Gemm, factors: Any) -> Any:
    """As the bound takes them: the exponent of a subnormal factor of FP8 is that of the smallest normal number."""
    return factors.abs().clamp(min=gemm.dtype.tiny) if gemm.dtype.bytes == 1 else factors.abs()
