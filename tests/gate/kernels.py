"""A user's file of one schedule, with a pad that takes its conflicts away; tests leave it out or break it."""

PADDED = """\
import tilewright as tw

gemm = tw.Gemm(64, 64, 32)
tiled = tw.Schedule(
    tw.Split("m", 64, into=("m_block", "m_in")),
    tw.Split("n", 64, into=("n_block", "n_in")),
    tw.Split("m_in", 4, into=("m_thread", "m_reg")),
    tw.Split("n_in", 4, into=("n_thread", "n_reg")),
    tw.Split("k", 8, into=("k_tile", "k_in")),
    tw.Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg"),
    *(tw.Bind("m_block", tw.Level.GRID_Y), tw.Bind("n_block", tw.Level.GRID_X)),
    *(tw.Bind("m_thread", tw.Level.BLOCK_Y), tw.Bind("n_thread", tw.Level.BLOCK_X)),
    tw.Accumulate(over="k_tile"),
    *(tw.Stage("A", tw.Space.SHARED, under="k_tile"), tw.Stage("B", tw.Space.SHARED, under="k_tile")),
    *(tw.Distribute("A_tile"), tw.Distribute("B_tile")),
    tw.Relayout("A_tile", rows="k", pad=4),
    tw.Epilogue(),
)
"""
CONFLICTING = PADDED.replace(", pad=4", "")
