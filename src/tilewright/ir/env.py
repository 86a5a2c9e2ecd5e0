"""What names mean where a statement stands: emitters take it instead of having their statements rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.ir.expr import Expr, Var


@dataclass(frozen=True, slots=True)
class Env:
    """The place of a statement in its loops, as IR values.

    digits: values of loop digits, where they are not the variables of the loops around. stage: of the ring that the
    statement fills or reads. there: whether the tile that is copied exists; where it is false, zeros are written.
    in_prologue: whether the statement stands in front of its pipelined loop.
    """

    digits: Mapping[str, Expr] = field(default_factory=dict)
    stage: Expr | None = None
    there: Expr | None = None
    in_prologue: bool = False

    def __getitem__(self, digit: str) -> Expr:
        return self.digits.get(digit, Var(digit))

    def at(self, **digits: Expr) -> Env:
        """The same place with other values of some digits."""
        return replace(self, digits={**self.digits, **digits})

    def in_stage(self, stage: Expr) -> Env:
        """The same place in another stage of the ring."""
        return replace(self, stage=stage)


HERE = Env()
"""Inside the loops, each at its own variable."""
