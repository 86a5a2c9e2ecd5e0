"""A block recorded: every statement of its warps, and all state at every moment, as one value.

record(kernel, operands)  ->  an observer of the simulator  ->  Recording  ->  plain data, for a page or a test
"""

from tilewright.simulator.recorder.record import MOST_MOMENTS, record
from tilewright.simulator.recorder.recording import (
    BarrierState,
    Changes,
    Fault,
    Flight,
    Moment,
    Picture,
    Recording,
    Region,
    Shown,
    Stall,
)

__all__ = [
    "MOST_MOMENTS",
    "BarrierState",
    "Changes",
    "Fault",
    "Flight",
    "Moment",
    "Picture",
    "Recording",
    "Region",
    "Shown",
    "Stall",
    "record",
]
