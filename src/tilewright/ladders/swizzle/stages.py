"""multi-stage: rings of two, three and four stages filled by cp.async.

The stage number is a counter that starts again, not a remainder: three stages cost no division.
"""

from functools import partial

from tilewright.dtypes import F32, TF32
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
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Tensorize,
    Transfer,
)


def schedule(gemm: Gemm, stages: int) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_own")),
        Split("n_in", 32, into=("n_warp", "n_own")),
        Split("m_own", 16, into=("m_frag", "m_wmma")),
        Split("n_own", 16, into=("n_frag", "n_wmma")),
        Split("k", 16, into=("k_tile", "k_in")),
        Split("k_in", 8, into=("k_step", "k_wmma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step", "m_frag", "n_frag"),
            *("m_wmma", "n_wmma", "k_wmma"),
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Tensorize("m_wmma", "n_wmma", "k_wmma", using="wmma.m16n16k8"),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", pad=8),
        Relayout("B_tile", pad=8),
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", stages),
        Stage("A", Space.REGISTER, under="k_step"),
        Stage("B", Space.REGISTER, under="k_step"),
        Epilogue(),
        Stage("C", Space.SHARED),
        Distribute("C_tile", vector=4),
    )


def ring(stages: int, number: int, builds_on: str) -> Rung:
    """The rung whose ring has so many stages."""
    words = {2: "two", 3: "three", 4: "four"}
    return Rung(
        ladder="swizzle",
        number=number,
        label=f"stages_{stages}",
        slug=f"stages_{stages}",
        idea=f"a ring of {words[stages]} stages, filled by cp.async",
        schedule=partial(schedule, stages=stages),
        claims=(
            Claim(
                "tensor cores do all the multiply-adds: four instructions of a warp for each 16 x 16 x 8",
                lambda c, g: c.instructions["HMMA"] == g.m * g.n * g.k // 512,
            ),
            Claim(
                "no element passes through a register on its way to shared memory",
                lambda c, g: c.of_origin("A_tile").instructions.keys() == {"LDGSTS.128"},
            ),
            Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1),
        ),
        builds_on=builds_on,
        problem={"dtype": F32, "product": TF32},
    )


STAGES_2 = ring(2, 6, "wmma_tf32")
STAGES_3 = ring(3, 7, "stages_2")
STAGES_4 = ring(4, 8, "stages_3")
