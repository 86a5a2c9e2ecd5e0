import tilewright as tw
from tilewright import Level, Space

gemm = tw.Gemm(128, 128, 64)

schedule = tw.Schedule(
    tw.Split("m", 32, into=("m_block", "m_thread")),
    tw.Split("n", 32, into=("n_block", "n_thread")),
    tw.Split("k", 32, into=("k_tile", "k_in")),
    tw.Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in"),
    tw.Bind("m_block", Level.GRID_X),
    tw.Bind("n_block", Level.GRID_Y),
    tw.Fuse("m_thread", "n_thread", into="thread"),
    tw.Bind("thread", Level.BLOCK_X),
    tw.Accumulate(over="k_tile"),
    tw.Stage("A", Space.SHARED, under="k_tile"),
    tw.Stage("B", Space.SHARED, under="k_tile"),
    tw.Distribute("A_tile"),
    tw.Distribute("B_tile"),
    tw.Unroll("k_in"),
    tw.Epilogue(),
)
