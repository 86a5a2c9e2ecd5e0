"""`simulate`: a kernel executed on the CPU, exactly, with whatever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.errors import SimulationError
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Expr
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.problem.reference import Operands
from tilewright.simulator.arithmetic import Arithmetic, FloatArithmetic
from tilewright.simulator.barriers import BlockBarriers
from tilewright.simulator.context import Context
from tilewright.simulator.counters import Counters, counters_of
from tilewright.simulator.events import Launch, Listener, Wire
from tilewright.simulator.findings import Finding, Findings, OnFinding, StopSimulation
from tilewright.simulator.index import Scope, resolve, uniform
from tilewright.simulator.listeners import standard_listeners
from tilewright.simulator.machine import Machine, Order
from tilewright.simulator.memory import Memory
from tilewright.simulator.races import Races
from tilewright.simulator.sites import Sites
from tilewright.simulator.translate import arguments, translate
from tilewright.simulator.warps import Batch
from tilewright.units import ceil_div

_BATCH_LANES = 32768
"""Lanes that run together: enough to hide the cost of Python, few enough for the caches. Measured, see `simulate`."""

Block = tuple[int, int, int]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation gives.

    c: flat storage of C (storage dtype; residues as int64 in modular arithmetic). counters: of the blocks that ran.
    findings: broken rules and notes, in the order in which they were first seen. completed: False after a deadlock.
    """

    c: Array
    counters: Counters
    findings: tuple[Finding, ...]
    completed: bool = True

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the kernel wrong; the others are notes."""
        return tuple(finding for finding in self.findings if finding.kind.is_error)


def simulate(
    kernel: Kernel,
    operands: Operands,
    *,
    listeners: Sequence[Listener] | None = None,
    detectors: bool = True,
    on_finding: OnFinding = "raise",
    blocks: Iterable[Block] | None = None,
    schedule: Order = "lockstep",
    seed: int = 0,
    arithmetic: Arithmetic | None = None,
    base_bytes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run `kernel` on flat operand storages. The operands stay as they are.

    listeners: who hears the events; None is `standard_listeners()`, () is nobody. detectors: look for races and
    unwritten reads of shared memory (bounds, registers and barriers are checked in any case). blocks: run only these
    (x, y, z). schedule: how warps take turns, see `Order`; seed: of "warps". base_bytes: alignment of operands that do
    not start at a multiple of 256 bytes. progress: called with (blocks done, blocks in all) as blocks finish.

    Raises SimulationError for the first broken rule, unless on_finding="collect".
    """
    numbers = arithmetic or FloatArithmetic()
    heard = tuple(standard_listeners() if listeners is None else listeners)
    constants = arguments(kernel, _scalars(operands))
    grid = _grid(kernel, constants)
    chosen = _chosen(grid, blocks)
    sites, findings = Sites(kernel), Findings(on_finding)
    memory = Memory(kernel, operands, numbers, base_bytes or {})
    nobody = BlockBarriers(Batch(kernel.block, grid, chosen[:0]))
    context = Context(memory, numbers, Wire(heard), findings, None, nobody)
    program = translate(kernel, sites, context, constants)
    if detectors:
        context.races = Races(sites.all, findings, kernel.threads_per_block, _written(kernel, memory))
    launch = Launch(kernel, tuple(sites.all), grid, len(chosen), int(np.prod(grid)), _warps_per_block(kernel))
    for hear in context.wire.launched:
        hear(launch)
    machine = Machine(program, context, kernel.shared, schedule, seed)
    completed = _run_batches(machine, kernel, grid, chosen, progress)
    return Run(memory.arrays["C"], counters_of(launch, heard), findings.all(), completed)


def _run_batches(machine: Machine, kernel: Kernel, grid: Block, chosen: Array, progress: Progress | None) -> bool:
    """All chosen blocks, batch by batch; False after a deadlock."""
    step = max(1, _BATCH_LANES // (_warps_per_block(kernel) * WARP_THREADS))
    try:
        with np.errstate(all="ignore"):  # NaN and infinity are values like any others
            for start in range(0, len(chosen), step):
                machine.run(Batch(kernel.block, grid, chosen[start : start + step]))
                if progress is not None:
                    progress(min(start + step, len(chosen)), len(chosen))
    except StopSimulation:
        return False
    return True


def _warps_per_block(kernel: Kernel) -> int:
    return ceil_div(kernel.threads_per_block, WARP_THREADS)


def _scalars(operands: Operands) -> dict[str, float]:
    gemm = operands.gemm
    sizes = {"M": gemm.m, "N": gemm.n, "K": gemm.k, "lda": gemm.lda, "ldb": gemm.ldb, "ldc": gemm.ldc}
    # Scalars are passed as f32; the kernel must see what the GPU would.
    return {**sizes, "alpha": float(np.float32(gemm.alpha)), "beta": float(np.float32(gemm.beta))}


def _grid(kernel: Kernel, constants: Mapping[str, Expr]) -> Block:
    x, y, z = (uniform(resolve(extent, Scope(constants)))([]) for extent in kernel.grid)
    return x, y, z


def _chosen(grid: Block, blocks: Iterable[Block] | None) -> Array:
    """blockIdx of the blocks to run, in launch order (x fastest): (blocks, 3)."""
    if blocks is None:
        x, y, z = grid
        numbers = np.arange(x * y * z, dtype=np.int64)
        return np.stack([numbers % max(x, 1), numbers // max(x, 1) % max(y, 1), numbers // max(x * y, 1)], axis=1)
    chosen = np.array([tuple(block) for block in blocks], np.int64).reshape(-1, 3)
    outside = ((chosen < 0) | (chosen >= np.array(grid))).any(axis=1)
    if outside.any():
        raise SimulationError(
            f"Block {tuple(chosen[int(np.argmax(outside))].tolist())} is not in the grid {grid}.",
            hint="a block is (x, y, z), each from 0 and below the extent of the grid.",
        )
    return chosen


def _written(kernel: Kernel, memory: Memory) -> dict[str, int]:
    """The global buffers that the kernel writes, with their elements."""
    stores = [stmt.dst.buffer for _, stmt in walk(kernel.body) if isinstance(stmt, Move)]
    return {buffer.name: memory.elements(buffer) for buffer in stores if buffer.space is Space.GLOBAL}
