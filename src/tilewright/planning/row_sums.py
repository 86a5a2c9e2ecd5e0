"""What gathers and sums rows: one launch."""

from __future__ import annotations

from tilewright.kernels.row_sums import RowSumsConfig
from tilewright.planning.kernels import Kernels
from tilewright.planning.plan import Place, Plan, Role, Step
from tilewright.problem.row_sums import RowSums

_PLACES = {
    "source": Place.A,
    "index": Place.GROUP_ENDS,
    "weights": Place.SCALE_A,
    "begins": Place.SCALE_B,
    "sums": Place.OUT,
}


def row_sums_plan(kernels: Kernels, problem: RowSums, aligned_bytes: int) -> Plan:
    """Sums at `Place.OUT` of rows at `Place.A` that the indices at `Place.GROUP_ENDS` name, with weights at
    `Place.SCALE_A`; where the terms of each begin at `Place.SCALE_B`. aligned_bytes: what the addresses and rows of
    both matrices are multiples of."""
    config = RowSumsConfig.of(problem, aligned_bytes, overlapped=kernels.overlaps)
    places = tuple((_PLACES[matrix.name], 0) for matrix in problem.matrices)
    launch = kernels.auxiliary(config, problem)
    return Plan((Step(launch, places, Role.ROWS, problem.title, problem.compulsory_bytes),), 0, problem.title)
