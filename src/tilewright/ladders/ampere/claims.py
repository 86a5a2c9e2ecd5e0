"""What several rungs of ladder `ampere` claim."""

from __future__ import annotations

from tilewright.kernels.mma_steps import DEPTH_BYTES, takes_matrices
from tilewright.ladders.rung import Claim, Counts
from tilewright.problem.gemm import Gemm

TENSOR_CORES = Claim(
    "tensor cores do all the multiply-adds",
    lambda c, g: c.instructions["HMMA"] * 16 * 8 * (8 if g.multiplies_tf32 else 16) == g.m * g.n * g.k,
)
NO_LOAD_CONFLICTS = Claim("no bank conflicts on shared loads", lambda c, g: c.shared_loads.excess_wavefronts == 0)
NO_STORE_CONFLICTS = Claim("no bank conflicts on shared stores", lambda c, g: c.shared_stores.excess_wavefronts == 0)
TWO_BARRIERS = Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2)
ONE_BARRIER = Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1)


def matrices_of(counts: Counts, gemm: Gemm, loads: int, products: int, *, ahead: bool = False) -> bool:
    """Whether so many products take so many ldmatrix; asked where all fragments are loaded so.

    ahead: the last step over k loads one more, of a tile that does not exist.
    """
    if not (takes_matrices(gemm, "A") and takes_matrices(gemm, "B")):
        return True
    steps = gemm.k * gemm.dtype.bytes // DEPTH_BYTES
    loaded = steps + 1 if ahead else steps
    return counts.instructions["LDSM"] * products * steps == counts.instructions["HMMA"] * loads * loaded


def _asynchronous(counts: Counts, gemm: Gemm) -> bool:
    return all(set(counts.of_origin(tile).instructions) == {"LDGSTS.128"} for tile in ("A_tile", "B_tile"))


COPIED_ASYNCHRONOUSLY = Claim("tiles are copied by cp.async, 16 bytes at once, past the registers", _asynchronous)
