"""Every kind of point of the two top rungs on the GPU: right at every edge, however C lies."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.dtypes import BF16, F16, TF32, TF32_TRUNCATED, DType
from tilewright.kernels.mma_presets import PERSISTENT
from tilewright.ladders import find_rung
from tilewright.ladders.ampere import full as schedule
from tilewright.problem import Gemm, Order, make_operands
from tilewright.runtime.driver import open_gpu
from tilewright.toolchain import build, verify_on_gpu

pytestmark = pytest.mark.gpu

DEEP = 3
"""Slots of the rings: they go round several times."""


def kinds(rung: str) -> list[Any]:
    """A point of each kind: they differ in more than the depth of a ring and the raster order."""
    choices = find_rung(rung).choices
    assert choices is not None
    found: dict[Any, Any] = {}
    for point in choices.points():
        kind = tuple((name, value) for name, value in point.items() if name not in ("stages", "raster_rows"))
        found.setdefault(kind, {**point, "stages": min(point["stages"], DEEP)})
    return [pytest.param(rung, point, id=f"{rung} {point}") for point in found.values()]


@pytest.mark.parametrize(("rung", "point"), [*kinds("hopper/best"), *kinds("ampere/6")[::7]])
def test_a_point_is_right_at_every_edge(rung: str, point: Any) -> None:
    choices, gpu = find_rung(rung).choices, open_gpu()
    assert choices is not None
    m, n = point["m"], point["n"]
    for gemm in (
        Gemm(m + 9, 2 * n + 8, 456, BF16, out=BF16, alpha=0.5, beta=-1.25),
        Gemm(2 * m - 1, n + 3, 455, BF16, out=BF16, lda=456, ldb=n + 8, ldc=n + 5, beta=1.0),
        Gemm(m + 9, n + 8, 200, F16, out=F16, b=Order.COL),
        Gemm(16, n + 8, 264, BF16, out=BF16, a=Order.COL)
        if m in (16, 32, 64, 128)
        else Gemm(5, 8, 264, BF16, out=BF16),
    ):
        verdict = verify_on_gpu(build(gemm, choices.schedule_at(gemm, point)), gpu, make_operands(gemm))
        assert verdict.ok, f"{gemm}: {verdict.message}"


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize(("a", "b"), [(a, b) for a in Order for b in Order])
def test_persistent_blocks_go_through_their_tiles(a: Order, b: Order, dtype: DType) -> None:
    """Also where k is shorter than the ring, and where rows of C end inside a tile."""
    gpu = open_gpu()
    for m, n, k in ((1536, 3072, 200), (3072, 1536, 8), (1536, 3072, 456)):
        gemm = Gemm(m - (7 if a is Order.ROW else 0), n, k, dtype, out=dtype, a=a, b=b, beta=0.5)
        built = build(gemm, PERSISTENT.schedule(gemm))
        assert built.kernel.resident
        verdict = verify_on_gpu(built, gpu, make_operands(gemm))
        assert verdict.ok, f"{gemm}: {verdict.message}"


@pytest.mark.parametrize("product", [TF32, TF32_TRUNCATED], ids=str)
@pytest.mark.parametrize(("a", "b"), [(a, b) for a in Order for b in Order])
def test_tf32_is_right_at_every_edge(a: Order, b: Order, product: DType) -> None:
    """Lanes load A, B, both or neither; rows begin at 16 bytes, or at any 4."""
    gpu = open_gpu()
    for m, n, k in ((268, 520, 204), (129, 517, 75), (2048, 4096, 96)):
        gemm = Gemm(m, n, k, product=product, a=a, b=b, alpha=0.5, beta=-1.25)
        verdict = verify_on_gpu(build(gemm, schedule(gemm)), gpu, make_operands(gemm))
        assert verdict.ok, f"{gemm}: {verdict.message}"
