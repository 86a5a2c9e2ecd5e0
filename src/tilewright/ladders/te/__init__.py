"""Ladder `te`: a tensor expression and its schedule, both operands K-major, primitive by primitive."""

from tilewright.ladders.rung import Rung
from tilewright.ladders.te.s0_naive import S0
from tilewright.ladders.te.s1_blocked import S1
from tilewright.ladders.te.s2_thread_tile import S2
from tilewright.ladders.te.s2b_cooperative import S2B
from tilewright.ladders.te.s3_fetch import S3
from tilewright.ladders.te.s3v_virtual_threads import S3V
from tilewright.ladders.te.s4_vectorised import S4
from tilewright.ladders.te.s5_double_buffered import S5

TE: tuple[Rung, ...] = (S0, S1, S2, S2B, S3, S3V, S4, S5)
