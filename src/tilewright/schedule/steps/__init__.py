"""Every verb of the language, in teaching order."""

from tilewright.schedule.step import Step
from tilewright.schedule.steps.accumulate import Accumulate
from tilewright.schedule.steps.bind import Bind
from tilewright.schedule.steps.cluster import Cluster
from tilewright.schedule.steps.dependent_launch import DependentLaunch
from tilewright.schedule.steps.distribute import Distribute
from tilewright.schedule.steps.epilogue import Epilogue
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.persist import Persist
from tilewright.schedule.steps.pipeline import Pipeline
from tilewright.schedule.steps.prefetch import Prefetch
from tilewright.schedule.steps.raster import Raster
from tilewright.schedule.steps.relayout import Relayout
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.snake import Snake
from tilewright.schedule.steps.specialize import Specialize
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.stage import Stage
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.schedule.steps.transfer import Transfer
from tilewright.schedule.steps.unroll import Unroll
from tilewright.schedule.steps.vectorize import Vectorize

STEPS: tuple[type[Step], ...] = (
    Split,
    Fuse,
    Reorder,
    Bind,
    Unroll,
    Accumulate,
    Stage,
    Distribute,
    Relayout,
    Vectorize,
    Epilogue,
    Raster,
    Prefetch,
    Pipeline,
    Transfer,
    Snake,
    Tensorize,
    Specialize,
    Persist,
    Cluster,
    DependentLaunch,
)

__all__ = [
    "STEPS",
    "Accumulate",
    "Bind",
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
    "Snake",
    "Specialize",
    "Split",
    "Stage",
    "Step",
    "Tensorize",
    "Transfer",
    "Unroll",
    "Vectorize",
]
