import tilewright as tw
from tilewright import Level, Route, Space

gemm = tw.Gemm(128, 128, 64)

schedule = tw.Schedule(
    tw.Split("m", 128, into=("m_block", "m_in")),
    tw.Split("n", 128, into=("n_block", "n_in")),
    tw.Split("m_in", 64, into=("m_warp", "m_sub")),
    tw.Split("n_in", 64, into=("n_warp", "n_sub")),
    tw.Split("m_sub", 64, into=("m_iter", "m_lanes")),
    tw.Split("n_sub", 16, into=("n_iter", "n_lanes")),
    tw.Split("m_lanes", 8, into=("m_lane", "m_reg")),
    tw.Split("n_lanes", 4, into=("n_lane", "n_reg")),
    tw.Split("k", 16, into=("k_tile", "k_in")),
    tw.Reorder(
        *("m_block", "n_block", "m_warp", "n_warp", "m_lane", "n_lane"),
        *("k_tile", "k_in", "m_iter", "n_iter", "m_reg", "n_reg"),
    ),
    tw.Bind("m_block", Level.GRID_Y),
    tw.Bind("n_block", Level.GRID_X),
    tw.Fuse("m_warp", "n_warp", into="warp"),
    tw.Bind("warp", Level.WARP),
    tw.Fuse("m_lane", "n_lane", into="lane"),
    tw.Bind("lane", Level.LANE),
    tw.Accumulate(over="k_tile"),
    tw.Stage("A", Space.SHARED, under="k_tile"),
    tw.Stage("B", Space.SHARED, under="k_tile"),
    tw.Distribute("A_tile", vector=4),
    tw.Distribute("B_tile", vector=4),
    tw.Relayout("A_tile", rows="k"),
    tw.Relayout("B_tile", rows="k"),
    tw.Transfer("A_tile", Route.ASYNC),
    tw.Transfer("B_tile", Route.ASYNC),
    tw.Pipeline("k_tile", 2),
    tw.Stage("A", Space.REGISTER, under="k_in"),
    tw.Stage("B", Space.REGISTER, under="k_in"),
    tw.Vectorize("A_frag", 4),
    tw.Vectorize("B_frag", 4),
    tw.Vectorize("C", 4),
    tw.Unroll("k_in"),
    tw.Epilogue(),
)
