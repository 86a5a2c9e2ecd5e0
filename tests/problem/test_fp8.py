"""FP8: the numbers of e4m3 and e5m2, their rounding, and the bounds of their sums."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, FP8_FORMATS, Array, DType
from tilewright.errors import FormatError, ScheduleError
from tilewright.isa.catalog import instruction
from tilewright.problem import Gemm, check, make_operands, reference
from tilewright.problem.tolerance import relative_bound

CODES = np.arange(256, dtype=np.uint8)


def numbers(dtype: DType) -> tuple[Array, Array]:
    """The codes of finite numbers, and these."""
    found = dtype.decode(CODES)
    finite = np.isfinite(found)
    return CODES[finite], found[finite]


@pytest.mark.parametrize(
    ("dtype", "one", "largest", "least", "finite"),
    [(E4M3, 0x38, 448.0, 2.0**-9, 254), (E5M2, 0x3C, 57344.0, 2.0**-16, 248)],
    ids=str,
)
def test_the_numbers_of_a_format(dtype: DType, one: int, largest: float, least: float, finite: int) -> None:
    codes, found = numbers(dtype)
    assert len(codes) == finite
    assert dtype.decode(np.uint8([one]))[0] == 1
    assert found.max() == largest and found.min() == -largest
    assert found[found > 0].min() == least
    assert dtype.decode(np.uint8([one + 1]))[0] - 1 == 2 * dtype.unit_roundoff
    assert np.isinf(dtype.decode(CODES)).sum() == (2 if dtype is E5M2 else 0)


@pytest.mark.parametrize("dtype", FP8_FORMATS, ids=str)
def test_numbers_of_a_format_are_kept_and_others_become_the_nearest(dtype: DType) -> None:
    codes, found = numbers(dtype)
    assert (dtype.encode(found) == codes).all()
    given = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * np.exp2(
        np.random.default_rng(1).integers(-18, 8, 4000)
    ).astype(np.float32)
    rounded = dtype.decode(dtype.encode(given))
    assert (np.abs(rounded - given) == np.abs(found[None, :] - given[:, None]).min(axis=1)).all()
    positive = np.unique(np.abs(found))
    halfway = (positive[:-1] + positive[1:]) / 2
    assert (dtype.encode(halfway) % 2 == 0).all()


@pytest.mark.parametrize("dtype", FP8_FORMATS, ids=str)
def test_what_is_too_large_becomes_the_largest_and_nan_stays(dtype: DType) -> None:
    largest = numbers(dtype)[1].max()
    given = np.float32([1e9, -1e9, np.inf, -np.inf, largest * 1.01])
    assert (np.abs(dtype.decode(dtype.encode(given))) == largest).all()
    assert np.isnan(dtype.decode(dtype.encode(np.float32([np.nan])))).all()
    assert np.signbit(dtype.decode(dtype.encode(np.float32([-0.0]))))[0]


def test_tensor_cores_sum_fp8_in_f32_alone() -> None:
    assert instruction("wgmma.m64n128k32", E4M3, F32).opcode == "QGMMA"
    with pytest.raises(FormatError, match="Cannot sum products of e4m3 in f16"):
        Gemm(8, 8, 8, E4M3, accumulate=F16, out=BF16)
    with pytest.raises(ScheduleError, match="does not multiply e5m2 into f32"):
        instruction("mma.m16n8k16", E5M2, F32)


def test_results_of_fp8_saturate() -> None:
    operands = make_operands(Gemm(8, 8, 8, out=E4M3, alpha=300.0))
    exact = reference(operands)
    assert np.abs(exact).max() == E4M3.largest == 448 and E5M2.largest == 57344 and np.isinf(BF16.largest)
    assert check(operands, E4M3.decode(E4M3.encode(exact.astype(np.float32)))).ok
    assert not check(operands, exact * 0.8).ok


def test_the_bound_of_promoted_sums_does_not_grow_with_k() -> None:
    def bound(k: int, every: int) -> float:
        return relative_bound(Gemm(8, 8, k, E4M3, out=F32), promote_every=every)

    assert bound(128, 0) == pytest.approx(136 * 2.0**-13, rel=1e-3)
    assert bound(128, 0) == pytest.approx(bound(8192, 128), rel=1e-3)
    assert bound(4096, 0) == pytest.approx(4352 * 2.0**-13, rel=1e-3)
    assert bound(10**6, 0) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("dtype", FP8_FORMATS, ids=str)
@pytest.mark.parametrize("kind", ["normal", "equal signs", "subnormal", "one is large"])
def test_no_sum_of_the_hardware_exceeds_its_bound(dtype: DType, kind: str) -> None:
    """Sums of tensor cores, bit by bit, of products whose cut-off parts add up."""
    rng = np.random.default_rng(0)
    m, n, k = 16, 8, 256
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "equal signs":
        a, b = np.abs(a) + 0.5, np.abs(b) + 0.5
    elif kind == "subnormal":
        a = np.abs(a) * dtype.tiny / 4
    elif kind == "one is large":
        a[:, 0], b[0] = 256, 256
    a, b = (dtype.decode(dtype.encode(x.astype(np.float32))) for x in (a, b))
    unit = instruction("wgmma.m64n8k32", dtype, F32)
    total = np.zeros((m, n), np.float32)
    for first in range(0, k, 32):
        total = unit.meaning(a[:, first : first + 32], b[first : first + 32], total)
    raised = [np.where(x == 0, 0, np.maximum(np.abs(x), dtype.tiny)).astype(np.float64) for x in (a, b)]
    error = np.abs(total - a.astype(np.float64) @ b) / (raised[0] @ raised[1])
    bound = relative_bound(Gemm(m, n, k, dtype, out=F32))
    assert error.max() <= bound


@pytest.mark.parametrize("dtype", FP8_FORMATS, ids=str)
def test_the_bound_is_nearly_reached(dtype: DType) -> None:
    """One product of 2**16, and 31 below the last bit that is kept of it."""
    a, b = np.full((1, 32), 7, np.float32), np.ones((32, 1), np.float32)
    a[0, 0] = b[0, 0] = 256
    found = instruction("wgmma.m64n8k32", dtype, F32).meaning(a, b, np.zeros((1, 1), np.float32))
    assert found[0, 0] == 2.0**16
    exact = float((a @ b)[0, 0])
    bound = relative_bound(Gemm(1, 1, 32, dtype, out=F32))
    assert 0.75 * bound < (exact - 2.0**16) / exact < bound
