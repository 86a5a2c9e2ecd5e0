"""The sum of partial sums: right in every shape and with every epilogue, in a fixed order, with all detectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled, run_on_cpu
from drawn_problems import drawn_partials

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import SimulationError
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Move, ShuffleAdd
from tilewright.ir.visit import rewrite, walk
from tilewright.kernels.reduce import ReduceConfig
from tilewright.problem.epilogue import PLAIN, Epilogue
from tilewright.problem.functions import Activation
from tilewright.problem.reduction import Reduction, reduced, result_of
from tilewright.simulator import simulate
from tilewright.simulator.sampling import count_sampled
from tilewright.toolchain import grid_of
from tilewright.units import ceil_div

SHAPES = [(1, 1, 264), (1, 1, 1), (5, 7, 3), (33, 64, 1), (3, 132, 17), (64, 128, 9), (1, 1024, 40), (2, 3, 5000)]
EPILOGUES = [
    (PLAIN, 0.0),
    (PLAIN, -1.0),
    (Epilogue("n", False, Activation.RELU), 0.0),
    (Epilogue("n", True, Activation.GELU), 0.5),
    (Epilogue("m", True), 1.0),
    (Epilogue("n", scale=("m", "n")), 0.5),
]


def reduction(m: int, n: int, parts: int, out: DType = F32, beta: float = 0.0, epilogue: Epilogue = PLAIN) -> Reduction:
    gap = 8 if n % 4 == 0 else 3
    residual = (n + gap,) if epilogue.residual else ()
    return Reduction(m, n, parts, n, m * n, out, 2.0, beta, epilogue, n + gap, residual)


def kernel_of(problem: Reduction, **options: Any) -> Kernel:
    size = (problem.ldc | (*problem.ld_added, 0)[0]) * problem.out.bytes
    config = ReduceConfig.of(problem, min(size & -size, 16), **options)
    assert config.reasons_against(problem) == ()
    return config.kernel(problem)


def assert_right(problem: Reduction, stored: Any, partials: Any) -> None:
    """Against float64, within the bound of a sum of so many terms; what lies between the rows is as it was."""
    expected, actual = reduced(partials), result_of(problem, stored)
    terms = (problem.parts + 4) * F32.unit_roundoff
    magnitude = np.abs(partials.storage("partials").astype(np.float64)).reshape(-1)
    scale = 2.0 * np.nansum(magnitude.reshape(problem.parts, -1), axis=0).reshape(problem.m, problem.n) + 8
    bound = (4 * terms + 40 * F32.unit_roundoff) * scale + 1.2 * problem.out.unit_roundoff * (np.abs(expected) + 1e-3)
    assert (np.abs(actual - expected) <= bound).all()
    before, after = partials.storage("C").copy(), stored.copy()
    for storage in (before, after):
        view = np.lib.stride_tricks.as_strided(
            storage, (problem.m, problem.n), (problem.ldc * storage.itemsize, storage.itemsize)
        )
        view[...] = 0
    assert before.tobytes() == after.tobytes(), "something was written between the rows of C"


@pytest.mark.cross_section("epilogue", "out", every=2)
@pytest.mark.parametrize(("epilogue", "beta"), EPILOGUES, ids=str)
@pytest.mark.parametrize("out", [F32, F16, BF16], ids=str)
def test_the_sum_is_right(out: DType, epilogue: Epilogue, beta: float) -> None:
    for shape in SHAPES:
        problem = reduction(*shape, out, beta, epilogue)
        partials = drawn_partials(problem)
        assert_right(problem, simulate(kernel_of(problem), partials).stored["C"], partials)


def test_parts_are_added_in_the_order_of_k() -> None:
    """Bit for bit what a loop in f32 gives, whatever is in flight at a time."""
    for parts in (2, 3, 8, 9, 10, 23):
        problem = replace(reduction(3, 2048, parts), alpha=1.0)
        partials = drawn_partials(problem)
        held = partials.storage("partials").reshape(parts, -1)
        total = held[0].copy()
        for one in held[1:]:
            total = total + one
        for config in (ReduceConfig(4, 128, 1, 8), ReduceConfig(4, 1, 1, 4, lanes=1)):
            stored = simulate(config.kernel(problem), partials, detectors=False).stored["C"]
            np.testing.assert_array_equal(result_of(problem, stored).reshape(-1), total)


def test_lanes_that_share_out_parts_add_them_as_a_tree() -> None:
    problem = replace(reduction(1, 1, 300), alpha=1.0)
    partials = drawn_partials(problem)
    lanes = np.zeros(32, np.float32)
    for part, value in enumerate(partials.storage("partials")):
        lanes[part % 32] += value
    for mask in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[np.arange(32) ^ mask]
    assert simulate(kernel_of(problem), partials).stored["C"][0] == lanes[0]


def test_beta_of_zero_reads_no_c_and_nan_passes_through() -> None:
    problem = reduction(5, 8, 3)
    partials = drawn_partials(problem)
    assert np.isnan(result_of(problem, partials.storage("C"))).all()
    partials.storage("partials")[3] = np.nan
    result = result_of(problem, simulate(kernel_of(problem), partials).stored["C"])
    assert np.isnan(result[0, 3]) and np.isnan(result).sum() == 1


@pytest.mark.parametrize(("parts", "loads", "rows"), [(2, 1, 4), (5, 4, 2), (9, 8, 1), (10, 16, 1), (66, 16, 1)])
def test_a_thread_has_as_many_loads_in_flight_as_parts_follow_or_16(parts: int, loads: int, rows: int) -> None:
    config = ReduceConfig.of(reduction(2048, 1024, parts), 16)
    assert (config.loads, config.rows, config.lanes) == (loads, rows, 0)


def test_lanes_share_out_the_parts_of_few_vectors() -> None:
    """As many as leave each four or eight parts, as long as there are threads; none of a large C, or of one part."""
    shapes = ((1, 1, 264), (198, 40, 18), (198, 40, 37), (64, 128, 264), (512, 1024, 33), (2048, 1024, 33), (64, 64, 1))
    found = [ReduceConfig.of(reduction(*shape), 16) for shape in shapes]
    assert [one.lanes for one in found] == [32, 8, 8, 8, 1, 0, 0]
    assert [one.loads for one in found[:5]] == [16, 4, 8, 16, 16]
    assert all(one.width == 4 for one in found[1:])


def test_the_order_of_a_sum_does_not_hang_on_the_address_of_c() -> None:
    found = [ReduceConfig.of(reduction(198, 40, 18), aligned_bytes) for aligned_bytes in (4, 8, 16)]
    assert [(one.width, one.lanes) for one in found] == [(1, 8), (1, 8), (4, 8)]


def test_no_thread_is_idle_but_in_the_last_block() -> None:
    problem = reduction(791, 129, 20)
    kernel = ReduceConfig.of(problem, 4).kernel(problem)
    assert grid_of(kernel, problem)[0] == ceil_div(791 * 129, 128)


def test_what_a_sum_cannot_be_is_said() -> None:
    many = ReduceConfig.of(reduction(64, 128, 264), 16)
    assert "not multiples of 4" in many.reasons_against(reduction(64, 130, 9))[0]
    assert "programmatic dependent launch" in many.reasons_against(reduction(64, 128, 9), device("A100"))[0]
    assert "does not add up" in ReduceConfig.of(reduction(64, 128, 1), 16).reasons_against(reduction(64, 128, 2))[0]


def test_without_a_shuffle_lanes_are_left_out() -> None:
    problem = reduction(1, 3, 264)
    kernel, partials = kernel_of(problem), drawn_partials(problem)
    right = simulate(kernel, partials).stored["C"]
    shuffles = [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, ShuffleAdd)]
    assert [stmt.mask for stmt in shuffles] == [16, 8, 4, 2, 1]
    for gone in shuffles:
        bare = replace(kernel, body=rewrite(kernel.body, lambda stmt, gone=gone: () if stmt == gone else None))
        assert not np.array_equal(simulate(bare, partials).stored["C"], right, equal_nan=True)


def test_partial_sums_are_read_once_in_whole_sectors() -> None:
    problem = replace(reduction(64, 512, 9), ldc=512)
    counters = count_sampled(kernel_of(problem), drawn_partials(problem))
    loads = [line for line in counters.lines if line.kind == "load" and line.buffer == "partials"]
    assert sum(line.sectors for line in loads) == 9 * 64 * 512 * 4 // 32
    assert {line.width_bytes for line in loads} == {16}


@pytest.mark.cross_section("arch", every=3, at=1)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_they_compile_without_spills(arch: str) -> None:
    for out in (F32, F16, BF16):
        for shape in ((1, 1, 264), (64, 128, 1), (64, 128, 9), (64, 127, 3)):
            problem = reduction(*shape, out, 1.0, Epilogue("n", True, Activation.GELU))
            resources = compiled(kernel_of(problem, overlapped=arch == "sm_90a"), arch).resources
            assert resources.spill_load_bytes == 0 and resources.registers <= 96


def test_nothing_is_touched_before_the_grids_before_have_ended() -> None:
    assert_nothing_moves_before_the_wait(kernel_of(reduction(64, 128, 9, BF16, 1.0, Epilogue("n", True))))
    assert_nothing_moves_before_the_wait(kernel_of(reduction(1, 1, 264)))


@pytest.mark.parametrize("shape", [(1, 1, 264), (5, 7, 3), (9, 64, 17)], ids=str)
def test_the_text_does_what_the_simulator_does(shape: tuple[int, int, int]) -> None:
    problem = reduction(*shape, BF16, 0.5, Epilogue("m", True))
    kernel, partials = kernel_of(problem, overlapped=False), drawn_partials(problem)
    simulated = simulate(kernel, partials).stored["C"]
    np.testing.assert_array_equal(run_on_cpu(kernel, partials)["C"], simulated)


@pytest.mark.parametrize("config", [ReduceConfig(1, 8, 4, 2), ReduceConfig(1, 1, 1, 2, lanes=2)], ids=str)
def test_each_guard_is_what_keeps_threads_inside(config: ReduceConfig) -> None:
    problem = replace(reduction(5, 7, 3), ldc=7)
    kernel, partials = config.kernel(problem), drawn_partials(problem)
    guarded = [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, Move) and stmt.guard is not None]
    assert len(guarded) == (3 if config.lanes else 4)  # the first part apart, the others, C read, C written
    for one in guarded:
        bare = (replace(one, guard=None),)
        body = rewrite(kernel.body, lambda stmt, one=one, bare=bare: bare if stmt == one else None)
        with pytest.raises(SimulationError, match="elements"):
            simulate(replace(kernel, body=body), partials)
