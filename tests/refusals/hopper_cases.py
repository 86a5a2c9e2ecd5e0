"""Schedules that the asynchronous units of Hopper cannot run: refused by a step, or when lowered."""

from __future__ import annotations

from tilewright.dtypes import BF16, TF32
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, RasterOrder, Route
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Cluster,
    DependentLaunch,
    Distribute,
    Epilogue,
    Persist,
    Pipeline,
    Raster,
    Relayout,
    Reorder,
    Specialize,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
)

GEMM = Gemm(512, 512, 256, BF16, out=BF16)
TURNED = Gemm(512, 512, 256, product=TF32, b=Order.COL)
ODD = Gemm(512, 512, 252, BF16, out=BF16, lda=252)

OUTER = (
    Split("m", 64, into=("m_block", "m_mma")),
    Split("n", 64, into=("n_block", "n_mma")),
    Split("k", 64, into=("k_tile", "k_in")),
    Split("k_in", 16, into=("k_step", "k_mma")),
    Reorder("m_block", "n_block", "k_tile", "k_step", "m_mma", "n_mma", "k_mma"),
    Bind("m_block", Level.GRID_Y),
    Bind("n_block", Level.GRID_X),
)
WGMMA = Tensorize("m_mma", "n_mma", "k_mma", using="wgmma.m64n64k16")
GROUPED = (
    *(Split("m", 128, into=("m_block", "m_in")), Split("m_in", 64, into=("m_group", "m_mma")), *OUTER[1:4]),
    Reorder("m_block", "n_block", "m_group", "k_tile", "k_step", "m_mma", "n_mma", "k_mma"),
    *OUTER[5:],
)
BARE = (*OUTER, WGMMA, Accumulate("k_tile"))
NEST = (*BARE, Epilogue())
SHARED = (*NEST, Stage("A", Space.SHARED, under="k_tile"), Stage("B", Space.SHARED, under="k_tile"))
SWIZZLED = (
    *SHARED,
    Relayout("A_tile", arrangement=SwizzleAtoms(64)),
    Relayout("B_tile", arrangement=SwizzleAtoms(64)),
)
BROUGHT = (*SWIZZLED, Transfer("A_tile", Route.TMA), Transfer("B_tile", Route.TMA))
RING = (*BROUGHT, Pipeline("k_tile", 4))
ROLES = (*RING, Specialize())
NUMBERED = (*ROLES, Raster(RasterOrder.GROUPED, 4))
RESULT = (
    *ROLES,
    Stage("C", Space.SHARED),
    Relayout("C_tile", arrangement=SwizzleAtoms(64)),
    Transfer("C_tile", Route.TMA),
)

REFUSED: dict[str, tuple[Gemm, tuple[Step, ...]]] = {
    # Accumulate
    "promote_inside_an_instruction": (GEMM, (*OUTER, WGMMA, Accumulate("k_tile", promote_every=8))),
    # Specialize
    "roles_twice": (GEMM, (*ROLES, Specialize())),
    "roles_of_strange_budgets": (GEMM, (*RING, Specialize(registers=(20, 240)))),
    "roles_without_a_ring": (GEMM, (*BROUGHT, Specialize())),
    "roles_without_products": (Gemm(64, 64, 64), (Specialize(),)),
    "roles_that_wait_for_ever": (GEMM, (*RING, Specialize(registers=(248, 256)))),
    "no_ping_pong": (GEMM, (*RING, Specialize(ping_pong=0))),
    "turns_at_a_shared_tile": (
        GEMM,
        (
            *(*GROUPED, Bind("m_group", Level.WARPGROUP), WGMMA, Accumulate("k_tile"), Epilogue()),
            *(*RING[len(NEST) :], Specialize(ping_pong=2)),
        ),
    ),
    # Persist
    "stay_twice": (GEMM, (*NUMBERED, Persist(), Persist())),
    "stay_unnumbered": (GEMM, (*ROLES, Persist())),
    "stay_alone": (GEMM, (*RING, Raster(RasterOrder.GROUPED, 4), Persist())),
    # Cluster
    "clusters_twice": (GEMM, (*NUMBERED, Cluster("m_block"), Cluster("m_block"))),
    "cluster_too_large": (GEMM, (*NUMBERED, Cluster("m_block", 4), Cluster("n_block", 4))),
    "cluster_of_three": (GEMM, (*NUMBERED, Cluster("m_block", 3))),
    "cluster_of_a_serial_loop": (GEMM, (*NUMBERED, Cluster("k_step"))),
    "cluster_unnumbered": (GEMM, (*ROLES, Cluster("m_block"))),
    "cluster_without_roles": (GEMM, (*RING, Raster(RasterOrder.GROUPED, 4), Cluster("m_block"))),
    "cluster_of_no_loop": (GEMM, (*NUMBERED, Cluster("m_blok"))),
    # DependentLaunch
    "dependent_launch_twice": (GEMM, (*SWIZZLED, DependentLaunch(), DependentLaunch())),
    # Transfer by TMA
    "boxes_into_plain_rows": (GEMM, (*SHARED, Transfer("A_tile", Route.TMA))),
    "boxes_shared_out": (GEMM, (*SWIZZLED, Distribute("A_tile", vector=8), Transfer("A_tile", Route.TMA))),
    "boxes_of_a_turned_tile": (
        GEMM,
        (*SHARED, Relayout("A_tile", rows="k", arrangement=SwizzleAtoms(64)), Transfer("A_tile", Route.TMA)),
    ),
    # Tensorize and Bind
    "a_warp_for_wgmma": (GEMM, (*GROUPED, Bind("m_group", Level.WARP), WGMMA)),
}
"""By what is wrong, with the problem. The texts stand in tests/golden/hopper_refusals.txt."""

NO_KERNEL: dict[str, tuple[Gemm, tuple[Step, ...]]] = {
    "a ring of one operand": (
        GEMM,
        (*SWIZZLED, Distribute("B_tile", vector=8), Transfer("A_tile", Route.TMA), Pipeline("k_tile", 4)),
    ),
    "boxes without a ring": (GEMM, BROUGHT),
    "rows that boxes cannot take": (ODD, RING),
    "operands in registers": (GEMM, (*NEST, Stage("A", Space.REGISTER, under="k_step"))),
    "alpha before the sum": (GEMM, BARE),
    "a result without its operands": (
        GEMM,
        (*SWIZZLED, *RESULT[len(ROLES) :]),
    ),
    "ping-pong of blocks of one tile": (GEMM, (*RING, Specialize(ping_pong=2))),
    "tf32 that nobody rounds": (
        TURNED,
        (
            *(*OUTER[:2], Split("k", 32, into=("k_tile", "k_in")), Split("k_in", 8, into=("k_step", "k_mma"))),
            *(*OUTER[4:], Tensorize("m_mma", "n_mma", "k_mma", using="wgmma.m64n64k8"), Accumulate("k_tile")),
            *(Epilogue(), *SHARED[len(NEST) :]),
            *(Relayout("A_tile", arrangement=SwizzleAtoms(32)), Relayout("B_tile", arrangement=SwizzleAtoms(32))),
        ),
    ),
}
"""By what is wrong. The texts stand in tests/golden/hopper_lowering_refusals.txt."""
