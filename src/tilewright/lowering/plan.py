"""The plan of a kernel: who brings which tile, how far ahead, through which ring, and how it is handed over.

`plan_of` reads the declarations of a program once; the generator's loops are made from the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.buffer import Handoff, Space
from tilewright.ir.program import Loop, Program, Route, Staged
from tilewright.ir.register_budgets import register_budgets
from tilewright.lowering.copies import needs_scope
from tilewright.lowering.generator import Beside, Beyond, Position
from tilewright.lowering.scheduler import TileScheduler


@dataclass(frozen=True, slots=True)
class Hop:
    """The way of a shared tile of A or B under the pipelined loop.

    lead: iterations that its copy is started ahead of the use. prefetched: loaded into registers first, and stored to
    its stage at the end of the iteration. at: where in an iteration it is started.
    """

    tile: Staged
    lead: int
    at: Position
    beyond: Beyond

    @property
    def prefetched(self) -> bool:
        return self.tile.prefetched


@dataclass(frozen=True, slots=True)
class Ring:
    """The stages of shared memory that the tiles of a loop go through. handoff: how a stage changes hands."""

    loop: Loop
    stages: int
    handoff: Handoff


@dataclass(frozen=True, slots=True)
class Role:
    """Warpgroups with a task of their own: how many work on one tile of C together, and how many take every n-th tile.

    registers: of a thread; None for as many as the block starts with.
    """

    together: int = 1
    in_turn: int = 1
    registers: int | None = None

    @property
    def warpgroups(self) -> int:
        return self.together * self.in_turn


@dataclass(frozen=True)
class KernelPlan:
    """ring None: one stage. producer None: the threads that multiply copy as well. spread: the inner loop over whose
    steps copies are shared out. cluster: blocks that are fed together."""

    ring: Ring | None
    hops: tuple[Hop, ...]
    consumer: Role
    producer: Role | None
    scheduler: TileScheduler
    spread: Beside
    overlapped: bool

    @property
    def cluster(self) -> int:
        return self.scheduler.cluster

    @cached_property
    def is_asynchronous(self) -> bool:
        """Whether some copy is made by cp.async."""
        return any(hop.tile.route is Route.ASYNC for hop in self.hops)


def shared_tiles(program: Program, loop: Loop) -> tuple[Staged, ...]:
    """The shared tiles of A and B that are filled in each iteration of a loop."""
    operands = (program.chain("A"), program.chain("B"))
    return tuple(s for chain in operands for s in chain if s.under == loop.name and s.space is Space.SHARED)


def runs_ahead(program: Program, loop: Loop) -> bool:
    """Whether some copy under the loop is started before the iteration that uses it."""
    ring = program.pipelined is not None and program.pipelined.loop == loop.name
    return ring or any(staged.prefetched for staged in shared_tiles(program, loop))


def plan_of(program: Program, loop: Loop) -> KernelPlan:
    """The plan of a kernel whose copies under `loop` run ahead."""
    pipelined = program.pipelined if program.pipelined is not None and program.pipelined.loop == loop.name else None
    tiles = shared_tiles(program, loop)
    ring, spread = None, Beside()
    if pipelined is not None:
        ring = Ring(loop, pipelined.stages, program.handoff)
        spread = Beside(pipelined.interleave, pipelined.issue_distance)
    beyond = _beyond(program, tiles)
    lead = 0 if ring is None else ring.stages - 1
    at = Position.BESIDE if spread.loop else Position.HEAD
    consumer, producer = _roles(program)
    return KernelPlan(
        ring,
        tuple(Hop(tile, lead, at, beyond) for tile in tiles),
        consumer,
        producer,
        TileScheduler.of(program),
        spread,
        program.overlapped,
    )


def _beyond(program: Program, tiles: tuple[Staged, ...]) -> Beyond:
    """Where there is no tile to copy. Branches would keep the compiler from moving addresses out of a loop that feeds
    tensor cores; but a copy that is one straight line needs a branch, or a loop, for its names."""
    if program.tensorized is None or any(tile.route is Route.TMA for tile in tiles):
        return Beyond.BRANCH
    if program.persistent:
        return Beyond.CONTINUE
    in_place = any(staged.in_place for staged in program.staged)
    straight = [tile for tile in tiles if needs_scope(program, tile)]
    if straight and (not in_place or any(tile.prefetched for tile in straight)):
        return Beyond.BRANCH
    return Beyond.ZERO_FILL


def _roles(program: Program) -> tuple[Role, Role | None]:
    together = 1
    for loop in program.thread_loops:
        together *= loop.extent or 1
    specialized = program.specialized
    if specialized is None:
        return Role(together), None
    copies, multiplies = register_budgets(program)
    return Role(together, specialized.ping_pong, multiplies), Role(registers=copies)
