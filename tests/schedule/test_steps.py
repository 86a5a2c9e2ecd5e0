"""What each step does to the text of a program: before, the step, after. A person has read the golden file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.refusals import hopper_cases as hopper
from tilewright.dtypes import F16
from tilewright.errors import ScheduleError
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Pattern, RasterOrder, Route
from tilewright.ir.program_text import program_text
from tilewright.layout.arrangement import Auto, Interleaved, Permuted, Xor
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    STEPS,
    Accumulate,
    Bind,
    Cluster,
    DependentLaunch,
    Distribute,
    Epilogue,
    Fuse,
    Persist,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Schedule,
    Snake,
    Specialize,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Unroll,
    Vectorize,
)

GEMM = Gemm(64, 64, 64, b=Order.COL)

TILES = (
    Split("m", 64, into=("m_block", "m_in")),
    Split("n", 32, into=("n_block", "n_in")),
    Split("m_in", 8, into=("m_thread", "m_reg")),
    Split("n_in", 4, into=("n_thread", "n_reg")),
    Split("k", 8, into=("k_tile", "k_in")),
    Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg"),
)
BOUND = (
    *TILES,
    Bind("m_block", Level.GRID_Y),
    Bind("n_block", Level.GRID_X),
    Bind("m_thread", Level.BLOCK_Y),
    Bind("n_thread", Level.BLOCK_X),
)
SUMS = (*BOUND, Accumulate("k_tile"))
SHARED = (*SUMS, Stage("A", Space.SHARED, under="k_tile"), Stage("B", Space.SHARED, under="k_tile"))
COPIES = (*SHARED, Distribute("A_tile", vector=4), Distribute("B_tile", vector=4, pattern=Pattern.BLOCKED))
FRAGMENTS = (*COPIES, Relayout("A_tile", rows="k"), Stage("A", Space.REGISTER, under="k_in"))

TENSOR_GEMM = Gemm(256, 256, 256, F16, out=F16)
WARPS = (
    Split("m", 32, into=("m_warp", "m_own")),
    Split("m_own", 16, into=("m_frag", "m_mma")),
    Split("n", 16, into=("n_block", "n_own")),
    Split("n_own", 8, into=("n_frag", "n_mma")),
    Split("k", 32, into=("k_tile", "k_in")),
    Split("k_in", 16, into=("k_step", "k_mma")),
    Reorder("n_block", "m_warp", "k_tile", "k_step", "m_frag", "n_frag", "m_mma", "n_mma", "k_mma"),
    Bind("n_block", Level.GRID_X),
    Bind("m_warp", Level.GRID_Y),
)
TENSOR_FRAGMENTS = (
    *WARPS,
    Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k16"),
    Accumulate("k_tile"),
    Stage("A", Space.SHARED, under="k_tile"),
    Stage("B", Space.SHARED, under="k_tile"),
    Stage("A", Space.REGISTER, under="k_step"),
    Stage("B", Space.REGISTER, under="k_step"),
)

ASYNCHRONOUS = (
    *TENSOR_FRAGMENTS,
    *(Distribute("A_tile", vector=8), Distribute("B_tile", vector=8)),
    *(Transfer("A_tile", Route.ASYNC), Transfer("B_tile", Route.ASYNC)),
)

CASES: dict[str, tuple[tuple[Step, ...], Step]] = {
    "split": ((), Split("m", 8, into=("m_block", "m_in"))),
    "split a loop of known extent": ((TILES[0],), Split("m_in", 16, into=("m_thread", "m_reg"))),
    "split a fused loop": ((TILES[0], Fuse("m_in", "n", into="t")), Split("t", 8, into=("t_out", "t_in"))),
    "fuse": ((TILES[0],), Fuse("m_in", "n", into="columns")),
    "fuse loops of run-time extent": ((), Fuse("m", "n", into="results")),
    "reorder": ((), Reorder("k", "m")),
    "bind to the grid": ((), Bind("m", Level.GRID_X)),
    "bind to threads": (TILES, Bind("m_thread", Level.BLOCK_X)),
    "bind to a virtual thread": (SUMS, Bind("n_reg", Level.VTHREAD)),
    "unroll": (TILES, Unroll("k_in")),
    "unroll with the registers of two blocks": (TILES, Unroll("k_in", blocks=2)),
    "accumulate": (BOUND, Accumulate("k_tile")),
    "stage in shared memory": (SUMS, Stage("A", Space.SHARED, under="k_tile")),
    "stage in registers": (COPIES, Stage("B", Space.REGISTER, under="k_in")),
    "stage the result": (SUMS, Stage("C", Space.SHARED)),
    "distribute": (SHARED, Distribute("B_tile", vector=4, pattern=Pattern.BLOCKED)),
    "relayout row-major": (COPIES, Relayout("A_tile", rows="k", pad=4)),
    "relayout interleaved": (COPIES, Relayout("B_tile", rows="k", arrangement=Interleaved(4))),
    "relayout by xor": (COPIES, Relayout("A_tile", arrangement=Xor(bits=1, base=2, shift=1))),
    "relayout by a table": (COPIES, Relayout("A_tile", arrangement=Permuted((2, 3, 0, 1, 7, 6, 5, 4)))),
    "relayout left open": (COPIES, Relayout("A_tile", rows="k", arrangement=Auto())),
    "vectorize a fragment": (FRAGMENTS, Vectorize("A_frag", 4)),
    "vectorize the result": (SUMS, Vectorize("C", 4)),
    "epilogue": (SUMS, Epilogue()),
    "raster": (BOUND, Raster(RasterOrder.GROUPED, 8)),
    "prefetch": (COPIES, Prefetch("A_tile")),
    "prefetch in front of a fence": (COPIES, Prefetch("A_tile", fence=True)),
    "prefetch fragments": ((*FRAGMENTS, Pipeline("k_tile", 2)), Prefetch("A_frag")),
    "pipeline": (COPIES, Pipeline("k_tile", 3)),
    "transfer": (COPIES, Transfer("A_tile", Route.ASYNC)),
    "snake": (SUMS, Snake("n_reg")),
    "tensorize": (WARPS, Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k16")),
    "load fragments as matrices": (TENSOR_FRAGMENTS, Transfer("A_frag", Route.MATRICES)),
    "load several fragments at once": (
        (*TENSOR_FRAGMENTS, Transfer("B_frag", Route.MATRICES)),
        Vectorize("B_frag", 4),
    ),
    "pipeline with copies between products": (
        (*TENSOR_FRAGMENTS, Distribute("A_tile", vector=8), Distribute("B_tile", vector=8)),
        Pipeline("k_tile", 3, interleave="k_step"),
    ),
    "pipeline with copies behind products": (
        ASYNCHRONOUS,
        Pipeline("k_tile", 3, interleave="k_step", issue_distance=1),
    ),
    "replace fragments one by one": ((*ASYNCHRONOUS, Pipeline("k_tile", 3)), Prefetch("A_frag", in_place=True)),
    "share out rows among a few threads each": (TENSOR_FRAGMENTS, Distribute("A_tile", vector=8, row_threads=2)),
    "make blocks persistent that copy for themselves": (
        (*ASYNCHRONOUS, Pipeline("k_tile", 3), Raster(RasterOrder.ROW)),
        Persist(),
    ),
    "bring tiles by TMA": (hopper.SWIZZLED, Transfer("A_tile", Route.TMA)),
    "give the copies to a warpgroup": (hopper.RING, Specialize()),
    "make blocks persistent": (hopper.NUMBERED, Persist()),
    "make clusters": (hopper.NUMBERED, Cluster("m_block")),
    "overlap kernels": (hopper.RING, DependentLaunch()),
}


def gemm_of(name: str) -> Gemm:
    """The problem of a case: tensor cores do not multiply f32."""
    before, step = CASES[name]
    if before[: len(hopper.NEST)] == hopper.NEST:
        return hopper.GEMM
    return TENSOR_GEMM if any(isinstance(s, Tensorize) for s in (*before, step)) else GEMM


def test_each_step_does_what_its_text_says(golden: Callable[[str, str], None]) -> None:
    pages = []
    for name, (before, step) in CASES.items():
        programs = list(Schedule(*before, step).programs(gemm_of(name)))
        pages.append(f"## {name}\n\n{program_text(programs[-2])}\n-> {step!r}\n\n{program_text(programs[-1])}")
    golden("steps.txt", "\n".join(pages))


def test_every_step_is_shown() -> None:
    assert {type(step) for _, step in CASES.values()} == set(STEPS)


@pytest.mark.parametrize("name", CASES)
def test_a_step_says_what_it_speaks_of(name: str) -> None:
    """Only the names that a program has after the step: counts are laid at their door."""
    before, step = CASES[name]
    program = Schedule(*before, step).apply(gemm_of(name))
    total = [program.accumulation.name] if program.accumulation is not None else []
    known = {*program.loop_names, *(staged.name for staged in program.staged), *total, "C"}
    assert set(step.names()) <= known


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_step_is_the_step(name: str) -> None:
    _, step = CASES[name]
    kinds = (*STEPS, Level, Space, Pattern, RasterOrder, Route, Auto, Interleaved, Permuted, Xor)
    words = {cls.__name__: cls for cls in kinds}
    assert eval(repr(step), words) == step


@pytest.mark.parametrize(
    "step",
    [Bind("m", "grid.x"), Raster("row"), Stage("A", "shared", under="k"), Transfer("A", "cp"), Distribute("A", 1, "x")],
    ids=lambda step: type(step).__name__,
)
def test_a_string_in_place_of_a_member_is_refused_with_the_members(step: Step) -> None:
    with pytest.raises(ScheduleError, match=r"^'.*' is not a \w+\.\n  step 1 of 1: .*\n  Hint: use \w+\.\w+"):
        Schedule(step).apply(Gemm(8, 8, 8))
