"""A schedule is data: a tuple of steps, each a frozen value with one rewrite."""

from tilewright.schedule.codec import from_json, to_json
from tilewright.schedule.diff import Difference, diff
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    STEPS,
    Accumulate,
    Bind,
    Cluster,
    Distribute,
    Epilogue,
    Fuse,
    Persist,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Snake,
    Specialize,
    Split,
    Stage,
    Tensorize,
    Transfer,
    Unroll,
    Vectorize,
)

__all__ = [
    "Accumulate",
    "Bind",
    "Difference",
    "Cluster",
    "Distribute",
    "Epilogue",
    "Fuse",
    "Persist",
    "Pipeline",
    "Prefetch",
    "Raster",
    "Relayout",
    "Reorder",
    "STEPS",
    "Schedule",
    "Snake",
    "Specialize",
    "Split",
    "Stage",
    "Step",
    "Tensorize",
    "Transfer",
    "Unroll",
    "Vectorize",
    "diff",
    "from_json",
    "to_json",
]
