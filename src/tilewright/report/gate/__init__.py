"""A gate for schedules: what is known of each, held against a snapshot that is kept beside the code.

    facts_of(build, archs)  ->  Facts  ->  compare(what the snapshot has, facts)  ->  what got worse, what got better

Nothing is timed and no GPU is needed: counts come from the simulator and are whole numbers, registers from the
compiler, so a gate that passes today passes tomorrow.
"""

from tilewright.report.gate.compare import TIME_TOLERANCE_PERCENT, Change, Comparison, compare
from tilewright.report.gate.facts import Facts, facts_of
from tilewright.report.gate.snapshot import SNAPSHOT_NAME, read, update
from tilewright.report.own_schedules import OwnSchedule, schedules_in

__all__ = [
    "Change",
    "Comparison",
    "Facts",
    "OwnSchedule",
    "SNAPSHOT_NAME",
    "TIME_TOLERANCE_PERCENT",
    "compare",
    "facts_of",
    "read",
    "schedules_in",
    "update",
]
