"""async copy: the B tile by cp.async; A still through registers, because it is transposed on the way."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Route
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Pipeline,
    Prefetch,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Transfer,
    Unroll,
    Vectorize,
)


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_piece", "m_threads")),
        Split("n_in", 64, into=("n_piece", "n_threads")),
        Split("m_threads", 4, into=("m_thread", "m_reg")),
        Split("n_threads", 4, into=("n_thread", "n_reg")),
        Split("m_thread", 4, into=("m_warp", "m_z")),
        Split("m_z", 2, into=("m_z1", "m_z0")),
        Split("n_thread", 8, into=("n_warp", "n_z")),
        Split("n_z", 4, into=("n_z2", "n_z10")),
        Split("n_z10", 2, into=("n_z1", "n_z0")),
        Split("k", 8, into=("k_tile", "k_in")),
        Reorder(
            "m_block",
            "n_block",
            "m_warp",
            "n_warp",
            "n_z2",
            "m_z1",
            "n_z1",
            "m_z0",
            "n_z0",
            "k_tile",
            "k_in",
            "m_piece",
            "n_piece",
            "m_reg",
            "n_reg",
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse("n_z2", "m_z1", "n_z1", "m_z0", "n_z0", into="lane"),
        Bind("lane", Level.LANE),
        Bind("m_piece", Level.VTHREAD),
        Bind("n_piece", Level.VTHREAD),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", rows="k"),
        Relayout("B_tile", rows="k"),
        Prefetch("A_tile"),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", 2),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


ASYNC_COPY = Rung(
    ladder="swizzle",
    number=3,
    label="async_copy",
    slug="async_copy",
    idea="the B tile is copied asynchronously, 16 bytes at once",
    schedule=schedule,
    claims=(
        Claim("no bank conflicts on shared loads", lambda c, g: c.shared_loads.excess_wavefronts == 0),
        Claim("a 16-byte load of a warp takes two wavefronts", lambda c, g: c.shared_loads.wavefronts_per_request == 2),
        Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1),
    ),
    builds_on="conflict_free",
)
