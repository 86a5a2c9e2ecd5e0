"""Machine code read as far as a time model needs it: which instructions stand in which loop, and their registers.

An instruction from sm_70 on has 16 bytes. What is read of them, low bits first: 9 bits of opcode and 3 of the form of
operands; the registers of the operands in bytes 3, 4 and 8; reuse flags, one for each operand, in bits 122 to 124; of a
branch, how far it jumps in words of 4 bytes. NVIDIA publishes no encoding: tests hold this to nvdisasm.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.artifacts import Cubin
from tilewright.runtime.elf import code_of

INSTRUCTION_BYTES = 16

_NAMES = {
    0x020: "FMUL",
    0x021: "FADD",
    0x023: "FFMA",
    0x024: "IMAD",
    0x025: "IMAD",
    0x027: "IMAD",
    0x03B: "LDSM",
    0x03C: "HMMA",
    0x044: "STSM",
    0x118: "NOP",
    0x11D: "BAR",
    0x147: "BRA",
    0x14D: "EXIT",
    0x181: "LDG",
    0x184: "LDS",
    0x186: "STG",
    0x188: "STS",
    0x1AE: "LDGSTS",
    0x1F0: "HGMMA",
}
OTHER = "other"

_REGISTER_FORM = 1  # both operands b and c are registers
_ZERO = 255  # RZ reads no bank
_FIRST_SM_WITH_WIDE_JUMPS = 90


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. registers: of operands a, b, c where all are registers, else none. reuse: whether each is
    kept for the next instruction. target: where a branch goes, as the number of an instruction.
    """

    name: str
    registers: tuple[int, ...] = ()
    reuse: tuple[bool, ...] = ()
    target: int | None = None


@dataclass(frozen=True, slots=True)
class CodeLoop:
    """A loop of the code: from instruction `start` to the branch back at `end`, and what it holds outside loops inside.

    counts: instructions by name. operand_clocks: that fetching the operands of its FFMA takes, summed.
    """

    start: int
    end: int
    counts: Counter[str]
    operand_clocks: float


def instructions(cubin: Cubin) -> list[Instruction]:
    """The instructions of a kernel in the order of the code."""
    code = code_of(cubin.image, cubin.entry)
    wide = int("".join(c for c in cubin.arch if c.isdigit())) >= _FIRST_SM_WITH_WIDE_JUMPS
    return [
        _decoded(number, *struct.unpack_from("<QQ", code, number * INSTRUCTION_BYTES), wide)
        for number in range(len(code) // INSTRUCTION_BYTES)
    ]


def _decoded(number: int, low: int, high: int, wide: bool) -> Instruction:
    name = _NAMES.get(low & 0x1FF, OTHER)
    if name == "BRA":
        words = low >> 34 | (high & 0x3FFFF) << 30
        words -= (words >> 47) << 48
        if wide:  # eight low bits more stand elsewhere
            words = words << 8 | low >> 16 & 0xFF
        return Instruction(name, target=number + 1 + words * 4 // INSTRUCTION_BYTES)
    if name != "FFMA" or low >> 9 & 7 != _REGISTER_FORM:
        return Instruction(name)
    registers = (low >> 24 & 0xFF, low >> 32 & 0xFF, high & 0xFF)
    return Instruction(name, registers, tuple(bool(high >> 58 + slot & 1) for slot in range(3)))


def loops(code: Sequence[Instruction]) -> list[CodeLoop]:
    """The loops of the code, inner ones before those around them."""
    clocks = _operand_clocks(code)
    spans: dict[int, int] = {}
    for at, one in enumerate(code):
        if one.target is not None and one.target < at:
            spans[one.target] = max(at, spans.get(one.target, at))
    found: list[CodeLoop] = []
    for start, end in sorted(spans.items(), key=lambda span: span[1] - span[0]):
        inside = {
            at for loop in found if start <= loop.start and loop.end <= end for at in range(loop.start, loop.end + 1)
        }
        own = [at for at in range(start, end + 1) if at not in inside]
        found.append(CodeLoop(start, end, Counter(code[at].name for at in own), sum(clocks[at] for at in own)))
    return found


def _operand_clocks(code: Sequence[Instruction]) -> list[float]:
    """Clocks that the register file takes for each FFMA: two banks, one read of each a clock.

    A register that the instruction before kept for reuse in the same place is not read again.
    """
    clocks, kept = [], dict[int, int]()
    for one in code:
        if one.name != "FFMA":
            clocks.append(0.0)
            kept = kept if not one.registers else {}
            continue
        read = {reg for slot, reg in enumerate(one.registers) if reg != _ZERO and kept.get(slot) != reg}
        banks = Counter(reg % 2 for reg in read)
        clocks.append(float(max(1, *banks.values())) if banks else 1.0)
        kept = {slot: reg for slot, reg in enumerate(one.registers) if one.reuse[slot]}
    return clocks
