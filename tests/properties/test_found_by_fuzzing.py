"""Schedules that random drawing found to go wrong, cut down to what is needed, each with what was wrong."""

from __future__ import annotations

import pytest

from tests.properties.evaluate import evaluate
from tilewright.dtypes import BF16, F32
from tilewright.errors import LoweringError, ScheduleError
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Variant
from tilewright.ir.program import Level, RasterOrder, Route
from tilewright.ladders import find_rung
from tilewright.problem import check, make_operands
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Schedule,
    Snake,
    Split,
    Stage,
    Transfer,
    Vectorize,
)
from tilewright.toolchain import build, run_on_simulator

SMALL = Gemm(5, 7, 6, alpha=0.5, beta=-1.0)
K_TILES = Split("k", 4, into=("k_tile", "k_in"))

FOUND = {
    # The store of four neighbours stayed, with two of them in the innermost loop: each was stored twice.
    "a_vector_over_two_digits": (
        Gemm(5, 8, 6, alpha=0.5, beta=-1.0),
        Schedule(
            Split("n", 4, into=("n_block", "n_in")),
            Reorder("n_block", "m", "k", "n_in"),
            Accumulate("k"),
            Vectorize("C", 4),
            Split("n_in", 2, into=("n_out", "n_last")),
            Epilogue(),
        ),
    ),
    # Fragments of B under the pipelined loop were dropped where those of A ran ahead under the loop inside.
    "fragments_under_both_loops": (
        SMALL,
        Schedule(
            K_TILES,
            Reorder("k_tile", "k_in", "m", "n"),
            Split("m", 2, into=("m_block", "m_in")),
            Split("n", 2, into=("n_block", "n_in")),
            Reorder("m_block", "n_block", "k_tile", "k_in", "m_in", "n_in"),
            Bind("m_block", Level.GRID_Y),
            Bind("n_block", Level.GRID_X),
            Accumulate("k_tile"),
            Stage("A", Space.SHARED, under="k_tile"),
            Stage("B", Space.SHARED, under="k_tile"),
            Distribute("A_tile"),
            Distribute("B_tile"),
            Pipeline("k_tile", stages=2),
            Stage("A", Space.REGISTER, under="k_in"),
            Stage("B", Space.REGISTER, under="k_tile"),
            Prefetch("A_frag"),
            Epilogue(),
        ),
    ),
    # The loop that would have counted the turns does not stand around C = beta * C.
    "turning_virtual_thread_with_the_sum_in_c": (
        SMALL,
        Schedule(Split("n", 3, into=("n_block", "n_virtual")), Bind("n_virtual", Level.VTHREAD), Snake("n_virtual")),
    ),
    # The first tile was fetched in the scope of the loop, whose own names it then took.
    "prefetch_under_a_loop_of_known_extent": (
        SMALL,
        Schedule(
            Split("n", 8, into=("n_block", "n_in")),
            Split("n_in", 2, into=("n_register", "n_warp")),
            K_TILES,
            Reorder("m", "n_register", "k_in", "k_tile", "n_block", "n_warp"),
            Stage("B", Space.SHARED, under="n_warp"),
            Distribute("B_tile"),
            Prefetch("B_tile"),
        ),
    ),
    # The tile of the result spanned m_in, although each m_in has a sum, and a store, of its own.
    "staged_result_inside_a_serial_loop": (
        SMALL,
        Schedule(
            Split("m", 4, into=("m_block", "m_in")),
            Split("n", 8, into=("n_block", "n_in")),
            Bind("m_block", Level.GRID_X),
            Bind("n_block", Level.GRID_Y),
            Accumulate("k"),
            Stage("C", Space.SHARED),
            Distribute("C_tile"),
        ),
    ),
    # A register tile under a loop inside the virtual threads was filled for all of them, by a loop of the same name.
    "fragments_inside_a_virtual_thread": (
        SMALL,
        Schedule(
            Split("m", 4, into=("m_block", "m_in")),
            Split("m_in", 2, into=("m_virtual", "m_register")),
            Reorder("m_block", "m_virtual", "n", "k", "m_register"),
            Bind("m_virtual", Level.VTHREAD),
            Stage("A", Space.REGISTER, under="m_register"),
        ),
    ),
    # Two loops over the elements of one vector had the same name.
    "narrow_asynchronous_copy_in_parts": (
        SMALL,
        Schedule(
            K_TILES,
            Stage("A", Space.SHARED, under="k_tile"),
            Relayout("A_tile", pad=2),
            Distribute("A_tile", vector=4),
            Transfer("A_tile", Route.ASYNC),
        ),
    ),
    # The last inner step passed the barrier, although it read B from the tile that the next step overwrites.
    "fragments_of_one_operand_prefetched": (
        Gemm(1, 1, 23, b=Order.COL),
        Schedule(
            Split("m", 8, into=("m_block", "m_thread")),
            K_TILES,
            Bind("m_thread", Level.BLOCK_Y),
            Stage("A", Space.SHARED, under="k_tile"),
            Distribute("A_tile", vector=4),
            Stage("B", Space.SHARED, under="k_tile"),
            Distribute("B_tile", vector=4),
            Pipeline("k_tile"),
            Stage("A", Space.REGISTER, under="k_in"),
            Prefetch("A_frag"),
        ),
    ),
    # With k = 0 the loop that holds the barrier does not run, and the next m_block wrote a tile that was still read.
    "staged_result_of_an_empty_sum": (
        Gemm(9, 7, 0, beta=0.5),
        Schedule(
            Split("m", 4, into=("m_block", "m_thread")),
            Split("n", 8, into=("n_block", "n_thread")),
            K_TILES,
            Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in"),
            Bind("m_thread", Level.BLOCK_Y),
            Bind("n_thread", Level.BLOCK_X),
            Accumulate("k_tile"),
            Stage("A", Space.SHARED, under="k_tile"),
            Stage("C", Space.SHARED),
            Distribute("C_tile", vector=4),
        ),
    ),
    # A split that took all digits but one left a loop and its digit with two names.
    "split_that_leaves_one_digit": (
        SMALL,
        Schedule(
            Split("m", 2, into=("m_block", "m_in")),
            Reorder("n", "m_in", "m_block", "k"),
            Fuse("n", "m_in", into="both"),
            Split("both", 2, into=("outer", "inner")),
        ),
    ),
}


