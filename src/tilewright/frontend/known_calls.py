"""Calls beside `matmul`, each of which one plan computes: what those that look alike share is settled once and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.compute import gpu_of
from tilewright.frontend.remembered import Remembered, remembered
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.plan import Place, Plan


@dataclass(frozen=True, slots=True)
class KnownCall:
    """What calls that look alike share. make: makes the result; make_others: those behind it. plan: None where there is
    nothing to compute."""

    device: int
    make: Callable[[], Any]
    plan: Plan | None
    make_others: tuple[Callable[[], Any], ...] = ()

    @property
    def words(self) -> str:
        """What runs, for people."""
        return "" if self.plan is None else self.plan.words

    def run(self, library: Any, a: Any, behind: tuple[int, ...], b: Any = None, out: Any = None) -> Any:
        """The result of a call on the library's stream; a tuple of several. behind: the addresses in the places behind
        `Place.OUT`; results but the first stand behind them. out: the first result, if it is given."""
        plan, address = self.plan, library.address
        result = self.make() if out is None else out
        others = self.make_others and tuple([make() for make in self.make_others])
        if plan is not None:
            addresses = address(a), 0 if b is None else address(b), address(result), *behind
            if others:
                addresses = (*addresses, *map(address, others))
            kept = None
            if plan.scratch_bytes:
                scratch, kept = library.scratch(plan.scratch_bytes, a)
                addresses = (*addresses[: Place.SCRATCH], scratch, *addresses[Place.SCRATCH + 1 :])
            with gpu_of(dispatcher(self.device), library):
                plan.run(library.stream(self.device), addresses)
            library.finished(self.device)
            del kept  # only now: the library may give the memory to whatever its stream does next
        return (result, *others) if others else result


KNOWN: Remembered[KnownCall] = remembered()
"""Calls made so far, by their keys, each of which begins with the name of the call."""
