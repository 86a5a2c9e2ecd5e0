import tilewright as tw
from tilewright import BF16, Level, Route, Space

gemm = tw.Gemm(256, 256, 128, BF16, out=BF16)

schedule = tw.Schedule(
    tw.Split("m", 128, into=("m_block", "m_in")),
    tw.Split("m_in", 64, into=("m_group", "m_own")),
    tw.Split("m_own", 64, into=("m_frag", "m_mma")),
    tw.Split("n", 256, into=("n_block", "n_mma")),
    tw.Split("k", 64, into=("k_tile", "k_in")),
    tw.Split("k_in", 16, into=("k_step", "k_mma")),
    tw.Reorder("m_block", "n_block", "m_group", "k_tile", "k_step", "m_frag", "m_mma", "n_mma", "k_mma"),
    tw.Bind("m_block", Level.GRID_Y),
    tw.Bind("n_block", Level.GRID_X),
    tw.Bind("m_group", Level.WARPGROUP),
    tw.Tensorize("m_mma", "n_mma", "k_mma", using="wgmma.m64n256k16"),
    tw.Accumulate(over="k_tile"),
    tw.Unroll("k_step"),
    tw.Epilogue(),
    tw.Stage("A", Space.SHARED, under="k_tile"),
    tw.Stage("B", Space.SHARED, under="k_tile"),
    tw.Relayout("A_tile", arrangement=tw.SwizzleAtoms(64)),
    tw.Relayout("B_tile", arrangement=tw.SwizzleAtoms(64)),
    tw.Transfer("A_tile", Route.TMA),
    tw.Transfer("B_tile", Route.TMA),
    tw.Pipeline("k_tile", 3),
    tw.Specialize(),
    tw.Stage("C", Space.SHARED, subtile=64, stages=2),
    tw.Relayout("C_tile", arrangement=tw.SwizzleAtoms(64)),
    tw.Transfer("C_tile", Route.TMA),
)
