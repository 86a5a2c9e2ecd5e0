"""Exercises on tensor cores: fragments, swizzles, and what Hopper adds."""

from __future__ import annotations

from tilewright.dtypes import BF16, F16
from tilewright.exercises.counts import (
    NO_LOAD_CONFLICTS,
    NO_STORE_CONFLICTS,
    NO_WARP_STORES,
    ON_TENSOR_CORES,
    shared_bytes,
    shared_loads_per_fma,
    tma_bytes,
)
from tilewright.exercises.exercise import Exercise, Gap
from tilewright.ir.async_stmt import ArriveBarrier
from tilewright.ir.stmt import If, Stmt
from tilewright.problem.gemm import Gemm

GEMM = Gemm(128, 128, 64, F16, out=F16)
EDGES = Gemm(72, 136, 40, F16, out=F16)
HOPPER = Gemm(256, 256, 128, BF16, out=BF16)
HOPPER_EDGES = Gemm(136, 264, 72, BF16, out=BF16)


def _hands_back(stmt: Stmt) -> bool:
    """`if 0 < k_tile: if thread_in_warpgroup == 0: arrive at k_tile_empty[...]`: of all iterations but the last."""
    match stmt:
        case If(then=(If(then=(ArriveBarrier(),)),)):
            return "k_tile" in repr(stmt.condition)
        case _:
            return False


FRAGMENTS = Exercise(
    name="fragments",
    title="1 load from shared memory for 64 multiply-adds of tensor cores",
    page="docs/tensor_cores.md, section 2",
    gemm=GEMM,
    edges=EDGES,
    goals=(shared_loads_per_fma(1 / 64), ON_TENSOR_CORES),
    hints=(
        "ldmatrix loads up to four 8 x 8 matrices for a warp; each lane gets the elements that mma wants.",
        "Transfer('A_frag', Route.MATRICES) loads a fragment by ldmatrix, one matrix at a time.",
        "Vectorize('A_frag', 4) lets it load four matrices at once; the same for B.",
    ),
)
SWIZZLE = Exercise(
    name="swizzle",
    title="Feed the tensor cores without bank conflicts",
    page="docs/tensor_cores.md, section 3",
    gemm=GEMM,
    edges=EDGES,
    goals=(NO_LOAD_CONFLICTS, NO_STORE_CONFLICTS, shared_bytes(16384), shared_loads_per_fma(1 / 64)),
    hints=(
        "ldmatrix reads chunks of 16 bytes, 8 elements of f16, from 8 rows. Eight chunks in different banks take one "
        "wavefront. So move whole chunks, and differently in each row.",
        "Xor(bits, base, shift): base is the power of two of a chunk in elements, bits counts the bits of the chunk's "
        "number that change, shift drops bits of the row's number before.",
        "A row of B_tile has 16 chunks, and 8 of them pass all banks: Xor(bits=3, base=3, shift=0). A row of A_tile "
        "has 4 chunks, so two rows share the banks: Xor(bits=2, base=3, shift=1).",
    ),
)
DEADLOCK = Exercise(
    name="deadlock",
    title="A ring of TMA loads that never goes round",
    page="docs/hopper.md, section 2, and docs/watch.md",
    gemm=Gemm(128, 128, 640, BF16, out=BF16),
    goals=(),
    hints=(
        "Six stages are filled and multiplied, then all wait. The producer waits on k_tile_empty: who arrives there, "
        "and how often?",
        "The part arrives for the stage of the iteration before. wgmma runs on after it is committed: when has it read "
        "that stage?",
        "After `wait until at most 1 wgmma group(s) are under way` the group of the iteration before is over, and its "
        "stage can be filled again. It stays inside the loop over k_tile.",
    ),
    gap=Gap("hopper/3", "release", _hands_back),
)
TMA_STORE = Exercise(
    name="tma_store",
    title="TMA stores C, no warp does",
    page="docs/hopper.md, section 5",
    gemm=HOPPER,
    edges=HOPPER_EDGES,
    goals=(NO_WARP_STORES,),
    hints=(
        "Stage('C', Space.SHARED, ...) lets C pass through shared memory. How large may its tile be?",
        "Stage('C', Space.SHARED, subtile=64, stages=2) takes 64 columns at a time.",
        "TMA reads swizzle atoms: Relayout('C_tile', arrangement=tw.SwizzleAtoms(64)), then "
        "Transfer('C_tile', Route.TMA).",
    ),
)
MULTICAST = Exercise(
    name="multicast",
    title="Two blocks of a cluster load a tile of B once",
    page="docs/hopper.md, section 6",
    gemm=HOPPER,
    edges=HOPPER_EDGES,
    goals=(tma_bytes(131072), NO_WARP_STORES),
    hints=(
        "A is 64 KiB and B is 64 KiB. Each is loaded once if no two blocks load the same tile: which is loaded twice?",
        "Blocks with different m_block and the same n_block load the same tile of B.",
        "Cluster('m_block', 2) starts two of them together; loads of B then go to both.",
    ),
)

TENSOR_CORES = (FRAGMENTS, SWIZZLE, DEADLOCK, TMA_STORE, MULTICAST)
