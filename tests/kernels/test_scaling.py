"""Scales of lines and of columns: exact for any bits, on awkward sizes, each byte moved once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled, run_on_cpu
from drawn_problems import drawn_scaling

from tests.kernels.stored import scales_stored
from tilewright.device.catalog import device
from tilewright.errors import ProblemError, SimulationError
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Move
from tilewright.ir.visit import rewrite
from tilewright.kernels.scaling import ScalingConfig
from tilewright.problem.scaling import Scaling
from tilewright.simulator import simulate
from tilewright.simulator.sampling import count_sampled

WAYS = pytest.mark.parametrize("across", [False, True], ids=["along", "across"])


def scaling(lines: int, length: int, leading: int, across: bool) -> Scaling:
    return Scaling(lines, length, leading, across, (length if across else lines) + 5, lines * leading + 4, 2)


def kernel_of(problem: Scaling, **options: Any) -> Kernel:
    size = (problem.leading | problem.step) * 4
    config = ScalingConfig.of(problem, min(size & -size, 16), **options)
    assert config.reasons_against(problem) == ()
    return config.kernel(problem)


@pytest.mark.parametrize(
    ("lines", "length", "leading"), [(1, 1, 1), (5, 7, 7), (70, 66, 68), (3, 300, 304), (9, 1200, 1200)]
)
@WAYS
def test_scales_are_exact_for_any_numbers(across: bool, lines: int, length: int, leading: int) -> None:
    """Of every binade, with zeros, infinities and NaN among them; gaps stay as they are."""
    source = drawn_scaling(scaling(lines, length, leading, across))
    stored = simulate(kernel_of(source.problem), source).stored["target"]
    np.testing.assert_array_equal(stored, scales_stored(source))


@WAYS
def test_lines_of_zeros_and_of_subnormal_numbers(across: bool) -> None:
    problem = scaling(6, 6, 6, across)
    source = drawn_scaling(problem)
    numbers = source.storage("source")
    numbers[:] = np.float32(1e-45)
    numbers[:6] = 0
    stored = simulate(kernel_of(problem), source).stored["target"]
    scales = stored[2 * problem.apart :]
    assert (scales[:6] == 2.0**81).all() and (stored[:6] == 2.0**-81).all()


@WAYS
def test_the_emitted_text_computes_the_same(across: bool) -> None:
    problem = scaling(9, 50, 52, across)
    source = drawn_scaling(problem)
    np.testing.assert_array_equal(
        run_on_cpu(kernel_of(problem, overlapped=False), source)["target"], scales_stored(source)
    )


@WAYS
def test_whole_sectors_are_moved_once(across: bool) -> None:
    problem = Scaling(64, 256, 256, across, 256)
    counters = count_sampled(kernel_of(problem), drawn_scaling(problem))
    lines = [line for line in counters.lines if line.requests and line.space is Space.GLOBAL]
    assert sum(line.sectors for line in lines if line.kind == "load") * 32 == 64 * 256 * 4
    assert {line.width_bytes for line in lines if line.kind == "load"} == {16}


def test_without_its_guards_it_leaves_its_matrices() -> None:
    problem = scaling(33, 65, 65, False)
    kernel = kernel_of(problem)

    def unguarded(stmt: Any) -> Any:
        return (replace(stmt, guard=None),) if isinstance(stmt, Move) and stmt.guard is not None else None

    with pytest.raises(SimulationError, match="elements"):
        simulate(replace(kernel, body=rewrite(kernel.body, unguarded)), drawn_scaling(problem))


@WAYS
def test_it_starts_under_the_kernel_before_and_compiles_without_spills(across: bool) -> None:
    kernel = kernel_of(scaling(64, 256, 256, across))
    assert_nothing_moves_before_the_wait(kernel)
    assert compiled(kernel, "sm_90a").resources.spill_load_bytes == 0


def test_what_cannot_be_scaled_so() -> None:
    problem = scaling(4, 30, 30, False)
    (reason,) = ScalingConfig(4, 32).reasons_against(problem)
    assert "not multiples of 4" in reason
    (reason,) = ScalingConfig(1, 32).reasons_against(problem, device("A100"))
    assert "dependent launch" in reason
    with pytest.raises(ProblemError, match="apart"):
        replace(problem, leading=16)
