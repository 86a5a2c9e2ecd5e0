"""Codes of a weight and their scales, in the order in which products read them.

A thread has two columns of a tile, 8 apart, and a group of k: those whose codes share words. It reads the group once
for the largest magnitudes, and again, from the caches, for the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import BF16, F32, I32
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Fma, Load, Op, Select, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32, as_format
from tilewright.ir.kernel import MOST_ALONG_Z, SIZES, Kernel, Variant
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let, Move
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
    at,
    below,
    element_of,
    registers,
    times,
    together,
    unrolled,
    verified,
)
from tilewright.problem.coded_product import LANE_WORDS, LANES, TILE
from tilewright.problem.weight_codes import FRAGMENT_CODES
from tilewright.problem.weight_coding import LEAST_SCALE, ROUNDED_UP, WeightCoding

THREADS = 128

_EIGHT = 8
"""Threads of a tile."""

_QUAD = 4
"""Lanes that have codes of the same two columns."""

_TO_INTEGER = 1.5 * 2.0**23
"""Added to a small number of f32 and taken away again, it leaves the nearest integer, ties to even."""


@dataclass(frozen=True, slots=True)
class WeightCodingConfig:
    """The one kernel of this kind."""

    def reasons_against(self, problem: WeightCoding, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot do it, in words; empty if it can."""
        many = problem.weight.group and problem.weight.groups > MOST_ALONG_Z
        return (f"{problem.weight.groups} groups are more than a grid has blocks for",) if many else ()

    def kernel(self, problem: WeightCoding) -> Kernel:
        """The kernel for the formats of a problem; sizes are arguments, offsets have 64 bits."""
        weight = problem.weight
        groups = binary(Op.DIV, SIZES["k"], weight.group) if weight.group else Const(1)
        threads_of = ceil_div_of(SIZES["n"], TILE) * _EIGHT
        return verified(
            Kernel(
                f"code_weight_{problem.dtype}_to_{weight.codes}_{weight.group or 'column'}",
                problem,
                Variant(alignment_bytes=1, near=False),
                (ceil_div_of(threads_of, THREADS), groups, Const(1)),
                (THREADS, 1, 1),
                (),
                _Statements(problem).body(),
                {},
            )
        )


