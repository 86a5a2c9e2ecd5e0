"""Index expressions, compiled: what differs between lanes is computed once, what all lanes share is a Python int.

Every integer expression is taken apart into

    lanes(threadIdx, blockIdx, some loop variables)  +  offset(loop variables)

The offset is compiled to a Python function of the loop variables. The lane part becomes a *cell*: an array that is
remembered for each combination of the loop variables it reads. An address that moves by a constant from one iteration
to the next thus costs one addition of Python ints, and everything known of its lanes (range, bank conflicts, sectors)
stays known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.dtypes import BOOL, I32, Array
from tilewright.errors import SimulationError
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Load, Lookup, Op, Select, Var, binary, quotient
from tilewright.ir.ranges import NATURAL, Interval, interval
from tilewright.ir.visit import rebuild, sub_exprs, walk_expr
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.warps import Lanes, Mask


@dataclass(frozen=True, slots=True)
class Scope:
    """What is visible at a statement.

    names: what each stands for, an expression over slots, cells, constants and built-ins. registers: the number of
    each register buffer; a buffer declared in an inner body hides one of the same name around it, as in C. loops: the
    enclosing ones, outermost first: name and slot.
    """

    names: Mapping[str, Expr]
    registers: Mapping[str, int] = field(default_factory=dict)
    loops: tuple[tuple[str, int], ...] = ()

    def with_name(self, name: str, value: Expr) -> Scope:
        return replace(self, names={**self.names, name: value})

    def with_registers(self, name: str, number: int) -> Scope:
        return replace(self, registers={**self.registers, name: number})

    def with_loop(self, name: str, slot: int) -> Scope:
        return replace(self.with_name(name, slot_var(slot)), loops=(*self.loops, (name, slot)))

    def number(self, register: str) -> int:
        if register not in self.registers:
            raise SimulationError(f"Register {register!r} is not declared here.", note="the kernel is not complete.")
        return self.registers[register]


Uniform = Callable[[Sequence[int]], int]
"""A value that all lanes share, from the loop variables."""

_CELL_BYTES = 8 << 20
"""Memory for the remembered values of one cell, bytes; a loop that never comes back must not fill the machine."""

I32_LOW, I32_HIGH = -(2**31), 2**31 - 1

_OPERATOR = {
    Op.ADD: "({} + {})",
    Op.SUB: "({} - {})",
    Op.MUL: "({} * {})",
    Op.DIV: "quotient({}, {})",
    Op.MOD: "remainder({}, {})",
    Op.SHL: "({} << {})",
    Op.SHR: "({} >> {})",
    Op.AND: "({} & {})",
    Op.XOR: "({} ^ {})",
    Op.LT: "({} < {})",
    Op.LE: "({} <= {})",
    Op.GE: "({} >= {})",
    Op.EQ: "({} == {})",
    Op.NE: "({} != {})",
}
_OF_NATURALS = {Op.DIV: "({} // {})", Op.MOD: "({} % {})"}
"""What is faster, and the same for numbers that are not negative."""

_WRAPPING = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.SHL})
"""Operators under which 32 bits may overflow on the way, as long as the result fits; operands of others must fit."""

_FOR_UNIFORM = _OPERATOR | {
    Op.LAND: "({} and {})",
    Op.LOR: "({} or {})",
    Op.MIN: "min({}, {})",
    Op.MAX: "max({}, {})",
}
_FOR_LANES = _OPERATOR | {
    Op.LAND: "np.logical_and({}, {})",
    Op.LOR: "np.logical_or({}, {})",
    Op.MIN: "np.minimum({}, {})",
    Op.MAX: "np.maximum({}, {})",
}


def slot_var(slot: int) -> Var:
    """The loop variable in a slot, as compiled expressions name it."""
    return Var(f"s[{slot}]", I32)


def resolve(expr: Expr, scope: Scope) -> Expr:
    """`expr` with every name replaced by what it stands for (a register buffer by its number), constants folded."""
    match expr:
        case Var():
            if expr.name not in scope.names:
                raise SimulationError(f"{expr.name!r} has no value here.", note="the kernel is not complete.")
            return scope.names[expr.name]
        case Binary():
            return binary(expr.op, resolve(expr.a, scope), resolve(expr.b, scope))
        case Const():
            return expr
        case Load():
            numbered = replace(expr.buffer, name=str(scope.number(expr.buffer.name)))
            return Load(numbered, tuple(resolve(part, scope) for part in expr.index))
        case _:
            return rebuild(expr, tuple(resolve(part, scope) for part in sub_exprs(expr)))


def is_uniform(expr: Expr) -> bool:
    """Whether all lanes agree on a resolved expression: it reads slots and constants only."""
    return not any(
        isinstance(part, Load) or (isinstance(part, Var) and not part.name.startswith("s[")) for part in walk_expr(expr)
    )


class _Naturals(Mapping[str, Interval]):
    """Loop variables and coordinates of threads, by the names of resolved expressions."""

    def __getitem__(self, name: str) -> Interval:
        if name.startswith(("threadIdx", "blockIdx", "s[")):
            return NATURAL
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def is_natural(resolved: Expr) -> bool:
    """Whether a resolved integer expression is certainly not negative."""
    low = interval(resolved, _Naturals()).low
    return low is not None and low >= 0


def uniform(expr: Expr) -> Uniform:
    """A resolved uniform expression as a Python function of the slots."""
    function: Uniform = _function("s", _text(expr, _FOR_UNIFORM))
    return function


def array_function(expr: Expr, *parameters: str) -> Callable[..., Array]:
    """An integer expression over the names in `parameters` as a function of arrays."""
    return _function(", ".join(parameters), _text(expr, _FOR_LANES))


def _function(parameters: str, text: str) -> Callable[..., Any]:
    # Python's own compiler is the fastest evaluator at hand: ten times a tree of closures. The text is ours alone.
    function: Callable[..., Any] = eval(f"lambda {parameters}: {text}", _GLOBALS)
    return function


def _quotients(a: Any, b: Any) -> Any:
    """`quotient` of integers or arrays of them."""
    if isinstance(a, int) and isinstance(b, int):
        return quotient(a, b)
    if np.min(a) >= 0 < np.min(b):
        return a // b
    size = np.abs(a) // np.abs(b)
    return np.where((a < 0) == (b < 0), size, -size)


def _remainders(a: Any, b: Any) -> Any:
    return a - _quotients(a, b) * b


_GLOBALS = {"np": np, "inf": np.inf, "nan": np.nan, "quotient": _quotients, "remainder": _remainders}


def _text(expr: Expr, operators: Mapping[Op, str]) -> str:
    match expr:
        case Const():
            return repr(float(expr.value) if expr.dtype.is_float else int(expr.value))
        case Var():
            return expr.name
        case Binary(op=Op.DIV | Op.MOD) if is_natural(expr.a) and is_natural(expr.b):
            return _OF_NATURALS[expr.op].format(_text(expr.a, operators), _text(expr.b, operators))
        case Binary():
            return operators[expr.op].format(_text(expr.a, operators), _text(expr.b, operators))
        case Select():
            parts = [_text(part, operators) for part in (expr.condition, expr.a, expr.b)]
            form = "({1} if {0} else {2})" if operators is _FOR_UNIFORM else "np.where({0}, {1}, {2})"
            return form.format(*parts)
        case Lookup():
            # Lanes that take no part may look anywhere: clipped, they find something unused.
            return f"{{table}}.take({_text(expr.index, operators)}, mode='clip')".format(
                table=f"np.array({expr.table})"
            )
        case Cast() if not expr.dtype.is_float:
            return _text(expr.value, operators)
        case _:
            raise SimulationError(f"{type(expr).__name__} does not belong into an index.")


def linear_parts(expr: Expr) -> tuple[Expr | None, Expr]:
    """A resolved integer expression as (what differs between lanes or None, what they share); their sum is `expr`."""
    if is_uniform(expr):
        return None, expr
    match expr:
        case Binary(op=Op.ADD | Op.SUB):
            (a, shared_a), (b, shared_b) = linear_parts(expr.a), linear_parts(expr.b)
            shared = binary(expr.op, shared_a, shared_b)
            if b is None:
                return a, shared
            return (binary(expr.op, ZERO if a is None else a, b)), shared
        case Binary(op=Op.MUL, a=varying, b=factor) if is_uniform(factor):
            return _scaled(varying, factor)
        case Binary(op=Op.MUL, a=factor, b=varying) if is_uniform(factor):
            return _scaled(varying, factor)
        case _:
            return expr, ZERO


def _scaled(varying: Expr, factor: Expr) -> tuple[Expr | None, Expr]:
    part, shared = linear_parts(varying)
    return (None if part is None else binary(Op.MUL, part, factor)), binary(Op.MUL, shared, factor)


class Cell:
    """One lane-dependent value of the program. `of(convoy)` gives it, computing it only when it is not known."""

    __slots__ = ("_compute", "_index", "_inputs", "_key", "is_narrow", "reads", "volatile")

    def __init__(self, index: int, compute: Callable[..., Array], inputs: tuple[Source, ...], *, is_narrow: bool):
        self._index = index
        self._compute = compute
        self._inputs = inputs
        self.is_narrow = is_narrow
        self.reads: tuple[int, ...] = ()
        self.volatile: bool = any(source.volatile for source in inputs)
        self._key: Callable[[Sequence[int]], Any] = lambda _slots: None

    def depends_on(self, slots: Sequence[int]) -> None:
        """The loop variables that the value reads, directly or through other cells."""
        self.reads = tuple(sorted(slots))
        if self.reads:
            self._key = _function("s", f"({', '.join(f's[{slot}]' for slot in self.reads)},)")

    def of(self, convoy: Convoy) -> Lanes:
        memo = convoy.memo[self._index]
        key = self._key(convoy.slots)
        known = memo.get(key)
        if known is None:
            inputs = [source.of(convoy) for source in self._inputs]
        else:
            found, before = known
            if not self.volatile:
                return found
            inputs = [source.again(convoy, old) for source, old in zip(self._inputs, before, strict=True)]
            if all(new is old for new, old in zip(inputs, before, strict=True)):
                return found
        values = self._compute(convoy.slots, *(lanes.values for lanes in inputs))
        values = np.asarray(np.broadcast_to(values, (convoy.warps.lanes,)), np.int64)
        found = Lanes(values, self._overflow(values, inputs))
        if len(memo) * convoy.warps.lanes * 8 > _CELL_BYTES:
            memo.clear()
        memo[key] = found, inputs if self.volatile else ()  # values of a volatile cell hold while its inputs do
        return found

    def again(self, convoy: Convoy, known: Lanes) -> Lanes:
        """As `of`; the same object as before where nothing changed."""
        return self.of(convoy)

    def _overflow(self, values: Array, inputs: Sequence[Lanes]) -> Array | None:
        """Lanes whose value does not fit into 32 bits, here or in what it is computed from."""
        beyond = [known.overflow for known in inputs if known.overflow is not None]
        if self.is_narrow and (values.min() < I32_LOW or values.max() > I32_HIGH):
            beyond.append((values < I32_LOW) | (values > I32_HIGH))
        return np.logical_or.reduce(beyond) if beyond else None


@dataclass(frozen=True, slots=True)
class Builtin:
    """A coordinate of the thread, as a source of lane values."""

    name: str
    volatile: bool = False
    reads: tuple[int, ...] = ()

    def of(self, convoy: Convoy) -> Lanes:
        return convoy.warps.builtin(self.name)

    def again(self, convoy: Convoy, known: Lanes) -> Lanes:
        return known


@dataclass(frozen=True, slots=True)
class RegisterSource:
    """An integer register as a source of lane values: read anew each time, since it may have changed."""

    array: int
    element: Uniform
    volatile: bool = True
    reads: tuple[int, ...] = ()

    def of(self, convoy: Convoy) -> Lanes:
        return Lanes(self._held(convoy).astype(np.int64))

    def again(self, convoy: Convoy, known: Lanes) -> Lanes:
        held = self._held(convoy)
        return known if (held == known.values).all() else Lanes(held.astype(np.int64))

    def _held(self, convoy: Convoy) -> Array:
        registers = convoy.registers[self.array]
        assert registers is not None
        held: Array = registers.data[self.element(convoy.slots)]
        return held


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Another source plus one of 32 numbers each, by lane of the warp: a warp spread over a tile."""

    source: Source
    numbers: Array

    @property
    def volatile(self) -> bool:
        return self.source.volatile

    @property
    def reads(self) -> tuple[int, ...]:
        return self.source.reads

    def of(self, convoy: Convoy) -> Lanes:
        return self.source.of(convoy).spread(self.numbers)

    def again(self, convoy: Convoy, known: Lanes) -> Lanes:
        return self.of(convoy)


