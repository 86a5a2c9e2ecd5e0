"""Sums: where they are kept, what multiplies, and how they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Accumulation, Level, Program, Tensorized
from tilewright.isa.catalog import instruction
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_flag, check_new_names, check_unused, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Accumulate(Step):
    """for k: C[m, n] += a * b   ->   sum = 0; for k: sum += a * b; C[m, n] = sum

    The sum has an element for each result that one thread computes inside the loop `over`.

    promote_every: elements of k after which the sum is added to another in registers of f32, rounded to nearest, and
    starts anew; 0 for never. Tensor cores cut off what lies far below the largest term of a sum, or sum in f16: the
    error then grows with `promote_every`, not with k. It takes twice the registers. A multiple of the k that one
    iteration of the loop `over` sums, or of an inner loop over k whose iterations it divides.
    """

    over: str
    name: str = "sum"
    promote_every: int = 0

    speaks_of = ("name",)

    def apply(self, program: Program) -> Program:
        loop = find_loop(program, self.over)
        if program.accumulation is not None:
            refuse(
                f"Cannot keep the sum over {self.over!r}: {program.accumulation.name!r} keeps it already.",
                hint="use Accumulate once.",
            )
        if not loop.is_reduction:
            loops = [loop.name for loop in program.loops if loop.is_reduction]
            refuse(
                f"Cannot keep the sum over {self.over!r}: that loop does not sum.",
                hint=f"the outermost loop over k is {loops[0]!r}.",
            )
        check_new_names(program, (self.name,))
        check_count(self.promote_every, 0, f"Cannot keep the sum over {self.over!r}", "promote_every")
        summed = replace(program, accumulation=Accumulation(self.name, self.over, self.promote_every))
        return check_program(summed, f"Cannot keep the sum over {self.over!r}")


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

    positional = 3
    speaks_of = ("m", "n", "k")

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


@dataclass(frozen=True, repr=False)
class Epilogue(Step):
    """sum = beta*C; sum += alpha*a*b; C = sum   ->   sum = 0; sum += a*b; C = alpha*sum + beta*C

    alpha, beta: which factor is applied once to each finished sum instead of inside the loops.
    """

    alpha: bool = True
    beta: bool = True

    positional = 0

    def apply(self, program: Program) -> Program:
        check_flag(self.alpha, "Cannot scale finished sums", "alpha")
        check_flag(self.beta, "Cannot scale finished sums", "beta")
        if program.accumulation is None:
            refuse(
                "Cannot scale finished sums: the sum is kept in C itself.",
                note="without registers there is no moment at which a sum is finished but not yet stored.",
                hint="put Accumulate(over=...) before this step.",
            )
        if self.alpha and not self.beta:
            refuse(
                "Cannot scale finished sums by alpha alone: they begin with beta * C, which alpha would scale as well.",
                hint="Epilogue() scales by both, Epilogue(alpha=False) by beta alone.",
            )
        return replace(program, late_alpha=self.alpha, late_beta=self.beta)
