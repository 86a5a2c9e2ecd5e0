"""What rungs of several ladders, or several rungs of one, claim."""

from __future__ import annotations

from tilewright.ladders.rung import Claim

NO_LOAD_CONFLICTS = Claim("no bank conflicts on shared loads", lambda c, g: c.shared_loads.excess_wavefronts == 0)
TWO_BARRIERS = Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2)
ONE_BARRIER = Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1)
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
