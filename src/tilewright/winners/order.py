"""In which order a kernel adds the products of one element of C: what decides its last bits.

Two kernels of one order give the same bits for the same operands: each element is the same chain of the same
operations. What does not matter: which thread or block owns it, how tiles travel, how deep they are, how far loops are
unrolled. What matters, and so makes up the order:

- what adds: FFMA one product after another, or an instruction, whose depth in k decides which products are added at
  once; and whether tf32 operands are rounded or cut off;
- the sequence in which the products are visited, where it is not simply ascending; where every other tile of a block is
  summed from the end of k, also which tiles these are;
- the split-K parts that different threads, warps or blocks sum, since those are added up later;
- what the sum is kept in, and whether factors are applied once to the finished sum;
- whether products of zeros are appended to fill the last tile of k: they turn a sum of -0 into 0.

`tests/tuner/test_order.py` runs kernels that this calls equal, and compares their bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass, fields

from tilewright.ir.accumulators import Accumulator, accumulator_of
from tilewright.ir.buffer import Space
from tilewright.ir.clusters import neighbours
from tilewright.ir.program import Axis, Program
from tilewright.ir.work import SplitK
from tilewright.problem.gemm import Gemm
from tilewright.toolchain import Build


@dataclass(frozen=True, slots=True)
class ReductionOrder:
    """The order of one element's sum.

    unit: what adds, and which formats it multiplies. depth: products added at once. visits: "ascending", or the digits
    of k as they are visited, outermost first, each "stride x extent". shared_by: digits of k that run side by side, and
    split-K parts summed by different blocks. sum_in: the format and place of the running sum. late: the factors
    that are applied once. ends_with_zeros: the last tile of k is filled up.
    """

    unit: str
    depth: int
    visits: str
    shared_by: tuple[str, ...]
    sum_in: str
    late: tuple[str, ...]
    ends_with_zeros: bool

    def __str__(self) -> str:
        shared = f", shared by {' and '.join(self.shared_by)}" if self.shared_by else ""
        zeros = ", then zeros" if self.ends_with_zeros else ""
        return f"{self.unit}, {self.depth} products at once, {self.visits}{zeros}{shared}, summed in {self.sum_in}"

    @property
    def name(self) -> str:
        """The same text for the same order, in every process."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:8]

    def difference_from(self, other: ReductionOrder) -> str:
        """The first thing that is not the same, in words."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                return f"{field.name.replace('_', ' ')} {mine!r} instead of {theirs!r}"
        return "nothing"


def order_of(built: Build, *, part_of_k: int = 0) -> ReductionOrder:
    """The order in which a kernel sums. part_of_k: products of one part, of a kernel of parts; they are added in the
    order of k."""
    program = built.program
    gemm, instruction = program.gemm, program.tensorized
    depth = 1 if instruction is None else instruction.instruction.k
    unit = "FFMA" if instruction is None else instruction.instruction.family.split(".")[0]
    late = tuple(name for name, is_late in (("alpha", program.late_alpha), ("beta", program.late_beta)) if is_late)
    tile = program.block_tile("k") if _is_tiled(program) else depth
    return ReductionOrder(
        unit=unit if instruction is None else f"{unit} {gemm.multiplied}",
        depth=depth,
        visits=_visits(program) + _alternating(program),
        shared_by=(
            *_side_by_side(program),
            *_by_blocks(built, part_of_k),
            *((f"{blocks} blocks of a cluster, in equal parts",) if (blocks := neighbours(program, "k")) > 1 else ()),
        ),
        sum_in=_kept_in(gemm, accumulator_of(program)),
        late=late,
        ends_with_zeros=gemm.k % max(tile, 1) != 0,
    )


def _by_blocks(built: Build, part_of_k: int) -> tuple[str, ...]:
    """How blocks share out k."""
    if built.stream_k:
        m, n = (built.program.block_tile(dim) for dim in ("m", "n"))
        which = f"of {m} x {n} that fill no wave of blocks" if built.whole_waves else f"of {m} x {n}"
        return (f"blocks, in equal parts of that of all tiles {which}",)
    return (f"blocks, {part_of_k} of k each",) if built.split_k is not SplitK.NONE else ()


def _kept_in(gemm: Gemm, kept: Accumulator) -> str:
    place = "registers" if kept.space is Space.REGISTER else "C"
    promoted = f", promoted to {kept.result_dtype} every {kept.promotion.every} of k" if kept.promotion else ""
    return f"{gemm.accumulate} in {place}{promoted}"


def _is_tiled(program: Program) -> bool:
    return len(program.axes_of("k")) > 1


def _instruction_axes(program: Program) -> frozenset[Axis]:
    return frozenset(program.instruction_axes)


def _visits(program: Program) -> str:
    """The digits of k in the order in which a thread counts them."""
    inside = _instruction_axes(program)
    loops = [loop for loop in program.thread_serial_loops if loop.is_reduction]
    digits = [axis for loop in loops for axis in loop.axes if axis.dim == "k" and axis not in inside]
    strides = [axis.stride for axis in digits]
    turning = [loop.name for loop in loops if loop.turning]
    if strides == sorted(strides, reverse=True) and not turning:
        return "ascending"
    counted = ", ".join(f"{axis.stride} x {axis.extent or 'rest'}" for axis in digits)
    return counted + (f", turning {', '.join(turning)}" if turning else "")


def _alternating(program: Program) -> str:
    """Which tiles of C are summed from the end of k."""
    raster = program.raster
    if raster is None or not raster.alternating_k:
        return ""
    rows, columns = (program.block_tile(dim) * neighbours(program, dim) for dim in ("m", "n"))
    return (
        f", in every other tile of a block descending: {rows} x {columns} in {raster.order.value} order, {raster.group}"
    )


def _side_by_side(program: Program) -> tuple[str, ...]:
    """Digits of k that threads or blocks share out, and not one thread one after another."""
    serial = {loop.name for loop in program.thread_serial_loops}
    inside = _instruction_axes(program)
    return tuple(
        f"{loop.level.value if loop.level is not None else 'loop'} {axis.stride} x {axis.extent or 'rest'}"
        for loop in program.loops
        for axis in loop.axes
        if axis.dim == "k" and loop.name not in serial and axis not in inside
    )
