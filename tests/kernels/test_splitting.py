"""Pieces of an operand: exact for any bits, on awkward sizes, with all detectors; each byte moved once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled, run_on_cpu
from drawn_problems import drawn_splitting

from tests.kernels.stored import flag_stored, inverses_stored, pieces_stored
from tilewright.device.catalog import device
from tilewright.dtypes import TF32
from tilewright.errors import ProblemError, SimulationError
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Move
from tilewright.ir.visit import rewrite
from tilewright.kernels.splitting import LONGEST_LINE, LineSplittingConfig, SplittingConfig
from tilewright.problem.emulation import ALGORITHMS, BF16X6, F16X3, TF32X3, Algorithm
from tilewright.problem.splitting import Splitting
from tilewright.simulator import simulate
from tilewright.simulator.sampling import count_sampled

HOWS = pytest.mark.parametrize("how", ALGORITHMS.values(), ids=str)


def along_k(how: Algorithm, lines: int, length: int, leading: int, *, count: int = 1, gap: int = 8) -> Splitting:
    """As of a row-major A."""
    to = how.padded_k(length)
    row = to + gap
    piece = lines * row + gap
    steps = lines * leading + 4, how.count * piece
    scale_step = lines // 8 * 8 + 8 if how.shift and count > 1 else 0
    return Splitting(how, lines, length, leading, lines, to, row, piece, *steps, count, scale_step=scale_step)


def across_k(how: Algorithm, lines: int, length: int, leading: int) -> Splitting:
    """As of a row-major B."""
    to, row = how.padded_k(lines), -(-length // 8) * 8
    return Splitting(how, lines, length, leading, to, row, row, to * row, across=how.shift > 0)


def kernel_of(problem: Splitting, **options: Any) -> Kernel:
    size = (problem.leading | problem.step) * 4
    family = LineSplittingConfig if problem.own_scales else SplittingConfig
    config = family.of(problem, min(size & -size, 16), **options)
    assert config.reasons_against(problem) == ()
    return config.kernel(problem)


def assert_exact(problem: Splitting, kernel: Kernel | None = None) -> None:
    source = drawn_splitting(problem)
    stored = simulate(kernel or kernel_of(problem), source).stored["target"]
    np.testing.assert_array_equal(stored, pieces_stored(source))


@pytest.mark.parametrize(("lines", "length", "leading"), [(1, 1, 1), (5, 7, 7), (33, 66, 66), (3, 300, 304)])
@HOWS
def test_pieces_are_exact_for_any_numbers(how: Algorithm, lines: int, length: int, leading: int) -> None:
    """Drawn bits: subnormal numbers, infinities and NaN among them. Zeros fill pieces; gaps stay as they are."""
    assert_exact(along_k(how, lines, length, leading, count=2))
    assert_exact(across_k(how, lines, length, leading))


@pytest.mark.parametrize("way", ["along", "across", "own_scales"])
def test_the_flag_is_raised_where_a_scaled_number_is_too_small(way: str) -> None:
    """Its own scale of a line of ones is 2^6, applied twice."""
    problem = replace(along_k(F16X3, 9, 33, 33, gap=0), least=2.0**-18)
    problem = problem if way == "along" else replace(problem, **{way: True})
    for smallest, raised in ((0.0, False), (2.0**-17, False), (2.0**-19, True), (-(2.0**-30), True), (np.inf, False)):
        source = drawn_splitting(problem)
        source.storage("source")[:] = 1
        if way != "own_scales":
            source.storage("scales")[:] = 2
        source.storage("source")[40] = smallest / (2.0**12 if way == "own_scales" else 4)
        stored = simulate(kernel_of(problem), source).stored["flag"]
        assert stored.tolist() == [float(raised)] and flag_stored(source) is raised


def test_one_kernel_splits_every_size_of_its_class() -> None:
    first, other = along_k(BF16X6, 9, 33, 33), along_k(BF16X6, 70, 40, 41)
    assert_exact(other, SplittingConfig(1, 32).kernel(first))


@pytest.mark.parametrize("how", [how for how in ALGORITHMS.values() if how.pieces is not TF32], ids=str)
def test_the_emitted_text_computes_the_same(how: Algorithm) -> None:
    problem = along_k(how, 9, 50, 52)
    source = drawn_splitting(problem)
    np.testing.assert_array_equal(
        run_on_cpu(kernel_of(problem, overlapped=False), source)["target"], pieces_stored(source)
    )


@HOWS
def test_whole_sectors_are_moved_once(how: Algorithm) -> None:
    problem = along_k(how, 64, 256, 256, gap=0)
    counters = count_sampled(kernel_of(problem), drawn_splitting(problem))
    lines = [line for line in counters.lines if line.requests and line.space is Space.GLOBAL]
    lines = [line for line in lines if line.origin != "scales"]  # a number for all threads of a line
    scales = problem.storage_elements("scales") * 4 if how.shift else 0
    assert sum(line.sectors for line in lines) * 32 == problem.compulsory_bytes - scales
    assert {line.width_bytes for line in lines if line.kind == "load"} == {16}


def test_without_its_guards_it_leaves_its_matrices() -> None:
    problem = along_k(BF16X6, 33, 65, 65, gap=0)
    kernel = kernel_of(problem)

    def unguarded(stmt: Any) -> Any:
        return (replace(stmt, guard=None),) if isinstance(stmt, Move) and stmt.guard is not None else None

    with pytest.raises(SimulationError, match="elements"):
        simulate(replace(kernel, body=rewrite(kernel.body, unguarded)), drawn_splitting(problem))


def test_it_starts_under_the_kernel_before() -> None:
    assert_nothing_moves_before_the_wait(kernel_of(along_k(BF16X6, 64, 256, 256)))


@HOWS
def test_it_compiles_without_spills(how: Algorithm) -> None:
    for length in (256, 255):
        cubin = compiled(kernel_of(along_k(how, 64, length, length)), "sm_90a")
        assert cubin.resources.spill_load_bytes == 0 and cubin.resources.registers <= 64


def test_what_cannot_be_split_so() -> None:
    problem = along_k(TF32X3, 4, 30, 30)
    (reason,) = SplittingConfig(4).reasons_against(problem)
    assert "not multiples of 4" in reason
    (reason,) = SplittingConfig(1).reasons_against(problem, device("A100"))
    assert "dependent launch" in reason
    with pytest.raises(ProblemError, match="does not hold"):
        replace(problem, to_length=16)
    with pytest.raises(ProblemError, match="apart"):
        replace(problem, leading=16)


def lines_of_a(lines: int, length: int, leading: int, *, count: int = 1) -> Splitting:
    """As of a row-major A whose scales nobody has found."""
    return replace(along_k(F16X3, lines, length, leading, count=count), own_scales=True)


@pytest.mark.parametrize(("lines", "length", "leading"), [(1, 1, 1), (19, 7, 7), (5, 700, 702), (3, 1200, 1204)])
def test_lines_are_scaled_and_split_in_one_launch(lines: int, length: int, leading: int) -> None:
    """By parts of a warp, by warps, and by several vectors of a thread; of drawn bits, one line of zeros."""
    problem = lines_of_a(lines, length, leading, count=2)
    source = drawn_splitting(problem)
    source.storage("source")[:length] = 0
    stored = simulate(kernel_of(problem), source).stored
    np.testing.assert_array_equal(stored["target"], pieces_stored(source))
    np.testing.assert_array_equal(stored["inverses"], inverses_stored(source))
    run = run_on_cpu(kernel_of(problem, overlapped=False), source)
    np.testing.assert_array_equal(run["target"], pieces_stored(source))
    np.testing.assert_array_equal(run["inverses"], inverses_stored(source))


def test_lines_that_are_scaled_and_split_in_one_launch_are_read_once() -> None:
    problem = replace(lines_of_a(64, 1024, 1024), to_leading=1024, to_piece=64 * 1024)
    counters = count_sampled(kernel_of(problem), drawn_splitting(problem))
    lines = [line for line in counters.lines if line.requests and line.space is Space.GLOBAL]
    loads = [line for line in lines if line.kind == "load"]
    assert sum(line.sectors for line in loads) * 32 == 64 * 1024 * 4
    assert {line.width_bytes for line in loads} == {16}


@pytest.mark.cross_section("length", every=2)
@pytest.mark.parametrize("length", [64, 4096, 14336, 28672, LONGEST_LINE])
def test_lines_of_every_length_are_held_without_spills(length: int) -> None:
    for leading in (length, length + 1):
        kernel = kernel_of(lines_of_a(4, length, leading))
        assert_nothing_moves_before_the_wait(kernel)
        assert compiled(kernel, "sm_90a").resources.spill_load_bytes == 0


def test_what_cannot_be_scaled_and_split_in_one_launch() -> None:
    problem = lines_of_a(4, 300, 300)
    assert "more than a block holds" in LineSplittingConfig(4, 32, 1).reasons_against(problem)[0]
    assert "finds none" in SplittingConfig(4).reasons_against(problem)[0]
    assert "are given" in LineSplittingConfig(4, 32, 4).reasons_against(along_k(F16X3, 4, 300, 300))[0]
    with pytest.raises(ProblemError, match="finds no scales"):
        replace(along_k(BF16X6, 4, 300, 300), own_scales=True)
