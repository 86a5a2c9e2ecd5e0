"""The accumulators of a program: which running sums a thread keeps, of which format, and when they are promoted.

    MMAs or FMAs -> accumulator -> epilogue
    MMAs or FMAs -> accumulator -> every n of k -> promoted accumulator, f32 registers -> epilogue

Tensor cores cut off what lies far below the largest term of a sum, or sum in f16; what is cut off grows with the sum.
Promotion adds the sum of every n of k to registers of f32, rounded to nearest, and starts it anew, so that at most n
products have a part in what is cut off. Where blocks of k have scales, they multiply the sum of their block then.

    for k_tile:  for k_step:  for m_frag:  ...      a sum for each fragment, all promoted behind the k tile
    for k_tile:  for m_frag:  for k_step:  ...      one sum, promoted behind each fragment
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import prod

from tilewright.dtypes import F32, DType
from tilewright.ir.buffer import Space
from tilewright.ir.program import Loop, Program
from tilewright.problem.block_scales import BlockScales


@dataclass(frozen=True, slots=True)
class Promotion:
    """When an accumulator is added to its promoted accumulator, which is in f32.

    every: elements of k. loop: the loop over k whose iterations are counted. iterations: of it, that make up `every`.
    scales: of blocks of so many k, by which an accumulator is multiplied before it is added. parts: the loops over
    fragments between that loop and all others over k: the accumulators of one fragment serve the next one, too.
    """

    every: int
    loop: str
    iterations: int
    scales: BlockScales | None = None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A running sum of a tile of C.

    name: of what the epilogue reads. dtype: in which products are added. space: registers; or global memory, where the
    sum is kept in C itself. elements: of a thread; 0 in global memory. count: of such sums side by side, of which the
    epilogue makes C. promotion: None for never. parts: that are summed, and promoted, one after another, in the same
    registers.
    """

    name: str
    dtype: DType
    space: Space
    elements: int
    count: int = 1
    promotion: Promotion | None = None
    parts: int = 1

    @property
    def group(self) -> str:
        """The name of what products are added to: the sum itself, or the sum of a group of k that is then promoted."""
        return self.name if self.promotion is None else f"{self.name}_group"

    @property
    def result_dtype(self) -> DType:
        """The format of what the epilogue reads."""
        return self.dtype if self.promotion is None else F32

    @property
    def registers(self) -> int:
        """Elements in registers of a thread, those of the promoted accumulator included."""
        summed = self.elements // self.parts if self.promotion is not None else 0
        return (self.elements + summed) * self.count


def accumulator_of(program: Program) -> Accumulator:
    """The accumulator of a program."""
    gemm, kept = program.gemm, program.accumulation
    if kept is None:
        return Accumulator("C", gemm.out, Space.GLOBAL, 0)
    elements = prod(axis.extent or 1 for axis in program.sum_axes)
    if program.tensorized is not None:
        elements *= program.tensorized.instruction.c.registers
    promotion = promotion_of(program)
    parts = prod(program.loop(name).extent or 1 for name in (promotion.parts if promotion else ()))
    return Accumulator(kept.name, gemm.accumulate, Space.REGISTER, elements, gemm.accumulators, promotion, parts)


def promotion_of(program: Program) -> Promotion | None:
    """When the accumulator of a program is promoted: counted by the outermost loop that it is whole iterations of."""
    kept = program.accumulation
    if kept is None or not kept.promote_every:
        return None
    for loop in k_loops(program):
        stride = loop.axes[0].stride
        if kept.promote_every % stride == 0:
            iterations = kept.promote_every // stride
            parts = _parts(program, loop) if iterations == 1 else ()
            return Promotion(kept.promote_every, loop.name, iterations, program.gemm.block_scales, parts)
    return None


def _parts(program: Program, counted: Loop) -> tuple[str, ...]:
    """As of `Promotion`: of the MMAs of a stage that a producer fills, which are waited for before their accumulators
    are read."""
    tensorized, ring = program.tensorized, program.pipelined
    if tensorized is None or not tensorized.instruction.reads_shared:
        return ()
    if program.specialized is None or ring is None or ring.loop != counted.name:
        return ()
    inner = program.thread_serial_loops[program.thread_serial_loops.index(counted) + 1 :]
    return tuple(loop.name for loop in takewhile(lambda loop: not loop.is_reduction, inner))


def k_loops(program: Program) -> tuple[Loop, ...]:
    """The loops over k that a thread runs, outermost first."""
    return tuple(loop for loop in program.thread_serial_loops if loop.is_reduction)
