"""What `matmul` would run now: what every search begins with, and must beat."""

from __future__ import annotations

from tilewright.device.spec import DeviceSpec
from tilewright.planning.assembly import Request
from tilewright.planning.copies import fitted
from tilewright.planning.dispatch import SAFE, estimated
from tilewright.planning.on_paper import alignment_of_rows, order_of_choice
from tilewright.problem.gemm import Gemm
from tilewright.tuner.space import canonical
from tilewright.winners.choice import Choice
from tilewright.winners.lookup import Lookup
from tilewright.winners.order import ReductionOrder


def todays_choice(gemm: Gemm, spec: DeviceSpec, lookup: Lookup) -> Choice:
    """The first choice of dispatch for a problem with aligned addresses: measured, else by estimate."""
    alignment = alignment_of_rows(gemm)
    found = lookup.best_choice(spec.name, gemm, alignment.least)
    if found is not None:
        return canonical(fitted(found, gemm, alignment))
    return canonical(next(iter(estimated(Request(gemm, alignment), spec)), SAFE))


def todays_order(gemm: Gemm, today: Choice) -> ReductionOrder:
    """How it sums."""
    return order_of_choice(gemm, alignment_of_rows(gemm), today)
