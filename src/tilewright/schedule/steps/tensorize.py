"""An inner tile run by one matrix instruction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Level, Program, Tensorized
from tilewright.isa.catalog import instruction
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_unused, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Tensorize(Step):
    """for m in 16: for n in 8: for k in 16: C_sum += A_frag * B_frag   ->   C_sum[tile] += A_frag[tile] @ B_frag[tile]

    The three innermost loops, over neighbouring m, n and k, become one instruction of the tensor cores, run by the 32
    lanes of a warp together. `using` names its family, such as "mma.m16n8k16"; the formats are those of the problem.
    Operands of a tf32 problem are rounded in registers, three instructions for two elements of a fragment; those of a
    tf32_truncated problem are not, and the multiplier drops their lower bits: twice the error, and a bias to zero.
    It drops those of a NaN too, and one of which nothing is left, such as 0x7f800001, it reads as infinity.
    The warps are then the only threads to bind: the lanes belong to the instruction.

    An instruction may have its rows along n: name the loop over n first, that over m second, and it computes the tile
    of C transposed, B_tile @ A_tile (swap-AB). A skinny C then wastes no rows of the instruction.
    """

    m: str
    n: str
    k: str
    using: str

    positional: ClassVar[int] = 3

    def apply(self, program: Program) -> Program:
        doing = f"Cannot run {self.m!r}, {self.n!r} and {self.k!r} by {self.using}"
        if program.tensorized is not None:
            refuse(f"{doing}: {program.tensorized.instruction.name} runs a tile already.", hint="use Tensorize once.")
        swapped = find_loop(program, self.m).axes[0].dim == "n"
        gemm = program.gemm
        first, second = (gemm.factor_format(name) for name in ("BA" if swapped else "AB"))
        chosen = instruction(self.using, first, gemm.accumulate, second)
        if swapped and chosen.is_opaque:
            refuse(
                f"{doing}: the rows of {chosen.name} run along m.",
                note="which lane holds what of its operands is not known, so that they cannot change round.",
                hint="name the loop over m first, or use mma or wgmma.",
            )
        dims = ("n", "m", "k") if swapped else ("m", "n", "k")
        extents = chosen.m, chosen.n, chosen.k
        for name, dim, extent in zip((self.m, self.n, self.k), dims, extents, strict=True):
            loop = find_loop(program, name)
            axis = loop.axes[0]
            if loop.level is not None or len(loop.axes) > 1 or axis.dim != dim or axis.extent != extent:
                refuse(
                    f"{doing}: {name!r} is not a serial loop over {extent} of {dim}.",
                    note=f"{chosen.name} multiplies {chosen.m} x {chosen.k} by {chosen.k} x {chosen.n}.",
                    hint=f"Split a loop over {dim} by {extent} and name its inner part here.",
                )
            if axis.stride != 1:
                refuse(
                    f"{doing}: neighbours of {name!r} are {axis.stride} apart in {dim}.",
                    hint=f"Split {dim} by {extent} first of all, from the inside out.",
                )
            check_unused(program, name, "run by an instruction the")
            program = program.with_loop(replace(loop, level=Level.INSTRUCTION))
        return check_program(replace(program, tensorized=Tensorized(chosen, (self.m, self.n, self.k))), doing)

    def names(self) -> tuple[str, ...]:
        return (self.m, self.n, self.k)
