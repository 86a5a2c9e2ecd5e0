"""Which problems GEMV kernels are for."""

from __future__ import annotations

import pytest
from planned import alignment_of

from tilewright.device.catalog import H200
from tilewright.dtypes import BF16, E4M3, F32, DType
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
