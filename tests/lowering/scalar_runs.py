"""Integer statements of one thread, carried out one by one: what lowering emits can be held against plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Binary, Cast, Const, Expr, Load, Op, Ref, Select, Var
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move
from tilewright.ir.visit import simplify


class Thread:
    """names: values of variables. memory: of each buffer by name; registers are added. read: places that it loaded."""

    def __init__(self, names: Mapping[str, int], memory: Mapping[str, Sequence[int]] | None = None) -> None:
        self.names = dict(names)
        self.memory = {name: list(values) for name, values in (memory or {}).items()}
        self.read: list[tuple[str, tuple[int, ...]]] = []
        self.unused: dict[str, set[int]] = {}
        """Of each register buffer, the elements that nothing was stored to."""

    def value(self, expr: Expr) -> int:
        match expr:
            case Const():
                return int(expr.value)
            case Var():
                return self.names[expr.name]
            case Cast():
                return self.value(expr.value)
            case Select():
                return self.value(expr.a if self.value(expr.condition) else expr.b)
            case Load():
                return self.load(Ref(expr.buffer, expr.index))
            case Binary(op=Op.LAND):
                return int(bool(self.value(expr.a)) and bool(self.value(expr.b)))
            case Binary():
                folded = simplify(Binary(expr.op, Const(self.value(expr.a)), Const(self.value(expr.b))))
                assert isinstance(folded, Const)
                return int(folded.value)
        raise AssertionError(f"{expr} is not an integer")

    def load(self, place: Ref) -> int:
        index = tuple(self.value(at) for at in place.index)
        if place.buffer.space is Space.GLOBAL:
            self.read.append((place.buffer.name, index))
        assert index[0] >= 0, f"{place.buffer.name}[{index[0]}]"
        return self.memory[place.buffer.name][index[0]]

    def store(self, place: Ref, value: int) -> None:
        name, element = place.buffer.name, self.value(place.index[0])
        self.memory[name][element] = value
        self.unused.get(name, set()).discard(element)

    def run(self, body: Body) -> None:
        for stmt in body:
            match stmt:
                case Let():
                    self.names[stmt.name] = self.value(stmt.value)
                case Alloc():
                    self.memory[stmt.buffer.name] = [0] * stmt.buffer.elements
                    self.unused[stmt.buffer.name] = set(range(stmt.buffer.elements))
                case Assign():
                    self.store(stmt.dst, self.value(stmt.value))
                case Move():
                    there = stmt.guard is None or self.value(stmt.guard)
                    found = self.load(stmt.src) if there else 0  # zero fill
                    self.store(stmt.dst, found)
                case For():
                    for number in range(self.value(stmt.extent)):
                        self.names[stmt.var] = number
                        self.run(stmt.body)
                case If():
                    self.run(stmt.then if self.value(stmt.condition) else stmt.otherwise)
                case _:
                    raise AssertionError(f"{stmt} is not a statement of integers")
