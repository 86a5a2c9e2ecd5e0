"""A schedule is data: a tuple of steps, each a frozen value with one rewrite."""

from tilewright.schedule.codec import from_json, to_json
from tilewright.schedule.schedule import Difference, Schedule, diff
from tilewright.schedule.step import Step
from tilewright.schedule.steps import STEPS
from tilewright.schedule.steps.blocks import Cluster, DependentLaunch, Persist, Raster
from tilewright.schedule.steps.copies import Pipeline, Prefetch, Specialize, Transfer
from tilewright.schedule.steps.loops import Bind, Fuse, Reorder, Snake, Split, Unroll
from tilewright.schedule.steps.sums import Accumulate, Epilogue, Tensorize
from tilewright.schedule.steps.tiles import Distribute, Relayout, Stage, Vectorize

__all__ = [
    "Accumulate",
    "Bind",
    "Difference",
    "Cluster",
    "Distribute",
    "Epilogue",
    "Fuse",
    "DependentLaunch",
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
