"""Kernels that gather and sum rows: exact on the simulator, on the CPU, and compiled for GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled, run_on_cpu
from drawn_problems import drawn_rows

from tests.kernels.stored import summed_rows
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F16, F32, DType
from tilewright.errors import ProblemError
from tilewright.ir.kernel import Kernel
from tilewright.kernels.row_sums import RowSumsConfig
from tilewright.problem.row_sums import RowSums
from tilewright.simulator import simulate

KINDS = {"gathered": (1, False), "weighted": (1, True), "two": (2, True), "eleven": (11, True), "plain": (3, False)}


def problem(
    lines: int, length: int, gap: int = 0, *, terms: int = 1, weighted: bool = False, dtype: DType = BF16
) -> RowSums:
    listed = 0 if terms else 3 * lines
    return RowSums(lines, length, 9, length + gap, length + gap, dtype, terms, weighted, listed)


def kernel_of(one: RowSums, **options: bool) -> Kernel:
    size = one.leading * one.dtype.bytes
    config = RowSumsConfig.of(one, min(size & -size, 16), **options)
    assert config.reasons_against(one) == ()
    return config.kernel(one)


def assert_exact(one: RowSums) -> None:
    rows = drawn_rows(one)
    np.testing.assert_array_equal(simulate(kernel_of(one), rows).stored["sums"], summed_rows(rows))


@pytest.mark.parametrize("kind", [*KINDS, "listed", "listed, weighted"])
@pytest.mark.parametrize(("lines", "length", "gap"), [(3, 5, 2), (17, 264, 8), (2, 4104, 0)])
def test_sums_are_exact(kind: str, lines: int, length: int, gap: int) -> None:
    terms, weighted = KINDS.get(kind, (0, kind.endswith("weighted")))
    assert_exact(problem(lines, length, gap, terms=terms, weighted=weighted))


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_of_every_format(dtype: DType) -> None:
    for terms, weighted in ((1, False), (2, True), (0, True)):
        assert_exact(problem(9, 72, terms=terms, weighted=weighted, dtype=dtype))
    assert_exact(problem(9, 72, dtype=E4M3))


def test_what_names_no_row_adds_nothing_even_if_its_weight_is_nan() -> None:
    one = problem(4, 8, terms=2, weighted=True)
    rows = drawn_rows(one)
    rows.storage("index")[:] = [-1, 0, 9, 1, 2, -(2**31), 2**31 - 1, -7]
    rows.storage("weights")[[0, 2, 5, 6, 7]] = np.nan
    found = BF16.decode(simulate(kernel_of(one), rows).stored["sums"]).reshape(4, 8)
    assert np.isfinite(found).all() and not found[3].any()
    np.testing.assert_array_equal(found.reshape(-1), BF16.decode(summed_rows(rows)))


def test_a_list_that_is_none_is_limited() -> None:
    one = problem(4, 8, terms=0)
    rows = drawn_rows(one)
    rows.storage("begins")[:] = [-5, 40, 3, 2**31 - 1, -(2**31)]
    np.testing.assert_array_equal(simulate(kernel_of(one), rows).stored["sums"], summed_rows(rows))


@pytest.mark.parametrize("kind", [*KINDS, "listed"])
def test_the_text_does_what_the_simulator_does(kind: str) -> None:
    terms, weighted = KINDS.get(kind, (0, True))
    one = problem(9, 136, terms=terms, weighted=weighted)
    kernel, rows = kernel_of(one, overlapped=False), drawn_rows(one)
    ran, simulated = run_on_cpu(kernel, rows)["sums"], simulate(kernel, rows).stored["sums"]
    np.testing.assert_array_equal(ran, simulated)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_they_compile_without_spills(arch: str) -> None:
    for terms, weighted in (*KINDS.values(), (0, True)):
        one = problem(64, 4096, terms=terms, weighted=weighted)
        resources = compiled(kernel_of(one, overlapped=arch == "sm_90a"), arch).resources
        assert resources.spill_load_bytes == 0 and resources.registers <= 96


def test_nothing_is_touched_before_the_grids_before_have_ended() -> None:
    assert_nothing_moves_before_the_wait(kernel_of(problem(64, 256, terms=2, weighted=True)))


def test_what_it_cannot_do_it_says() -> None:
    even, odd = problem(4, 8), problem(4, 9)
    wide = RowSumsConfig.of(even, 16)
    assert wide.width == 8 and "not multiples of 8" in wide.reasons_against(odd)[0]
    assert "programmatic dependent launch" in wide.reasons_against(even, device("A100"))[0]
    assert "more than 1024" in wide.reasons_against(problem(4, 8, terms=1025))[0]
    with pytest.raises(ProblemError, match="Lines of 8 elements cannot be 7 apart"):
        RowSums(4, 8, 4, 7, 8, BF16)
