"""`simulate`: a kernel executed on the CPU, exactly, with whatever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.errors import ProblemError, UnknownName
from tilewright.ir.async_stmt import AsyncStmt, TmaStore
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Expr
from tilewright.ir.kernel import PART_OF_K, TILE_FLAGS, Kernel
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.problem.problem import Problem, Stored, values_of
from tilewright.problem.reference import Operands, check_integer
from tilewright.problem.storages import Storages
from tilewright.simulator.arithmetic import Arithmetic, FloatArithmetic
from tilewright.simulator.asynchronous.ordered import OrderedRaces
from tilewright.simulator.asynchronous.previous import ANY_GRID, PreviousGrid, report_never_waited
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.context import BlockBarriers, Context, Observer
from tilewright.simulator.counters import Counters, counters_of
from tilewright.simulator.findings import Finding, Findings, Launch, Listener, OnFinding, Sites, StopSimulation, Wire
from tilewright.simulator.journal import Journal
from tilewright.simulator.launch import (
    Block,
    all_blocks,
    arguments,
    grid_of,
    launched_grid,
    some_blocks,
    warps_per_block,
)
from tilewright.simulator.listeners import standard_listeners
from tilewright.simulator.machine import ORDERS, Machine, Order
from tilewright.simulator.memory import Memory
from tilewright.simulator.races import Races
from tilewright.simulator.stepped import Chooser, SteppedMachine
from tilewright.simulator.translate import translate
from tilewright.simulator.warps import Batch
from tilewright.units import type_name

_BATCH_LANES = 32768
"""Lanes that run together: enough to hide the cost of Python, few enough for the caches.

