"""A plan: the launches of one call, with everything settled but the addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from tilewright.ir.guard import Guard
from tilewright.planning.packing import Alignment, Stack
from tilewright.problem.gemm import Gemm
from tilewright.runtime.prepared import PreparedLaunch
from tilewright.winners.plan_config import PlanConfig


class Place(IntEnum):
    """What the addresses of a call are, by their number in it. OPERAND: the first that a function of the epilogue
    reads; the others follow."""

    A = 0
    B = 1
    OUT = 2
    BIAS = 3
    RESIDUAL = 4
    SENT_PARTS = 4  # of a call that adds nothing
    SCRATCH = 5
    SENT_FLAGS = 5  # of a call that has no workspace
    GROUP_ENDS = 6
    SHARD_STARTS = 6  # of a call that has no groups
    PIECES = 7
    SHARD_FLAGS = 7  # of a call that has no pieces
    RANK_SUMS = 7
    SCALE_A = 8
    RANK_FLAGS = 8  # of a call that has no scales
    SCALE_B = 9
    GUARD_A = 10
    GUARD_B = 11
    FELL_BACK = 12
    OPERAND = 13


class Role(StrEnum):
    """What a launch is for."""

    COPY = "copy"
    TRANSPOSE = "transpose"
    SCALE = "scale"
    SPLIT = "split"
    PRODUCT = "product"
    REDUCTION = "reduction"
    FOLD = "fold"
    QUANTIZE = "quantize"
    ROWS = "rows"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class Multiplied:
    """The problem of a product, and the configuration that computes it; copies before it and the reduction of split-K
    behind it are of the configuration, too. What `estimate_us` takes."""

    gemm: Gemm
    alignment: Alignment
    stack: Stack | None
    config: PlanConfig


@dataclass(frozen=True, slots=True)
class Step:
    """One launch, and which address goes to each of its pointers: the place, and bytes beyond it.

    what: it makes, for people. moved_bytes: that a launch around a product reads and writes. multiplied: of a product.
    guard: the condition on which the device runs it.
    """

    launch: PreparedLaunch
    pointers: tuple[tuple[int, int], ...]
    role: Role
    what: str
    moved_bytes: int = 0
    multiplied: Multiplied | None = None
    guard: Guard | None = None


def guards_of(guard: Guard | None) -> tuple[tuple[int, int], ...]:
    """The places of the flags that the launch of a guarded kernel is told."""
    return ((Place.GUARD_A, 0), (Place.GUARD_B, 0), (Place.FELL_BACK, 0)) if guard else ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Launches in order. scratch_bytes: of workspace that they share. words: what runs, for people. other_way: that the
    device goes where a flag is raised."""

    steps: tuple[Step, ...]
    scratch_bytes: int
    words: str
    other_way: str = ""

    @property
    def way(self) -> str:
        """The algorithm of pieces that it begins with, or what runs."""
        return self.words.partition(":")[0] if any(step.role is Role.SPLIT for step in self.steps) else self.words

    @property
    def asks_flags(self) -> bool:
        """Whether the device chooses by flags for which the call has places, from `Place.GUARD_A` on."""
        return any(step.guard is not None for step in self.steps)

    def run(self, stream: int, addresses: Sequence[int]) -> None:
        """Start everything on a stream, by its address. addresses: by `Place`; 0 for what is not there."""
        for step in self.steps:
            step.launch.launch(stream, *(addresses[place] + offset for place, offset in step.pointers))


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One launch of problems that stand in a table, which is an argument. columns: the words of a row, by their names:
    addresses (A, B, C, bias) and sizes (M, N, K, lda, ldb, ldc)."""

    launch: PreparedLaunch
    columns: tuple[str, ...]
