"""Copies before a product: exact on awkward sizes, with all detectors; conflicts and sectors as designed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled, run_on_cpu
from drawn_problems import drawn_sources

from tests.kernels.stored import relaid
from tilewright.codegen import print_cuda
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F16, F32, DType
from tilewright.errors import ProblemError, SimulationError
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Barrier, Move
from tilewright.ir.visit import rewrite
from tilewright.kernels.relayout import CopyConfig, RelayoutConfig
from tilewright.problem.relayout import MatrixCopy, Relayout
from tilewright.simulator import simulate
from tilewright.simulator.sampling import count_sampled
from tilewright.units import round_up

SIZES = [(1, 1, 1), (5, 7, 7), (33, 65, 70), (64, 32, 33), (3, 300, 301), (130, 136, 136), (6, 70, 70)]
FORMATS = [F32, F16, BF16, E4M3]


def copy_of(
    lines: int, length: int, leading: int, dtype: DType, *, transposed: bool = False, more: int = 0, gap: int = 16
) -> MatrixCopy:
    """A copy whose lines are whole pieces of 16 bytes, with `more` lines and pieces, and `gap` elements between."""
    to_lines, to_length = (length, lines) if transposed else (lines, length)
    to_length = round_up(to_length, 16 // dtype.bytes) + more * 16 // dtype.bytes
    sizes = lines, length, leading, to_lines + more, to_length, to_length + gap
    return MatrixCopy(*sizes, transposed, lines * leading + 16, (to_lines + more) * (to_length + gap))


def aligned_bytes(copy: MatrixCopy, dtype: DType) -> int:
    """Of lines and steps, at an address that is aligned."""
    size = (copy.leading | copy.step) * dtype.bytes
    return min(size & -size, 16)


def kernel_of(problem: Relayout, **options: Any) -> Kernel:
    config = RelayoutConfig.of(problem, [aligned_bytes(copy, problem.dtype) for copy in problem.copies], **options)
    assert config.reasons_against(problem) == ()
    return config.kernel(problem)


def assert_exact(problem: Relayout, kernel: Kernel | None = None) -> None:
    kernel = kernel or kernel_of(problem)
    sources = drawn_sources(problem)
    expected = relaid(sources)
    stored = simulate(kernel, sources).stored
    for name in problem.results:
        np.testing.assert_array_equal(stored[name], expected[name])


@pytest.mark.parametrize("transposed", [False, True], ids=["padded", "transposed"])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("lines", "length", "leading"), SIZES)
def test_a_batch_of_copies_is_exact(lines: int, length: int, leading: int, dtype: DType, transposed: bool) -> None:
    """Zeros follow each line, and lines of zeros the last; nothing is written between lines."""
    copy = copy_of(lines, length, leading, dtype, transposed=transposed, more=2)
    assert_exact(Relayout((copy,), dtype, dtype, 2))


@pytest.mark.parametrize("transposed", [False, True], ids=["padded", "transposed"])
@pytest.mark.parametrize(("dtype", "out"), [(F32, BF16), (BF16, F32), (F16, F32)], ids=str)
def test_a_copy_in_another_format_is_rounded_once(dtype: DType, out: DType, transposed: bool) -> None:
    for lines, length, leading in ((33, 65, 70), (64, 64, 64)):
        assert_exact(Relayout((copy_of(lines, length, leading, F16, transposed=transposed),), dtype, out))


@pytest.mark.parametrize("dtype", [F32, BF16, E4M3], ids=str)
def test_two_matrices_of_any_sizes_are_copied_by_one_launch(dtype: DType) -> None:
    large, small = copy_of(33, 65, 70, dtype), copy_of(5, 7, 7, dtype, transposed=True)
    for copies in ((large, small), (small, large), (large, large)):
        problem = Relayout(copies, dtype, dtype, 2)
        assert_exact(problem)
        assert len(problem.results) == 2


@pytest.mark.parametrize("transposed", [False, True], ids=["padded", "transposed"])
def test_one_kernel_copies_every_size_of_its_class(transposed: bool) -> None:
    first, other = (Relayout((copy_of(*s, F32, transposed=transposed),), F32, F32) for s in ((9, 33, 33), (70, 40, 41)))
    config = RelayoutConfig((CopyConfig(transposed, 1, 256 if transposed else 32),))
    assert_exact(other, config.kernel(first))


@pytest.mark.parametrize("transposed", [False, True], ids=["padded", "transposed"])
@pytest.mark.parametrize("dtype", [F32, BF16, E4M3], ids=str)
def test_aligned_copies_move_whole_sectors_without_bank_conflicts(dtype: DType, transposed: bool) -> None:
    size = 256
    problem = Relayout((copy_of(size, size, size, dtype, transposed=transposed, gap=0),), dtype, dtype)
    counters = count_sampled(kernel_of(problem), drawn_sources(problem))
    assert not counters.is_estimate
    lines = [line for line in counters.lines if line.requests]
    ideal = size * size * dtype.bytes // 32
    assert {line.sectors for line in lines if line.space is Space.GLOBAL} == {ideal}
    assert {line.excess_wavefronts for line in lines if line.space is Space.SHARED} <= {0}
    widths = {line.width_bytes for line in lines if line.space is Space.GLOBAL}
    assert widths == ({4} if transposed else {16})


def test_unaligned_lines_are_read_by_neighbouring_lanes() -> None:
    """A warp's request for elements of 2 bytes covers 64 bytes: two sectors, or three where they begin inside one."""
    problem = Relayout((copy_of(64, 1023, 1023, BF16),), BF16, BF16)
    counters = count_sampled(kernel_of(problem), drawn_sources(problem))
    (load,) = [line for line in counters.lines if line.kind == "load"]
    assert load.width_bytes == 2 and load.sectors <= 3 * load.requests


