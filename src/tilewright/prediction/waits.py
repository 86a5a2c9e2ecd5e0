"""What a warp waits for in a step, read from the machine code of its loop.

What a kernel says of its loads is not what a warp waits for: ptxas moves loads up to each other, or down behind the
arithmetic that was to cover them, lets registers for 16 values do for 32 in two rounds, or writes out two steps and
loads for both at once. It may load fragments right before they are multiplied, and reads the size of a matrix anew in
each step. The scoreboards of the machine code tell where a warp waits. Its main loop is followed in order for some
iterations, twice. For rounds of loads a load arrives after the latency of L2 and the time of the tile, arithmetic takes
what the model says of a step, other instructions a clock each. For a warp that has a scheduler to itself each
instruction takes the clocks that ptxas gives it, and loads of global memory none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.artifacts import Cubin
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.kernels.work import WarpStep, Work
from tilewright.model.sm import BURST_SHARE, Sm
from tilewright.runtime.machine_code import ARITHMETIC, Instruction, Kind, MachineCode
from tilewright.runtime.register_banks import lost_clocks
from tilewright.toolchain import Build

CONSTANT_CLOCKS = 50.0
SPECIAL_CLOCKS = 40.0
"""Until a value of the constant bank, or a special register, may be used: what warps of ten kernels on an H200 were
seen to wait for (benchmarks/results/warp_waits_h200.json)."""

MATRIX_LOAD_CLOCKS = 29.0
"""Latency of LDSM.x4, benchmarks/results/shared_memory_h200.json."""

_BANK_BEHIND = 1
_FEWEST_MULTIPLY_ADDS = 32

_ITERATIONS = 3
"""Until a loop waits in each as in the one before: loads of one may be used in the next."""

_LOADS = frozenset({Kind.LOAD})
_BARRIERS = frozenset({Kind.BARRIER})
_MULTIPLY_ADDS = frozenset({Kind.MULTIPLY_ADD})
_CONSTANTS = {Kind.CONSTANT, Kind.SPECIAL, Kind.UNIFORM_SPECIAL}

Loop = tuple[int, int]


def with_waits(work: Work, built: Build, cubin: Cubin, spec: DeviceSpec) -> Work:
    """What a block does, with what its machine code says of a step; as it was counted where the code has no loop of
    arithmetic, or one loop is the code of both halves of a block."""
    pipelined = built.program.pipelined
    if pipelined is not None and pipelined.alternating:
        return work
    code = MachineCode.of(cubin)
    loop = code.main_loop
    if loop is None:
        return work
    read = _warp_step(work, built, code, loop, spec)
    work = replace(work, read=read)
    rounds = _rounds(work, built, code, loop, Sm.of(work, spec))
    return work if rounds is None else replace(work, load_groups=rounds)


def _warp_step(work: Work, built: Build, code: MachineCode, loop: Loop, spec: DeviceSpec) -> WarpStep | None:
    """A step of one warp that multiplies between barriers; None of wgmma, whose warps wait for what others bring."""
    steps = _steps(work, built, code, loop)
    if steps is None or work.warpgroups or not work.step.barriers:
        return None
    inside, multiply_adds = code.inside(loop), code.count(loop, _MULTIPLY_ADDS)
    lost = lost_clocks(inside, behind=_BANK_BEHIND)
    clocks = {
        Kind.SHARED_LOAD: float(spec.shared_latency_clk),
        Kind.MATRIX_LOAD: MATRIX_LOAD_CLOCKS,
        Kind.CONSTANT: CONSTANT_CLOCKS,
        Kind.SPECIAL: SPECIAL_CLOCKS,
        Kind.UNIFORM_SPECIAL: SPECIAL_CLOCKS,
    }
    waited = followed(inside, clocks, lambda one: float(one.clocks))
    constants = sum(waited.get(kind, 0.0) for kind in _CONSTANTS)
    whole = not any(_is_inside(other, loop) for other in code.loops)
    issued = len(inside) + lost
    alone = sum(one.clocks for one in inside) + lost + sum(waited.values()) - constants
    return WarpStep(
        issued=issued / steps if whole else 0.0,
        covered=max(0.0, alone - issued) / steps if whole else 0.0,
        constants=constants / steps,
        ffma=1 + lost / multiply_adds if multiply_adds >= _FEWEST_MULTIPLY_ADDS else 0.0,
        code=len(inside) if whole and work.code else 0,
    )


def _is_inside(one: Loop, other: Loop) -> bool:
    return one != other and other[0] <= one[0] and one[1] <= other[1]


def _rounds(work: Work, built: Build, code: MachineCode, loop: Loop, sm: Sm) -> float | None:
    loads = sum(one.requests for one in work.step.accesses if one.space == "global" and one.kind == "load")
    loads -= sum(one.requests for one in work.step.accesses if one.space == "global" and one.copies)
    if not loads or not code.count(loop, _LOADS):
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


def _steps(work: Work, built: Build, code: MachineCode, loop: Loop) -> float | None:
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
    arrivals = {Kind.LOAD: arrival_clocks}
    takes: Callable[[Instruction], float] = lambda one: arithmetic_clocks if one.kind in ARITHMETIC else 1.0  # noqa: E731
    return followed(loop, arrivals, takes).get(Kind.LOAD, 0.0)


def followed(
    loop: Sequence[Instruction], arrivals: Mapping[Kind, float], takes: Callable[[Instruction], float]
) -> dict[Kind, float]:
    """Clocks of an iteration of a loop in which a warp waits for instructions of some kinds. arrivals: from the issue
    of one to its result, by kind. takes: from the issue of an instruction to that of the next one."""
    ready: dict[int, tuple[float, Kind]] = {}
    now = 0.0
    waited: dict[Kind, float] = {}
    for _ in range(_ITERATIONS):
        waited = {}
        for one in loop:
            for scoreboard in [number for number in ready if one.awaits >> number & 1]:
                at, kind = ready.pop(scoreboard)
                waited[kind] = waited.get(kind, 0.0) + max(0.0, at - now)
                now = max(now, at)
            now += takes(one)
            if one.kind in arrivals and one.sets is not None:
                ready[one.sets] = max(ready.get(one.sets, (0.0, one.kind)), (now + arrivals[one.kind], one.kind))
    return waited
