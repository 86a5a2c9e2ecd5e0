"""Schedules that are refused at their last step, one for every refusal of every step and law."""

from __future__ import annotations

from tilewright.dtypes import F16, F32, TF32
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Pattern, RasterOrder, Route
from tilewright.layout.arrangement import Auto, Interleaved, Permuted, Xor
from tilewright.problem.gemm import Gemm
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
    Snake,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Unroll,
    Vectorize,
)

GEMM = Gemm(64, 64, 64)

M = Split("m", 32, into=("m_block", "m_thread"))
N = Split("n", 8, into=("n_block", "n_in"))
K = Split("k", 8, into=("k_tile", "k_in"))
A_TILE = Stage("A", Space.SHARED, under="k_tile")
TILED = (M, K, Bind("m_block", Level.GRID_Y), Bind("m_thread", Level.BLOCK_X), A_TILE)
SHARED = (*TILED, Distribute("A_tile"))
SUMS = (M, N, K, Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X), Reorder("k_tile", "n_in"))
THREADS = (Split("m", 64, into=("m_block", "m_thread")), K, Bind("m_thread", Level.BLOCK_X), A_TILE)

REFUSED: dict[str, tuple[Step, ...]] = {
    # names
    "no_such_loop": (K, Unroll("k_til")),
    "no_such_tile": (*TILED, Distribute("A_tle")),
    "nothing_staged": (Distribute("A_tile"),),
    "name_taken": (Split("m", 8, into=("n", "m_in")),),
    "name_no_identifier": (Split("m", 8, into=("m.block", "m_in")),),
    "name_of_the_kernel": (Split("m", 8, into=("m_block", "element")),),
    "name_too_close": (*TILED, Split("n", 8, into=("n_block", "A_tile_m"))),
    "names_not_distinct": (Split("m", 8, into=("x", "x")),),
    "name_of_an_argument": (Accumulate("k", name="alpha"),),
    # Split
    "split_by_nothing": (Split("m", 0, into=("m_block", "m_in")),),
    "split_by_a_part": (Split("m", 2.5, into=("m_block", "m_in")),),  # type: ignore[arg-type]
    "split_into_one": (Split("m", 4, into=("m_block",)),),  # type: ignore[arg-type]
    "split_bound": (Bind("m", Level.GRID_X), Split("m", 8, into=("m_block", "m_in"))),
    "split_no_divisor": (M, Split("m_thread", 5, into=("a", "b"))),
    "split_prime": (Split("m", 7, into=("a", "b")), Split("b", 2, into=("c", "d"))),
    "split_used": (K, A_TILE, Split("k_tile", 2, into=("a", "b"))),
    "split_fused_by_too_much": (
        *(M, N, Reorder("m_block", "n_block", "m_thread", "n_in"), Fuse("m_thread", "n_in", into="both")),
        Split("both", 512, into=("a", "b")),
    ),
    "split_fused_by_one": (Fuse("m", "n", into="both"), Split("both", 1, into=("a", "b"))),
    # Fuse
    "fuse_one": (Fuse("m", into="x"),),
    "fuse_apart": (Fuse("m", "k", into="x"),),
    "fuse_bound": (Bind("m", Level.GRID_X), Fuse("m", "n", into="x")),
    "fuse_sum_and_not": (Fuse("n", "k", into="x"),),
    "fuse_used": (K, Accumulate("k_tile"), Fuse("k_tile", "k_in", into="x")),
    "fuse_into_a_digit": (Fuse("m", "n", into="m"),),
    # Reorder
    "reorder_twice": (Reorder("m", "n", "m"),),
    # Bind
    "bind_twice": (Bind("m", Level.GRID_X), Bind("m", Level.GRID_Y)),
    "bind_taken": (Bind("m", Level.GRID_X), Bind("n", Level.GRID_X)),
    "bind_sum": (Bind("k", Level.GRID_X),),
    "bind_unknown_extent": (Bind("m", Level.BLOCK_X),),
    "bind_lanes": (N, Bind("n_in", Level.LANE)),
    "bind_mix": (M, N, Bind("m_thread", Level.LANE), Bind("n_in", Level.BLOCK_Y)),
    "bind_to_an_instruction": (M, Bind("m_thread", Level.INSTRUCTION)),
    "bind_too_many": (
        Split("m", 64, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
    ),
    # Unroll
    "unroll_bound": (Bind("m", Level.GRID_X), Unroll("m")),
    "unroll_unknown_extent": (Unroll("k"),),
    "unroll_less_than_no_block": (K, Unroll("k_in", blocks=-1)),
    # Accumulate
    "accumulate_twice": (Accumulate("k"), Accumulate("k", name="again")),
    "accumulate_over_no_sum": (Accumulate("m"),),
    "accumulate_inside": (K, Accumulate("k_in")),
    "accumulate_everything": (Reorder("k", "n"), Accumulate("k")),
    "accumulate_too_much": (
        *(Split("m", 128, into=("m_block", "m_in")), Split("n", 64, into=("n_block", "n_in"))),
        *(Reorder("m_block", "n_block", "k", "m_in", "n_in"), Accumulate("k")),
    ),
    "promote_less_than_never": (Accumulate("k", promote_every=-1),),
    "promote_parts_of_a_tile": (K, Accumulate("k_tile", promote_every=3)),
    "promote_out_of_order": (K, Reorder("k_in", "k_tile"), Accumulate("k_in", promote_every=8)),
    "promote_a_part_of_the_sum": (
        *(K, Split("m", 4, into=("m_block", "m_in")), Reorder("m_block", "n", "k_tile", "m_in", "k_in")),
        Accumulate("k_tile", promote_every=2),
    ),
    # Stage
    "stage_no_operand": (Stage("D", Space.SHARED, under="k"),),  # type: ignore[arg-type]
    "stage_in_global": (Stage("A", Space.GLOBAL, under="k"),),
    "stage_nowhere": (Stage("A", Space.SHARED),),
    "stage_twice": (K, A_TILE, Stage("A", Space.SHARED, under="k_tile", name="A_again")),
    "stage_everything": (Stage("A", Space.SHARED, under="n"),),
    "stage_result_in_registers": (Stage("C", Space.REGISTER),),
    "stage_result_without_sum": (Stage("C", Space.SHARED),),
    "stage_result_under": (Accumulate("k"), Stage("C", Space.SHARED, under="k")),
    "stage_inside_a_thread": (
        *(Split("m", 4, into=("m_block", "m_virtual")), Reorder("m_block", "n", "k", "m_virtual")),
        *(Bind("m_virtual", Level.VTHREAD), Stage("A", Space.SHARED, under="m_virtual")),
    ),
    "stage_fragments_first": (
        *(K, Split("k_in", 4, into=("k_mid", "k_last"))),
        *(Stage("A", Space.SHARED, under="k_mid"), Stage("A", Space.REGISTER, under="k_tile")),
    ),
    "stage_fragments_too_large": (
        Split("k", 8192, into=("k_tile", "k_in")),
        Stage("A", Space.REGISTER, under="k_tile"),
    ),
    # Distribute
    "distribute_registers": (K, Stage("A", Space.REGISTER, under="k_tile"), Distribute("A_frag")),
    "distribute_twice": (*SHARED, Distribute("A_tile")),
    "distribute_too_wide": (*TILED, Distribute("A_tile", vector=8)),
    "distribute_by_three": (K, A_TILE, Distribute("A_tile", vector=3)),
    "distribute_short_rows": (Split("k", 2, into=("k_tile", "k_in")), A_TILE, Distribute("A_tile", vector=4)),
    # Relayout
    "relayout_registers": (K, Stage("A", Space.REGISTER, under="k_tile"), Relayout("A_frag", pad=1)),
    "relayout_rows": (*TILED, Relayout("A_tile", rows="n")),
    "relayout_pad": (*TILED, Relayout("A_tile", pad=-1)),
    "relayout_interleaved": (*TILED, Relayout("A_tile", arrangement=Interleaved(3))),
    "relayout_xor": (*TILED, Relayout("A_tile", arrangement=Xor(bits=3, base=2))),
    "relayout_table_of_another_length": (*TILED, Relayout("A_tile", arrangement=Permuted((1, 0, 2)))),
    "relayout_no_permutation": (*TILED, Relayout("A_tile", arrangement=Permuted((0, 1, 2, 3, 4, 5, 6, 6)))),
    "relayout_table_of_no_numbers": (*TILED, Relayout("A_tile", arrangement=Permuted([1, 0]))),  # type: ignore[arg-type]
    "relayout_open_with_a_pad": (*TILED, Relayout("A_tile", pad=4, arrangement=Auto())),
    "relayout_breaks_a_vector": (
        *(K, A_TILE, Stage("A", Space.REGISTER, under="k_tile"), Vectorize("A_frag", 4)),
        Relayout("A_tile", arrangement=Permuted((1, 0, 2, 3, 4, 5, 6, 7))),
    ),
    # Vectorize
    "vectorize_shared": (*TILED, Vectorize("A_tile", 4)),
    "vectorize_too_wide": (K, Stage("A", Space.REGISTER, under="k_tile"), Vectorize("A_frag", 3)),
    "vectorize_none": (K, Stage("A", Space.REGISTER, under="k_in"), Vectorize("A_frag", 4)),
    "vectorize_turned": (*SUMS, A_TILE, Stage("A", Space.REGISTER, under="k_in"), Vectorize("A_frag", 2)),
    "vectorize_misaligned": (
        *(K, A_TILE, Relayout("A_tile", pad=1), Stage("A", Space.REGISTER, under="k_tile"), Vectorize("A_frag", 4)),
    ),
    "vectorize_result": (Accumulate("k"), Vectorize("C", 4)),
    # Epilogue
    "epilogue_text": (Accumulate("k"), Epilogue(alpha="x")),  # type: ignore[arg-type]
    "epilogue_without_sum": (Epilogue(),),
    "epilogue_alpha_alone": (Accumulate("k"), Epilogue(beta=False)),
    # Raster
    "raster_no_grid": (Raster(RasterOrder.ROW),),
    "raster_group": (Bind("m", Level.GRID_Y), Bind("n", Level.GRID_X), Raster(RasterOrder.ROW, 2)),
    "raster_then_bind": (
        *(N, Bind("m", Level.GRID_Y), Bind("n_block", Level.GRID_X), Raster(RasterOrder.ROW)),
        Bind("n_in", Level.GRID_Z),
    ),
    # Prefetch
    "prefetch_undistributed": (*TILED, Prefetch("A_tile")),
    "prefetch_and_async": (*SHARED, Transfer("A_tile", Route.ASYNC), Prefetch("A_tile")),
    "prefetch_fragments": (*SHARED, Stage("A", Space.REGISTER, under="k_in"), Prefetch("A_frag")),
    "prefetch_fragments_late": (
        *(*SHARED, Pipeline("k_tile"), Stage("A", Space.REGISTER, under="k_tile"), Prefetch("A_frag")),
    ),
    # Pipeline
    "pipeline_twice": (*SHARED, Pipeline("k_tile"), Pipeline("k_tile")),
    "pipeline_stages": (*SHARED, Pipeline("k_tile", 1)),
    "pipeline_alternating_stages": (*SHARED, Pipeline("k_tile", 3, alternating=True)),
    "pipeline_no_sum": (*SHARED, Pipeline("n")),
    "pipeline_no_tile": (K, Pipeline("k_tile")),
    "pipeline_undistributed": (*TILED, Pipeline("k_tile")),
    "pipeline_half_warps": (*SHARED, Pipeline("k_tile", alternating=True)),
    "pipeline_alternating_prefetched": (
        *(*THREADS, Distribute("A_tile"), Prefetch("A_tile"), Pipeline("k_tile", alternating=True)),
    ),
    "pipeline_fused": (
        *(K, Split("k_tile", 2, into=("k_a", "k_b")), Fuse("k_a", "k_b", into="both")),
        *(Stage("A", Space.SHARED, under="both"), Distribute("A_tile"), Pipeline("both")),
    ),
    # Transfer
    "transfer_undistributed": (*TILED, Transfer("A_tile", Route.ASYNC)),
    # Snake
    "snake_sum": (Snake("k"),),
    "snake_outermost": (M, Bind("m_block", Level.GRID_Y), Reorder("m_thread", "n"), Snake("m_thread")),
}
"""By what is wrong. The texts stand in tests/golden/schedule_refusals.txt."""

HALF = Gemm(64, 64, 64, F16, out=F16)
TURNED_TF32 = Gemm(64, 64, 64, F32, product=TF32)

NEST = (
    Split("m", 32, into=("m_warp", "m_own")),
    Split("m_own", 16, into=("m_frag", "m_mma")),
    Split("n", 16, into=("n_block", "n_own")),
    Split("n_own", 8, into=("n_frag", "n_mma")),
    Split("k", 32, into=("k_tile", "k_in")),
    Split("k_in", 16, into=("k_step", "k_mma")),
    Reorder("n_block", "m_warp", "k_tile", "k_step", "m_frag", "n_frag", "m_mma", "n_mma", "k_mma"),
    Bind("n_block", Level.GRID_X),
)
MMA = Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k16")
TENSOR = (*NEST, Bind("m_warp", Level.GRID_Y), MMA, Accumulate("k_tile"))
STAGED = (
    *TENSOR,
    *(Stage("A", Space.SHARED, under="k_tile"), Stage("B", Space.SHARED, under="k_tile")),
    *(Stage("A", Space.REGISTER, under="k_step"), Stage("B", Space.REGISTER, under="k_step")),
)
ASYNCHRONOUS = (
    *STAGED,
    *(Distribute("A_tile", vector=2), Distribute("B_tile", vector=2)),
    *(Transfer("A_tile", Route.ASYNC), Transfer("B_tile", Route.ASYNC)),
)
WHOLE_TILES = (
    *(Split("m", 16, into=("m_block", "m_mma")), Split("n", 16, into=("n_block", "n_mma"))),
    *(Split("k", 16, into=("k_tile", "k_mma")), Reorder("m_block", "n_block", "k_tile", "m_mma", "n_mma", "k_mma")),
    *(Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X)),
    *(Tensorize("m_mma", "n_mma", "k_mma", using="wmma.m16n16k16"), Accumulate("k_tile")),
    *(Stage("A", Space.SHARED, under="k_tile"), Stage("A", Space.REGISTER, under="k_tile")),
)
SHALLOW = (
    *(Split("m", 16, into=("m_block", "m_mma")), Split("n", 8, into=("n_block", "n_mma"))),
    *(Split("k", 8, into=("k_tile", "k_mma")), Reorder("m_block", "n_block", "k_tile", "m_mma", "n_mma", "k_mma")),
    *(Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X)),
    *(Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k8"), Accumulate("k_tile")),
    *(Stage("B", Space.SHARED, under="k_tile"), Stage("B", Space.REGISTER, under="k_tile")),
)

