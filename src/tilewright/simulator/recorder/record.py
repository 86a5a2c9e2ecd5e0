"""`record`: a block run twice on the simulator, once to see how long it is, once to keep it.

What detectors found is told as moments of it: the two accesses that race, who a wait misses.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.async_stmt import ArriveBarrier, ExpectBytes, TmaLoad
from tilewright.ir.kernel import PART_OF_K, Kernel
from tilewright.ir.text import kernel_lines
from tilewright.ir.visit import walk
from tilewright.problem.problem import values_of
from tilewright.problem.reference import Operands, check_integer
from tilewright.simulator.context import BLOCK_BARRIER, Observer
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Finding, Kind, Listener, Site, Where, numbers_text
from tilewright.simulator.launch import Block, arguments, launched_grid, some_blocks, warps_per_block
from tilewright.simulator.machine import Order
from tilewright.simulator.recorder.recorder import Recorder, Seen, rows_of
from tilewright.simulator.recorder.recording import Fault, Moment, Picture, Recording, Stall
from tilewright.simulator.run import simulate


def faults_of(kernel: Kernel, recorder: Recorder, lines: Sequence[str]) -> tuple[Fault, ...]:
    """The findings of the recorded block: errors first, each kind at each line once."""
    found: dict[object, Fault] = {}
    for seen in recorder.seen:
        finding = seen.finding
        if finding.where.block != recorder.block:
            continue
        key = finding.kind, finding.where.line, finding.buffer, finding.earlier and finding.earlier.line
        if key not in found:
            found[key] = _fault(kernel, recorder, seen, lines)
    return tuple(sorted(found.values(), key=lambda fault: not fault.is_error))


def _fault(kernel: Kernel, recorder: Recorder, seen: Seen, lines: Sequence[str]) -> Fault:
    finding, where, earlier = seen.finding, seen.finding.where, seen.finding.earlier
    moment = min(seen.moment, len(recorder.moments) - 1)
    missing = who_is_missing(kernel, recorder, lines) if finding.kind is Kind.DEADLOCK else ()
    return Fault(
        finding.kind.value,
        finding.kind.is_error,
        finding.headline,
        finding.note,
        finding.hint,
        moment,
        where.line,
        where.warp,
        where.lanes,
        finding.buffer,
        finding.element,
        -1 if earlier is None else _earlier(recorder, finding, earlier, moment),
        0 if earlier is None else earlier.line,
        -1 if earlier is None else earlier.warp,
        () if earlier is None else earlier.lanes,
        missing,
    )


def _earlier(recorder: Recorder, finding: Finding, earlier: Where, moment: int) -> int:
    """The last moment at which the warp executed the line and touched the element; -1 where it was not kept."""
    if earlier.block != recorder.block:
        return -1
    at_line = [
        at
        for at in range(moment, -1, -1)
        if recorder.moments[at].line == earlier.line
        and recorder.moments[at].kind != "skipped"
        and earlier.warp in recorder.moments[at].warps
    ]
    touching = (at for at in at_line if _touches(recorder, recorder.moments[at], earlier, finding))
    return next(touching, at_line[0] if at_line else -1)


def _touches(recorder: Recorder, moment: Moment, earlier: Where, finding: Finding) -> bool:
    """Whether the lane touches the element in an access of a moment."""
    if finding.element is None or not earlier.lanes:
        return False
    base_bytes = next((r.offset_bytes for r in recorder.state.cells.regions if r.name == finding.buffer), 0)
    for shown in moment.accesses:
        if shown.buffer != finding.buffer:
            continue
        for warp, picture, base, _ in shown.places:
            at = _address(recorder.pictures.all[picture], base, earlier.lanes[0])
            element = (at - base_bytes) // shown.itemsize
            if (
                warp == earlier.warp
                and at >= 0
                and 0 <= finding.element - element < shown.width_bytes // shown.itemsize
            ):
                return True
    return False


def _address(picture: Picture, base: int, lane: int) -> int:
    at = picture.at[lane]
    return at if at < 0 else base + at


def who_is_missing(kernel: Kernel, recorder: Recorder, lines: Sequence[str]) -> tuple[str, ...]:
    """Of each barrier at which warps wait for ever: who has not arrived, and where they are."""
    waiting = {stall.warp: stall for stall in recorder.stalls if stall.last < 0}
    by_barrier: dict[str, list[Stall]] = {}
    for stall in waiting.values():
        by_barrier.setdefault(stall.barrier, []).append(stall)
    said: list[str] = []
    for barrier, stalls in by_barrier.items():
        here = numbers_text("Warp", [stall.warp for stall in stalls])
        said.append(f"{here} wait{'s' if len(stalls) == 1 else ''} for {stalls[0].what}.")
        if barrier == BLOCK_BARRIER:
            others = [warp for warp in range(recorder.state.warps) if warp not in {stall.warp for stall in stalls}]
            said += [f"{_where_is(warp, recorder, waiting)}: it should have arrived." for warp in others]
        elif "[" in barrier:
            said += _arrivals(kernel, recorder, barrier, waiting)
    return tuple(said)


def _where_is(warp: int, recorder: Recorder, waiting: dict[int, Stall]) -> str:
    if warp in waiting:
        return f"Warp {warp} waits for {waiting[warp].barrier} at line {waiting[warp].line}"
    return f"Warp {warp} has ended" if warp in recorder.ends else f"Warp {warp} is not there"


def _arrivals(kernel: Kernel, recorder: Recorder, barrier: str, waiting: dict[int, Stall]) -> list[str]:
    """Which statements arrive at an mbarrier, who executed each last, and where that warp is now."""
    name = barrier.partition("[")[0]
    numbers = {line.path: number for number, line in enumerate(kernel_lines(kernel), start=1)}
    arriving = []
    for path, stmt in walk(kernel.body):
        place = stmt.signal if isinstance(stmt, TmaLoad) else getattr(stmt, "place", None)
        if isinstance(stmt, (ArriveBarrier, ExpectBytes, TmaLoad)) and place is not None and place.buffer.name == name:
            arriving.append(numbers[path])
    if not arriving:
        return [f"No statement of the kernel arrives at {name}."]
    said = []
    for line in arriving:
        done = [at for at, one in enumerate(recorder.moments) if one.line == line and one.kind == "step"]
        at_this = [at for at in done if barrier in recorder.moments[at].note.split(", ")]
        if not done:
            said.append(f"Line {line} should arrive there, and was never executed.")
            continue
        last = (at_this or done)[-1]
        warp = recorder.moments[last].warps[0]
        which = "there" if at_this else f"at another stage of {name}"
        said.append(f"Line {line} arrived {which} last at step {last + 1}. {_where_is(warp, recorder, waiting)}.")
    return said


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
    some_blocks(grid, [block])
    check_integer("most_moments", most_moments, "number of steps", least=1)

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


class Length(Observer):
    """Counts the moments of a block, and notes at which the first error was found."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.happened = 0
        self.error: int | None = None

    def stepped(self, site: Site, convoy: Convoy) -> None:
        self.happened += len(rows_of(convoy, self._block)) > 0

    def stalled(self, site: Site, convoy: Convoy) -> None:
        self.stepped(site, convoy)

    def found(self, finding: Finding) -> None:
        if self.error is None and finding.kind.is_error and finding.where.block == self._block:
            self.error = self.happened


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
