"""Rules of the lowering that no other test looked at: each of ten planted faults lived (benchmarks/mutants.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.test_block_scale_slots import TILE, M, N
from tests.lowering.test_block_scale_slots import problem as scaled
from tests.refusals.test_lowering_refusals import HALF, IN_REGISTERS, IN_SHARED, OF_WMMA, refusal
from tilewright.dtypes import BF16
from tilewright.errors import LoweringError
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, RasterOrder, Route
from tilewright.ir.work import SplitK
from tilewright.kernels.wgmma_presets import clustered, one_tile, persistent
from tilewright.ladders import LADDERS, find_rung
from tilewright.ladders.rung import Rung
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.lowering.coordinates import GROUP_LANE, LANE, THREAD, bounds_of
from tilewright.lowering.ordered_sums import partial_elements
from tilewright.lowering.variants import reads_vectors
from tilewright.problem import Epilogue, Gemm, Order, check, make_operands
from tilewright.problem.functions import Operation
from tilewright.problem.values import Accumulated, Combined
from tilewright.schedule import (
    Accumulate,
    Bind,
    Cluster,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Schedule,
    Specialize,
    Split,
    Stage,
    Tensorize,
    Transfer,
    Vectorize,
)
from tilewright.schedule import Epilogue as Scaled
from tilewright.toolchain import build, grid_of


@pytest.mark.parametrize("rung", [rung for rungs in LADDERS.values() for rung in rungs], ids=lambda rung: rung.name)
def test_what_is_known_of_a_thread_holds_for_all_of_a_block_and_for_no_more(rung: Rung) -> None:
    built = build(rung.gemm(512, 512, 512), rung)
    bounds, threads = bounds_of(built.program), range(built.kernel.threads_per_block)
    numbers = {THREAD: threads, LANE: [t % 32 for t in threads], GROUP_LANE: [t % 128 for t in (*threads, 127)]}
    for name, values in numbers.items():
        assert (bounds[name].low, bounds[name].high) == (min(values), max(values)), name


@pytest.mark.parametrize("name", ["A_tile", "B_tile"])
def test_a_tile_that_registers_fetch_ahead_of_one_stage(name: str) -> None:
    rung = find_rung("worklog/6")
    gemm = rung.gemm(128, 128, 40)
    operands = make_operands(gemm)
    run = build(gemm, Schedule(*rung.schedule(gemm), Prefetch(name))).simulate(operands)
    verdict = check(operands, run.c.reshape(gemm.m, gemm.n))
    assert verdict.ok and not run.findings, verdict.message


def test_partial_sums_of_a_tile_take_as_many_elements_as_it_has_of_each_sum() -> None:
    plain = Gemm(128, 128, 64, BF16, out=BF16, b=Order.COL)
    product = Combined(Operation.TIMES, Accumulated(), Accumulated(1))
    for gemm, sums in ((plain, 1), (replace(plain, epilogue=Epilogue(function=product)), 2)):
        program = build(gemm, one_tile(128, 64, 1).schedule(gemm)).program
        assert partial_elements(program) == 128 * 64 * sums


def test_a_stream_k_grid_has_whole_clusters_for_all_tiles_and_for_all_parts() -> None:
    """300 x 200 are 5 x 2 tiles of 64 x 128: three pairs along m. 512 of k are eight tiles."""
    gemm = Gemm(300, 200, 512, BF16, out=BF16)
    schedule = clustered(persistent(64, 128, 1, subtile=64), (2, 1)).schedule(gemm)
    kernel = replace(build(gemm, schedule), split_k=SplitK.ORDERED, stream_k=True).kernel
    assert [grid_of(kernel, gemm, part_of_k=part)[0] for part in (64, 128, 512)] == [2 * 6 * 8, 2 * 6 * 4, 2 * 6]


@pytest.mark.parametrize("part_of_k", [256, 640])
def test_a_part_of_k_that_begins_inside_of_a_slot_of_scales(part_of_k: int) -> None:
    """A slot has the scales of eight blocks of 128: the second part begins at the third or the sixth of them."""
    gemm = scaled(1280)
    config = replace(TILE, persistent=False, subtile=0)
    built = replace(build(gemm, config.schedule(gemm)), split_k=SplitK.PARTIALS)
    parts = 1280 // part_of_k
    operands = make_operands(gemm)
    run = built.simulate(replace(operands, c=np.zeros(parts * M * gemm.ldc, np.float32)), part_of_k=part_of_k)
    total = run.c.reshape(parts, M, gemm.ldc)[:, :, :N].sum(axis=0, dtype=np.float32)
    verdict = check(operands, total, promote_every=128)
    assert verdict.ok, verdict.message


def test_opaque_sums_that_are_staged_and_that_nobody_is_to_store() -> None:
    told = refusal(Schedule(*OF_WMMA, Scaled(), Stage("C", Space.SHARED), *IN_SHARED, *IN_REGISTERS), HALF)
    assert told.startswith("Which lane of wmma.m16n16k16.f32.f16 holds which result is not known")


def test_warpgroups_that_share_out_the_columns_of_the_instruction_are_named() -> None:
    atoms = SwizzleAtoms(columns=64)
    schedule = Schedule(
        Split("m", 64, into=("m_block", "m_mma")),
        Split("n", 256, into=("n_block", "n_in")),
        Split("n_in", 128, into=("n_group", "n_mma")),
        Split("k", 64, into=("k_tile", "k_in")),
        Split("k_in", 16, into=("k_step", "k_mma")),
        Reorder("m_block", "n_block", "n_group", "k_tile", "k_step", "m_mma", "n_mma", "k_mma"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Bind("n_group", Level.WARPGROUP),
        Tensorize("m_mma", "n_mma", "k_mma", using="wgmma.m64n128k16"),
        Accumulate("k_tile"),
        Scaled(),
        *IN_SHARED,
        *(Relayout(f"{name}_tile", arrangement=atoms) for name in "AB"),
        *(Transfer(f"{name}_tile", Route.TMA) for name in "AB"),
        Pipeline("k_tile", stages=3),
        Specialize(registers=(24, 240)),
        Stage("C", Space.SHARED, subtile=64),
        Relayout("C_tile", arrangement=atoms),
        Transfer("C_tile", Route.TMA),
    )
    assert refusal(schedule, Gemm(256, 256, 128, BF16, out=BF16, b=Order.COL)) == (
        "'C_tile' cannot go out by TMA: 'n_group' shares out the columns of the instruction among warpgroups.\n"
        "  Note: each warpgroup stores what rows of the instruction it has.\n"
        "  Hint: bind a loop over m to warpgroups."
    )


def test_sums_of_threads_that_multiply_scalars_and_that_blocks_cannot_share_equally() -> None:
    rung = find_rung("worklog/3")
    gemm = rung.gemm(64, 64, 256)
    more = (Pipeline("k_tile", 2), Raster(RasterOrder.GROUPED, group=2), Cluster("k_tile", 2))
    with pytest.raises(LoweringError, match="A thread has 1 sums, which 2 blocks cannot share equally"):
        _ = build(gemm, Schedule(*rung.schedule(gemm), *more)).kernel


def test_scalars_of_a_matrix_are_no_vectors_whatever_is_read_of_shared_memory() -> None:
    rung = find_rung("worklog/5")
    gemm = rung.gemm(128, 128, 64)
    assert not reads_vectors(build(gemm, Schedule(*rung.schedule(gemm), Vectorize("B_frag", 4))).program)
    assert reads_vectors(build(gemm, find_rung("worklog/6")).program)
