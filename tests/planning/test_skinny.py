"""Which problems GEMV kernels are for."""

from __future__ import annotations

from random import Random

import pytest
from planned import alignment_of

from tilewright.device.catalog import H200, device
from tilewright.dtypes import BF16, E4M3, F32, DType
from tilewright.kernels.gemv import GemvConfig
from tilewright.planning import estimates as estimates_of
from tilewright.planning.assembly import Request
from tilewright.planning.cost.gemv import gemv_plan_seconds, least_plan_seconds
from tilewright.planning.ranking import ranked
from tilewright.planning.skinny import MOST_ROWS, MOST_ROWS_NARROW, skinny_for
from tilewright.problem import Gemm


@pytest.mark.parametrize("dtype", [F32, BF16, E4M3], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_few_rows_or_columns_that_are_long_or_deep(dtype: DType, transposed: bool) -> None:
    """Up to so many rows, by the format; 64 elements along, or 1024 of k."""
    most = {F32: MOST_ROWS, BF16: MOST_ROWS_NARROW}.get(dtype, 0)
    for few in (0, 1, 2, most, most + 1):
        for long in (63, 64, 65):
            for k in (0, 1, 1023, 1024):
                m, n = (long, few) if transposed else (few, long)
                gemm = Gemm(m, n, k, dtype, out=F32 if dtype is F32 else BF16)
                expected = 1 <= few <= most and k > 0 and (long >= 64 or k >= 1024)
                found = skinny_for(gemm, alignment_of(gemm), H200)
                assert (found is not None) == expected, (few, long, k)


@pytest.mark.parametrize("gpu", ["H200", "RTX 4090"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_no_kernel_takes_less_than_memory_leaves_it(dtype: DType, gpu: str) -> None:
    spec, rng, asked = device(gpu), Random(3), 0
    for _ in range(60):
        gemm = Gemm(rng.randint(1, 18), rng.randint(8, 9000), rng.randint(1, 9000), dtype, out=dtype)
        if rng.random() < 0.5:
            gemm = gemm.resized(gemm.n, gemm.m, gemm.k)
        least, found = least_plan_seconds(gemm, spec), skinny_for(gemm, alignment_of(gemm), spec)
        if found is not None:
            asked += 1
            assert least < gemv_plan_seconds(found.config, gemm, spec) < 20 * least
    assert asked > 10


def test_the_gemv_kernel_has_its_place_among_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the bound of its time lies, and a kernel that is not asked for is not looked for."""
    looked: list[Request] = []
    gemv = estimates_of._gemv
    monkeypatch.setattr(estimates_of, "_gemv", lambda request, spec: looked.append(request) or gemv(request, spec))
    first = 0
    for m, n, k in ((1, 4096, 4096), (2, 70, 900), (3, 4096, 256), (1, 128, 30000)):
        gemm = Gemm(m, n, k, BF16, out=BF16)
        request = Request(gemm, alignment_of(gemm))
        looked.clear()
        next(iter(estimates_of.estimates(request, H200)))
        first += len(looked)
        found = list(estimates_of.estimates(request, H200))
        times = {us for us, _ in ranked(gemm, H200, request.alignment)}
        likely = [us for us, config in found if us in times or isinstance(config.kernel, GemvConfig)]
        assert likely == sorted(likely) and len(likely) > len(times) / 2
        assert sum(isinstance(config.kernel, GemvConfig) for _, config in found) == 1
    assert first < 4
