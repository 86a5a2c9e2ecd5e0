"""Every verb of the language, in teaching order."""

from tilewright.schedule.step import Step
from tilewright.schedule.steps.blocks import Cluster, DependentLaunch, Persist, Raster
from tilewright.schedule.steps.copies import Pipeline, Prefetch, Specialize, Transfer
from tilewright.schedule.steps.loops import Bind, Fuse, Reorder, Snake, Split, Unroll
from tilewright.schedule.steps.sums import Accumulate, Epilogue, Tensorize
from tilewright.schedule.steps.tiles import Distribute, Relayout, Stage, Vectorize

STEPS: tuple[type[Step], ...] = (
    *(Split, Fuse, Reorder, Bind, Unroll),
    *(Accumulate, Stage, Distribute, Relayout, Vectorize, Epilogue),
    *(Raster, Prefetch, Pipeline, Transfer, Snake),
    *(Tensorize, Specialize, Persist, Cluster, DependentLaunch),
)
