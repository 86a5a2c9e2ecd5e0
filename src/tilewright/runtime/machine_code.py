"""Where the instructions of a kernel lie and what they wait for, read from the machine code itself.

From sm_70 on an instruction takes 16 bytes. Bits 0 to 8 are its kind, 9 to 11 the form of its operands. Bits 105 to 125
are for the scheduler: clocks until the warp may issue its next instruction (105 to 108); an instruction whose result
takes no fixed time names one of six scoreboards that it counts down when the result is there (bits 110 to 112, 7 for
none), and any instruction may wait for some of them (116 to 121); operands that stay in the reuse cache (122 to 125).
ptxas chooses them, so they say where a warp waits for a load, which no text of CUDA or PTX does.

Source: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), section 2; the numbers
of the kinds and the bits of a branch's target are those that nvdisasm prints beside its text, the same for sm_75 to
sm_120 (tests/runtime/test_machine_code.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from tilewright.artifacts import Cubin
from tilewright.runtime.elf import code_of

_BYTES = 16
_KIND_BITS = 0x1FF
_SCHEDULER_BITS = 105 - 64
"""From the upper half of an instruction to its bits for the scheduler."""

_NO_SCOREBOARD = 7
_NO_REGISTER = 255
_ALL_REGISTERS = 1
"""The form of an instruction none of whose operands is a constant or an immediate."""

_TARGET_LOW, _TARGET_HIGH, _TARGET_BITS = 16, 34, 48
"""A branch says how far behind its end it goes in bits 34 to 81, signed, in units of 4 bytes. From sm_90 on bits 16 to
23 stand below them."""

_LONG_TARGETS_SINCE = 90


class Kind(StrEnum):
    """Kinds of instructions that are told apart, as nvdisasm names them."""

    LOAD = "LDG"
    COPY = "LDGSTS"
    MULTIPLY_ADD = "FFMA"
    MMA = "HMMA"
    WGMMA = "HGMMA"
    SHARED_LOAD = "LDS"
    MATRIX_LOAD = "LDSM"
    CONSTANT = "LDC"
    SPECIAL = "S2R"
    UNIFORM_SPECIAL = "S2UR"
    BARRIER = "BAR"
    BRANCH = "BRA"
    OTHER = ""


_KINDS = {
    0x181: Kind.LOAD,
    0x1AE: Kind.COPY,
    0x23: Kind.MULTIPLY_ADD,
    0x3C: Kind.MMA,
    0x1F0: Kind.WGMMA,
    0x184: Kind.SHARED_LOAD,
    0x3B: Kind.MATRIX_LOAD,
    0x182: Kind.CONSTANT,
    0x119: Kind.SPECIAL,
    0x1C3: Kind.UNIFORM_SPECIAL,
    0x11D: Kind.BARRIER,
    0x147: Kind.BRANCH,
}

ARITHMETIC = frozenset({Kind.MULTIPLY_ADD, Kind.MMA, Kind.WGMMA})
FROM_GLOBAL = frozenset({Kind.LOAD, Kind.COPY})


@dataclass(frozen=True, slots=True)
class Instruction:
    """sets: the scoreboard that says when its result is there; None: it sets none. awaits: scoreboards, as bits.

    clocks: until the warp may issue its next instruction. reads: of an FFMA, the register of each of its operands, None
    for one that is none; kept: of these, which stay in the reuse cache, as bits.
    """

    kind: Kind
    sets: int | None
    awaits: int
    clocks: int = 1
    reads: tuple[int | None, ...] = ()
    kept: int = 0


@dataclass(frozen=True)
class MachineCode:
    """Instructions of a kernel. loops: the first instruction of each and the branch back to it."""

    instructions: tuple[Instruction, ...]
    loops: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, cubin: Cubin) -> MachineCode:
        """Raises CompileError if the cubin is none of its kernel."""
        code = code_of(cubin.image, cubin.entry)
        longer = int("".join(filter(str.isdigit, cubin.arch))) >= _LONG_TARGETS_SINCE
        halves = list(struct.iter_unpack("<QQ", code[: len(code) // _BYTES * _BYTES]))
        found = tuple(_instruction(low, high) for low, high in halves)
        loops = [
            (target, at)
            for at, (low, high) in enumerate(halves)
            if found[at].kind is Kind.BRANCH and 0 <= (target := at + 1 + _jump(low, high, longer)) < at
        ]
        return cls(found, tuple(loops))

    @cached_property
    def main_loop(self) -> tuple[int, int] | None:
        """The smallest loop with most arithmetic, if it can be with loads of global memory; None without arithmetic."""
        found = [(self._rank(loop), loop) for loop in self.loops]
        best = max(found, default=None)
        return best[1] if best is not None and best[0][1] else None

    def _rank(self, loop: tuple[int, int]) -> tuple[bool, int, int]:
        arithmetic = self.count(loop, ARITHMETIC)
        return bool(arithmetic) and self.count(loop, FROM_GLOBAL) > 0, arithmetic, loop[0] - loop[1]

    def inside(self, loop: tuple[int, int]) -> tuple[Instruction, ...]:
        """The instructions of a loop."""
        return self.instructions[loop[0] : loop[1] + 1]

    def count(self, loop: tuple[int, int], kinds: frozenset[Kind]) -> int:
        """Instructions of some kinds in a loop."""
        return sum(one.kind in kinds for one in self.inside(loop))

    def innermost(self, loop: tuple[int, int], kinds: frozenset[Kind]) -> Iterator[tuple[int, int]]:
        """Loops inside of one that have instructions of some kinds, and no such loop inside."""
        within = [one for one in self.loops if _is_inside(one, loop) and self.count(one, kinds)]
        return (one for one in within if not any(_is_inside(other, one) for other in within))


def _is_inside(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and other[0] <= one[0] and one[1] <= other[1]


def _instruction(low: int, high: int) -> Instruction:
    scheduler = high >> _SCHEDULER_BITS
    sets = scheduler >> 5 & 7
    kind = _KINDS.get(low & _KIND_BITS, Kind.OTHER)
    return Instruction(
        kind,
        None if sets == _NO_SCOREBOARD else sets,
        scheduler >> 11 & 0x3F,
        max(1, scheduler & 0xF),
        _reads(low, high) if kind is Kind.MULTIPLY_ADD else (),
        scheduler >> 17 & 0x7,
    )


def _reads(low: int, high: int) -> tuple[int | None, ...]:
    """The registers of three operands: bits 24 to 31, 32 to 39, 64 to 71; where the second is a constant or an
    immediate, its bits are no register, and where the third is one, the second stands in the place of the third."""
    first, second, third = low >> 24 & 0xFF, low >> 32 & 0xFF, high & 0xFF
    whole = low >> 9 & 7 == _ALL_REGISTERS
    return tuple(None if one == _NO_REGISTER else one for one in (first, second if whole else _NO_REGISTER, third))


def _jump(low: int, high: int, longer: bool) -> int:
    """Instructions from the end of a branch to its target."""
    whole = low | high << 64
    far = whole >> _TARGET_HIGH & (1 << _TARGET_BITS) - 1
    if far >> _TARGET_BITS - 1:
        far -= 1 << _TARGET_BITS
    if longer:
        far = far << 8 | whole >> _TARGET_LOW & 0xFF
    return 4 * far // _BYTES
