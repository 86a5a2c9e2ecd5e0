"""Epilogue subtiles: finished elements to shared memory, and from there to C, by each warpgroup on its own.

A warpgroup has its own rows of the tile of C (or columns, where C's contiguous dimension runs along the rows of the
instruction, as under swap-AB) and stores them some columns at a time, each subtile through a stage of shared memory.
Elements of 2 bytes get there by stmatrix, transposed where the instruction's rows are C's contiguous dimension; others
by ordinary stores of what a lane holds side by side.

    TMA     one thread waits until the stage has been read, all fill it, meet, and one thread starts its boxes, which
            go on while the next subtile or tile is computed
    WARPS   all fill a stage, meet, and each warp stores rows of it (`epilogue_rows`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.async_stmt import CommitStores, FenceProxy, StoreMatrices, TensorMap, TmaStore, WaitStores
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import ZERO, Const, Expr, Load, Op, Ref, Select, Var, binary
from tilewright.ir.kernel import step_of
from tilewright.ir.program import GROUP_LANES, WARP_LANES
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move
from tilewright.ir.tiles import FRAGMENT
from tilewright.layout.epilogue import CHUNK_COLUMNS, Exchange, columns_together, exchange_of
from tilewright.layout.fragment import MATRIX_ROWS
from tilewright.layout.swizzle import NO_SWIZZLE, swizzle_of
from tilewright.lowering.coordinates import M_FIRST, M_SIZE, digit_sum, matrix_of
from tilewright.lowering.epilogue_ahead import MatricesAhead
from tilewright.lowering.epilogue_plan import Rearrangement, Sink, Subtile
from tilewright.lowering.epilogue_results import ResultStore
from tilewright.lowering.epilogue_rows import RowStore
from tilewright.lowering.epilogue_scales import BlockScales, ByBeta, Finished, Own
from tilewright.lowering.kernel_parts import ELEMENT, over_digits, over_elements, value_buffer
from tilewright.lowering.subtile_geometry import LANE, SUBTILE, SubtileGeometry
from tilewright.problem.values import AddedName

_CHUNK, _FRAG, _ATOM, _PAIR = Var("chunk"), Var("fragment_in_subtile"), Var("atom"), Var("pair")

Ahead = Callable[[Expr, int], Mapping[AddedName, Expr]]
"""ahead(register, width): what was loaded ahead for so many sums of the running chunk, from one of them on."""

NONE_AHEAD: Ahead = lambda register, width: {}  # noqa: E731

FRAGMENT_ROWS = 64
"""Rows of a fragment of wgmma."""


@dataclass(frozen=True)
class SubtileStore(SubtileGeometry):
    """The statements of one warpgroup that store its part of a tile of C."""

    exact: frozenset[str]

    def body(self, by_beta: ByBeta, finished: Finished) -> Body:
        """The subtiles of the tile, one after the other; of codes, behind the values and scales of its blocks."""
        found: Body = ()
        if self._scales is not None:
            found = self._scales.found(by_beta, finished)
            by_beta = lambda way: way(False)  # noqa: E731  (values have what they take of the addend)
        results = self._results
        stored = (s for subtile in self.plan.subtiles for s in self._subtiles(subtile, by_beta, finished))
        lane = LANE if self.ping_pong > 1 else self.group * GROUP_LANES + LANE
        return (*results.begin(), *found, *stored, *results.end(lane))

    @cached_property
    def _results(self) -> ResultStore:
        return ResultStore(self.program, self.exact)

    @cached_property
    def _scales(self) -> BlockScales | None:
        if self.program.gemm.epilogue.scales is None:
            return None
        return BlockScales(self.program, self.plan, self.sums, self.exact)

    def _subtiles(self, subtile: Subtile, by_beta: ByBeta, finished: Finished) -> Body:
        ahead = self._ahead(subtile)
        fill = by_beta(lambda reads: self._fill(subtile, finished, reads, ahead))
        one = self._by_tma(subtile, fill) if self.plan.sink is Sink.TMA else self._by_warps(subtile, fill)
        if subtile.number == 0:
            one = (For(SUBTILE.name, Const(subtile.count), one, unroll=True),)
        return (*ahead.begin(), *one)

    # -- TMA --------------------------------------------------------------------------------------------------------

    def _by_tma(self, subtile: Subtile, fill: Body) -> Body:
        return (
            If(binary(Op.EQ, LANE, 0), (WaitStores(self.plan.stages - 1),)),
            self.meet(),
            *fill,
            FenceProxy(),
            self.meet(),
            If(binary(Op.EQ, LANE, 0), (*self._boxes(subtile), CommitStores())),
        )

    @staticmethod
    def leave() -> Body:
        """Before a block ends: its shared memory must outlive the copies that read it."""
        return (If(binary(Op.EQ, LANE, 0), (WaitStores(0),)),)

    def _boxes(self, subtile: Subtile) -> Body:
        """One thread's TMA stores: a box for each swizzle atom, or one of plain rows."""
        atoms = self.layout(subtile)
        wide = subtile.columns if atoms is None else atoms.columns
        count = subtile.columns // wide
        atom: Expr = _ATOM if count > 1 else ZERO
        row, column = self.corner(subtile)
        name = "C_map" if subtile.number == 0 else f"C_{wide}_map"
        swizzle = NO_SWIZZLE if atoms is None else swizzle_of(atoms.row_bytes)
        ragged = self.program.problems.along_m
        several: tuple[Expr, ...] = (M_FIRST, M_SIZE) if ragged else matrix_of(self.program, "C")
        step = step_of("C") if several and not ragged else ""
        box = TensorMap(name, "C", (wide, self.rows), swizzle, step, ragged)
        source = self._box_source(subtile, wide, atom, atoms is None)
        at, staged = (column + atom * wide, row, *several), self.tile.staged
        store = TmaStore(box, at, source, staged.evict_first, origin=staged.name)
        return (For(_ATOM.name, Const(count), (store,), unroll=True),) if count > 1 else (store,)

    def _box_source(self, subtile: Subtile, wide: int, atom: Expr, plain: bool) -> Ref:
        """Where a box begins in shared memory: the place of its first element without the swizzle, which TMA undoes."""
        stage, buffer = self.stage(subtile), self.tile.shared_buffer
        if self.tile.uneven:
            first = self.first_row() * self.plan.subtiles[0].columns + atom * (self.rows * wide)
            return Ref(buffer, (*stage, first))
        if plain:
            return Ref(buffer, (*stage, self.first_row(), ZERO))
        return Ref(buffer, (*stage, self._first_atom(subtile, wide) + atom, self.first_row(), ZERO))

    # -- warps ------------------------------------------------------------------------------------------------------

    def _by_warps(self, subtile: Subtile, fill: Body) -> Body:
        """Of two stages, that all have read one is known from the meeting since."""
        first = (self.meet(),) if self.plan.stages == 1 else ()
        return (*first, *fill, self.meet(), *RowStore(self, subtile, self.exact).body())

    # -- filling a stage --------------------------------------------------------------------------------------------

    def _fill(self, subtile: Subtile, finished: Finished, reads: bool, ahead: MatricesAhead) -> Body:
        """The running subtile into its stage: chunks of 16 columns of fragments, and of 8 where those are odd."""
        columns = self._together(subtile)
        count, narrow = divmod(self._along(subtile), columns)
        body: Body = ()
        if count:
            number = _CHUNK * (columns // CHUNK_COLUMNS)
            chunk = self._chunk(subtile, number, columns, finished, reads, ahead.loaded)
            body = (For(_CHUNK.name, Const(count), (*chunk, *ahead.go_on()), unroll=True),)
        if narrow:
            body = (*body, *self._chunk(subtile, Const(count), narrow, finished, reads))
        if self.transposed:
            per_subtile = subtile.columns // FRAGMENT_ROWS
            body = (For(_FRAG.name, Const(per_subtile), body, unroll=True),) if per_subtile > 1 else body
        return over_digits(self.strided_digits, body)

    def _together(self, subtile: Subtile) -> int:
        """Columns of fragments that are finished before they are stored: 32 where lanes exchange their order."""
        wide = columns_together(subtile.columns, self.tile.dtype.bytes, transposed=self.transposed)
        each = self.fragment.columns
        whole = len(self.contiguous_digits) < 2 or each % wide == 0
        return wide if whole and self._exchanges else CHUNK_COLUMNS

    @cached_property
    def _exchanges(self) -> bool:
        """Whether registers may be stored in an order of their own: not where more than C is made of a chunk."""
        of_c = len(self.plan.outputs) == 1 and all(one.is_vector for one in self.plan.outputs[0].reads)
        return self.plan.rearrangement is Rearrangement.SHARED and self._scales is None and of_c

    def _exchange(self, subtile: Subtile, columns: int) -> Exchange | None:
        """Of the order in which a chunk is stored of so many columns."""
        if not self._exchanges:
            return None
        element_bytes, layout = self.tile.dtype.bytes, self.layout(subtile)
        found, _ = exchange_of(
            self.fragment, subtile.columns, element_bytes, layout, transposed=self.transposed, chunk=columns
        )
        return found

    def _along(self, subtile: Subtile) -> int:
        """Columns of a fragment that are in a subtile."""
        return self.fragment.columns if self.transposed else subtile.columns

    def _ahead(self, subtile: Subtile) -> MatricesAhead:
        """What chunks of 16 columns read, but for what beta multiplies; codes are made of values that were finished
        before."""
        reads = () if self._scales is not None else self.plan.outputs[0].reads
        names = tuple(one.name for one in reads if not one.is_vector)
        loops = [(SUBTILE, subtile.count)] if subtile.number == 0 else []
        loops += [(Var(axis.name), axis.extent or 1) for axis in self.strided_digits]
        if self.transposed and subtile.columns > FRAGMENT_ROWS:
            loops.append((_FRAG, subtile.columns // FRAGMENT_ROWS))
        loops.append((_CHUNK, self._along(subtile) // CHUNK_COLUMNS))
        return MatricesAhead(
            *(self.program, self.plan, self.sums, names, tuple(loops)),
            *(CHUNK_COLUMNS // 2, self._held(subtile, _CHUNK)),
        )

    def _held(self, subtile: Subtile, chunk: Expr) -> tuple[dict[str, Expr], Expr]:
        """The digits of the running fragment, and the first register of a chunk of its columns."""
        if self.transposed:
            per_subtile = subtile.columns // FRAGMENT_ROWS
            inside: Expr = _FRAG if per_subtile > 1 else ZERO
            return self.split(self.running(subtile) * per_subtile + inside), chunk * (CHUNK_COLUMNS // 2)
        each = self.fragment.columns
        aligned = not (subtile.columns % CHUNK_COLUMNS or subtile.first % CHUNK_COLUMNS or each % CHUNK_COLUMNS)
        unit = CHUNK_COLUMNS if aligned else MATRIX_ROWS
        if subtile.number == 0:
            first: Expr = self.running(subtile) * (subtile.columns // unit)
        else:
            first = Const(subtile.first // unit)
        number = first + chunk * (CHUNK_COLUMNS // unit)
        return self.split(number // (each // unit)), number % (each // unit) * (unit // 2)

    def _chunk(
        self, subtile: Subtile, chunk: Expr, columns: int, finished: Finished, reads: bool, ahead: Ahead = NONE_AHEAD
    ) -> Body:
        """16 or 8 columns of the rows of a warp: finished, and put into the stage."""
        held, made = self._held(subtile, chunk), columns // 2
        if self.plan.rearrangement is Rearrangement.STMATRIX:
            body: Body = (
                *self._finish(held, (ZERO, made), made, finished, reads, ahead),
                *self._put_matrices(subtile, chunk, columns, Ref(self._value(made), (ZERO,))),
            )
        else:
            together = 1 if self.transposed else self.fragment.neighbours(1)
            pair = _PAIR * together
            exchange = self._exchange(subtile, columns)
            put = self._put_elements(subtile, chunk, pair, together, exchange)
            if self._scales is not None:
                finished = self._scales.coded(subtile, chunk, held[1] + pair)
            all_first = self._finish(held, (ZERO, made), made, finished, reads, ahead) if exchange else ()
            own = self._exchanged(exchange, pair, together, made) if exchange else ()
            own = own or self._finish(held, (pair, made), together, finished, reads, ahead)
            body = (*all_first, For(_PAIR.name, Const(made // together), (*own, *put), unroll=True))
        if self._scales is not None:
            return body
        place = lambda number: self.held_in_c(held[0], held[1] + number)  # noqa: E731
        return (*self._results.begin_chunk(made), *body, *self._results.end_chunk(made, place))

    def _in_order(self, width: int) -> Buffer:
        return value_buffer("C_in_order", self.tile.dtype, width)

    def _value(self, width: int) -> Buffer:
        return value_buffer("C", self.tile.dtype, width)

    def _finish(
        self,
        held: tuple[dict[str, Expr], Expr],
        part: tuple[Expr, int],
        count: int,
        finished: Finished,
        reads: bool,
        ahead: Ahead,
    ) -> Body:
        """So many registers of a chunk, finished. held: as of `_held`. part: the number of the first in the chunk, and
        how many that has."""
        program, sums, value = self.program, self.sums, self._value(count)
        digits, first = held
        # Operands are read, and what lies beside C is written, in pairs; else a loop over elements is the shorter text.
        beside = self.plan.outputs[0].reads or self.plan.outputs[1:] or program.gemm.epilogue.has_pairs
        width = self.fragment.neighbours(1) if beside and not self.transposed else 1
        number: Expr = Var(_PAIR.name if width > 1 else ELEMENT) * width if count > width else ZERO
        in_chunk = part[0] + number
        register = first + in_chunk

        def totals(element: Expr) -> tuple[Expr, ...]:
            return sums.results({**digits, FRAGMENT: register + element})

        own = Own(digits, register, ahead(in_chunk, width), (in_chunk, part[1]))
        body = finished(Ref(value, (number,)), self.held_in_c(digits, register), totals, reads, width, own)
        if count > width:
            body = (For(_PAIR.name if width > 1 else ELEMENT, Const(count // width), body, unroll=True),)
        return (Alloc(value), *body)

    def _put_matrices(self, subtile: Subtile, chunk: Expr, columns: int, value: Ref) -> Body:
        """Four or two matrices, 16 rows by 16 or 8 columns of a fragment; a lane addresses one row of one."""
        lane = LANE % WARP_LANES
        warp = LANE // WARP_LANES * 16
        eight = lane // 8 % 2 * 8
        across = lane // 16 * 8 if columns == CHUNK_COLUMNS else ZERO
        start = chunk * CHUNK_COLUMNS
        if self.transposed:
            down, along = start + across + lane % 8, self._fragment_column(subtile) + warp + eight
        else:
            down, along = warp + eight + lane % 8, start + across
        name = self.tile.staged.name
        row, column = Var(f"{name}_m"), Var(f"{name}_n")
        place = self.shared(subtile, row, column)
        count = columns // MATRIX_ROWS * 2
        return (
            Let(row.name, self.first_row() + digit_sum(self.strided_digits) + down),
            Let(column.name, along),
            StoreMatrices(place, value, count, self.transposed, origin=name),
        )

    def _fragment_column(self, subtile: Subtile) -> Expr:
        """The first column of the running fragment within a subtile that runs along the rows of the instruction."""
        return _FRAG * FRAGMENT_ROWS if subtile.columns > FRAGMENT_ROWS else ZERO

    def _exchanged(self, exchange: Exchange, first: Expr, together: int, made: int) -> Body:
        """The registers that a lane stores in the place of those from `first` on, of `made` finished ones."""
        value, finished = self._in_order(together), self._value(made)
        element: Expr = Var(ELEMENT) if together > 1 else ZERO
        there, here = (Load(finished, (at + element,)) for at in (first ^ exchange.registers, first))
        chosen = Select(binary(Op.EQ, exchange.bit(LANE), 1), there, here)
        assign: Body = (Assign(Ref(value, (element,)), chosen, origin=self.tile.staged.name),)
        return (Alloc(value), *over_elements(together, assign))

    def _put_elements(
        self, subtile: Subtile, chunk: Expr, register: Expr, together: int, exchange: Exchange | None
    ) -> Body:
        """What a lane holds side by side, by an ordinary store."""
        name = self.tile.staged.name
        row, column = self.fragment.element(LANE, register)
        if exchange is not None:
            rows, columns = self.fragment.element(0, exchange.registers)
            row, column = (at ^ exchange.bit(LANE) * by if by else at for at, by in ((row, rows), (column, columns)))
        start = chunk * CHUNK_COLUMNS
        if self.transposed:
            down, along = start + column, self._fragment_column(subtile) + row
        else:
            down, along = row, start + column
        place = self.shared(subtile, self.first_row() + digit_sum(self.strided_digits) + down, along)
        value = self._value(together) if exchange is None else self._in_order(together)
        return (Move(place, Ref(value, (ZERO,)), together, origin=name),)
