"""`record`: a block run twice on the simulator, once to see how long it is, once to keep it."""

from __future__ import annotations

from tilewright.errors import SimulationError
from tilewright.ir.kernel import PART_OF_K, Kernel
from tilewright.ir.text import kernel_lines
from tilewright.problem.problem import values_of
from tilewright.problem.reference import Operands
from tilewright.simulator.context import Context, Observer
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.events import Listener
from tilewright.simulator.findings import Finding
from tilewright.simulator.launch import Block, arguments, launched_grid, warps_per_block
from tilewright.simulator.machine import Order
from tilewright.simulator.recorder.faults import faults_of
from tilewright.simulator.recorder.recorder import Recorder, rows_of
from tilewright.simulator.recorder.recording import Recording
from tilewright.simulator.run import simulate
from tilewright.simulator.sites import Site
from tilewright.simulator.warps import Batch

MOST_MOMENTS = 2000
"""Moments of a recording, by default: more than anybody steps through."""

MOST_VALUES = 5_000_000
"""Cells that change in a recording: with operands of few different values a page of about 7 MB."""


def record(
    kernel: Kernel,
    operands: Operands,
    *,
    block: Block = (0, 0, 0),
    schedule: Order = "lockstep",
    seed: int = 0,
    most_moments: int = MOST_MOMENTS,
) -> Recording:
    """What one block of a launch does, statement by statement.

    block: (x, y, z). schedule, seed: how warps are scheduled, see `simulate`. most_moments: of a longer run the first
    half of these is kept, and as many up to the first broken rule and a little beyond, or to the end.

    Raises SimulationError for a block that is not in the grid.
    """
    constants = arguments(kernel, {**values_of(operands.problem), PART_OF_K.name: 0})
    grid = launched_grid(kernel, constants)
    if any(not 0 <= at < extent for at, extent in zip(block, grid, strict=True)):
        raise SimulationError(
            f"Block {block} is not in the grid {grid}.",
            hint="a block is (x, y, z), each from 0 and below the extent of the grid.",
        )

    def run(observer: Observer, listeners: tuple[Listener, ...] = ()) -> None:
        simulate(
            kernel,
            operands,
            listeners=listeners,
            observer=observer,
            on_finding="collect",
            # Blocks that add up in order wait for each other.
            blocks=None if kernel.workspace else [block],
            schedule=schedule,
            seed=seed,
        )

    length = Length(block)
    run(length)
    while True:
        first, last = _windows(length, most_moments)
        recorder = Recorder(block, lambda moment, a=first, b=last: moment in a or moment in b)  # type: ignore[misc]
        run(recorder, (recorder,))
        recorder.finish()
        values = recorder.state.cells.values
        if values <= MOST_VALUES or not most_moments:  # what there is at first may be more
            return _recording(kernel, operands, recorder, grid)
        most_moments = min(most_moments, length.happened) * MOST_VALUES // values


class Length:
    """Counts the moments of a block, and notes at which the first error was found."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.happened = 0
        self.error: int | None = None

    def begun(self, context: Context, batch: Batch) -> None:
        """Nothing to prepare."""

    def stepped(self, site: Site, convoy: Convoy) -> None:
        self.happened += len(rows_of(convoy, self._block)) > 0

    def stalled(self, site: Site, convoy: Convoy) -> None:
        self.stepped(site, convoy)

    def found(self, finding: Finding) -> None:
        if self.error is None and finding.kind.is_error and finding.where.block == self._block:
            self.error = self.happened

    def released(self, convoy: Convoy) -> None:
        """Not a moment."""

    def completed(self) -> None:
        """Not counted."""

    def ended(self, convoy: Convoy) -> None:
        """Not a moment."""


def _windows(length: Length, most: int) -> tuple[range, range]:
    """The moments to keep: the first ones, and those around the first error or at the end."""
    half = most // 2
    end = length.happened if length.error is None else min(length.error + half // 2, length.happened)
    if end <= most:
        return range(most), range(0)
    return range(half), range(max(half, end - (most - half)), end)


def _recording(kernel: Kernel, operands: Operands, recorder: Recorder, grid: Block) -> Recording:
    values = values_of(operands.problem)
    m, n, k = (int(values[name]) for name in ("M", "N", "K"))
    warps = warps_per_block(kernel)
    units = recorder.units
    moments = tuple(recorder.moments)
    lines = tuple(line.text for line in kernel_lines(kernel))
    return Recording(
        kernel.name,
        (m, n, k),
        grid,
        recorder.block,
        warps,
        lines,
        tuple(recorder.state.cells.regions),
        moments,
        tuple(recorder.stalls),
        recorder.flights.all(),
        () if units is None else tuple(units.names[number] for number in range(len(units.names))),
        tuple(recorder.barrier_states),
        tuple(recorder.pictures.all),
        faults_of(kernel, recorder, lines),
        tuple(recorder.ends.get(warp, -1) for warp in range(warps)),
        recorder.state.cells.changes(),
        recorder.skipped,
    )
