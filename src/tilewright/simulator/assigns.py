"""Arithmetic statements: one `Assign`, or a nest of loops around one, executed by all lanes at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.dtypes import DType
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Apply, Binary, Cast, Expr, Fma, Load, Op, RandomNumber, Ref, Select
from tilewright.ir.stmt import Assign, Move
from tilewright.ir.visit import walk_expr
from tilewright.problem.weight_codes import E4M3_CODES, INT4, Codes
from tilewright.simulator.context import Context
from tilewright.simulator.convoy import Convoy, RegisterArray
from tilewright.simulator.findings import Site
from tilewright.simulator.index import Predicate
from tilewright.simulator.values import Evaluate, NotEven, RegisterView, Values
from tilewright.simulator.warps import Mask

_FLOAT_KIND = {Op.ADD: "FADD", Op.SUB: "FADD", Op.MUL: "FMUL", Op.DIV: "FDIV", Op.MIN: "FMNMX", Op.MAX: "FMNMX"}


def operations_of(value: Expr) -> Mapping[str, int]:
    """Floating-point instructions of one evaluation, by the name of the SASS opcode they become.

    `MOV` stands for an assignment without arithmetic; HFMA2 and its kin are counted as their fp32 sisters.
    """
    counts: dict[str, int] = {}

    def add(kind: str) -> None:
        counts[kind] = counts.get(kind, 0) + 1

    for part in walk_expr(value):
        match part:
            case Fma():
                add("FFMA")
            case Binary() if part.dtype.is_float:
                add(_FLOAT_KIND[part.op])
            case Cast() if part.dtype.is_float or part.value.dtype.is_float:
                add("CVT")
            case Apply():
                add(part.function.value)
            case Select() if part.dtype.is_float:
                add("SEL")
            case RandomNumber():
                add("uniform")
            case _:
                pass
    return counts or {"MOV": 1}


@dataclass(slots=True)
class AllocOp:
    """A register buffer comes into being: it holds nothing, also when a loop comes by again."""

    context: Context
    number: int
    buffer: Buffer

    def __call__(self, convoy: Convoy) -> None:
        poison = self.context.arithmetic.poison(self.buffer.dtype)
        known = convoy.registers[self.number]
        if known is None:
            kind = self.context.arithmetic.register_type(self.buffer.dtype)
            convoy.registers[self.number] = RegisterArray(self.buffer, convoy.warps.lanes, kind, poison)
        else:  # in a branch too: the lanes that are elsewhere cannot see this buffer
            known.forget(None if self.context.only_counts(self.buffer.dtype) else poison)


@dataclass(slots=True)
class ReadOp:
    """Registers that an index or a condition is made of are read: they are there, and hold something."""

    view: RegisterView

    def __call__(self, convoy: Convoy) -> None:
        self.view.read(convoy)


@dataclass(slots=True)
class RegisterOp:
    """An operation that writes registers, for all values of the loops that `target` has axes for.

    By itself it is counted, and leaves the registers as they are.
    """

    site: Site
    context: Context
    target: RegisterView
    operations: Mapping[str, int]

    def __call__(self, convoy: Convoy) -> None:
        """Carry the operation out."""
        self.target.mark(convoy)
        self._tell(convoy)

    def _tell(self, convoy: Convoy) -> None:
        self.context.tell_computed(self.site, convoy, self.operations, prod(self.target.shape))


@dataclass(slots=True)
class AssignOp(RegisterOp):
    """`dst = value`."""

    evaluate: Evaluate

    def __call__(self, convoy: Convoy) -> None:
        self.target.put(convoy, self.evaluate(convoy))
        self._tell(convoy)


@dataclass(slots=True)
class FmaOp(RegisterOp):
    """`dst = a * b + c`, straight into the registers of `dst`."""

    operands: tuple[Evaluate, Evaluate, Evaluate]
    dtype: DType

    def __call__(self, convoy: Convoy) -> None:
        a, b, c = (operand(convoy) for operand in self.operands)
        out = self.target.of(convoy)
        mask = convoy.mask
        if mask is None:
            self.context.arithmetic.fma(a, b, c, self.dtype, out)
        else:
            result = np.empty(out.shape, out.dtype)
            self.context.arithmetic.fma(a, b, c, self.dtype, result)
            np.copyto(out, result, where=mask.lanes)
        self.target.mark(convoy)
        self._tell(convoy)


@dataclass(slots=True)
class CopyOp(RegisterOp):
    """One element of a `Move` between registers; zero where the guard is false."""

    evaluate: Evaluate
    guard: Predicate

    def __call__(self, convoy: Convoy) -> None:
        chosen = self.guard(convoy)
        value = self.evaluate(convoy)
        if isinstance(chosen, Mask):
            value = np.where(chosen.lanes, value, 0)
        elif not chosen:
            value = np.zeros_like(value)
        self.target.put(convoy, value)
        self._tell(convoy)


@dataclass(slots=True)
class RoundPairOp:
    """Two registers rounded in place, where neither is NaN."""

    site: Site
    context: Context
    places: tuple[RegisterView, RegisterView]
    dtype: DType

    def __call__(self, convoy: Convoy) -> None:
        mask = convoy.mask
        first, second = (place.read(convoy) for place in self.places)
        numbers = ~(np.isnan(first) | np.isnan(second))
        changed = numbers if mask is None else numbers & mask.lanes
        for place, value in zip(self.places, (first, second), strict=True):
            rounded = self.context.arithmetic.cast(value, self.dtype)
            np.copyto(place.of(convoy), rounded, where=changed, casting="same_kind")
            place.mark(convoy)
        self.context.tell_computed(self.site, convoy, ROUND_PAIR)


@dataclass(slots=True)
class UnpackCodesOp:
    """Words of codes as numbers in other registers."""

    site: Site
    context: Context
    codes: Codes
    numbers: RegisterView
    words: RegisterView
    exponent: int

    def __call__(self, convoy: Convoy) -> None:
        words = self.words.read(convoy)  # (words, lanes)
        found = np.moveaxis(self.codes.unpack(words), -1, 1).reshape(-1, words.shape[-1])
        self.numbers.put(convoy, np.ldexp(found, self.exponent))
        self.context.tell_computed(self.site, convoy, UNPACK[self.codes])


UNPACK: Mapping[Codes, Mapping[str, int]] = {
    INT4: {"SHF": 1, "LOP3": 4, "HFMA2": 4},
    E4M3_CODES: {"SHF": 6, "LOP3": 8, "HFMA2": 4},
}
"""What unpacks eight codes."""

ROUND_PAIR: Mapping[str, int] = {"CVT": 2}
"""What rounds two elements, by the name that a conversion has here: a check, two additions."""


def assign_op(stmt: Assign, values: Values) -> RegisterOp:
    """The operation of an assignment under `values.axes`; raises NotEven where the axes cannot be taken at once."""
    target = values.view(stmt.dst)
    if len(set(target.offsets)) != len(target.offsets):
        raise NotEven  # an element written by several iterations: they must come one after the other
    for part in walk_expr(stmt.value):
        if isinstance(part, Load) and part.buffer.name == stmt.dst.buffer.name:
            if values.axes and Ref(part.buffer, part.index) != stmt.dst:
                raise NotEven  # an iteration reads what another one writes
    site, context, operations = values.site, values.context, operations_of(stmt.value)
    if isinstance(stmt.value, Fma):
        if not context.arithmetic.multiplies:
            return RegisterOp(site, context, target, operations)
        return FmaOp(site, context, target, operations, values.operands(stmt.value), stmt.value.dtype)
    return AssignOp(site, context, target, operations, values.value(stmt.value))


def copy_ops(stmt: Move, values: Values) -> list[RegisterOp]:
    """A `Move` between registers, element by element."""
    guard: Predicate = (lambda _convoy: True) if stmt.guard is None else values.condition(stmt.guard)
    ops: list[RegisterOp] = []
    for step in range(stmt.width):
        target = values.view(_step(stmt.dst, step))
        source = values.view(_step(stmt.src, step)).read
        ops.append(CopyOp(values.site, values.context, target, {"MOV": 1}, source, guard))
    return ops


def _step(ref: Ref, by: int) -> Ref:
    return Ref(ref.buffer, (*ref.index[:-1], ref.index[-1] + by))
