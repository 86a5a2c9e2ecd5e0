"""Kernels that make FP8 codes and scales: exact on the simulator, on the CPU, and compiled for GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled, run_on_cpu
from drawn_problems import drawn_quantization

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, DType
from tilewright.errors import ProblemError
from tilewright.ir.kernel import Kernel
from tilewright.kernels.quantization import QuantizationConfig
from tilewright.problem.quantization import Groups, Quantization, quantized
from tilewright.simulator import simulate

GROUPS: tuple[Groups, ...] = ("line", "block", "all", "largest")
SIZES = [(3, 5, 7), (9, 130, 136), (33, 300, 304), (2, 4100, 4104)]


def problem(
    lines: int, length: int, leading: int, groups: Groups, dtype: DType = BF16, out: DType = E4M3, gap: int = 0
) -> Quantization:
    return Quantization(lines, length, leading, length + gap, dtype, out, groups, 1, lines + 1)


def kernel_of(one: Quantization, **options: Any) -> Kernel:
    size = one.leading * one.dtype.bytes
    config = QuantizationConfig.of(one, min(size & -size, 16), **options)
    assert config.reasons_against(one) == ()
    return config.kernel(one)


def assert_exact(one: Quantization) -> None:
    source = drawn_quantization(one)
    expected, stored = quantized(source), simulate(kernel_of(one), source).stored
    assert set(one.results) == set(expected)
    for name in one.results:
        np.testing.assert_array_equal(stored[name], expected[name])


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("lines", "length", "leading"), SIZES)
def test_codes_and_scales_are_exact(lines: int, length: int, leading: int, groups: Groups) -> None:
    assert_exact(problem(lines, length, leading, groups, gap=4))


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("out", [E4M3, E5M2], ids=str)
def test_of_every_format(dtype: DType, out: DType, groups: Groups) -> None:
    assert_exact(problem(17, 264, 264, groups, dtype, out))


def test_a_scale_is_of_the_finite_numbers_and_never_zero() -> None:
    one = problem(3, 8, 8, "line", F32)
    source = drawn_quantization(one)
    values = source.storage("source").reshape(3, 8)
    values[0], values[1], values[2] = 0, [1, -2, np.inf, np.nan, 0.5, -np.inf, 0, 0.25], 3e38
    stored = quantized(source)
    np.testing.assert_array_equal(stored["scales"][:3], np.float32([2.0**-126, 2 / 448, 3e38 * np.float32(1 / 448)]))
    codes = E4M3.decode(stored["codes"].reshape(3, 8))
    assert (codes[0] == 0).all() and (codes[2] == 448).all()
    np.testing.assert_array_equal(codes[1], [224, -448, 448, np.nan, 112, -448, 0, 56])
    assert_exact(one)


@pytest.mark.parametrize("groups", GROUPS)
def test_the_text_does_what_the_simulator_does(groups: Groups) -> None:
    one = problem(9, 136, 136, groups)
    kernel, source = kernel_of(one, overlapped=False), drawn_quantization(one)
    simulated = simulate(kernel, source).stored
    run = run_on_cpu(kernel, source)
    for name in one.results:
        np.testing.assert_array_equal(run[name], simulated[name])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("groups", GROUPS)
def test_they_compile_without_spills(arch: str, groups: Groups) -> None:
    for dtype, length in ((BF16, 4096), (F32, 4097)):
        cubin = compiled(kernel_of(problem(64, length, length, groups, dtype), overlapped=arch == "sm_90a"), arch)
        assert cubin.resources.spill_load_bytes == 0 and cubin.resources.registers <= 64


def test_nothing_is_touched_before_the_grids_before_have_ended() -> None:
    assert_nothing_moves_before_the_wait(kernel_of(problem(64, 256, 256, "block")))


def test_what_it_cannot_do_it_says() -> None:
    even, odd = problem(4, 8, 8, "line"), problem(4, 9, 9, "line")
    wide = QuantizationConfig.of(even, 16)
    assert wide.width == 8 and "not multiples of 8" in wide.reasons_against(odd)[0]
    assert "programmatic dependent launch" in wide.reasons_against(even, device("A100"))[0]
    with pytest.raises(ProblemError, match="Lines of 8 elements cannot be 7 apart"):
        Quantization(4, 8, 7, 8, BF16, E4M3, "line")
