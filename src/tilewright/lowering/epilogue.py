"""What stands before and after the sum of a tile: how it starts, what is made of it, and how it leaves for C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.dtypes import F32
from tilewright.errors import LoweringError
from tilewright.ir.buffer import Buffer, Ref
from tilewright.ir.expr import ZERO, Apply, Binary, Cast, Const, Expr, Fma, Load, Op, Var, binary, real
from tilewright.ir.program import Program, Route
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Move
from tilewright.ir.tiles import Tile, tile_of, traded_axis
from tilewright.lowering.coordinates import index_of
from tilewright.lowering.copies import store_tile
from tilewright.lowering.engine_store import EngineStore
from tilewright.lowering.fragments import store_opaque
from tilewright.lowering.kernel_parts import ELEMENT, beside, global_place, value_buffer
from tilewright.lowering.lane_store import LaneStore
from tilewright.lowering.located import size_of
from tilewright.lowering.products import reads_shared
from tilewright.lowering.quad_store import QuadStore
from tilewright.lowering.sums import Sums

ALPHA, BETA = Var("alpha", F32), Var("beta", F32)


@dataclass(frozen=True)
class Epilogue:
    """The statements of one thread around the sum of a tile of C.

    overwrites: of `Variant`.
    """

    program: Program
    exact: frozenset[str]
    overwrites: bool = False

    def as_sum(self, value: Expr) -> Expr:
        accumulate = self.program.gemm.accumulate
        return value if value.dtype is accumulate else Cast(accumulate, value)

    def as_result(self, value: Expr) -> Expr:
        out = self.program.gemm.out
        return value if value.dtype is out else Cast(out, value)

    def result_place(self) -> Ref:
        return global_place(self.program, "C", index_of(self.program, "m"), index_of(self.program, "n"))

    def start(self, sums: Sums) -> Body:
        place = Ref(sums.buffer, sums.index)
        if reads_shared(self.program):
            return ()  # the first product of a tile overwrites the sum
        if self.program.late_beta:
            return sums.over_registers((Assign(place, real(0, sums.buffer.dtype), origin=sums.name),))
        value, load = self._load_scaled(1)
        scaled = Binary(Op.MUL, BETA, as_f32(Load(value, (ZERO,))))
        return sums.over_results((*load, Assign(place, self.as_sum(scaled), origin=sums.name)))

    def _load_scaled(self, width: int) -> tuple[Buffer, Body]:
        """C in registers where beta needs it; zero, and C not read, where beta is 0."""
        value = value_buffer("C", self.program.gemm.out, width)
        needed = Binary(Op.NE, BETA, real(0))
        load = Move(Ref(value, (ZERO,)), self._added_to(self.result_place()), width, needed, origin="C")
        return value, (Alloc(value), load)

    def _added_to(self, place: Ref) -> Ref:
        """The element that beta multiplies for an element of C: itself, or that of the residual."""
        return beside(self.program, place, "residual") if self.program.gemm.epilogue.residual else place

    def _bias(self, place: Ref, element: Expr = ZERO) -> tuple[Body, Expr | None]:
        """The bias of an element of C in a register, and its value; nothing where there is none."""
        gemm = self.program.gemm
        if gemm.epilogue.bias is None:
            return (), None
        value = value_buffer("bias", gemm.out, 1)
        load = Move(Ref(value, (ZERO,)), beside(self.program, place, "bias", element), origin="C")
        return (Alloc(value), load), as_f32(Load(value, (ZERO,)))

    def _ended(self, scaled: Expr, bias: Expr | None) -> Expr:
        """The epilogue of a scaled sum."""
        result = scaled if bias is None else Binary(Op.ADD, scaled, bias)
        activation = self.program.gemm.epilogue.activation
        return result if activation is None else Apply(activation, result)

    def scale_c(self) -> Body:
        """`C = beta * C`, before sums are added to C itself."""
        if self.program.gemm.epilogue:
            raise LoweringError(
                "The sum is kept in C, which leaves no finished sum that an epilogue could be applied to.",
                hint="Accumulate(over=...) keeps the sum in registers.",
            )
        value, load = self._load_scaled(1)
        here = Ref(value, (ZERO,))
        scaled = Binary(Op.MUL, BETA, as_f32(Load(value, (ZERO,))))
        return (*load, Assign(here, self.as_result(scaled), origin="C"), Move(self.result_place(), here, origin="C"))

    def finish(self, sums: Sums) -> Body:
        return (*self._empty_sum(sums), *self._store_sum(sums))

    def _empty_sum(self, sums: Sums) -> Body:
        """Where the first product overwrites the sum and there is none: set it, when no product is under way."""
        if not reads_shared(self.program):
            return ()
        place = Ref(sums.buffer, sums.index)
        zero = sums.over_registers((Assign(place, real(0, place.buffer.dtype), origin=sums.name),))
        return (If(binary(Op.EQ, size_of(self.program, "k"), 0), zero),)

    def _store_sum(self, sums: Sums) -> Body:
        staged = next((s for s in self.program.staged if s.operand == "C"), None)
        if staged is None and traded_axis(self.program) is not None:
            return QuadStore(self.program, sums).body(self._either, self._added_to, self._ended_sum)
        if staged is None:
            width = self.program.result_vector

            def way(reads_c: bool | None) -> Body:
                place = self.result_place()
                total = lambda element: Load(sums.buffer, sums.index_at(element))  # noqa: E731
                return sums.over_results(self._combine(place, width, total, reads_c=reads_c), width)

            if sums.fragment is None:
                return way(None)
            # The results of a fragment lie scattered: two whole ways cost less than a guard at each of them.
            return self._either(way)
        tile = tile_of(self.program, staged)
        if staged.finished:
            if staged.route is Route.TMA:
                return EngineStore(self.program, sums, tile).body(self._either, self._finished)
            return LaneStore(self.program, sums, tile, self.exact).body(self._either, self._finished)
        held = {axis.name for span in tile.spans for axis in span.axes}
        outside = tuple(axis for axis in self.program.sum_axes if axis.name not in held)
        part = replace(sums, outside=frozenset(axis.name for axis in outside))
        fill = self._fill_tile(part, tile)
        if staged.distribution is None:
            # Each thread takes back what it put there, so no barrier and no second order of elements is needed.
            store = part.over_results(self._store_from(tile))
        else:
            store = store_tile(self.program, tile, self._combine)
        body = (*fill, *store)
        for axis in reversed(outside):
            body = (For(axis.name, Const(axis.extent or 1), body, unroll=True),)
        return body

    def _either(self, way: Callable[[bool], Body]) -> Body:
        """way(True) where C is read, way(False) where it is not: the same for all threads."""
        return way(False) if self.overwrites else (If(binary(Op.NE, BETA, real(0)), way(True), way(False)),)

    def _combine(self, place: Ref, width: int, sum_at: Callable[[Expr], Expr], *, reads_c: bool | None = None) -> Body:
        """`C[place ..] = alpha * sum + beta * C`, for `width` neighbours; the factors as the program has them.

        reads_c: whether C is read; None where beta decides here.
        """
        value = value_buffer("C", self.program.gemm.out, width)
        element: Expr = Var(ELEMENT) if width > 1 else ZERO
        here = Ref(value, (element,))
        total = as_f32(sum_at(element))
        result: Expr = Binary(Op.MUL, ALPHA, total) if self.program.late_alpha else total
        load: Body = ()
        if self.program.late_beta and reads_c is not False and not self.overwrites:
            needed = None if reads_c else Binary(Op.NE, BETA, real(0))
            load = (Move(Ref(value, (ZERO,)), self._added_to(place), width, needed, origin="C"),)
            result = Fma(BETA, as_f32(Load(value, (element,))), result)
        load_bias, bias = self._bias(place, element)
        assign: Body = (*load_bias, Assign(here, self.as_result(self._ended(result, bias)), origin="C"))
        if width > 1:
            assign = (For(ELEMENT, Const(width), assign, unroll=True),)
        return (Alloc(value), *load, *assign, Move(place, Ref(value, (ZERO,)), width, origin="C"))

    def _finished(self, value: Ref, place: Ref, total: Expr, reads_c: bool) -> Body:
        """`value = alpha * sum + beta * C[place]` and the epilogue; without beta where C is not read."""
        if not reads_c:
            return self._ended_sum(value, place, total, None)
        old = value_buffer("C_old", self.program.gemm.out, 1)
        load = Move(Ref(old, (ZERO,)), self._added_to(place), origin="C")
        return (Alloc(old), load, *self._ended_sum(value, place, total, Load(old, (ZERO,))))

    def _ended_sum(self, value: Ref, place: Ref, total: Expr, old: Expr | None) -> Body:
        """`value = alpha * sum + beta * old` and the epilogue of C[place]; without beta where there is no old one."""
        result: Expr = Binary(Op.MUL, ALPHA, as_f32(total))
        if old is not None:
            result = Fma(BETA, as_f32(old), result)
        load_bias, bias = self._bias(place)
        return (*load_bias, Assign(value, self.as_result(self._ended(result, bias)), origin="C"))

    def _fill_tile(self, sums: Sums, tile: Tile) -> Body:
        """Finished sums into the shared tile of the result."""
        if sums.fragment is not None and sums.fragment.opaque:
            return sums.over_tiles(store_opaque(self.program, sums, tile))
        width = self.program.result_vector if tile.minor == tile.global_minor else 1
        width = min(width, tile.widest_row_access)
        value = value_buffer(tile.staged.name, tile.dtype, width)
        element: Expr = Var(ELEMENT) if width > 1 else ZERO
        total = Load(sums.buffer, sums.index_at(element))
        copy: Body = (Assign(Ref(value, (element,)), total, origin=tile.staged.name),)
        if width > 1:
            copy = (For(ELEMENT, Const(width), copy, unroll=True),)
        row, col = (span.local_index() for span in tile.spans)
        place = tile.at(row, col)
        body = (Alloc(value), *copy, Move(place, Ref(value, (ZERO,)), width, origin=tile.staged.name))
        return sums.over_results(body, width)

    def _store_from(self, tile: Tile) -> Body:
        """A thread's own elements from the shared tile to C."""
        value = value_buffer(tile.staged.name, tile.dtype, 1)
        row, col = (span.local_index() for span in tile.spans)
        place = tile.at(row, col)
        load = Move(Ref(value, (ZERO,)), place, origin=tile.staged.name)
        return (Alloc(value), load, *self._combine(self.result_place(), 1, lambda _: Load(value, (ZERO,))))


def as_f32(value: Expr) -> Expr:
    """The value in the format of alpha and beta, in which results are scaled."""
    return value if value.dtype is F32 else Cast(F32, value)
