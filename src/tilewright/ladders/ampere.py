"""Ladder `ampere`: tensor cores with fragments of known layout, from lanes that load their own to the full kernel.

Operands of f16, bf16 or f32 rounded to tf32, in any storage order; accumulators in f32, or in f16 where the problem
asks.
"""

from __future__ import annotations

from tilewright.dtypes import F16
from tilewright.ir.program import Route
from tilewright.kernels.mma import DEPTH_BYTES, MmaTile, matrices, nest, pairs, staged, swizzled, takes_matrices
from tilewright.kernels.mma_presets import best_for
from tilewright.ladders import ampere_points as of_full
from tilewright.ladders.rung import (
    NO_LOAD_CONFLICTS,
    NO_STORE_CONFLICTS,
    ONE_BARRIER,
    TWO_BARRIERS,
    Choices,
    Claim,
    Counts,
    Ladder,
    Point,
)
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Prefetch, Relayout, Schedule, Step, Transfer

AMPERE = Ladder("ampere", dtype=F16, out=F16)
TILES = MmaTile()
SKEW_BYTES = 32


def _asynchronous(counts: Counts, gemm: Gemm) -> bool:
    return all(set(counts.of_origin(tile).instructions) == {"LDGSTS.128"} for tile in ("A_tile", "B_tile"))


def _matrices(sentence: str, loads: int, products: int, *, ahead: bool = False) -> Claim:
    """So many products take so many ldmatrix; asked where all fragments are loaded so.

    ahead: the last step over k loads one more, of a tile that does not exist.
    """

    def holds(counts: Counts, gemm: Gemm) -> bool:
        if not (takes_matrices(gemm, "A") and takes_matrices(gemm, "B")):
            return True
        steps = gemm.k * gemm.dtype.bytes // DEPTH_BYTES
        loaded = steps + 1 if ahead else steps
        return counts.instructions["LDSM"] * products * steps == counts.instructions["HMMA"] * loads * loaded

    return Claim(sentence, holds)


TENSOR_CORES = Claim(
    "tensor cores do all the multiply-adds",
    lambda c, g: c.instructions["HMMA"] * 16 * 8 * (8 if g.multiplies_tf32 else 16) == g.m * g.n * g.k,
)
SIX_MATRICES = _matrices("6 ldmatrix for 16 mma", 6, 16)
COPIED_ASYNCHRONOUSLY = Claim("tiles are copied by cp.async, 16 bytes at once, past the registers", _asynchronous)


def _fragments(gemm: Gemm, *steps: Step) -> Schedule:
    """Blocks and warps, and steps that say how fragments are loaded and tiles laid out."""
    return Schedule(*nest(gemm, TILES), *staged(gemm, TILES), *steps)


def _skewed(gemm: Gemm) -> tuple[Step, ...]:
    return tuple(Relayout(tile, pad=SKEW_BYTES // gemm.dtype.bytes) for tile in ("A_tile", "B_tile"))


@AMPERE.rung(
    "mma.sync: each lane loads its own elements of every fragment from skewed rows", TENSOR_CORES, TWO_BARRIERS
)
def fragments(gemm: Gemm) -> Schedule:
    """Which lane holds which element is known, so each lane loads its own from shared memory.

    Warps of 64 x 32 in 4 x 4 fragments of 16 x 8; rows skewed as for WMMA; results go from registers to C.
    """
    return _fragments(gemm, *pairs(gemm), *_skewed(gemm))


@AMPERE.rung(
    "ldmatrix: a warp loads four matrices of eight rows with one instruction",
    TENSOR_CORES,
    TWO_BARRIERS,
    SIX_MATRICES,
    slug="matrices",
)
def by_ldmatrix(gemm: Gemm) -> Schedule:
    """A warp loads four matrices of eight rows at once; where rows run across k, transposed on the way."""
    return _fragments(gemm, *matrices(gemm), *_skewed(gemm))


@AMPERE.rung(
    "chunks of 16 bytes permuted by an XOR with their row, instead of a skew: no bank conflicts, no padding",
    TENSOR_CORES,
    TWO_BARRIERS,
    NO_LOAD_CONFLICTS,
    NO_STORE_CONFLICTS,
    SIX_MATRICES,
    slug="swizzled",
)
def by_xor(gemm: Gemm) -> Schedule:
    """The 16-byte chunks of a row are permuted by its number, so no matrix meets a bank twice."""
    return _fragments(gemm, *matrices(gemm), *swizzled(gemm, TILES))


def _ring_at(gemm: Gemm, point: Point) -> Schedule:
    return by_xor(gemm) + Schedule(
        Transfer("A_tile", Route.ASYNC), Transfer("B_tile", Route.ASYNC), Pipeline("k_tile", point["stages"])
    )


@AMPERE.rung(
    "a ring of three stages filled by cp.async, two tiles ahead",
    TENSOR_CORES,
    ONE_BARRIER,
    NO_LOAD_CONFLICTS,
    COPIED_ASYNCHRONOUSLY,
    choices=Choices(lambda: [{"stages": stages} for stages in (2, 3, 4)], _ring_at),
)
def ring(gemm: Gemm) -> Schedule:
    """Stages filled by cp.async, two tiles ahead: copies take no registers and stall no thread."""
    return _ring_at(gemm, {"stages": 3})


@AMPERE.rung(
    "the fragments of the next step over k are loaded while this one is multiplied",
    TENSOR_CORES,
    ONE_BARRIER,
    NO_LOAD_CONFLICTS,
    COPIED_ASYNCHRONOUSLY,
)
def fragments_ahead(gemm: Gemm) -> Schedule:
    """Fragments double-buffered: those of the next step over k are loaded while the instructions of this one run."""
    return ring(gemm) + Schedule(Prefetch("A_frag"), Prefetch("B_frag"))


@AMPERE.rung(
    "warps of 64 x 64, copies interleaved with the MMAs, persistent blocks of 128 x 256",
    TENSOR_CORES,
    ONE_BARRIER,
    NO_LOAD_CONFLICTS,
    COPIED_ASYNCHRONOUSLY,
    _matrices("8 ldmatrix for 32 mma, a step ahead", 8, 32, ahead=True),
    choices=Choices(of_full.points, of_full.schedule_at),
    within=lambda gemm, most_bytes: best_for(gemm, most_bytes).schedule(gemm),
)
def full(gemm: Gemm) -> Schedule:
    """Warps of 64 x 64 in blocks of 128 x 256, copies interleaved with the MMAs, a raster order.

    Where each block has several tiles, blocks are persistent, and the ring of copies runs on into the next tile. It is
    a preset of the family `kernels.mma`, whose `best_for` says which parameters are best for a problem and fit on a
    GPU.
    """
    return best_for(gemm).schedule(gemm)