class _Statements:
    """The statements of a thread."""

    def __init__(self, problem: WeightCoding) -> None:
        self.problem, self.weight = problem, problem.weight
        self.value = registers("value", problem.dtype, 2, note="of both columns")
        self.largest, self.strange = registers("largest", F32, 2), registers("strange", F32, 2, note="0, or NaN")
        self.scale, self.inverse = registers("scale", F32, 2), registers("inverse", F32, 2)
        self.held_scale = registers("held_scale", self.weight.scale_dtype, 2)
        self.word = registers("word", I32, 1)
        self.held = registers("held", problem.dtype, FRAGMENT_CODES)
        self.ratio, self.code = registers("ratio", F32, 1, note="an element over its scale"), registers("code", I32, 1)
        self.codes = registers("made", problem.codes_dtype, FRAGMENT_CODES)
        self.whole_words = self.weight.codes.bits * FRAGMENT_CODES == I32.bits
        self.tile, self.own, self.group = Var("tile"), Var("own"), Var("blockIdx.y")

    def body(self) -> Body:
        weight = self.weight
        thread = BLOCK * THREADS + THREAD
        length = Const(weight.group) if weight.group else SIZES["k"]
        steps_of_unit = weight.unit // TILE
        units = ceil_div_of(SIZES["k"], weight.unit)
        first = self.group * (weight.group // TILE)
        last = binary(Op.EQ, (self.group + 1) * weight.group, SIZES["k"]) if weight.group else Const(1)
        rest = units * steps_of_unit - first
        steps = Select(last, rest, Const(weight.group // TILE)) if weight.group else rest
        made = (self.word, self.code) if self.whole_words else (self.codes,)
        buffers = (
            self.value,
            self.largest,
            self.strange,
            self.scale,
            self.inverse,
            self.held_scale,
            self.held,
            self.ratio,
        )
        return together(
            Let("tile", thread // _EIGHT),
            Let("own", thread % _EIGHT),
            Let("first_k", self.group * weight.group),
            Let("first_step", first),
            Let("units", units),
            tuple(Alloc(one) for one in (*buffers, *made)),
            unrolled("h", 2, lambda h: self._zeroed(h)),
            For("k", length, unrolled("h", 2, lambda h: self._seen(h))),
            unrolled("h", 2, lambda h: self._scaled(h)),
            self._store_scales(),
            For("step", steps, unrolled("t", _QUAD, self._coded)),
        )

    def _zeroed(self, h: Expr) -> Body:
        return tuple(Assign(at(one, h), real(0.0), origin="scales") for one in (self.largest, self.strange))

    def _load(self, k: Expr, column: Expr) -> tuple[Expr, Expr]:
        """The offset of an element of the source, and whether it is there."""
        offset = times(k, "step_k", near=False) + times(column, "step_n", near=False)
        return offset, both(below(k, SIZES["k"]), below(column, SIZES["n"]))

    def _column(self, h: Expr) -> Expr:
        return self.tile * TILE + self.own + h * _EIGHT

    def _seen(self, h: Expr) -> Body:
        """An element of a group, for its scale."""
        offset, there = self._load(Var("first_k") + Var("k"), self._column(h))
        source = element_of("source", self.problem.dtype, offset)
        number = as_f32(Load(self.value, (h,)))
        size = Binary(Op.MAX, number, Binary(Op.MUL, number, real(-1.0)))
        more = Binary(Op.MAX, Load(self.largest, (h,)), size)
        return (
            Move(at(self.value, h), source, 1, there, origin="source"),
            Assign(at(self.largest, h), more, origin="scales"),
            Assign(at(self.strange, h), Fma(number, real(0.0), Load(self.strange, (h,))), origin="scales"),
        )

    def _scaled(self, h: Expr) -> Body:
        """The scale of a group, and its inverse."""
        largest, scale = Load(self.largest, (h,)), Load(self.scale, (h,))
        raw = Binary(Op.MUL, largest, real(1 / self.weight.codes.largest))
        found: Expr = Binary(Op.MAX, raw, real(LEAST_SCALE))
        if self.weight.scale_dtype is BF16:
            found = Cast(F32, Cast(BF16, Binary(Op.MUL, found, real(float(ROUNDED_UP)))))
        found = Select(binary(Op.EQ, largest, real(0.0)), real(1.0), found)
        strange = Load(self.strange, (h,))
        found = Select(binary(Op.EQ, strange, real(0.0)), found, strange)
        stored = as_format(scale, self.weight.scale_dtype)
        return (
            Assign(at(self.scale, h), found, origin="scales"),
            Assign(at(self.inverse, h), Binary(Op.DIV, real(1.0), scale), origin="scales"),
            Assign(at(self.held_scale, h), stored, origin="scales"),
        )

    def _store_scales(self) -> Body:
        dtype = self.weight.scale_dtype
        inside = below(self.tile, ceil_div_of(SIZES["n"], TILE))

        def of_column(h: Expr) -> Move:
            place = element_of("scales", dtype, self._column(h))
            there = below(self._column(h), SIZES["n"])
            return Move(place, at(self.held_scale, h), 1, there, origin="scales")

        if not self.weight.group:
            return unrolled("h", 2, of_column)
        group = self.tile * binary(Op.DIV, SIZES["k"], self.weight.group) + self.group
        place = element_of("scales", dtype, group * TILE + self.own * 2)
        return (Move(place, at(self.held_scale, ZERO), 2, inside, origin="scales"),)

    def _coded(self, t: Expr) -> Body:
        """The codes of a lane of the product for 16 of k."""
        weight = self.weight
        step = Var("first_step") + Var("step")

        def load(e: int) -> Move:
            k = step * TILE + t * 2 + (e % 2 + 8 * (e // 4))
            offset, there = self._load(k, self._column(Const(e // 2 % 2)))
            source = element_of("source", self.problem.dtype, offset)
            return Move(at(self.held, e), source, 1, there, origin="source")

        unit, within = step // (weight.unit // TILE), step % (weight.unit // TILE)
        lane = self.own * _QUAD + t
        words = ((self.tile * Var("units") + unit) * LANES + lane) * LANE_WORDS + within * weight.words_of_step
        inside = below(self.tile, ceil_div_of(SIZES["n"], TILE))
        place = element_of("codes", self.problem.codes_dtype, words if self.whole_words else words * I32.bytes)
        loads = tuple(load(e) for e in range(FRAGMENT_CODES))
        if self.whole_words:
            clear = Assign(at(self.word, ZERO), Const(0), origin="codes")
            made = together(clear, *map(self._into_word, range(FRAGMENT_CODES)))
            return together(loads, made, Move(place, at(self.word, ZERO), 1, inside, origin="codes"))
        made = together(*map(self._into_byte, range(FRAGMENT_CODES)))
        return together(loads, made, Move(place, at(self.codes, ZERO), FRAGMENT_CODES, inside, origin="codes"))

    def _ratio(self, e: int) -> Assign:
        """An element over its scale."""
        value = Binary(Op.MUL, as_f32(Load(self.held, (Const(e),))), Load(self.inverse, (Const(e // 2 % 2),)))
        return Assign(at(self.ratio, ZERO), value, origin="codes")

    @property
    def _number(self) -> Expr:
        """That within the range of the codes; 0 where it is NaN."""
        most, ratio = self.weight.codes.largest, Load(self.ratio, (ZERO,))
        number = Select(binary(Op.EQ, ratio, ratio), ratio, real(0.0))
        return Binary(Op.MIN, Binary(Op.MAX, number, real(-most)), real(most))

    def _into_word(self, e: int) -> Body:
        codes, word = self.weight.codes, Load(self.word, (ZERO,))
        rounded = Binary(Op.SUB, Binary(Op.ADD, self._number, real(_TO_INTEGER)), real(_TO_INTEGER - 8))
        code = binary(Op.SHL, Load(self.code, (ZERO,)), codes.places[e] * codes.bits)
        return (
            self._ratio(e),
            Assign(at(self.code, ZERO), Cast(I32, rounded), origin="codes"),
            Assign(at(self.word, ZERO), Binary(Op.XOR, word, code), origin="codes"),
        )

    def _into_byte(self, e: int) -> Body:
        codes = self.weight.codes
        place = e // codes.per_word * codes.per_word + codes.places[e % codes.per_word]
        value = Cast(self.problem.codes_dtype, self._number)
        return self._ratio(e), Assign(at(self.codes, place), value, origin="codes")
