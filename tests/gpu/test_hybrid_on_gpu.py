"""Kernels of wgmma whose last wave is cut along k, on the hardware: products and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16, E4M3, Array
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Stack
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.runtime.memory import DeviceArray
from tilewright.winners.plan_config import PlanConfig

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

POISON = 0xFF  # NaN in each format of C
KINDS: dict[str, dict[str, Any]] = {
    "cooperative": {"tile": (128, 256, 64), "consumers": 2, "stages": 4, "subtile": 32},
    "ping-pong": {"tile": (128, 128, 64), "consumers": 2, "stages": 4, "subtile": 32, "ping_pong": True},
    "cluster": {"tile": (128, 128, 64), "consumers": 2, "stages": 4, "subtile": 64, "cluster": (2, 1)},
    "skinny": {"tile": (16, 128, 64), "consumers": 1, "stages": 5, "subtile": 64, "swap_ab": True},
}


def run(request: Request, config: WgmmaConfig, a: Array, b: Array, c: Array) -> Array:
    """C of two calls in one workspace, whose bits agree; C and the workspace hold NaN before each."""
    found = dispatcher(0)
    gpu = found.gpu
    with gpu.as_current():
        plan = plan_of(found.kernels, request, PlanConfig(config))
    poisoned = np.full(c.nbytes, POISON, np.uint8).view(c.dtype)
    scratch = np.full(max(plan.scratch_bytes, 16), POISON, np.uint8)
    arrays = [DeviceArray.of(gpu, one) for one in (a, b, poisoned, scratch)]
    results = []
    try:
        at = [one.pointer for one in arrays]
        for _ in range(2):
            arrays[2].upload(poisoned)
            with gpu.as_current():
                plan.run(int(gpu.stream.handle), (at[0], at[1], at[2], 0, 0, at[3]))
            gpu.synchronize()
            results.append(arrays[2].download())
    finally:
        for one in arrays:
            one.close()
    np.testing.assert_array_equal(results[0].view(np.uint8), results[1].view(np.uint8))
    return results[0]


@pytest.mark.parametrize(
    "size", [(1000, 2112, 712), (2128, 5184, 4384), (4096, 3456, 1152), (72, 136, 8), (3000, 5120, 64)]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("b", [Order.COL, Order.ROW])
def test_a_product(kind: str, size: tuple[int, int, int], b: Order) -> None:
    gemm = Gemm(*size, BF16, b=b)
    operands = make_operands(gemm)
    config = WgmmaConfig(**KINDS[kind], persistent=True, raster_rows=16, stream_k=True)
    a, other, c = (operands.storage(name) for name in ("A", "B", "C"))
    found = run(Request(gemm, alignment_of_rows(gemm)), config, a, other, c)
    verdict = check(operands, gemm.out.decode(found.view(c.dtype).reshape(-1)[: c.size].reshape(gemm.m, gemm.n)))
    assert verdict.ok, verdict.message


def test_a_product_in_fp8() -> None:
    gemm = Gemm(2048, 3360, 2784, E4M3, out=BF16, b=Order.COL)
    operands = make_operands(gemm)
    config = WgmmaConfig((128, 192, 128), 2, stages=4, subtile=64, ping_pong=True, persistent=True, stream_k=True)
    a, other, c = (operands.storage(name) for name in ("A", "B", "C"))
    found = run(Request(gemm, alignment_of_rows(gemm)), config, a, other, c)
    verdict = check(operands, gemm.out.decode(found.reshape(gemm.m, gemm.n)))
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch(kind: str) -> None:
    gemm = Gemm(304, 520, 1000, BF16, b=Order.COL)
    alone = [make_operands(gemm, seed=seed) for seed in range(13)]
    steps = {name: gemm.storage_elements(name) for name in ("A", "B", "C")}
    request = Request(gemm, alignment_of_rows(gemm), Stack(13, steps["A"], steps["B"], steps["C"]))
    config = WgmmaConfig(**KINDS[kind], persistent=True, raster_rows=16, stream_k=True)
    a, other, c = (np.concatenate([one.storage(name) for one in alone]) for name in ("A", "B", "C"))
    for number, (one, own) in enumerate(zip(alone, run(request, config, a, other, c).reshape(13, -1), strict=True)):
        verdict = check(one, gemm.out.decode(own.reshape(gemm.m, gemm.n)))
        assert verdict.ok, (number, verdict.message)
