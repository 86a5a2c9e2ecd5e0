"""How often a step stops for values of global memory, read from the machine code of its loop.

What a kernel says of its loads is not what a warp waits for: ptxas moves loads up to each other, or down behind the
arithmetic that was to cover them, lets registers for 16 values do for 32 in two rounds, or writes out two steps and
loads for both at once. The scoreboards of the machine code tell where a warp waits. Its main loop is followed in order
for some iterations: a load arrives after the latency of L2 and the time of the tile, arithmetic takes what the model
says of a step, other instructions a clock each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.artifacts import Cubin
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.kernels.work import Work
from tilewright.model.sm import BURST_SHARE, Sm
from tilewright.runtime.machine_code import ARITHMETIC, Instruction, Kind, MachineCode
from tilewright.toolchain import Build

_ITERATIONS = 3
"""Until a loop waits in each as in the one before: loads of one may be used in the next."""

_LOADS = frozenset({Kind.LOAD})
_BARRIERS = frozenset({Kind.BARRIER})


def with_load_waits(work: Work, built: Build, cubin: Cubin, spec: DeviceSpec) -> Work:
    """What a block does, with the rounds of loads that its machine code waits for; as it was counted where the code has
    no loop of loads and arithmetic."""
    pipelined = built.program.pipelined
    if pipelined is not None and pipelined.alternating:  # one loop is the code of both halves of a block
        return work
    rounds = _rounds(work, built, MachineCode.of(cubin), Sm.of(work, spec))
    return work if rounds is None else replace(work, load_groups=rounds)


def _rounds(work: Work, built: Build, code: MachineCode, sm: Sm) -> float | None:
    loop = code.main_loop
    loads = sum(one.requests for one in work.step.accesses if one.space == "global" and one.kind == "load")
    loads -= sum(one.requests for one in work.step.accesses if one.space == "global" and one.copies)
    if loop is None or not loads or not code.count(loop, _LOADS):
        return None
    arrival = sm.spec.l2_latency_clk + float(sm.l2_clocks) / BURST_SHARE
    rolled = list(code.innermost(loop, _LOADS))
    if rolled:  # how often they run is not in the code, but how many loads there are is known
        waited = sum(awaited_clocks(code.inside(one), arrival, 1.0) for one in rolled)
        written = sum(code.count(one, _LOADS) for one in rolled)
        return float(waited / arrival / written * loads / work.warps)
    steps = _steps(work, built, code, loop)
    if steps is None:
        return None
    arithmetic = float(sm.busy) * steps / code.count(loop, ARITHMETIC)
    return awaited_clocks(code.inside(loop), arrival, arithmetic) / arrival / steps


def _steps(work: Work, built: Build, code: MachineCode, loop: tuple[int, int]) -> float | None:
    """Steps over k in an iteration of a loop: by its barriers, else by its arithmetic, if all of it is written out."""
    if work.step.barriers:
        return float(code.count(loop, _BARRIERS) * work.warps / work.step.barriers) or None
    if any(True for _ in code.innermost(loop, ARITHMETIC)):
        return None
    tile = built.kernel.tile
    each = work.step.matrix_instructions or tile["m"] * tile["n"] * tile["k"] / WARP_THREADS
    return float(code.count(loop, ARITHMETIC) * work.warps / each)


def awaited_clocks(loop: Sequence[Instruction], arrival_clocks: float, arithmetic_clocks: float) -> float:
    """Clocks of an iteration of a loop in which a warp waits for its loads. arrival_clocks: of a load, from its issue.
    arithmetic_clocks: of each instruction of arithmetic."""
    ready: dict[int, float] = {}
    now = 0.0
    for _ in range(_ITERATIONS):
        waited = 0.0
        for one in loop:
            for scoreboard in [number for number in ready if one.awaits >> number & 1]:
                late = max(0.0, ready.pop(scoreboard) - now)
                now, waited = now + late, waited + late
            now += arithmetic_clocks if one.kind in ARITHMETIC else 1.0
            if one.kind is Kind.LOAD and one.sets is not None:
                ready[one.sets] = max(ready.get(one.sets, 0.0), now + arrival_clocks)
    return waited
