"""What ranks of a group send each other by threads: one launch."""

from __future__ import annotations

from tilewright.errors import LaunchError
from tilewright.kernels.exchange import ExchangeConfig
from tilewright.planning.kernels import Kernels
from tilewright.planning.plan import Place, Plan, Role, Step
from tilewright.problem.exchange import Exchange

_PLACES = {
    "source": Place.A,
    "result": Place.OUT,
    "shard_starts": Place.SHARD_STARTS,
    "peer_received": Place.RANK_SUMS,
    "peer_flags": Place.RANK_FLAGS,
}


def exchange_plan(kernels: Kernels, problem: Exchange) -> Plan:
    """What the rank sends lies at `Place.A`; sums go to `Place.OUT`; the addresses of what ranks receive, and of their
    flags, lie at `Place.RANK_SUMS` and `Place.RANK_FLAGS`. All addresses are multiples of 16 bytes. Raises LaunchError
    for more ranks than the kernel is made for."""
    config = ExchangeConfig.of(problem, overlapped=kernels.overlaps)
    reasons = config.reasons_against(problem)
    if reasons:
        raise LaunchError(f"Threads cannot exchange {problem.title}: {reasons[0]}.")
    places = tuple((int(_PLACES[matrix.name]), 0) for matrix in problem.matrices)
    launch = kernels.auxiliary(config, problem)
    return Plan((Step(launch, places, Role.EXCHANGE, problem.title, problem.moved_bytes),), 0, problem.title)
