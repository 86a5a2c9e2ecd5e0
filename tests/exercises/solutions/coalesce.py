import tilewright as tw
from tilewright import Level

gemm = tw.Gemm(128, 128, 64)

schedule = tw.Schedule(
    tw.Split("m", 32, into=("m_block", "m_thread")),
    tw.Split("n", 32, into=("n_block", "n_thread")),
    tw.Reorder("m_block", "n_block", "m_thread", "n_thread"),
    tw.Bind("m_block", Level.GRID_X),
    tw.Bind("n_block", Level.GRID_Y),
    tw.Fuse("m_thread", "n_thread", into="thread"),
    tw.Bind("thread", Level.BLOCK_X),
    tw.Accumulate(over="k"),
    tw.Epilogue(),
)
