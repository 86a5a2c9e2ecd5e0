"""The epilogue of a tile: how its sum starts, and the statements that store what is made of it.

    fragment -> optional rearrangement -> sink

Here are the stores of single threads, with or without a quad shuffle transpose, and those of a tile that the whole
block stores from shared memory; `epilogue_subtiles` has those of a warpgroup.

A quad shuffle transpose: a lane holds one word, two neighbours, of a row of each fragment, and its quad the row. Of
four fragments each lane takes the rows of one: 16 bytes to store at once, without shared memory or a barrier.

    lane   holds                         stores
      0    a0 b0 c0 d0                   a0 a1 a2 a3
      1    a1 b1 c1 d1      transposed   b0 b1 b2 b3       a .. d: rows of four fragments, each of four words
      2    a2 b2 c2 d2                   c0 c1 c2 c3
      3    a3 b3 c3 d3                   d0 d1 d2 d3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import gcd
from types import MappingProxyType

from tilewright.dtypes import F32
from tilewright.errors import LoweringError
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Ref, Select, Var, binary, both, real
from tilewright.ir.finish import BETA, OTHER, PAIR_SIGN, PLACE, as_f32, as_format
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.ir.program import Axis, Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Move, QuadTranspose, Stmt
from tilewright.ir.tiles import FRAGMENT, Tile, quad_shuffle_axis
from tilewright.ir.visit import rewrite, substitute, variables
from tilewright.layout.fragment import QUAD_LANES
from tilewright.lowering.coordinates import K_FIRST, index_of, lane_of, size_of
from tilewright.lowering.copies import store_tile
from tilewright.lowering.epilogue_held import HeldVectors
from tilewright.lowering.epilogue_plan import (
    ADDEND,
    EpiloguePlan,
    Output,
    Rearrangement,
    Sink,
    element_of,
    finished_sum,
)
from tilewright.lowering.epilogue_results import ResultStore
from tilewright.lowering.epilogue_scales import Own
from tilewright.lowering.epilogue_subtiles import SubtileStore
from tilewright.lowering.epilogue_vectors import EpilogueVectors
from tilewright.lowering.fragments import store_opaque
from tilewright.lowering.kernel_parts import (
    ELEMENT,
    beside,
    global_place,
    in_pair,
    is_matrix,
    over_digits,
    over_elements,
    running_element,
    value_buffer,
)
from tilewright.lowering.products import reads_shared
from tilewright.lowering.sums import Sums
from tilewright.problem.values import Added, AddedName

NOTHING_KEPT: Mapping[AddedName, Expr] = MappingProxyType({})
"""Of what an epilogue reads, in registers before."""


Leaves = dict[str, Expr]
"""Values by the names of the leaves of an expression that they stand for."""

_FOUR, _PIECE, _ROW, _OWNED = "four", "piece", "row", "owned"


def _of_pair(leaves: Leaves) -> Leaves:
    """What stands for the other column of a pair, of which a thread finishes both. Raises LoweringError where it does
    not."""
    element = Var(ELEMENT)
    if not any(ELEMENT in variables(value) for value in leaves.values()):
        raise LoweringError(
            "The epilogue makes an element of its neighbour's values too, and threads of this kernel finish one.",
            hint="another kernel, or a row-major C.",
        )
    others = {name + OTHER: substitute(value, {ELEMENT: element ^ 1}) for name, value in leaves.items()}
    return others | {PAIR_SIGN.name: Select(binary(Op.EQ, element % 2, 0), real(-1.0), real(1.0))}


def _predicated(stmt: Stmt) -> Body | None:
    """A store of an element of C whose guard is no branch."""
    if not isinstance(stmt, Move) or not is_matrix(stmt.dst) or stmt.dst.buffer.dtype is not F32:
        return None
    return (replace(stmt, predicated=True),)


@dataclass(frozen=True)
class Epilogue:
    """The statements of one thread around the sum of a tile of C.

    overwrites: of `Variant`.
    """

    program: Program
    plan: EpiloguePlan
    exact: frozenset[str]
    overwrites: bool = False

    def as_sum(self, value: Expr) -> Expr:
        return as_format(value, self.program.gemm.accumulate)

    def as_result(self, value: Expr) -> Expr:
        return as_format(value, self.program.gemm.out)

    def result_place(self) -> Ref:
        return global_place(self.program, "C", index_of(self.program, "m"), index_of(self.program, "n"))

    # -- before the sum ---------------------------------------------------------------------------------------------

    def start(self, sums: Sums) -> Body:
        """The sum before its first product: zero, or beta * C where the program has the factor there."""
        promoted = (sums.buffer,) if sums.is_promoted else ()
        if reads_shared(self.program):
            return sums.zeroed(*promoted)  # the first product of a tile, or of a group of k, overwrites what it adds to
        if self.program.late_beta:
            return sums.zeroed(*promoted, sums.group)
        value, load = self._load_addend()
        scaled = Binary(Op.MUL, BETA, as_f32(Load(value, (ZERO,))))
        set_sum = Assign(Ref(sums.buffer, sums.index), self.as_sum(scaled), origin=sums.name)
        return (*(sums.zeroed(sums.group) if promoted else ()), *sums.over_results((*load, set_sum)))

    def scale_c(self) -> Body:
        """`C = beta * C`, before sums are added to C itself."""
        if self.program.gemm.epilogue:
            raise LoweringError(
                "The sum is kept in C, which leaves no finished sum that an epilogue could be applied to.",
                hint="Accumulate(over=...) keeps the sum in registers.",
            )
        value, load = self._load_addend()
        here = Ref(value, (ZERO,))
        scaled = Binary(Op.MUL, BETA, as_f32(Load(value, (ZERO,))))
        return (*load, Assign(here, self.as_result(scaled), origin="C"), Move(self.result_place(), here, origin="C"))

    def _load_addend(self) -> tuple[Buffer, Body]:
        """The running addend in a register where beta needs it; zero, and nothing read, where beta is 0, or where the
        item that comes first in k adds it."""
        value = value_buffer("C", self.program.gemm.out, 1)
        needed: Expr = Binary(Op.NE, BETA, real(0))
        if self.program.adds_in_order:
            needed = both(needed, binary(Op.EQ, K_FIRST, 0))
        load = Move(Ref(value, (ZERO,)), self._addend(self.result_place()), 1, needed, origin="C")
        return value, (Alloc(value), load)

    # -- the value of an element ------------------------------------------------------------------------------------

    def _addend(self, place: Ref) -> Ref:
        """The element that beta multiplies for an element of C: itself, or that of the residual."""
        addend = self.plan.outputs[0].addend
        return place if addend == "C" else beside(self.program, place, addend)

    def _assign(
        self, value: Ref, totals: tuple[Expr, ...], addend: Expr | None, read: Leaves, output: Output | None = None
    ) -> Assign:
        """A finished element of an output, C by default, into the register `value`. read: of its operands."""
        output = output or self.plan.outputs[0]
        leaves = {finished_sum(number).name: as_f32(total) for number, total in enumerate(totals)} | read
        if addend is not None:
            leaves[ADDEND.name] = as_f32(addend)
        if self.program.gemm.epilogue.has_pairs:
            leaves |= _of_pair(leaves)
        result = substitute(output.overwriting if addend is None else output.value, leaves)
        return Assign(value, as_format(result, value.buffer.dtype), origin="C")

    def _beside(
        self,
        place: Ref,
        width: int,
        totals: Callable[[Expr], tuple[Expr, ...]],
        addend: Expr | None,
        read: Leaves,
        own: Own | None = None,
    ) -> Body:
        """The stores of what is written beside `width` neighbours of C from `place` on. addend, read: of the running
        element. own: as of `ResultStore.store`."""
        body: Body = ()
        element = running_element(width)
        for output in self.plan.outputs[1:]:
            value = value_buffer(output.operand, self.program.gemm.operand(output.operand).dtype, width)
            assign = self._assign(Ref(value, (element,)), totals(element), addend, read, output)
            store = ResultStore(self.program, self.exact).store(output, place, value, own)
            body = (*body, Alloc(value), *over_elements(width, (assign,)), *store)
        return body

    def _reads(
        self, place: Ref, width: int, kept: Mapping[AddedName, Expr] = NOTHING_KEPT
    ) -> tuple[Body, Callable[[Expr], Leaves]]:
        """Loads of the operands for `width` neighbours of C from `place` on, and what each of these takes of them.
        kept: what registers have of them already."""
        body: Body = ()
        held: list[tuple[Added, Buffer]] = []
        for operand in (one for one in self.plan.outputs[0].reads if one.name not in kept):
            dtype = operand.dtype or self.program.gemm.out
            alike = operand.single or operand.along == self.program.gemm.operand("C").strided
            value = value_buffer(operand.name, dtype, 1 if alike else width)
            most = max(WIDEST_BYTES // dtype.bytes, 1)
            firsts = range(0, value.elements, most)
            loads = (
                Move(
                    Ref(value, (Const(at),)),
                    self._element_of(operand, place, Const(at)),
                    min(most, value.elements - at),
                    origin="C",
                )
                for at in firsts
            )
            body = (*body, Alloc(value), *loads)
            held.append((operand, value))

        def leaves(element: Expr) -> Leaves:
            found = {
                element_of(operand).name: as_f32(Load(value, (element if value.elements > 1 else ZERO,)))
                for operand, value in held
            }
            found |= {element_of(one).name: kept[one.name] for one in self.plan.outputs[0].reads if one.name in kept}
            return found | self._place_leaves(place, element) if self.program.gemm.epilogue.has_draws else found

        return body, leaves

    def _element_of(self, operand: Added, place: Ref, element: Expr) -> Ref:
        """The element of an operand that belongs to an element of C, or to one further along its contiguous dimension:
        in shared memory, or in global memory."""
        vectors = self._vectors
        if operand in vectors.vectors:
            return vectors.place(operand, place, element)
        return beside(self.program, place, operand.name, element)

    @cached_property
    def _vectors(self) -> EpilogueVectors:
        return EpilogueVectors(self.program, self.plan.vectors)

    def _place_leaves(self, place: Ref, element: Expr) -> Leaves:
        """Where an element of C is, by the names of the leaves that stand for it."""
        row, column = place.index[:2]
        down, along = (ZERO, element) if self.program.gemm.operand("C").contiguous == "n" else (element, ZERO)
        return dict(zip((leaf.name for leaf in PLACE), (row + down, column, along), strict=True))

    def _finished(
        self,
        held: HeldVectors,
        first: Ref,
        place: Ref,
        totals: Callable[[Expr], tuple[Expr, ...]],
        reads_addend: bool,
        width: int,
        own: Own,
    ) -> Body:
        """Finished neighbours into registers from `first` on, what they read loaded before, and what is written beside
        them stored."""
        element = running_element(width)
        ahead = {name: as_f32(value) for name, value in own.loaded.items()}
        load, read = self._reads(place, width, {**held.kept(own.digits, own.register), **ahead})
        addend: Expr | None = None
        if reads_addend:
            old = value_buffer("C_old", self.program.gemm.out, width)
            load = (Alloc(old), Move(Ref(old, (ZERO,)), self._addend(place), width, origin="C"), *load)
            addend = Load(old, (element,))
        here = Ref(first.buffer, (*first.index[:-1], first.index[-1] + element))
        assign = over_elements(width, (self._assign(here, totals(element), addend, read(element)),))
        return (*load, *assign, *self._beside(place, width, totals, addend, read(element), own))

    def _store_vector(
        self, place: Ref, width: int, sums_at: Callable[[Expr], tuple[Expr, ...]], *, reads_addend: bool | None = None
    ) -> Body:
        """`width` finished neighbours to their place in C.

        reads_addend: None where beta decides here.
        """
        value = value_buffer("C", self.program.gemm.out, width)
        element = running_element(width)
        here = Ref(value, (element,))
        load: Body = ()
        addend: Expr | None = None
        if self.program.late_beta and reads_addend is not False and not self.overwrites:
            needed = None if reads_addend else Binary(Op.NE, BETA, real(0))
            old = value
            if self.program.gemm.epilogue.has_pairs:  # the other column still asks for it
                old = value_buffer("C_old", self.program.gemm.out, width)
                load = (Alloc(old),)
            load = (*load, Move(Ref(old, (ZERO,)), self._addend(place), width, needed, origin="C"))
            addend = Load(old, (element,))
        operands, read = self._reads(place, width)
        assign = over_elements(width, (self._assign(here, sums_at(element), addend, read(element)),))
        others = self._beside(place, width, sums_at, addend, read(element))  # before C takes the addend's registers
        return (Alloc(value), *load, *operands, *others, *assign, Move(place, Ref(value, (ZERO,)), width, origin="C"))

    def _by_beta(self, way: Callable[[bool], Body]) -> Body:
        """way(True) where the addend is read, way(False) where it is not: the same for all threads."""
        return way(False) if self.overwrites else (If(binary(Op.NE, BETA, real(0)), way(True), way(False)),)

    # -- after the sum ----------------------------------------------------------------------------------------------

    def finish(self, sums: Sums) -> Body:
        """The store of a tile whose products are done."""
        return (*self.empty_sum(sums), *self.store(sums))

    def finish_owned(self, sums: Sums, owned: Buffer, first: Expr) -> Body:
        """The store of a slice of a tile, whose finished sums `owned` has, of one accumulator after the other. first:
        the number of the slice's first register in each."""
        held = owned.elements // sums.accumulator.count
        width = gcd(sums.side_by_side, held)
        element: Expr = Var(_OWNED) * width

        def total(at: Expr) -> tuple[Expr, ...]:
            return tuple(Load(owned, (element + at + number * held,)) for number in range(sums.accumulator.count))

        def way(reads: bool | None) -> Body:
            store = self._store_vector(self.result_place(), width, total, reads_addend=reads)
            return (For(_OWNED, Const(held // width), (*sums.named(first + element), *store), unroll=True),)

        return way(None) if sums.fragment is None else self._by_beta(way)

    def leave(self) -> Body:
        """Before a block ends: its shared memory must outlive the copies that read it."""
        return SubtileStore.leave() if self.plan.sink is Sink.TMA else ()

    def empty_sum(self, sums: Sums) -> Body:
        """Where the first product overwrites the sum and there is none: set it, when no product is under way."""
        if not reads_shared(self.program) or sums.is_promoted:
            return ()
        return (If(binary(Op.EQ, size_of(self.program, "k"), 0), sums.zeroed(sums.buffer), rare=True),)

    def store(self, sums: Sums) -> Body:
        plan = self.plan
        if plan.subtiles:
            held = HeldVectors(self.program, plan, sums, self._vectors)
            finished = partial(self._finished, held)
            return (*held.load(), *SubtileStore(self.program, plan, sums, self.exact).body(self._by_beta, finished))
        if plan.tile is not None:
            return self._store_block_tile(sums, plan.tile)
        if plan.rearrangement is Rearrangement.QUAD_SHUFFLE:
            return self._by_beta(lambda reads: self._shuffled(sums, reads))
        return self._store_threads(sums)

    def _store_threads(self, sums: Sums) -> Body:
        """Each thread its own elements, in vectors of neighbours that it holds."""
        width = self.program.result_vector

        def way(reads: bool | None) -> Body:
            total = lambda element: sums.results_at(sums.index_at(element))  # noqa: E731
            return sums.over_results(self._store_vector(self.result_place(), width, total, reads_addend=reads), width)

        # The results of a fragment lie scattered: two whole ways cost less than a guard at each of them.
        return way(None) if sums.fragment is None else self._by_beta(way)

    # -- a quad shuffle transpose -----------------------------------------------------------------------------------

    @cached_property
    def _shuffle_axis(self) -> Axis:
        axis = quad_shuffle_axis(self.program)
        assert axis is not None
        return axis

    @property
    def _held(self) -> int:
        """Neighbours of a row of a fragment that a lane holds."""
        return self.program.result_vector // QUAD_LANES

    @property
    def _first_of_four(self) -> Expr:
        return Var(_FOUR) * QUAD_LANES if (self._shuffle_axis.extent or 1) > QUAD_LANES else ZERO

    def _shuffled(self, sums: Sums, reads: bool) -> Body:
        """Four fragments after the other, and each of their rows that a lane has a part of."""
        fragment, axis = sums.fragment, self._shuffle_axis
        assert fragment is not None
        vector = self._shuffled_vector(sums, reads)
        body: Body = (For(_ROW, Const(fragment.registers // self._held), vector, unroll=True),)
        body = (For(_FOUR, Const((axis.extent or 1) // QUAD_LANES), body, unroll=True),)
        return over_digits([other for other in self.program.sum_axes if other != axis], body)

    def _shuffled_vector(self, sums: Sums, reads: bool) -> Body:
        """One vector: a lane's words of a row of each of four fragments, exchanged for a row of one."""
        program, width, lane = self.program, self.program.result_vector, lane_of(self.program)
        value, old = (value_buffer(name, program.gemm.out, width) for name in ("C", "C_old"))
        first, last = (Ref(buffer, (ZERO,)) for buffer in (value, old))
        place = self._shuffled_place(sums, lane % QUAD_LANES, ZERO, row_start=True)
        load: Body = ()
        if reads:  # what the quad reads in whole rows, its lanes exchange back
            load = (Alloc(old), Move(last, self._addend(place), width, origin="C"), QuadTranspose(last, origin="C"))
        piece, element = Var(_PIECE), Var(ELEMENT)
        at = piece * self._held + element
        register = Var(_ROW) * self._held + element
        digits = {self._shuffle_axis.name: self._first_of_four + piece, FRAGMENT: register}
        operands, read = self._reads(self._shuffled_place(sums, piece, ZERO), self._held)
        addend = Load(old, (at,)) if reads else None
        held = self._assign(Ref(value, (at,)), sums.results(digits), addend, read(element))
        others = self._beside(
            self._shuffled_place(sums, piece, ZERO), self._held, lambda _: sums.results(digits), addend, read(element)
        )
        row = (*operands, For(ELEMENT, Const(self._held), (held,), unroll=True), *others)
        pieces = For(_PIECE, Const(QUAD_LANES), row, unroll=True)
        return (Alloc(value), *load, pieces, QuadTranspose(first, origin="C"), Move(place, first, width, origin="C"))

    def _shuffled_place(self, sums: Sums, piece: Expr, element: Expr, *, row_start: bool = False) -> Ref:
        """The place in C of an element that the lane holds, or of the first of that row of the fragment."""
        program, fragment = self.program, sums.fragment
        assert fragment is not None
        at = fragment.element(lane_of(program), Var(_ROW) * self._held + element)
        digits = {axis.name: value for axis, value in zip(program.instruction_axes, at, strict=False)}
        digits[self._shuffle_axis.name] = self._first_of_four + piece
        if row_start:
            along = program.gemm.operand("C").contiguous
            digits[next(axis.name for axis in program.instruction_axes[:2] if axis.dim == along)] = ZERO
        row, column = (substitute(index_of(program, dim), digits) for dim in program.gemm.operand("C").dims)
        return global_place(program, "C", row, column)

    # -- a tile that the block stores -------------------------------------------------------------------------------

    def _store_block_tile(self, sums: Sums, tile: Tile) -> Body:
        """Accumulators through shared memory, as a whole or in the iterations of a loop over fragments."""
        held = {axis.name for span in tile.spans for axis in span.axes}
        outside = tuple(axis for axis in self.program.sum_axes if axis.name not in held)
        part = replace(sums, outside=frozenset(axis.name for axis in outside))
        fill = self._fill_block_tile(part, tile)
        if self.plan.sink is Sink.THREADS:
            # Each thread takes back what it put there, so no barrier and no second order of elements is needed.
            store = part.over_results(self._store_own(tile))
        else:
            store = self._store_shared_out(tile, pairs=self._packs(sums, tile))
        body = (*fill, *store)
        return over_digits(outside, body)

    def _fill_block_tile(self, sums: Sums, tile: Tile) -> Body:
        """Accumulators into the shared tile of the result."""
        if sums.fragment is not None and sums.fragment.opaque:
            return sums.over_tiles(store_opaque(self.program, sums, tile))
        width = self._row_access(tile)
        value = value_buffer(tile.staged.name, tile.dtype, width)
        element = running_element(width)
        (total,) = sums.results_at(sums.index_at(in_pair(element) if self._packs(sums, tile) else element))
        copy = over_elements(width, (Assign(Ref(value, (element,)), total, origin=tile.staged.name),))
        row, col = (span.local_index() for span in tile.spans)
        place = tile.at(row, col)
        body = (Alloc(value), *copy, Move(place, Ref(value, (ZERO,)), width, origin=tile.staged.name))
        return sums.over_results(body, width)

    def _store_shared_out(self, tile: Tile, *, pairs: bool) -> Body:
        """The shared tile to C by all threads. Where they store single elements and C is overwritten, guards are
        predicates: behind a branch a compiler loads the element too, one after another."""
        guarded = store_tile(self.program, tile, self._store_vector, pairs=pairs)
        distribution = tile.staged.distribution
        if not pairs or distribution is None or distribution.vector > 1 or self.program.gemm.out is not F32:
            return guarded
        overwriting = partial(self._store_vector, reads_addend=False)
        plain = rewrite(store_tile(self.program, tile, overwriting, pairs=pairs), _predicated)
        decides = self.program.late_beta and not self.overwrites
        return (If(binary(Op.EQ, BETA, real(0)), plain, guarded),) if decides else plain

    def _row_access(self, tile: Tile) -> int:
        """Neighbours of a row of the shared tile that a thread stores at once."""
        width = self.program.result_vector if tile.minor == tile.global_minor else 1
        return min(width, tile.widest_row_access)

    def _packs(self, sums: Sums, tile: Tile) -> bool:
        """Whether neighbours of a row change places in the shared tile, as `in_pair` says."""
        shared_out = self.plan.sink is not Sink.THREADS
        return shared_out and sums.fragment is None and self._row_access(tile) % 2 == 0

    def _store_own(self, tile: Tile) -> Body:
        """A thread's own elements from the shared tile to C."""
        value = value_buffer(tile.staged.name, tile.dtype, 1)
        row, col = (span.local_index() for span in tile.spans)
        load = Move(Ref(value, (ZERO,)), tile.at(row, col), origin=tile.staged.name)
        return (Alloc(value), load, *self._store_vector(self.result_place(), 1, lambda _: (Load(value, (ZERO,)),)))
