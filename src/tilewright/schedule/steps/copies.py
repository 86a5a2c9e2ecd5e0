"""Copies that run ahead: by which route, how far, and by whom."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.program import Pipelined, Program, Route, Specialized
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_flag, check_member, find_loop, find_tile, refuse


@dataclass(frozen=True, repr=False)
class Transfer(Step):
    """value <- A[m, k]; A_tile[m', k'] <- value   ->   A_tile[m', k'] <~ A[m, k]; commit; ... wait

    Route.ASYNC copies to shared memory by cp.async, 4, 8 or 16 bytes at once, with no register between; what lies
    outside the matrix arrives as zero. Needs sm_80. Route.MATRICES loads the fragments of a matrix instruction by
    ldmatrix, as many matrices at once as Vectorize says. Needs sm_75. Of the shared tile of a result, each warpgroup
    puts its part there by stmatrix, and stores it in whole rows. Needs sm_90. Route.TMA leaves a shared tile
    of A or B, or of the result, to TMA, whose copies one thread issues. Needs sm_90.

    evict_first: what TMA reads for the tile is the first to leave the L2 (the cache hint of that name): for a matrix of
    which each tile is read at one time, by blocks that run together, so that the other matrix stays. Of a result: what
    TMA writes, where the L2 does not hold it.
    """

    tile: str
    route: Route
    evict_first: bool = False

    positional = 2
    speaks_of = ("tile",)

    def apply(self, program: Program) -> Program:
        check_member(self.route, Route)
        staged = find_tile(program, self.tile, "transfer")
        doing = f"Cannot copy {self.tile!r} by {self.route.value}"
        check_flag(self.evict_first, doing, "evict_first")
        fragments = staged.space is Space.REGISTER or staged.operand == "C"
        if self.route is Route.MATRICES and (program.tensorized is None or not fragments):
            refuse(
                f"{doing}: it holds no fragments of a matrix instruction.",
                hint="put Tensorize(...) before this step, and name a tile in registers.",
            )
        if self.evict_first and self.route is not Route.TMA:
            refuse(
                f"{doing} with evict_first: the hint is for what TMA copies.",
                hint="leave evict_first out, or use Route.TMA.",
            )
        changed = replace(staged, route=self.route, evict_first=self.evict_first)
        return check_program(program.with_tile(changed), doing)


@dataclass(frozen=True, repr=False)
class Prefetch(Step):
    """for k: A_tile <- A[k]; use   ->   next <- A[0]; for k: A_tile <- next; next <- A[k+1]; use A_tile

    The latency of global memory passes while the thread computes. With Pipeline the store goes to the next stage, after
    the use of this one, and one barrier a step is enough.

    in_place: of fragments in registers. The outer loop of MMAs frees them one after another, and
    each of the next step is loaded into the registers of a free one: half as many registers, and loads that come
    one by one between the MMAs.
    fence: of a shared tile. A __syncwarp between its loads and the products, across which a compiler moves neither:
    where it writes out all products of a tile, it may join the loads' branch with that of their stores, behind them.
    Not in kernels that start before the one in front of them has ended: their loads are not constant, and stay.
    """

    tile: str
    in_place: bool = False
    fence: bool = False

    speaks_of = ("tile",)

    def apply(self, program: Program) -> Program:
        doing = f"Cannot prefetch {self.tile!r}"
        check_flag(self.in_place, doing, "in_place")
        check_flag(self.fence, doing, "fence")
        staged = find_tile(program, self.tile, "prefetch")
        early = replace(staged, prefetched=True, in_place=self.in_place, fenced=self.fence)
        return check_program(program.with_tile(early), doing)


MAX_STAGES = 16


@dataclass(frozen=True, repr=False)
class Pipeline(Step):
    """for k: fill A_tile; use A_tile   ->   fill A_tile[0..n-2]; for k: fill A_tile[k+n-1]; use A_tile[k]

    The shared tiles staged under the loop get `stages` stages each; while one is used, later ones are filled. One
    barrier a step is enough. alternating: the two halves of the block alternate between copying and computing (two
    stages).
    interleave: a loop inside, each iteration of which starts a part of the next copies, so that its loads do not queue
    behind all. issue_distance: each part starts after so many iterations of the outer loop around that iteration's
    MMAs, not before them.
    """

    loop: str
    stages: int = 2
    alternating: bool = False
    interleave: str = ""
    issue_distance: int = 0

    speaks_of = ("loop",)

    def apply(self, program: Program) -> Program:
        doing = f"Cannot pipeline loop {self.loop!r}"
        loop = find_loop(program, self.loop)
        if program.pipelined is not None:
            refuse(f"{doing}: {program.pipelined.loop!r} is pipelined already.", hint="use Pipeline once.")
        check_count(self.stages, 1, doing, "the number of stages")
        check_flag(self.alternating, doing, "alternating")
        if not 2 <= self.stages <= MAX_STAGES:
            refuse(f"{doing} with {self.stages} stage(s).", hint=f"use 2 to {MAX_STAGES} stages.")
        if self.alternating and self.stages != 2:
            refuse(f"{doing}: halves of a block alternate over 2 stages, not {self.stages}.", hint="stages=2.")
        if loop.level is not None or not loop.is_reduction:
            refuse(f"{doing}: it is not a serial loop over k.", hint="pipeline the loop under which tiles are staged.")
        if self.interleave:
            find_loop(program, self.interleave)
        check_count(self.issue_distance, 0, doing, "the number of iterations before the copies")
        ring = Pipelined(self.loop, self.stages, self.alternating, self.interleave, self.issue_distance)
        return check_program(replace(program, pipelined=ring), doing)


_STEP = 8
"""setmaxnreg takes multiples of 8 from 24 to 256. Source: PTX ISA 9.0, setmaxnreg."""


@dataclass(frozen=True, repr=False)
class Specialize(Step):
    """all: wait; use stage; meet; fill stage   ->   producer: wait empty; fill stage   |   others: wait full; use stage

    A warpgroup of its own, the producer, starts the copies of the pipelined loop; the others multiply. Each stage has
    two mbarriers, full and empty, so that no warp waits for more than it must. registers: of a thread of the
    producer and of the others, taken from the one and given to the others; by default what a block of so many
    warpgroups has. ping_pong: so many warpgroups
    run in ping-pong, each on a tile of C of its own: while one stores, the next multiplies (persistent blocks only).
    apart: where they share a tile, so many of its last stages each leaves to the one before it first, and then has the
    tensor cores to itself while that one stores.
    """

    positional = 0

    registers: tuple[int, int] | None = None
    ping_pong: int = 1
    apart: int = 0

    def apply(self, program: Program) -> Program:
        doing = "Cannot give the copies to a warpgroup of their own"
        if program.specialized is not None:
            refuse(f"{doing}: one copies already.", hint="use Specialize once.")
        counts = self.registers
        if counts is not None and not _are_budgets(counts):
            refuse(
                f"{doing}: {counts!r} are not budgets of registers.",
                hint="use two multiples of 8 from 24 to 256, such as registers=(24, 240).",
            )
        check_count(self.ping_pong, 1, doing, "the number of ping-pong warpgroups")
        check_count(self.apart, 0, doing, "the number of last stages that are left to the warpgroup before")
        if self.ping_pong > 1 and program.thread_loops:
            bound = ", ".join(loop.name for loop in program.thread_loops)
            refuse(
                f"{doing}, and the others run in ping-pong: {bound} shares out one tile among them.",
                hint="leave the loop unbound: each warpgroup has a tile of its own.",
            )
        changed = replace(program, specialized=Specialized(counts, self.ping_pong, self.apart))
        return check_program(changed, doing)


def _are_budgets(counts: object) -> bool:
    return isinstance(counts, tuple) and len(counts) == 2 and all(_is_budget(count) for count in counts)


def _is_budget(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 24 <= value <= 256 and value % _STEP == 0
