"""The kernel on the CPU, warp by warp: exact results, counts, and what is wrong with it."""

from tilewright.simulator.arithmetic import FloatArithmetic, ModularArithmetic, counting
from tilewright.simulator.asynchronous.engines import Await, Push, Raise
from tilewright.simulator.asynchronous.previous import PreviousGrid
from tilewright.simulator.counters import Counters
from tilewright.simulator.findings import Finding, Kind, Listener
from tilewright.simulator.listeners import standard_listeners
from tilewright.simulator.ranks import Rank, RanksRun, simulate_ranks
from tilewright.simulator.run import Run, simulate
from tilewright.simulator.sampling import count_sampled, sample_blocks
from tilewright.simulator.search import OrderSearch, search_orders

__all__ = [
    "Await",
    "Counters",
    "Finding",
    "FloatArithmetic",
    "Kind",
    "Listener",
    "ModularArithmetic",
    "OrderSearch",
    "PreviousGrid",
    "Push",
    "Raise",
    "Rank",
    "RanksRun",
    "Run",
    "count_sampled",
    "counting",
    "sample_blocks",
    "search_orders",
    "simulate",
    "simulate_ranks",
    "standard_listeners",
]
