"""The epilogue of a tile as a value: what is stored, how fragments are rearranged before it, and by which accesses.

    accumulators -> value of each element -> rearrangement -> sink

`epilogue_plan` derives the plan from the declarations of a program; `epilogue` makes statements of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tilewright.dtypes import F32
from tilewright.ir.expr import Expr, Var
from tilewright.ir.finish import Computed
from tilewright.ir.program import Program, Route
from tilewright.ir.tiles import Tile, quad_shuffle_axis, tile_of
from tilewright.lowering.epilogue_vectors import vectors_of
from tilewright.problem.gemm import OperandName
from tilewright.problem.values import Added, AddedName, evaluate

ADDEND = Var("addend", F32)
"""The leaf of the value of an element that stands for the one that beta multiplies."""


def finished_sum(number: int) -> Var:
    """The leaf that stands for the finished sum of an accumulator."""
    return Var(f"accumulator_{number}", F32)


def element_of(operand: Added) -> Var:
    """The leaf of the value of an element that stands for its element of an operand of the epilogue."""
    return Var(f"{operand.name}_element", F32)


class Rearrangement(Enum):
    """How the elements of accumulators change threads before they are stored."""

    NONE = "none"  # each thread stores its own
    QUAD_SHUFFLE = "quad shuffle transpose"  # four lanes exchange words until each has 16 bytes of one row
    STMATRIX = "stmatrix"  # finished elements to shared memory, matrices of eight rows at a time
    SHARED = "shared memory"  # by ordinary stores: finished elements, or the accumulators themselves


class Sink(Enum):
    """Who stores C."""

    THREADS = "threads"  # each what it holds, in vectors of `Program.result_vector`
    BLOCK = "block"  # the threads of a block share out the rows of a tile in shared memory
    WARPS = "warps"  # each warp rows of its warpgroup's epilogue subtile, neighbours by lanes
    TMA = "TMA"  # one thread of a warpgroup, an epilogue subtile at a time


@dataclass(frozen=True, slots=True)
class Output:
    """One matrix that the epilogue stores, or what is folded of it. value: of an element, over finished sums, `ADDEND`,
    those of `reads`, alpha and beta, before it is rounded to the format of `operand`; overwriting: the same where beta
    is zero and no addend is read. reads: for each element."""

    operand: OperandName | AddedName
    value: Expr
    overwriting: Expr
    addend: Literal["C", "residual"]
    reads: tuple[Added, ...] = ()


@dataclass(frozen=True, slots=True)
class Subtile:
    """The columns of one epilogue subtile, or of several equal ones. first: the column of the first; count: how many
    follow each other; number: how many come before it."""

    columns: int
    first: int = 0
    count: int = 1
    number: int = 0


@dataclass(frozen=True, slots=True)
class EpiloguePlan:
    """outputs: C first. tile: what lies in shared memory; None where nothing does. subtiles: what a warpgroup stores
    one after the other, along C's contiguous dimension; stages: epilogue subtiles of a warpgroup that shared memory has
    room for; vectors: operands that are read from shared memory (`epilogue_vectors`)."""

    outputs: tuple[Output, ...]
    rearrangement: Rearrangement
    sink: Sink
    tile: Tile | None = None
    subtiles: tuple[Subtile, ...] = ()
    stages: int = 1
    vectors: tuple[Added, ...] = ()


def epilogue_plan(program: Program) -> EpiloguePlan:
    """The epilogue of a program's tiles."""
    scales = program.gemm.epilogue.scales  # which are stored where they are found
    stored = (name for name in program.gemm.results if scales is None or name != scales.operand.name)
    outputs = tuple(_output(program, name) for name in stored)
    vectors = vectors_of(program, program.gemm.epilogue.reads)
    staged = program.staged_result
    if staged is None:
        shuffles = quad_shuffle_axis(program) is not None
        rearrangement = Rearrangement.QUAD_SHUFFLE if shuffles else Rearrangement.NONE
        return EpiloguePlan(outputs, rearrangement, Sink.THREADS, vectors=vectors)
    tile = tile_of(program, staged)
    if not staged.finished:
        sink = Sink.THREADS if staged.distribution is None else Sink.BLOCK
        return EpiloguePlan(outputs, Rearrangement.SHARED, sink, tile, vectors=vectors)
    return EpiloguePlan(
        outputs,
        Rearrangement.STMATRIX if tile.dtype.bytes == STMATRIX_ELEMENT_BYTES else Rearrangement.SHARED,
        Sink.TMA if staged.route is Route.TMA else Sink.WARPS,
        tile,
        _subtiles(program.result_columns(staged), program.subtile_columns(staged)),
        min(staged.stages, program.subtile_count(staged)),
        vectors,
    )


STMATRIX_ELEMENT_BYTES = 2
"""stmatrix moves pairs of 2-byte elements. Source: PTX ISA 9.0, stmatrix."""


def _subtiles(columns: int, each: int) -> tuple[Subtile, ...]:
    """Equal ones, and a narrower one of what is left.

    >>> [(s.columns, s.first, s.count) for s in _subtiles(208, 64)]
    [(64, 0, 3), (16, 192, 1)]
    """
    whole, left = columns // each, columns % each
    found = [Subtile(each, count=whole)] if whole else []
    return (*found, *([Subtile(left, whole * each, number=whole)] if left else []))


def _output(program: Program, name: str) -> Output:
    """The value of the problem's epilogue for C, or for a result beside it; factors may be applied elsewhere."""
    epilogue = program.gemm.epilogue
    totals = tuple(finished_sum(number) for number in range(program.gemm.accumulators))
    elements: dict[AddedName, Expr] = {operand.name: element_of(operand) for operand in epilogue.reads}

    def finished(addend: Expr | None) -> Expr:
        return evaluate(epilogue.value_of(name), Computed(totals, elements, addend, program.late_alpha))

    return Output(
        name, finished(ADDEND if program.late_beta else None), finished(None), epilogue.addend, epilogue.reads
    )
