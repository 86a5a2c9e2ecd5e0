import tilewright as tw
from tilewright import F16, Level, Route, Space

gemm = tw.Gemm(128, 128, 64, F16, out=F16)

schedule = tw.Schedule(
    tw.Split("m", 128, into=("m_block", "m_in")),
    tw.Split("n", 128, into=("n_block", "n_in")),
    tw.Split("m_in", 64, into=("m_warp", "m_own")),
    tw.Split("n_in", 32, into=("n_warp", "n_own")),
    tw.Split("m_own", 16, into=("m_frag", "m_mma")),
    tw.Split("n_own", 8, into=("n_frag", "n_mma")),
    tw.Split("k", 32, into=("k_tile", "k_in")),
    tw.Split("k_in", 16, into=("k_step", "k_mma")),
    tw.Reorder(
        *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step"),
        *("m_frag", "n_frag", "m_mma", "n_mma", "k_mma"),
    ),
    tw.Bind("m_block", Level.GRID_Y),
    tw.Bind("n_block", Level.GRID_X),
    tw.Fuse("m_warp", "n_warp", into="warp"),
    tw.Bind("warp", Level.WARP),
    tw.Tensorize("m_mma", "n_mma", "k_mma", using="mma.m16n8k16"),
    tw.Accumulate(over="k_tile"),
    tw.Stage("A", Space.SHARED, under="k_tile"),
    tw.Stage("B", Space.SHARED, under="k_tile"),
    tw.Distribute("A_tile", vector=8),
    tw.Distribute("B_tile", vector=8),
    tw.Stage("A", Space.REGISTER, under="k_step"),
    tw.Stage("B", Space.REGISTER, under="k_step"),
    tw.Epilogue(),
    tw.Vectorize("C", 2),
    tw.Transfer("A_frag", Route.MATRICES),
    tw.Vectorize("A_frag", 4),
    tw.Transfer("B_frag", Route.MATRICES),
    tw.Vectorize("B_frag", 4),
    tw.Relayout("A_tile", arrangement=tw.Xor(bits=2, base=3, shift=1)),
    tw.Relayout("B_tile", arrangement=tw.Xor(bits=3, base=3, shift=0)),
)