Source = Cell | Builtin | RegisterSource | Spread


@dataclass(frozen=True, slots=True)
class Place:
    """Where lanes point: `cell` of each lane plus `offset`. is_narrow: computed in 32 bits."""

    cell: Source
    offset: Uniform
    is_narrow: bool


Predicate = Callable[[Convoy], bool | Mask]
"""A condition: True or False where all lanes agree, else the lanes where it holds."""


@dataclass(slots=True)
class Cells:
    """Makes the cells of one program. Equal expressions share a cell."""

    count: int = 0
    _by_expr: dict[Expr, Var] = field(default_factory=dict)
    _by_name: dict[str, Source] = field(default_factory=dict)

    def name(self, expr: Expr) -> Var:
        """A resolved lane-dependent expression as the name of its cell."""
        if isinstance(expr, Var):
            self.source(expr)
            return expr
        known = self._by_expr.get(expr)
        if known is None:
            known = self._by_expr[expr] = Var(f"c{self.count}", expr.dtype)
            self._by_name[known.name] = self._make(expr)
        return known

    def source(self, expr: Expr) -> Source:
        """The lane values of a resolved lane-dependent expression."""
        if isinstance(expr, Var) and expr.name not in self._by_name:
            self._by_name[expr.name] = Builtin(expr.name)
        return self._by_name[self.name(expr).name if not isinstance(expr, Var) else expr.name]

    def place(self, expr: Expr) -> Place:
        varying, shared = linear_parts(expr)
        cell: Source = Builtin("zero") if varying is None else self.source(varying)
        return Place(cell, uniform(shared), expr.dtype is I32)

    def let(self, value: Expr) -> Expr:
        """What a `Let` of a resolved integer expression stands for: its lane part becomes one cell."""
        varying, shared = linear_parts(value)
        return shared if varying is None else binary(Op.ADD, self.name(varying), shared)

    def predicate(self, expr: Expr) -> Predicate:
        """A resolved condition, compiled."""
        if is_uniform(expr):
            decide = uniform(expr)
            return lambda convoy: bool(decide(convoy.slots))
        match expr:
            case Binary(op=Op.LAND):
                return _conjunction(self.predicate(expr.a), self.predicate(expr.b))
            case Binary(op=Op.LT | Op.LE | Op.GE | Op.EQ | Op.NE) if not expr.a.dtype.is_float:
                return self._comparison(expr)
            case _:
                return self._comparison(Binary(Op.NE, expr, Const(0, BOOL)))

    def _comparison(self, expr: Binary) -> Predicate:
        """`a op b` as `lanes op threshold`: certain for all lanes where the range of the lanes decides."""
        varying, shared = linear_parts(binary(Op.SUB, expr.a, expr.b))
        assert varying is not None
        cell = self.source(varying)
        op, slack = (Op.LT, 1) if expr.op is Op.LE else (expr.op, 0)
        threshold = uniform(binary(Op.SUB, Const(slack), shared))
        return lambda convoy: cell.of(convoy).compare(op, threshold(convoy.slots))

    def _make(self, expr: Expr) -> Cell:
        index = self.count
        self.count += 1
        parts: list[Expr] = []
        body = self._with_inputs(expr, parts)
        inputs = tuple(self._input(part) for part in parts)
        names = ", ".join(f"i{number}" for number in range(len(inputs)))
        compute = _function(f"s, {names}", _text(body, _FOR_LANES))
        cell = Cell(index, compute, inputs, is_narrow=expr.dtype is I32)
        own = {int(part.name[2:-1]) for part in walk_expr(body) if isinstance(part, Var) and part.name[0] == "s"}
        cell.depends_on(sorted(own.union(*(source.reads for source in inputs))))
        return cell

    def _with_inputs(self, expr: Expr, inputs: list[Expr]) -> Expr:
        """`expr` with each lane-dependent leaf replaced by `i0`, `i1`, ...; the leaves are added to `inputs`."""
        if isinstance(expr, Load) or (isinstance(expr, Var) and not expr.name.startswith("s[")):
            if expr not in inputs:
                inputs.append(expr)
            return Var(f"i{inputs.index(expr)}", expr.dtype)
        if isinstance(expr, Cast) and not is_uniform(expr):
            # A cast is a border: what is inside must fit into its own width, so it is a cell of its own.
            inner = expr.value if _is_leaf(expr.value) else self.name(expr.value)
            return self._with_inputs(inner, inputs)
        parts = sub_exprs(expr)
        if isinstance(expr, Binary) and expr.op not in _WRAPPING:
            parts = tuple(part if _is_leaf(part) or is_uniform(part) else self.name(part) for part in parts)
        return rebuild(expr, tuple(self._with_inputs(part, inputs) for part in parts))

    def _input(self, leaf: Expr) -> Source:
        if isinstance(leaf, Load):
            (index,) = leaf.index
            return RegisterSource(int(leaf.buffer.name), uniform(index))
        return self.source(leaf)


def _is_leaf(expr: Expr) -> bool:
    return isinstance(expr, (Const, Var, Load))


def _conjunction(a: Predicate, b: Predicate) -> Predicate:
    """Both conditions; the second is not asked where the first fails in every lane."""

    def decide(convoy: Convoy) -> bool | Mask:
        first = a(convoy)
        if first is False:
            return False
        second = b(convoy)
        if isinstance(first, Mask) and isinstance(second, Mask):
            return first.both(second)
        return first if second is True else second

    return decide
