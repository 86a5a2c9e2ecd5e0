"""What the threads of a kernel do that multiply what TMA loads, as bodies that `roles` puts together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.expr import Env, Expr, Var
from tilewright.ir.stmt import Body
from tilewright.lowering.sums import Sums


@dataclass(frozen=True)
class Compute:
    """What consumers do: for each tile of C how its sum starts, one use of a stage, and the store; before they end.
    declared: their registers; over_parts: what is done for each of the parts of a stage whose accumulators are promoted
    in turn, or for all at once; barriers: that one thread makes for them; courier, carriers: what a thread, and a
    team, of the producer's warpgroup do for each tile beside them; before_carriers: once, before; fetch: what comes
    before the products of an iteration, of so many."""

    sums: Sums
    declared: Body
    start: Body
    step: Callable[[Env], Body]
    finish: Body
    leave: Body
    over_parts: Callable[[Body], Body]
    barriers: Body = ()
    courier: Body = ()
    carriers: Body = ()
    before_carriers: Body = ()
    fetch: Callable[[Expr, Var], Body] = lambda count, iteration: ()