@pytest.mark.parametrize("dtype", [F32, BF16, E4M3], ids=str)
def test_without_its_barrier_a_transposed_copy_races(dtype: DType) -> None:
    problem = Relayout((copy_of(33, 65, 70, dtype, transposed=True),), dtype, dtype)
    kernel = kernel_of(problem)
    bare = replace(kernel, body=rewrite(kernel.body, lambda stmt: () if isinstance(stmt, Barrier) else None))
    assert bare != kernel
    with pytest.raises(SimulationError, match=r"(?i)race|unwritten"):
        simulate(bare, drawn_sources(problem))


@pytest.mark.parametrize("transposed", [False, True], ids=["padded", "transposed"])
def test_without_its_guards_a_copy_leaves_its_matrices(transposed: bool) -> None:
    problem = Relayout((copy_of(33, 65, 65, F32, transposed=transposed, gap=0),), F32, F32)
    kernel = kernel_of(problem)
    for stored in (False, True):

        def unguarded(stmt: Any, stored: bool = stored) -> Any:
            place = stmt.dst if isinstance(stmt, Move) and stored else getattr(stmt, "src", None)
            if not isinstance(stmt, Move) or place.buffer.space is not Space.GLOBAL:
                return None
            return (replace(stmt, guard=None),)

        with pytest.raises(SimulationError, match="elements"):
            simulate(replace(kernel, body=rewrite(kernel.body, unguarded)), drawn_sources(problem))


def test_what_it_cannot_do_it_says() -> None:
    odd, even = (Relayout((copy_of(4, length, length, F32),), F32, F32) for length in (5, 8))
    wide = RelayoutConfig.of(even, (16,))
    assert wide.copies[0].width == 4
    assert "not multiples of 4" in wide.reasons_against(odd)[0]
    assert "programmatic dependent launch" in wide.reasons_against(even, device("A100"))[0]
    assert "2 matrices" in RelayoutConfig(wide.copies * 2).reasons_against(even)[0]
    assert "blocks along z" in wide.reasons_against(replace(even, count=70_000))[0]
    with pytest.raises(ProblemError, match="does not hold"):
        MatrixCopy(4, 8, 8, 4, 7, 8)


@pytest.mark.cross_section("arch", "transposed", every=2)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("transposed", [False, True], ids=["padded", "transposed"])
def test_they_compile_without_spills(arch: str, transposed: bool) -> None:
    for dtype in FORMATS:
        for length in (63, 64):
            problem = Relayout((copy_of(64, length, length, dtype, transposed=transposed),), dtype, dtype)
            cubin = compiled(kernel_of(problem, overlapped=arch == "sm_90a"), arch)
            assert cubin.resources.spill_load_bytes == 0
            assert cubin.resources.registers <= (64 if dtype.bytes > 1 else 80)  # a register for each byte


def test_nothing_is_touched_before_the_grids_before_have_ended() -> None:
    both = Relayout((copy_of(33, 65, 70, BF16), copy_of(33, 65, 70, BF16, transposed=True)), BF16, BF16)
    assert_nothing_moves_before_the_wait(kernel_of(both))


@pytest.mark.parametrize("dtype", [F32, BF16, E4M3], ids=str)
def test_the_text_does_what_the_simulator_does(dtype: DType) -> None:
    problem = Relayout((copy_of(33, 65, 70, dtype), copy_of(70, 33, 33, dtype, transposed=True)), dtype, dtype, 2)
    kernel, sources = kernel_of(problem, overlapped=False), drawn_sources(problem)
    simulated = simulate(kernel, sources).stored
    run = run_on_cpu(kernel, sources)
    for name in problem.results:
        np.testing.assert_array_equal(run[name], simulated[name])


def test_more_lines_than_a_grid_has_blocks_along_y() -> None:
    problem = Relayout((copy_of(270_000, 3, 3, F32, gap=0),), F32, F32)
    sources = drawn_sources(problem)
    run = run_on_cpu(kernel_of(problem, overlapped=False), sources)
    np.testing.assert_array_equal(run["target"], relaid(sources)["target"])


def test_the_header_says_what_is_copied() -> None:
    problem = Relayout((copy_of(33, 65, 70, BF16),), BF16, BF16)
    text = print_cuda(kernel_of(problem)).text.split("\n\n")[0]
    assert "a padded copy of bf16" in text and "source  bf16, lines x length" in text
    assert re.search(r"launch +grid \(\(to_lines", text)
