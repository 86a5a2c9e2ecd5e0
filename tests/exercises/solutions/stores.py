import tilewright as tw
from tilewright import Level, Space

gemm = tw.Gemm(128, 128, 64)

schedule = tw.Schedule(
    tw.Split("m", 128, into=("m_block", "m_in")),
    tw.Split("n", 128, into=("n_block", "n_in")),
    tw.Split("m_in", 64, into=("m_iter", "m_lanes")),
    tw.Split("n_in", 64, into=("n_iter", "n_lanes")),
    tw.Split("m_lanes", 4, into=("m_thread", "m_reg")),
    tw.Split("n_lanes", 4, into=("n_thread", "n_reg")),
    tw.Split("k", 8, into=("k_tile", "k_in")),
    tw.Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_iter", "n_iter", "m_reg", "n_reg"),
    tw.Bind("m_block", Level.GRID_Y),
    tw.Bind("n_block", Level.GRID_X),
    tw.Fuse("m_thread", "n_thread", into="thread"),
    tw.Bind("thread", Level.BLOCK_X),
    tw.Bind("m_iter", Level.VTHREAD),
    tw.Bind("n_iter", Level.VTHREAD),
    tw.Accumulate(over="k_tile"),
    tw.Stage("A", Space.SHARED, under="k_tile"),
    tw.Stage("B", Space.SHARED, under="k_tile"),
    tw.Distribute("A_tile", vector=4),
    tw.Distribute("B_tile", vector=4),
    tw.Relayout("A_tile", rows="k", arrangement=tw.Xor(bits=3, base=2, shift=0)),
    tw.Relayout("B_tile", rows="k"),
    tw.Stage("A", Space.REGISTER, under="k_in"),
    tw.Stage("B", Space.REGISTER, under="k_in"),
    tw.Vectorize("A_frag", 4),
    tw.Vectorize("B_frag", 4),
    tw.Vectorize("C", 4),
    tw.Unroll("k_in"),
    tw.Epilogue(),
)
