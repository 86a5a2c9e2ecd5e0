"""How a kernel's multiply-adds share the two banks of the register file, read from its SASS.

From sm_70 on, registers lie in two banks, even and odd numbers, and each gives a warp one register a clock. A
multiply-add reads three: it issues in one clock where one of them is still in the reuse cache of its operand slot, as
the instruction before put it there (`.reuse`), and the other two lie in different banks. Source: Jia et al.,
"Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), section 3; measured on an H200 with 96
patterns (benchmarks/results/register_banks_h200.json): 3.0, 2.0 and 1.0 clocks, as counted here. It is a bound: the
multiply-adds of real loops, timed by themselves, lose 0.5 to 0.8 of the clocks that are counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?);")
_LABEL = re.compile(r"\.(L_\w+):")
_TARGET = re.compile(r"`\(\.?(L_\w+)\)")
_REGISTER = re.compile(r"-?\|?R(\d+)(\.reuse)?")


@dataclass(frozen=True, slots=True)
class MainLoop:
    """The loop with the most FFMAs: how many, clocks lost to register banks, instructions of other kinds."""

    multiply_adds: int
    lost_clocks: int
    others: int

    @property
    def share(self) -> float:
        """FFMAs a clock of a scheduler that issues an instruction a clock and never waits."""
        return self.multiply_adds / (self.multiply_adds + self.lost_clocks + self.others)

    def __str__(self) -> str:
        return (
            f"main loop: {self.multiply_adds} FFMA, {self.lost_clocks} clocks lost to register banks, "
            f"{self.others} other instructions: {self.share:.1%} of the FFMA peak"
        )


def main_loop(sass: str) -> MainLoop | None:
    """The main loop of a kernel's SASS, as `disassemble` gives it; None where no loop has an FFMA."""
    best: list[tuple[str, str]] = []
    for loop in _loops(sass.splitlines()):
        if _multiply_adds(loop) > _multiply_adds(best):
            best = loop
    if not best:
        return None
    count = _multiply_adds(best)
    return MainLoop(count, _lost_clocks(best), len(best) - count)


def _multiply_adds(code: Sequence[tuple[str, str]]) -> int:
    return sum(opcode.startswith("FFMA") for opcode, _ in code)


def _loops(lines: Sequence[str]) -> list[list[tuple[str, str]]]:
    """The instructions between each label and a branch back to it: opcode and operands."""
    code: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    loops = []
    for line in lines:
        label = _LABEL.match(line)
        if label is not None:
            labels[label[1]] = len(code)
        found = _INSTRUCTION.match(line)
        if found is not None:
            code.append((found[1], found[2]))
            target = _TARGET.search(found[2])
            if found[1] == "BRA" and target is not None and target[1] in labels:
                loops.append(code[labels[target[1]] :])
    return loops


def _lost_clocks(code: Sequence[tuple[str, str]]) -> int:
    """Clocks beyond one for each FFMA, for want of a bank."""
    lost = 0
    kept: dict[int, str] = {}
    for opcode, operands in code:
        if not opcode.startswith("FFMA"):
            kept = {}
            continue
        sources = [_REGISTER.match(text.strip()) for text in operands.split(",")[1:]]
        read = {source[1] for slot, source in enumerate(sources) if source and kept.get(slot) != source[1]}
        kept = {slot: source[1] for slot, source in enumerate(sources) if source and source[2]}
        odd = sum(int(number) % 2 for number in read)
        lost += max(odd, len(read) - odd, 1) - 1
    return lost
