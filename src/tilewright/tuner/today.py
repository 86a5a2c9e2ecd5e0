"""What `matmul` would run now: what every search begins with, and must beat."""

from __future__ import annotations

from tilewright.device.spec import DeviceSpec
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import SAFE
from tilewright.planning.estimates import estimated
from tilewright.planning.on_paper import alignment_of_rows, order_of_plan
from tilewright.planning.packing import fitted
from tilewright.problem.gemm import Gemm
from tilewright.winners.lookup import Lookup
from tilewright.winners.order import ReductionOrder
from tilewright.winners.plan_config import PlanConfig


def todays_plan(gemm: Gemm, spec: DeviceSpec, lookup: Lookup) -> PlanConfig:
    """The first plan of dispatch for a problem with aligned addresses: measured, else by estimate."""
    alignment = alignment_of_rows(gemm)
    found = lookup.best_plan(spec.name, gemm, alignment.least)
    if found is not None:
        return fitted(found, gemm, alignment)
    return next(estimated(Request(gemm, alignment), spec), SAFE)


def todays_order(gemm: Gemm, today: PlanConfig) -> ReductionOrder:
    """How it sums."""
    return order_of_plan(gemm, alignment_of_rows(gemm), today)
