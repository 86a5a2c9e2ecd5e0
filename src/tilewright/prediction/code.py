"""What the compiler adds to a kernel's own statements, from its machine code; typical figures where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tilewright.artifacts import Cubin
from tilewright.model.work import Code
from tilewright.runtime.machine_code import OTHER, CodeLoop, instructions, loops

MATH = ("FFMA", "FMUL", "FADD", "HMMA", "HGMMA")
ACCESSES = ("LDS", "STS", "LDG", "STG", "LDSM", "STSM", "LDGSTS")

ASSUMED = Code(other_per_math=0.05, other_per_access=2.0, operand_clocks=1.3)
"""Of a kernel that is not compiled: the loop over a tile is unrolled, and an 8 x 8 thread tile."""

_MAIN_SHARE = 0.5
"""A loop with fewer than this share of the arithmetic of the fullest one is a remainder or a peeled part."""


def code_of(cubin: Cubin) -> Code:
    """What the machine code of a kernel says."""
    found = loops(instructions(cubin))
    most = max((_math(loop.counts) for loop in found), default=0)
    if not most:
        return ASSUMED
    inner = [loop for loop in found if _math(loop.counts) >= _MAIN_SHARE * most]
    outer = [loop for loop in found if loop not in inner and any(_is_around(loop, one) for one in inner)]
    ffma = sum(loop.counts["FFMA"] for loop in inner)
    return Code(
        other_per_math=_other(inner) / sum(_math(loop.counts) for loop in inner),
        other_per_access=_other(outer) / max(1, sum(_accesses(loop.counts) for loop in outer)) if outer else 0.0,
        operand_clocks=sum(loop.operand_clocks for loop in inner) / ffma if ffma else 1.0,
        is_read=True,
    )


def _is_around(loop: CodeLoop, other: CodeLoop) -> bool:
    return loop.start <= other.start and other.end <= loop.end and loop is not other


def _math(counts: Counter[str]) -> int:
    return sum(counts[name] for name in MATH)


def _accesses(counts: Counter[str]) -> int:
    return sum(counts[name] for name in ACCESSES)


def _other(found: Sequence[CodeLoop]) -> int:
    return sum(loop.counts[name] for loop in found for name in (OTHER, "IMAD", "BRA", "BAR"))
