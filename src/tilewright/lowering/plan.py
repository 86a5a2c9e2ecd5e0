"""The plan of a kernel: who brings which tile, how far ahead, through which ring, and how it is handed over; which
accumulators there are, and what the epilogue makes of them.

`plan_of` reads the declarations of a program once; loops, roles and epilogue are made from the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.accumulators import Accumulator, accumulator_of
from tilewright.ir.buffer import Handoff, Space
from tilewright.ir.program import Loop, Program, Route, Staged
from tilewright.ir.register_budgets import register_budgets
from tilewright.ir.work import Walk
from tilewright.lowering.copies import needs_scope
from tilewright.lowering.epilogue_plan import EpiloguePlan, epilogue_plan
from tilewright.lowering.generator import Beside, Beyond
from tilewright.lowering.scheduler import TileScheduler


@dataclass(frozen=True, slots=True)
class Hop:
    """The way of a shared tile of A or B under the pipelined loop.

    prefetched: loaded into registers first, and stored to its stage at the end of the iteration. beyond: what is done
    where there is no tile to copy.
    """

    tile: Staged
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

    registers: of a thread; None for as many as the block starts with. apart: stages at the end of a tile that those
    who share it multiply one after the other.
    """

    together: int = 1
    in_turn: int = 1
    registers: int | None = None
    apart: int = 0

    @property
    def warpgroups(self) -> int:
        return self.together * self.in_turn


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """ring None: one stage. producer None: the threads that multiply copy as well. spread: the inner loop over whose
    steps copies are shared out. accumulators: running sums of a tile of C; epilogue: what is stored of them."""

    ring: Ring | None
    hops: tuple[Hop, ...]
    consumer: Role
    producer: Role | None
    scheduler: TileScheduler
    spread: Beside
    overlapped: bool
    accumulators: tuple[Accumulator, ...]
    epilogue: EpiloguePlan

    @property
    def cluster(self) -> int:
        """Blocks that are fed together."""
        return self.scheduler.cluster

    @property
    def runs_on(self) -> bool:
        """Whether threads that copy for themselves fill the ring for the block's next tile of C."""
        return any(hop.beyond is Beyond.CONTINUE for hop in self.hops)

    def hops_under(self, loop: str) -> tuple[Hop, ...]:
        """The shared tiles of A and B under a loop whose copies run ahead; empty where none does."""
        return tuple(hop for hop in self.hops if hop.tile.under == loop)


def plan_of(program: Program) -> KernelPlan:
    """The plan of a finished program."""
    pipelined = program.pipelined
    ring, spread = None, Beside()
    if pipelined is not None:
        ring = Ring(program.loop(pipelined.loop), pipelined.stages, program.handoff)
        spread = Beside(pipelined.interleave, pipelined.issue_distance, evenly=program.tensorized is None)
    consumer, producer = _roles(program)
    return KernelPlan(
        ring,
        tuple(hop for loop in program.loops for hop in _hops(program, loop, ring, spread)),
        consumer,
        producer,
        TileScheduler.of(program),
        spread,
        program.overlapped,
        (accumulator_of(program),),
        epilogue_plan(program),
    )


def _hops(program: Program, loop: Loop, ring: Ring | None, spread: Beside) -> tuple[Hop, ...]:
    """The shared tiles of A and B that are filled in each iteration of a loop, where some copy runs ahead."""
    operands = (program.chain(name) for name in program.gemm.factors)
    tiles = tuple(s for chain in operands for s in chain if s.under == loop.name and s.space is Space.SHARED)
    in_ring = ring is not None and ring.loop == loop
    if not in_ring and not any(tile.prefetched for tile in tiles):
        return ()
    beyond = _beyond(program, tiles, in_ring and bool(spread.loop))
    return tuple(Hop(tile, beyond) for tile in tiles)


def _beyond(program: Program, tiles: tuple[Staged, ...], spread: bool) -> Beyond:
    """Where there is no tile to copy. Branches would keep the compiler from moving addresses out of a loop that feeds
    tensor cores, and FMAs between copies that are spread; but a copy that is one straight line needs a branch, or a
    loop, for its names."""
    if (program.tensorized is None and not spread) or any(tile.route is Route.TMA for tile in tiles):
        return Beyond.BRANCH
    if _runs_on(program, tiles):
        return Beyond.CONTINUE
    in_place = any(staged.in_place for staged in program.staged)
    straight = [tile for tile in tiles if needs_scope(program, tile)]
    if straight and (not in_place or any(tile.prefetched for tile in straight)):
        return Beyond.BRANCH
    return Beyond.ZERO_FILL


def _runs_on(program: Program, tiles: tuple[Staged, ...]) -> bool:
    """Whether the ring of a persistent block runs on into its next tile of C: all that it holds comes by cp.async, and
    all tiles of C use it equally often. Else it begins anew with each."""
    ring, total = program.pipelined, program.accumulation
    if ring is None or total is None or program.walk is not Walk.PERSISTENT or program.problems.has_groups:
        return False
    flowing = {tile.operand for tile in tiles if tile.under == ring.loop and tile.route is Route.ASYNC}
    return program.thread_serial_loops[0].name == ring.loop == total.over and flowing == set(program.gemm.factors)


def _roles(program: Program) -> tuple[Role, Role | None]:
    together = 1
    for loop in program.thread_loops:
        together *= loop.extent or 1
    specialized = program.specialized
    if specialized is None:
        return Role(together), None
    copies, multiplies = register_budgets(program)
    apart = specialized.apart if together > 1 else 0
    return Role(together, specialized.ping_pong, multiplies, apart), Role(registers=copies)
