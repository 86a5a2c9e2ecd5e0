"""Tiles: where parts of the operands are staged, who copies them, how they lie, and how wide accesses are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilewright.ir.buffer import Space
from tilewright.ir.program import Distribution, Pattern, Program, Route, Staged
from tilewright.layout.arrangement import Arrangement, Auto, Interleaved, Permuted, SwizzleAtoms, Xor
from tilewright.problem.gemm import DIMS, Dim, OperandName
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import (
    Step,
    check_count,
    check_flag,
    check_member,
    check_new_names,
    find_loop,
    find_tile,
    refuse,
)


@dataclass(frozen=True, repr=False)
class Stage(Step):
    """for k_tile: ... A[m, k] ...   ->   for k_tile: A_tile <- A[tile]; ... A_tile[m', k'] ...

    The tile holds what the loops inside `under` read; in shared memory, what all threads of the block read there.
    For the result, `Stage("C", Space.SHARED)`: each thread writes its accumulators to the tile, and the block stores
    it; under a loop over its accumulators ("m_frag"), once for each iteration, through a tile as much smaller. The name
    defaults to `A_tile` in shared memory and `A_frag` in registers. subtile: a result that each warpgroup stores by
    itself (Transfer) is stored in epilogue subtiles of so many neighbours along its rows, the last of what is left; 0:
    all at once. stages: of such subtiles; in two, the next is filled while the last one is stored.
    """

    operand: OperandName
    space: Space
    under: str = ""
    name: str = ""
    subtile: int = 0
    stages: int = 2

    positional = 2
    speaks_of = ("tile_name",)

    @property
    def tile_name(self) -> str:
        return self.name or f"{self.operand}_{'tile' if self.space is Space.SHARED else 'frag'}"

    def apply(self, program: Program) -> Program:
        check_member(self.space, Space)
        where = "registers" if self.space is Space.REGISTER else f"{self.space.value} memory"
        doing = f"Cannot stage {self.operand} in {where}"
        if self.operand not in tuple(DIMS):  # a dict cannot be hashed, and may stand in a file
            refuse(f"{doing}: there is no such operand.", hint="stage 'A', 'B' or the result 'C'.")
        if self.space is Space.GLOBAL:
            refuse(f"{doing}: it lies there.", hint="use Space.SHARED or Space.REGISTER.")
        if self.operand == "C":
            self._check_result(program, doing)
        else:
            if not self.under:
                refuse(f"{doing}: no loop was named.", hint="Stage(..., under='k_tile') copies in each k_tile.")
            find_loop(program, self.under)
        same = [s for s in program.staged if s.operand == self.operand and s.space is self.space]
        if same:
            refuse(f"{doing}: {same[0].name} is there already.", hint="stage an operand once in each memory.")
        check_new_names(program, (self.tile_name,))
        check_count(self.subtile, 0, doing, "the columns of an epilogue subtile")
        check_count(self.stages, 1, doing, "the number of epilogue stages")
        if self.subtile and self.operand != "C":
            refuse(f"{doing} in subtiles of {self.subtile}: a tile that is read is whole.", hint="leave subtile out.")
        tile = Staged(self.tile_name, self.operand, self.space, self.under, subtile=self.subtile, stages=self.stages)
        return check_program(replace(program, staged=(*program.staged, tile)), doing)

    def _check_result(self, program: Program, doing: str) -> None:
        if self.space is Space.REGISTER:
            refuse(f"{doing}: that is what Accumulate does.", hint="Accumulate(over='k').")
        if program.accumulation is None:
            refuse(f"{doing}: the sum is kept in C itself.", hint="put Accumulate(over=...) before this step.")
        if self.under:
            find_loop(program, self.under)


@dataclass(frozen=True, repr=False)
class Distribute(Step):
    """every thread copies the tile   ->   each thread copies its chunks of `vector` elements

    CYCLIC hands out chunks in turn, so that neighbouring threads touch neighbouring memory; BLOCKED gives each
    thread one run of them. Chunks run along the dimension that is contiguous in global memory.
    row_threads: so many threads lie side by side along a row, and the others below; a thread's chunks of one row are
    then a constant apart, and share an address. 0: as many as a row has chunks.
    thread_guards: at edges all chunks of a thread compare its own row with what is left of the matrix, a number that
    all threads share, in the place of a row for each chunk: fewer registers.
    """

    tile: str
    vector: int = 1
    pattern: Pattern = Pattern.CYCLIC
    row_threads: int = 0
    thread_guards: bool = False

    speaks_of = ("tile",)

    def apply(self, program: Program) -> Program:
        check_member(self.pattern, Pattern)
        doing = f"Cannot distribute {self.tile!r}"
        staged = find_tile(program, self.tile, "distribute")
        if staged.space is not Space.SHARED:
            refuse(f"{doing}: it is in registers, which each thread fills for itself.", hint="distribute shared tiles.")
        if staged.distribution is not None:
            refuse(f"{doing}: it is distributed already.", hint="use Distribute once for a tile.")
        check_count(self.vector, 1, doing, "its vector width")
        check_count(self.row_threads, 0, doing, "the number of threads along a row")
        check_flag(self.thread_guards, doing, "thread_guards")
        distribution = Distribution(self.vector, self.pattern, self.row_threads, self.thread_guards)
        return check_program(program.with_tile(replace(staged, distribution=distribution)), doing)


@dataclass(frozen=True, repr=False)
class Relayout(Step):
    """A_tile[m][k]   ->   A_tile[k][m], rows `pad` elements longer, columns permuted by `arrangement`

    rows: the dimension that counts the rows, "k" for a tile whose rows are k and whose columns are m or n. A tile lies
    as its operand does until this step says otherwise; where it comes to lie the other way, its copy transposes it.
    Auto() leaves pad and arrangement to a search for a layout without bank conflicts.
    """

    tile: str
    rows: Dim | Literal[""] = ""
    pad: int = 0
    arrangement: Arrangement | None = None

    speaks_of = ("tile",)

    def apply(self, program: Program) -> Program:
        doing = f"Cannot lay out {self.tile!r} anew"
        staged = find_tile(program, self.tile, "lay out")
        if staged.space is not Space.SHARED:
            refuse(f"{doing}: it is in registers, which have no banks.", hint="lay out shared tiles.")
        dims = program.gemm.operand(staged.operand).dims
        if self.rows and self.rows not in dims:
            refuse(
                f"{doing} with rows of {self.rows}: {staged.operand} has the dimensions {dims[0]} and {dims[1]}.",
                hint=f"rows={dims[0]!r} or rows={dims[1]!r}.",
            )
        check_count(self.pad, 0, doing, "its pad")
        if not isinstance(self.arrangement, (Interleaved, Xor, Permuted, SwizzleAtoms, Auto, type(None))):
            refuse(
                f"{doing}: {self.arrangement!r} is not an arrangement.",
                hint="use Interleaved(...), Xor(...), Permuted(...), SwizzleAtoms(...), Auto() or None.",
            )
        if isinstance(self.arrangement, Auto) and self.pad:
            refuse(f"{doing} with a pad of {self.pad}: its layout is still to be found.", hint="leave the pad out.")
        changed = replace(staged, rows=self.rows, pad=self.pad, arrangement=self.arrangement)
        return check_program(program.with_tile(changed), doing)


@dataclass(frozen=True, repr=False)
class Vectorize(Step):
    """for i in 8: A_frag[i] <- A_tile[k, i]   ->   for v in 2: A_frag[4v .. 4v+3] <- A_tile[k, 4v .. 4v+3]

    `target` is a register tile (its load), "C" (the store of the result), or the shared tile of a result whose rows
    warps store. The copy of another shared tile has its vector width in Distribute. Where alignment is not known the
    lowered variant falls back to single elements by itself.

    Lanes of a matrix instruction hold two neighbours of C. For eight of 2 bytes a quad shuffle transpose exchanges
    words of four lanes, so that each stores a whole row of a fragment; a thread needs a multiple of four fragments
    along the rows of C.
    """

    target: str
    width: int

    positional = 2
    speaks_of = ("target",)

    def apply(self, program: Program) -> Program:
        doing = f"Cannot vectorise {self.target!r} by {self.width}"
        check_count(self.width, 1, doing, "its width")
        if self.target == "C":
            return check_program(replace(program, result_vector=self.width), doing)
        staged = find_tile(program, self.target, "vectorise")
        if staged.space is Space.SHARED and staged.route is not Route.MATRICES:
            refuse(
                f"{doing}: it is a shared tile, whose copy is wide or narrow as it is distributed.",
                hint=f"Distribute({self.target!r}, vector={self.width}).",
            )
        return check_program(program.with_tile(replace(staged, vector=self.width)), doing)
