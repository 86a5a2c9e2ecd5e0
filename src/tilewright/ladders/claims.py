"""What rungs of several ladders, or several rungs of one, claim."""

from __future__ import annotations

from tilewright.ir.buffer import Space
from tilewright.ladders.rung import Claim

NO_LOAD_CONFLICTS = Claim("no bank conflicts on shared loads", lambda c, g: c.shared_loads.excess_wavefronts == 0)
NO_STORE_CONFLICTS = Claim("no bank conflicts on shared stores", lambda c, g: c.shared_stores.excess_wavefronts == 0)
TWO_BARRIERS = Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2)
ONE_BARRIER = Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1)
COALESCED_STORES = Claim(
    "a warp stores 128 bytes of C: 4 sectors a request", lambda c, g: c.global_stores.sectors_per_request == 4
)
SCATTERED_STORES = Claim(
    "a warp stores 32 rows of C at once: 32 sectors a request",
    lambda c, g: c.global_stores.sectors_per_request == 32,
)
NO_B_CONFLICTS = Claim(
    "no bank conflicts on the loads of B fragments",
    lambda c, g: c.of_origin("B_frag").shared_loads.excess_wavefronts == 0,
)
F16_WMMA = Claim(
    "tensor cores do all the multiply-adds: each result takes K/16 * 2/256 instructions of a warp",
    lambda c, g: c.instructions["HMMA"] == g.m * g.n * g.k // 2048,
)
TF32_WMMA = Claim(
    "tensor cores do all the multiply-adds: four instructions of a warp for each 16 x 16 x 8",
    lambda c, g: c.instructions["HMMA"] == g.m * g.n * g.k // 512,
)
PAST_REGISTERS = Claim(
    "no element passes through a register on its way to shared memory",
    lambda c, g: c.of_origin("A_tile").instructions.keys() == {"LDGSTS.128"},
)
TWO_WAVEFRONTS = Claim(
    "a 16-byte load of a warp takes two wavefronts", lambda c, g: c.shared_loads.wavefronts_per_request == 2
)
B_TAKES_EIGHT = Claim(
    "the B fragments of a warp take eight wavefronts a load",
    lambda c, g: c.of_origin("B_frag").shared_loads.wavefronts_per_request == 8,
)
NINE_EIGHTHS = Claim(
    "each result takes 9K/8 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == 9 * g.k / 8
)


def loads(space: Space, *, over: int) -> Claim:
    """Each result takes so small a share of K loads."""
    sentence = f"each result takes K/{over} loads from {space.value} memory"
    return Claim(sentence, lambda c, g: c.per_result(space) == g.k / over)
