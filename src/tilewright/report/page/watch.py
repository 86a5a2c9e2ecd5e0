"""One block of a kernel, watched: every event of its warps, in the order in which the simulator runs them.

All pictures of the page are drawn from these events, so they show the kernel that runs and not what it should be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer, Space
from tilewright.problem.gemm import Gemm, OperandName
from tilewright.problem.reference import make_operands
from tilewright.simulator.findings import Access, Arithmetic, Issue, Landing, Listener, Meeting, TmaCopy
from tilewright.simulator.warps import Warps
from tilewright.toolchain import Build

Event = Access | Arithmetic | Meeting | Issue | TmaCopy | Landing

STEPS = 6
"""Steps over k that are watched: more than any pipeline here has stages."""

FIRST_BLOCK = (0, 0, 0)


class _Recorder(Listener):
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def _keep(self, event: Event) -> None:
        self.events.append(event)

    accessed = computed = met = issued = bulk_copied = landed = _keep  # type: ignore[assignment]


@dataclass(frozen=True)
class Region:
    """The part of an operand that one block works on in one step over k. row, column: where it begins."""

    operand: OperandName
    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Watched:
    """The events of the first block. gemm: what was run, a corner of the problem of `built` with its strides."""

    built: Build
    gemm: Gemm
    events: tuple[Event, ...]

    def is_ours(self, warps: Warps | None) -> bool:
        return warps is not None and bool(len(self.rows_of(warps)))

    def warps_in(self, event: Event) -> set[int]:
        """The numbers of our warps that take part in an event."""
        warps = event.warps if isinstance(event, (Access, TmaCopy)) else event.who
        if not isinstance(warps, Warps):
            return set()
        active = np.zeros((len(warps), WARP_THREADS), np.bool_)
        match event:
            case Access():
                active[:] = True if event.pattern.active_rows is None else event.pattern.active_rows
            case TmaCopy():
                active[event.lanes // WARP_THREADS] = True
            case Arithmetic() | Issue():
                active[:] = True if event.mask is None else event.mask.rows
            case _:
                active[:] = True
        rows = self.rows_of(warps)
        return set(warps.numbers[rows[active[rows].any(axis=1)]].tolist())

    def rows_of(self, warps: Warps) -> Array:
        """Which of the warps belong to the first block: blocks of its cluster run beside it."""
        ours = (warps.batch.coordinates[warps.slots] == FIRST_BLOCK).all(axis=1)
        return np.flatnonzero(ours)

    def accesses(self, space: Space, *, store: bool | None = None, buffer: str = "") -> Iterator[Access]:
        """Accesses of the first block to a memory, in order."""
        for event in self.events:
            if isinstance(event, Access) and event.space is space and self.is_ours(event.warps):
                if store in (None, event.store) and buffer in ("", event.buffer.name):
                    yield event

    def lanes_of(self, access: Access) -> tuple[Array, Array, Array]:
        """The numbers of our warps, (warps,), the first element of each lane and which lanes take part, (warps, 32)."""
        assert access.warps is not None
        rows, active = self.rows_of(access.warps), access.pattern.active_rows
        first = access.pattern.rows[rows] + access.offset
        lanes = np.ones(first.shape, np.bool_) if active is None else active[rows]
        some = lanes.any(axis=1)
        return access.warps.numbers[rows][some], first[some], lanes[some]

    def place(self, operand: OperandName, offset: Array) -> tuple[Array, Array]:
        """(row, column) of elements of an operand from their offsets in memory."""
        matrix = self.gemm.operand(operand)
        strided, contiguous = np.divmod(offset, self.gemm.leading(operand))
        return (strided, contiguous) if matrix.contiguous == matrix.dims[1] else (contiguous, strided)

    @cached_property
    def origin(self) -> tuple[int, int]:
        """The row and column at which the block's first tile of C begins."""
        rows, columns = self.place("C", self._first_results)
        tile = self.built.kernel.tile
        return int(rows) // tile["m"] * tile["m"], int(columns) // tile["n"] * tile["n"]

    @property
    def _first_results(self) -> Array:
        for event in self.events:
            if isinstance(event, Access) and event.store and event.buffer.name == "C" and self.is_ours(event.warps):
                _, elements, lanes = self.lanes_of(event)
                if lanes.any():
                    return np.asarray(elements[lanes][0])
            if isinstance(event, TmaCopy) and _writes_results(event, self):
                return np.asarray(event.places[event.inside][0])
        return np.asarray(0)

    def region(self, operand: OperandName) -> Region:
        """What the block asks of an operand in its first step over k; of C, its tile."""
        tile = self.built.kernel.tile
        row, column = self.origin
        if operand == "A":
            return Region("A", row, 0, tile["m"], tile["k"])
        if operand == "B":
            return Region("B", 0, column, tile["k"], tile["n"])
        return Region("C", row, column, tile["m"], tile["n"])


def _writes_results(copy: TmaCopy, watched: Watched) -> bool:
    return operand_of(copy) == "C" and watched.is_ours(copy.warps)


def operand_of(copy: TmaCopy) -> str:
    """The matrix whose boxes TMA moves."""
    return str(copy.site.stmt.map.operand)  # type: ignore[union-attr]


def stages_of(buffer: Buffer) -> int:
    """Pipeline stages of a shared tile; 1 where it has none."""
    return buffer.stages if len(buffer.shape) > 1 else 1


def watch(built: Build, steps: int = STEPS) -> Watched:
    """Run the first block of a build for a few steps over k, at the strides of its problem."""
    gemm, kernel = built.gemm, built.kernel
    tile = kernel.tile
    corner = replace(
        gemm,
        m=min(gemm.m, 2 * tile["m"] * kernel.cluster),
        n=min(gemm.n, 2 * tile["n"] * kernel.cluster),
        k=min(gemm.k, steps * tile["k"]),
    )
    recorder = _Recorder()
    built.simulate(
        make_operands(corner),
        listeners=(recorder,),
        detectors=False,
        blocks=[FIRST_BLOCK],
        resident_blocks=kernel.cluster if kernel.resident else None,
    )
    return Watched(built, corner, tuple(recorder.events))