Tried on 512 x 512 x 256: 8192 to 65536 lanes differ little, 4096 take two to four times as long.
"""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation gives.

    stored: flat storage of each matrix that the kernel writes, by name (storage dtype; residues as int64 in modular
    arithmetic). counters: of the blocks that ran.
    findings: broken rules and notes, in the order in which they were first seen. completed: False after a deadlock.
    flags: of tiles, as the launch leaves them. schedule, seed: the order of warps; the same run again with both.
    """

    stored: Mapping[str, Array]
    counters: Counters
    findings: tuple[Finding, ...]
    completed: bool = True
    flags: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    schedule: str = "lockstep"
    seed: int = 0

    @property
    def c(self) -> Array:
        """The storage of C."""
        return self.stored["C"]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the kernel wrong; the others are notes."""
        return tuple(finding for finding in self.findings if finding.kind.is_error)


def simulate(
    kernel: Kernel,
    operands: Stored,
    *,
    listeners: Sequence[Listener] | None = None,
    detectors: bool = True,
    on_finding: OnFinding = "raise",
    blocks: Iterable[Block] | None = None,
    schedule: Order | Chooser = "lockstep",
    seed: int = 0,
    arithmetic: Arithmetic | None = None,
    base_bytes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
    resident_blocks: int | None = None,
    part_of_k: int = 0,
    batching: Mapping[str, int] | None = None,
    group_ends: Sequence[int] = (),
    previous: PreviousGrid | None = None,
    observer: Observer | None = None,
) -> Run:
    """Run `kernel` on flat operand storages. The operands stay as they are.

    listeners: who hears the events; None is `standard_listeners()`, () is none. detectors: look for races and unwritten
    reads of shared memory (bounds, registers and barriers are checked in any case). blocks: run only these (x, y, z).
    schedule: how warps are scheduled, see `Order`, or who chooses each step; seed: of a drawn order. base_bytes:
    alignment of operands that do not start at a multiple of 256 bytes. progress: called with (blocks done, in all) as
    blocks finish. resident_blocks: how many blocks of a resident kernel run at once; None for as many as a large GPU
    has room for. Of a kernel with clusters whole clusters run, whichever of their blocks are chosen. part_of_k:
    products that one block sums, where items share out k; the storage of C then holds the partial sums, one matrix
    below the other. batching: the arguments that tell problems apart by name (`Kernel.batching`), where storages hold
    several matrices. group_ends: where groups end, or how many rows they have, of a kernel of groups. previous: what
    the launches before do while an overlapped kernel begins; None: anything. observer: told after each statement of
    every convoy, with the state of the machine.

    Raises SimulationError for the first broken rule, unless on_finding="collect".
    """
    if not isinstance(kernel, Kernel):
        raise ProblemError(
            f"A Kernel can be simulated, and this is {type_name(kernel)}.",
            hint="build(gemm, schedule).simulate(operands), or simulate(built.kernel, operands).",
        )
    if not isinstance(operands, (Operands, Storages)):
        raise ProblemError(
            f"A kernel is simulated on Operands, and this is {type_name(operands)}.", hint="make_operands(gemm)."
        )
    numbers = arithmetic or FloatArithmetic()
    heard = tuple(standard_listeners() if listeners is None else listeners)
    _check_options(schedule, seed, on_finding, heard)
    constants = scalars_of(kernel, operands, part_of_k, batching)
    grid = launched_grid(kernel, constants, resident_blocks)
    chosen = all_blocks(grid) if blocks is None else some_blocks(grid, blocks, kernel.cluster)
    sites, findings = Sites(kernel), Findings(on_finding, None if observer is None else observer.found)
    order = schedule if isinstance(schedule, str) else schedule.name
    if order != "lockstep":
        findings.order = f"schedule={order!r}, seed={seed}" if isinstance(schedule, str) else order
    tiles = kernel.workspace_tiles(int(np.prod(grid_of(kernel, constants))), int(np.prod(grid)))
    memory = Memory(kernel, operands, numbers, base_bytes or {}, tiles, group_ends)
    nobody = BlockBarriers(Batch(kernel.block, grid, chosen[:0]))
    journal = None if isinstance(schedule, str) else Journal()
    context = Context(memory, numbers, Wire(heard), findings, None, nobody, observer=observer, journal=journal)
    program = translate(kernel, sites, context, constants, grid)
    together = int(np.prod(grid)) if kernel.workspace else kernel.cluster
    grid_before = (previous or ANY_GRID) if kernel.overlapped else None
    _add_units_and_races(
        context, kernel, operands.problem, sites, together, batching or {}, grid_before, detectors=detectors
    )
    launch = Launch(kernel, tuple(sites.all), grid, len(chosen), int(np.prod(grid)), warps_per_block(kernel))
    for hear in context.wire.launched:
        hear(launch)
    if isinstance(schedule, str):
        machine = Machine(program, context, kernel.shared, schedule, seed)
    else:
        machine = SteppedMachine(program, context, kernel.shared, schedule)
    completed = _run_batches(machine, kernel, grid, chosen, progress)
    waiting = None if context.units is None or not detectors else context.units.waiting
    if completed and waiting is not None and not waiting.is_over and len(chosen) == int(np.prod(grid)) > 0:
        report_never_waited(findings)
    stored = {name: memory.arrays[name] for name in kernel.problem.results}
    flags = memory.arrays.get(TILE_FLAGS, np.zeros(0, np.int64))
    return Run(stored, counters_of(launch, heard), findings.all(), completed, flags, order, seed)


def _check_options(schedule: object, seed: object, on_finding: object, heard: Iterable[object]) -> None:
    if not callable(getattr(schedule, "choose", None)) and schedule not in ORDERS:
        raise UnknownName("schedule", str(schedule), ORDERS)
    check_integer("seed", seed, "seed")
    if on_finding not in get_args(OnFinding):
        raise UnknownName("on_finding", str(on_finding), get_args(OnFinding))
    for one in heard:
        if not isinstance(one, Listener):
            raise ProblemError(f"{one!r} is not a Listener.", hint="leave listeners out for the usual counters.")


def scalars_of(
    kernel: Kernel, operands: Stored, part_of_k: int = 0, batching: Mapping[str, int] | None = None
) -> Mapping[str, Expr]:
    """The scalar arguments of a launch by name."""
    return arguments(kernel, {**values_of(operands.problem), PART_OF_K.name: part_of_k, **(batching or {})})


def _add_units_and_races(
    context: Context,
    kernel: Kernel,
    problem: Problem,
    sites: Sites,
    together: int,
    steps: Mapping[str, int],
    previous: PreviousGrid | None,
    *,
    detectors: bool,
) -> None:
    """What a kernel with asynchronous units needs beside threads, and the race detector that fits. together: blocks
    that something may order. steps: elements from one matrix to the next."""
    memory, findings = context.memory, context.findings
    written, threads = written_elements(kernel, memory), kernel.threads_per_block
    if kernel.overlapped or any(isinstance(stmt, AsyncStmt) for _, stmt in walk(kernel.body)):
        races = OrderedRaces(sites.all, findings, threads, written, together) if detectors else None
        context.races, context.units = races, Units(kernel, problem, memory, findings, races, steps, previous)
    elif detectors:
        context.races = Races(sites.all, findings, threads, written)


def _run_batches(machine: Machine, kernel: Kernel, grid: Block, chosen: Array, progress: Progress | None) -> bool:
    """All chosen blocks, batch by batch; False after a deadlock."""
    clusters = _BATCH_LANES // (warps_per_block(kernel) * WARP_THREADS * kernel.cluster)
    # Blocks that wait for each other's flags run together.
    step = len(chosen) if kernel.workspace else max(1, clusters) * kernel.cluster
    try:
        with np.errstate(all="ignore"):  # NaN and infinity are values like any others
            for start in range(0, len(chosen), step):
                machine.run(Batch(kernel.block, grid, chosen[start : start + step]))
                if progress is not None:
                    progress(min(start + step, len(chosen)), len(chosen))
    except StopSimulation:
        return False
    return True


def written_elements(kernel: Kernel, memory: Memory) -> dict[str, int]:
    """The global buffers that the kernel writes, with their elements."""
    statements = [stmt for _, stmt in walk(kernel.body)]
    stores = [stmt.dst.buffer for stmt in statements if isinstance(stmt, Move)]
    names = {buffer.name for buffer in stores if buffer.space is Space.GLOBAL}
    names |= {stmt.map.operand for stmt in statements if isinstance(stmt, TmaStore)}
    return {name: len(memory.arrays[name]) for name in sorted(names)}
