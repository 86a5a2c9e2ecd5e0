"""How a kernel's multiply-adds share the two banks of the register file, read from its machine code.

From sm_70 on, registers lie in two banks, even and odd numbers, and each gives a warp one register a clock. A
multiply-add reads three: it issues in one clock where one of them is still in the reuse cache of its operand slot, as
the instruction before put it there, and the other two lie in different banks. Source: Jia et al., "Dissecting the
NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), section 3; measured on an H200 with 96 patterns
(benchmarks/results/register_banks_h200.json): 3.0, 2.0 and 1.0 clocks, as counted here with no clock ahead. It is a
bound: the multiply-adds of real loops, timed by themselves, lose 0.5 to 0.8 of these clocks. As many are lost if a bank
may be a clock behind, so that an instruction with two reads of it is made up for by one with none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.runtime.machine_code import Instruction, Kind, MachineCode

_BANKS = 2


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


def main_loop(code: MachineCode) -> MainLoop | None:
    """The main loop of a kernel; None where no loop has an FFMA."""
    multiply_adds = frozenset({Kind.MULTIPLY_ADD})
    best = max(code.loops, key=lambda loop: (code.count(loop, multiply_adds), loop[0] - loop[1]), default=None)
    if best is None or not code.count(best, multiply_adds):
        return None
    inside, count = code.inside(best), code.count(best, multiply_adds)
    return MainLoop(count, lost_clocks(inside), len(inside) - count)


def lost_clocks(code: Sequence[Instruction], *, behind: int = 0) -> int:
    """Clocks beyond one for each instruction, for want of a bank. behind: clocks that a bank may be late."""
    lost = 0
    free = [0] * _BANKS
    kept: dict[int, int | None] = {}
    for at, one in enumerate(code):
        if one.kind is not Kind.MULTIPLY_ADD:
            kept = {}
            continue
        read = {number for slot, number in enumerate(one.reads) if number is not None and kept.get(slot) != number}
        kept = {slot: number for slot, number in enumerate(one.reads) if one.kept >> slot & 1}
        for number in read:
            free[number % _BANKS] = max(free[number % _BANKS], at + lost) + 1
        lost += max(0, max(free) - behind - (at + lost + 1))
    return lost