REFUSED_OF_TENSOR_CORES: dict[str, tuple[Gemm, tuple[Step, ...]]] = {
    # Tensorize
    "tensorize_unknown": (HALF, (*NEST, Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k64"))),
    "tensorize_f32": (GEMM, (*NEST, MMA)),
    "tensorize_tf32_by_another": (TURNED_TF32, (*NEST, MMA)),
    "tensorize_twice": (HALF, (*TENSOR, MMA)),
    "tensorize_no_such_loop": (HALF, (*NEST, Tensorize("m_mm", "n_mma", "k_mma", using="mma.m16n8k16"))),
    "tensorize_other_extent": (HALF, (*NEST, Tensorize("m_frag", "n_mma", "k_mma", using="mma.m16n8k16"))),
    "tensorize_swapped": (HALF, (*NEST, Tensorize("n_mma", "m_mma", "k_mma", using="mma.m16n8k16"))),
    "tensorize_whole_tiles_turned": (
        HALF,
        (
            *(Split("m", 16, into=("m_block", "m_mma")), Split("n", 16, into=("n_block", "n_mma"))),
            *(Split("k", 16, into=("k_tile", "k_mma")), Tensorize("n_mma", "m_mma", "k_mma", using="wmma.m16n16k16")),
        ),
    ),
    "tensorize_bound": (
        HALF,
        (Split("m", 16, into=("m_block", "m_mma")), Bind("m_mma", Level.BLOCK_X), MMA),
    ),
    "tensorize_apart": (
        HALF,
        (Split("m", 2, into=("m_out", "m_in")), Split("m_out", 16, into=("m_block", "m_mma")), MMA),
    ),
    "tensorize_under_threads": (HALF, (*NEST, Bind("m_frag", Level.BLOCK_X), MMA)),
    "bind_lanes_of_an_instruction": (HALF, (*TENSOR, Bind("m_frag", Level.BLOCK_X))),
    "split_an_instruction": (HALF, (*TENSOR, Split("k_mma", 8, into=("k_a", "k_b")))),
    # Transfer
    "matrices_without_an_instruction": (
        HALF,
        (*NEST, Stage("A", Space.REGISTER, under="k_step"), Transfer("A_frag", Route.MATRICES)),
    ),
    "matrices_into_shared": (HALF, (*STAGED, Transfer("A_tile", Route.MATRICES))),
    "matrices_from_global": (
        HALF,
        (*TENSOR, Stage("A", Space.REGISTER, under="k_step"), Transfer("A_frag", Route.MATRICES)),
    ),
    "matrices_of_wmma": (HALF, (*WHOLE_TILES, Transfer("A_frag", Route.MATRICES))),
    "matrices_misaligned": (HALF, (*STAGED, Relayout("A_tile", pad=4), Transfer("A_frag", Route.MATRICES))),
    "matrices_then_a_pad": (HALF, (*STAGED, Transfer("A_frag", Route.MATRICES), Relayout("A_tile", pad=4))),
    "matrices_turned": (TURNED_TF32, (*SHALLOW, Transfer("B_frag", Route.MATRICES))),
    "matrices_too_many": (HALF, (*STAGED, Transfer("A_frag", Route.MATRICES), Vectorize("A_frag", 8))),
    "matrices_of_half_a_fragment": (HALF, (*STAGED, Transfer("A_frag", Route.MATRICES), Vectorize("A_frag", 2))),
    # fragments
    "vectorize_a_whole_fragment": (HALF, (*WHOLE_TILES, Vectorize("A_frag", 2))),
    "vectorize_elements_apart": (HALF, (*STAGED, Vectorize("B_frag", 2))),
    "vectorize_a_fragment_too_wide": (HALF, (*STAGED, Vectorize("A_frag", 4))),
    "vectorize_fragments_of_misaligned_rows": (
        HALF,
        (*STAGED, Relayout("A_tile", pad=1), Vectorize("A_frag", 2)),
    ),
    "vectorize_results_of_a_fragment": (HALF, (*TENSOR, Vectorize("C", 4))),
    "vectorize_results_of_wmma": (HALF, (*WHOLE_TILES, Vectorize("C", 2))),
    # Pipeline
    "halves_of_a_block_take_turns": (
        HALF,
        (*STAGED, Distribute("A_tile"), Distribute("B_tile"), Pipeline("k_tile", 2, alternating=True)),
    ),
    "spread_over_no_loop": (
        HALF,
        (*STAGED, Distribute("A_tile"), Distribute("B_tile"), Pipeline("k_tile", 3, interleave="k_st")),
    ),
    "spread_over_another_loop": (
        HALF,
        (*STAGED, Distribute("A_tile"), Distribute("B_tile"), Pipeline("k_tile", 3, interleave="m_frag")),
    ),
    "behind_products_through_registers": (
        HALF,
        (
            *STAGED,
            Distribute("A_tile"),
            Distribute("B_tile"),
            Pipeline("k_tile", 3, interleave="k_step", issue_distance=1),
        ),
    ),
    "behind_too_many_products": (HALF, (*ASYNCHRONOUS, Pipeline("k_tile", 3, interleave="k_step", issue_distance=2))),
    "behind_products_of_no_step": (HALF, (*ASYNCHRONOUS, Pipeline("k_tile", 3, issue_distance=1))),
    # Prefetch
    "fenced_fragments": (HALF, (*ASYNCHRONOUS, Pipeline("k_tile", 3), Prefetch("A_frag", fence=True))),
    "a_tile_in_place": (HALF, (*ASYNCHRONOUS, Pipeline("k_tile", 3), Prefetch("A_tile", in_place=True))),
    "inner_fragments_in_place": (HALF, (*ASYNCHRONOUS, Pipeline("k_tile", 3), Prefetch("B_frag", in_place=True))),
    "turning_fragments_in_place": (
        HALF,
        (*ASYNCHRONOUS, Pipeline("k_tile", 3), Prefetch("A_frag", in_place=True), Snake("m_frag")),
    ),
    "fragments_in_place_of_a_tile_that_is_loaded_first": (
        HALF,
        (
            *(*STAGED, Distribute("A_tile", vector=2), Distribute("B_tile"), Pipeline("k_tile", 3)),
            Prefetch("A_frag", in_place=True),
        ),
    ),
    # Distribute
    "threads_along_a_row_and_some_left": (HALF, (*STAGED, Distribute("A_tile", vector=2, row_threads=5))),
    "threads_along_a_row_of_runs": (
        HALF,
        (*STAGED, Distribute("A_tile", vector=2, pattern=Pattern.BLOCKED, row_threads=4)),
    ),
}
"""By what is wrong, with the problem. The texts stand in tests/golden/tensor_core_refusals.txt."""
