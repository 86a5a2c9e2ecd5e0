"""What is visible at a statement: names, registers, and the loops around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.expr import Expr
from tilewright.simulator.index import Scope, slot_var

Loops = tuple[tuple[str, int], ...]
"""The enclosing loops, outermost first: name and slot."""


@dataclass(frozen=True, slots=True)
class Names:
    """What is visible at a statement. loops: around it."""

    scope: Scope
    loops: Loops = ()

    def with_name(self, name: str, value: Expr) -> Names:
        return replace(self, scope=self.scope.with_name(name, value))

    def with_registers(self, name: str, number: int) -> Names:
        return replace(self, scope=self.scope.with_registers(name, number))

    def with_loop(self, name: str, slot: int) -> Names:
        return Names(self.scope.with_name(name, slot_var(slot)), (*self.loops, (name, slot)))