@pytest.mark.cross_section("name", "order", every=2)
@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("order", ["lockstep", "warps"])
def test_it_is_right_now(name: str, order: str) -> None:
    gemm, schedule = FOUND[name]
    operands = make_operands(gemm)
    for program in schedule.programs(gemm):
        assert check(operands, evaluate(program, operands)).ok
    for variant in (None, Variant(alignment_bytes=1, near=False)):
        computed, run = run_on_simulator(build(gemm, schedule, variant=variant), operands, schedule=order)
        verdict = check(operands, computed)
        assert verdict.ok, verdict.message
        assert run.errors == ()


def test_alpha_alone_is_refused() -> None:
    """The sum begins with beta * C, which alpha scaled as well."""
    with pytest.raises(ScheduleError, match="by alpha alone"):
        Schedule(Accumulate("k"), Epilogue(beta=False)).apply(SMALL)


def test_a_loop_bound_to_the_grid_after_raster_is_refused() -> None:
    """The numbered blocks did not count it, so its digit had no value."""
    blocks = Schedule(
        Split("n", 4, into=("n_block", "n_in")), Bind("m", Level.GRID_Y), Bind("n_block", Level.GRID_X),
        Raster(RasterOrder.ROW),
    )  # fmt: skip
    with pytest.raises(ScheduleError, match="the grid must count tiles of m and of n"):
        (blocks + Schedule(Bind("n_in", Level.GRID_Z))).apply(SMALL)


def test_a_tile_under_a_grid_loop_spans_every_serial_loop() -> None:
    """Blocks run outside of every serial loop, also of one that stands before them in the nest."""
    steps = Schedule(
        K_TILES, Reorder("k_tile", "n", "m", "k_in"), Bind("m", Level.GRID_X), Stage("A", Space.SHARED, under="m")
    )
    with pytest.raises(ScheduleError, match="would span every k"):
        steps.apply(SMALL)


@pytest.mark.parametrize(
    "name",
    ["element", "thread_in_block", "block_number", "A_value", "A_tile_m", "A_tile_step", "A_tile_next", "k_tile_stage"],
)
def test_names_of_the_kernel_are_refused(name: str) -> None:
    steps = Schedule(K_TILES, Stage("A", Space.SHARED, under="k_tile"), Split("m", 4, into=("m_block", name)))
    with pytest.raises(ScheduleError) as refusal:
        steps.apply(SMALL)
    assert "kernel" in str(refusal.value)


def test_names_given_together_are_held_against_each_other() -> None:
    with pytest.raises(ScheduleError, match="'m_block' is too close to 'm_blocks'"):
        Schedule(Split("m", 3, into=("m_block", "m_blocks"))).apply(SMALL)


def test_a_loop_bound_to_an_instruction_by_hand_is_refused() -> None:
    """Nobody ran the loop, so its digit had no value."""
    steps = Schedule(Split("n", 2, into=("n_block", "n_in")), Bind("n_in", Level.INSTRUCTION))
    with pytest.raises(ScheduleError, match="Cannot bind loop 'n_in' to instruction: an instruction runs three loops"):
        steps.apply(SMALL)


def test_warps_without_lanes_are_refused() -> None:
    """The block had a thread for each warp, and all of them took themselves for warp 0."""
    steps = Schedule(Split("m", 2, into=("m_block", "m_warp")), Bind("m_warp", Level.WARP))
    with pytest.raises(LoweringError, match="'m_warp' is bound to warps, and no loop is bound to their lanes"):
        _ = build(SMALL, steps).kernel


def test_a_block_of_a_cluster_may_stand_outside_of_whole_tiles() -> None:
    """Three tiles of m are exact for a block and not for clusters of two: the fourth block read and wrote behind C."""
    rung = find_rung("hopper/7")
    for out in (BF16, F32):  # by TMA, which clips, and by stores, which do not
        gemm = rung.gemm(384, 256, 64, out=out, beta=0.5)
        built = build(gemm, rung)
        assert built.variant.exact == {"n", "k"}
        operands = make_operands(gemm)
        computed, run = run_on_simulator(built, operands)
        assert check(operands, computed).ok and not run.errors
    assert build(rung.gemm(512, 256, 64), rung).variant.exact == {"m", "n", "k"}
