"""Arithmetic expressions on registers, compiled: each evaluates to an array whose last axis is lanes.

Where a register is indexed by loop variables that step through it evenly, one expression can be evaluated for all
their values at once: the registers are then seen through a view with an axis for each of these loops (`Axes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.dtypes import Array
from tilewright.errors import SimulationError
from tilewright.ir.expr import (
    Apply,
    Binary,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Lookup,
    Op,
    RandomNumber,
    Ref,
    Select,
    Var,
    binary,
)
from tilewright.ir.visit import sub_exprs, variables, walk_expr
from tilewright.problem.philox import uniform as philox_uniform
from tilewright.simulator.arithmetic import Arithmetic, Value
from tilewright.simulator.context import Context
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Site
from tilewright.simulator.index import Cells, Place, Predicate, Scope, Uniform, is_uniform, resolve, uniform
from tilewright.simulator.warps import Mask

Axes = Mapping[str, int]
"""Loops evaluated at once, outermost first: the (compiled) name of each loop variable and its extent."""

Evaluate = Callable[[Convoy], Value]


class NotEven(Exception):
    """An index does not step evenly through the axes; the loops must be run one by one."""


@dataclass(slots=True)
class RegisterView:
    """Registers seen with an axis for each loop of a nest, lanes last.

    base: the first element, for the loops around the nest. offsets: of all elements of the view, in order.
    strides: elements between neighbours along each axis; 0 where the index does not depend on that loop.
    """

    site: Site
    context: Context
    array: int
    base: Uniform
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offsets: tuple[int, ...]

    def of(self, convoy: Convoy) -> Array:
        """A view of the registers; shape (*axes, lanes)."""
        base = self.base(convoy.slots)
        ends = base + min(self.offsets), base + max(self.offsets) + 1
        data = self.context.touched(self.site, convoy, self.array, *ends).data
        if not self.shape:
            row: Array = data[base]
            return row
        step = data.strides[0]
        strides = (*(stride * step for stride in self.strides), data.itemsize)
        return np.ndarray((*self.shape, data.shape[1]), data.dtype, data, base * step, strides)

    def read(self, convoy: Convoy) -> Array:
        """The same, for reading: registers that hold nothing are reported."""
        view = self.of(convoy)
        registers = convoy.registers[self.array]
        assert registers is not None
        if registers.missing:
            base = self.base(convoy.slots)
            bare = registers.unwritten([base + offset for offset in self.offsets], convoy.mask)
            if bare is not None:
                self.context.unwritten_register(self.site, convoy, registers.buffer.name, *bare)
        return view

    def put(self, convoy: Convoy, values: Value) -> None:
        """The lanes that take part write all of the view."""
        where = True if convoy.mask is None else convoy.mask.lanes
        np.copyto(self.of(convoy), values, where=where, casting="same_kind")
        self.mark(convoy)

    def mark(self, convoy: Convoy) -> None:
        """The lanes that take part have written all of the view."""
        registers = convoy.registers[self.array]
        assert registers is not None
        if registers.missing:
            base = self.base(convoy.slots)
            registers.mark([base + offset for offset in self.offsets], convoy.mask)


@dataclass(slots=True)
class Values:
    """Compiles the expressions of one statement. axes: the loops evaluated at once (none: one element)."""

    site: Site
    context: Context
    cells: Cells
    scope: Scope
    axes: Axes

    @property
    def _arithmetic(self) -> Arithmetic:
        return self.context.arithmetic

    def view(self, ref: Ref) -> RegisterView:
        """The registers of `ref`; raises NotEven where the axes do not step evenly through them."""
        steps = dict.fromkeys(self.axes, 0)
        base = _take_axes(resolve(ref.flat, self.scope), steps)
        if not is_uniform(base):
            raise SimulationError(
                f"Register array {ref.buffer.name} is indexed by a value that differs between lanes.",
                place=f"line {self.site.line}: {self.site.text}",
                note="such an array would live in local memory, which is slow.",
                hint="index registers by unrolled loops only.",
            )
        extents, strides = tuple(self.axes.values()), tuple(steps.values())
        offsets = tuple(
            sum(i * stride for i, stride in zip(index, strides, strict=True))
            for index in product(*(range(extent) for extent in extents))
        )
        number = self.scope.number(ref.buffer.name)
        return RegisterView(self.site, self.context, number, uniform(base), extents, strides, offsets)

    def run(self, ref: Ref, count: int) -> RegisterView:
        """`count` registers from `ref` on, as one axis."""
        first = self.view(ref)
        return replace(first, shape=(count,), strides=(1,), offsets=tuple(range(count)))

    def value(self, expr: Expr) -> Evaluate:
        """An expression that yields a float (or an integer, in integer registers)."""
        arithmetic, dtype = self._arithmetic, expr.dtype
        match expr:
            case Load():
                return self.view(Ref(expr.buffer, expr.index)).read
            case Lookup():
                return self._integer(expr)
            case Const() | Var() if not dtype.is_float:
                return self._integer(expr)
            case Const():
                return _always(arithmetic.constant(expr.value, dtype))
            case Var():
                return self._scalar(expr)
            case Binary() if not dtype.is_float:
                return self._integer(expr)
            case Binary():
                a, b, op = self.value(expr.a), self.value(expr.b), expr.op
                return lambda convoy: arithmetic.binary(op, a(convoy), b(convoy), dtype)
            case Fma():
                return self._fma(expr)
            case Select():
                return self._select(expr)
            case Apply():
                given, function = self.value(expr.value), expr.function
                return lambda convoy: arithmetic.apply(function, given(convoy))
            case RandomNumber():
                return self._random(expr)
            case Cast():
                inner = self.value(expr.value)
                return lambda convoy: arithmetic.cast(inner(convoy), dtype)

    def _random(self, expr: RandomNumber) -> Evaluate:
        parts = [self.value(part) for part in sub_exprs(expr)]

        def evaluate(convoy: Convoy) -> Array:
            seed, offset, row, first, element = (np.asarray(part(convoy)) for part in parts)
            return philox_uniform(int(seed.flat[0]), int(offset.flat[0]), row, first + element)

        return evaluate

    def operands(self, expr: Fma) -> tuple[Evaluate, Evaluate, Evaluate]:
        return self.value(expr.a), self.value(expr.b), self.value(expr.c)

    def place(self, expr: Expr) -> Place:
        """An integer of each lane."""
        return self.cells.place(resolve(expr, self.scope))

    def condition(self, expr: Expr) -> Predicate:
        resolved = resolve(expr, self.scope)
        _refuse_axes(resolved, self.axes)
        return self.cells.predicate(resolved)

    def _scalar(self, expr: Var) -> Evaluate:
        bound = resolve(expr, self.scope)
        if isinstance(bound, Const):
            return _always(self._arithmetic.constant(bound.value, expr.dtype))
        if isinstance(bound, Var):
            raise SimulationError(f"{expr.name!r} is not a number that registers can take.")
        return self.value(bound)

    def _integer(self, expr: Expr) -> Evaluate:
        resolved = resolve(expr, self.scope)
        _refuse_axes(resolved, self.axes)
        place, kind = self.cells.place(resolved), self._arithmetic.register_type(expr.dtype)
        if is_uniform(resolved):
            return lambda convoy: kind.type(place.offset(convoy.slots))
        return lambda convoy: (place.cell.of(convoy).values + place.offset(convoy.slots)).astype(kind)

    def _fma(self, expr: Fma) -> Evaluate:
        arithmetic, dtype = self._arithmetic, expr.dtype
        operands = self.operands(expr)
        kind = arithmetic.register_type(dtype)
        extents = tuple(self.axes.values())

        def evaluate(convoy: Convoy) -> Array:
            a, b, c = (operand(convoy) for operand in operands)
            out = np.empty((*extents, convoy.warps.lanes), kind)
            arithmetic.fma(a, b, c, dtype, out)
            return out

        return evaluate

    def _select(self, expr: Select) -> Evaluate:
        if _compares_registers(expr.condition):
            return self._select_by_value(expr)
        condition, a, b = self.condition(expr.condition), self.value(expr.a), self.value(expr.b)

        def evaluate(convoy: Convoy) -> Value:
            chosen = condition(convoy)
            if isinstance(chosen, Mask):
                return np.where(chosen.lanes, a(convoy), b(convoy))
            return a(convoy) if chosen else b(convoy)

        return evaluate

    def _select_by_value(self, expr: Select) -> Evaluate:
        """A choice of each lane by the numbers in its registers."""
        condition, a, b = self._comparison(expr.condition), self.value(expr.a), self.value(expr.b)
        return lambda convoy: np.where(condition(convoy), a(convoy), b(convoy))

    def _comparison(self, expr: Expr) -> Evaluate:
        """Comparisons of float registers, and conjunctions and disjunctions of such; false where one is NaN."""
        if not isinstance(expr, Binary) or expr.op not in _COMPARED:
            raise SimulationError(
                f"Line {self.site.line} chooses by what is neither a comparison of floats nor made of such.",
                hint="compare floats apart from indices.",
            )
        of = self._comparison if expr.op in (Op.LAND, Op.LOR) else self.value
        a, b, compare = of(expr.a), of(expr.b), _COMPARED[expr.op]
        return lambda convoy: compare(a(convoy), b(convoy))


_COMPARED: Mapping[Op, Callable[[Value, Value], Value]] = {
    Op.LT: np.less,
    Op.LE: np.less_equal,
    Op.GE: np.greater_equal,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.LAND: np.logical_and,
    Op.LOR: np.logical_or,
}


def _compares_registers(condition: Expr) -> bool:
    """Whether a condition depends on floats in registers."""
    return any(isinstance(part, (Load, Var)) and part.dtype.is_float for part in walk_expr(condition))


def _always(value: Any) -> Evaluate:
    return lambda _convoy: value


def _take_axes(expr: Expr, steps: dict[str, int]) -> Expr:
    """A resolved index without its axes, whose coefficients are added to `steps`."""
    match expr:
        case Var() if expr.name in steps:
            steps[expr.name] += 1
            return Const(0)
        case Binary(op=Op.ADD):
            return binary(Op.ADD, _take_axes(expr.a, steps), _take_axes(expr.b, steps))
        case Binary(op=Op.MUL, b=Const() as factor):
            inner = dict.fromkeys(steps, 0)
            base = _take_axes(expr.a, inner)
            for name, step in inner.items():
                steps[name] += step * int(factor.value)
            return binary(Op.MUL, base, factor)
        case _:
            _refuse_axes(expr, steps)
            return expr


def _refuse_axes(expr: Expr, axes: Mapping[str, int]) -> None:
    if not variables(expr).isdisjoint(axes):
        raise NotEven
