"""A schedule explained: beside each step the counts it caused, in sentences, and at the end what costs most.

Statements of a kernel carry the name of the declared thing they come from; steps say which names they speak of. Where
several steps speak of one name, a count goes to the one that decides it: how global memory is read to `Distribute`,
how a tile is stored to `Relayout`. An operand that is not staged is read as the lanes are numbered: that is the step
which binds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.errors import CompileError
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.layout.banks import SECTOR_BYTES
from tilewright.model.l2 import L2Estimate
from tilewright.problem.gemm import Gemm
from tilewright.report.costs import Cost, costs_of
from tilewright.report.samples import why_sectors, why_wavefronts
from tilewright.schedule import (
    Accumulate,
    Bind,
    Cluster,
    Distribute,
    Epilogue,
    Pipeline,
    Relayout,
    Specialize,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Vectorize,
)
from tilewright.simulator import Counters
from tilewright.simulator.run import Progress
from tilewright.toolchain import Build
from tilewright.units import format_bytes

_LANE_LEVELS = (Level.BLOCK_X, Level.LANE)

_DECIDES: dict[tuple[str, Space | None], tuple[type[Step], ...]] = {
    ("load", Space.GLOBAL): (Distribute, Vectorize, Stage),
    ("store", Space.GLOBAL): (Distribute, Vectorize, Stage),
    ("load", Space.SHARED): (Vectorize, Relayout, Stage),
    ("store", Space.SHARED): (Relayout, Distribute, Stage),
    ("bulk load", Space.SHARED): (Transfer,),
    ("bulk store", Space.SHARED): (Transfer,),
    ("arithmetic", None): (Accumulate, Epilogue),
    ("arithmetic", Space.REGISTER): (Accumulate, Epilogue),
}
"""For each kind of count, the steps that decide it, the most telling first."""

_UNITS: dict[str, tuple[str, str, type[Step]]] = {
    "SYNCS": ("operation", "on mbarriers", Pipeline),
    "FENCE": ("fence", "for the asynchronous units", Pipeline),
    "USETMAXREG": ("change", "of the number of registers", Specialize),
    "WARPGROUP.ARRIVE": ("fence", "before wgmma", Tensorize),
    "WARPGROUP.COMMIT": ("end", "of a wgmma group", Tensorize),
    "WARPGROUP.DEPBAR": ("wait", "for wgmma groups", Tensorize),
    "UTMACMDFLUSH": ("end", "of a group of bulk stores", Transfer),
    "DEPBAR": ("wait", "for bulk stores", Transfer),
    "STAS": ("store", "to shared memory of blocks of the cluster", Cluster),
}
"""What instructions of the units do, and the step that asks for them."""


@dataclass(frozen=True)
class StepCosts:
    """One line of a schedule (number from 1; None for what no line asked for) and what it caused."""

    number: int | None
    step: Step | None
    costs: tuple[Cost, ...]

    @property
    def told(self) -> tuple[Cost, ...]:
        """The costs that are worth a sentence: accesses that were predicated off in every lane cost next to nothing."""
        return tuple(cost for cost in self.costs if not cost.is_predicated_off)

    @property
    def sentences(self) -> list[str]:
        return [sentence(cost) for cost in self.told]


@dataclass(frozen=True)
class Explanation:
    """A build explained. summary: sentences that say what costs most, the largest cost last.

    l2: an estimate, unlike all else, which is counted; None where none can be made.
    """

    built: Build
    counters: Counters
    steps: tuple[StepCosts, ...]
    largest: Cost | None
    summary: tuple[str, ...]
    l2: L2Estimate | None = None


def explain(built: Build, spec: DeviceSpec, progress: Progress | None = None) -> Explanation:
    """Count what a build does on the simulator, and lay the counts beside the steps. Nothing is checked: `simulate`.

    spec: the rates at which counts are compared. progress: told of (blocks done, in all).
    """
    counters, costs = costs_of(built, progress)
    owned: dict[int | None, list[Cost]] = {}
    for cost in costs:
        owned.setdefault(owner(cost, built.schedule.steps), []).append(cost)
    steps = [StepCosts(at + 1, step, tuple(owned.get(at, ()))) for at, step in enumerate(built.schedule)]
    if None in owned:
        steps.append(StepCosts(None, None, tuple(owned[None])))
    largest, summary = _summary(costs, spec, built.gemm)
    l2 = _estimated_l2(built, spec)
    if l2 is not None and summary:
        summary = (*summary[:-1], _of_l2(l2, spec), summary[-1])
    return Explanation(built, counters, tuple(steps), largest, summary, l2)


def _estimated_l2(built: Build, spec: DeviceSpec) -> L2Estimate | None:
    """None also where the kernel cannot be compiled: how many blocks share an SM depends on its registers."""
    try:
        return built.l2(spec, built.compile(spec.arch))
    except CompileError:
        return None


def owner(cost: Cost, steps: Sequence[Step]) -> int | None:
    """The index of the step that decides a cost; None if no step does."""
    if cost.kind == "barrier":
        named = _first(steps, lambda step: isinstance(step, Stage) and step.tile_name in cost.note.split())
        return _first(steps, lambda step: isinstance(step, Pipeline)) if named is None else named
    if cost.kind == "unit":
        asking = [_UNITS[opcode][2] for opcode in cost.opcodes if opcode in _UNITS]
        return _first(steps, lambda step: type(step) in asking)
    speaking = [at for at, step in enumerate(steps) if cost.origin in step.names()]
    for kind in _DECIDES.get((cost.kind, cost.space), ()):
        found = [at for at in speaking if isinstance(steps[at], kind)]
        if found:
            return found[-1]
    if cost.kind == "arithmetic":
        return _first(steps, lambda step: isinstance(step, Epilogue))
    return _first(steps, lambda step: isinstance(step, Bind) and step.level in _LANE_LEVELS)


def _first(steps: Sequence[Step], holds: Callable[[Step], bool]) -> int | None:
    return next((at for at, step in enumerate(steps) if holds(step)), None)


# -- sentences ----------------------------------------------------------------------------------------------------


def sentence(cost: Cost) -> str:
    """One cost in words: what, how often, what it takes, and why."""
    each, rate = f" each {cost.each}" if cost.each else "", _rate(cost)
    if cost.kind == "barrier":
        who = "" if rate.of > 1 else ", by all warps together"
        return f"{_plural(cost.executions / rate.of, 'barrier')}{who}{rate.when}: {cost.note}."
    if cost.kind == "arithmetic":
        return f"{cost.origin}: {_arithmetic(cost, rate)}{rate.who}{rate.when}."
    if cost.kind == "unit":
        words = [(_UNITS.get(opcode) or (opcode, "", Step))[:2] for opcode in cost.opcodes]
        amount = cost.executions / rate.of
        who = ", by a warp" if rate.of > 1 else ", by all warps together"
        return f"{' and '.join(f'{_plural(amount, noun)} {what}' for noun, what in words)}{who}{rate.when}."
    if cost.kind in ("bulk load", "bulk store"):
        way = "to" if cost.kind == "bulk load" else "from"
        size = format_bytes(cost.bulk_bytes / max(cost.boxes, 1))
        return (
            f"{cost.origin}: TMA copies of {size} {way} shared memory{each}, {cost.boxes:,} in all; one "
            "thread issues each."
        )
    place = "shared" if cost.space is Space.SHARED else "global"
    direction = "from" if cost.kind == "load" else "to"
    noun = "asynchronous copy" if cost.is_asynchronous else cost.kind
    accesses = f"{_plural(cost.executions / rate.of, noun)} of {cost.width_bytes} bytes{rate.who}"
    what = f"{cost.origin}: {accesses} {direction} {place} memory{rate.when}"
    if cost.is_predicated_off:
        return f"{what}; predicated off in every lane, so nothing is accessed."
    spent = _shared(cost) if cost.space is Space.SHARED else _global(cost)
    guarded = f" {_plural(cost.guarded_off, 'lane')} predicated off at the edge." if cost.guarded_off else ""
    return f"{what}; {spent}.{guarded}"


@dataclass(frozen=True, slots=True)
class _Rate:
    """How counts are told, so that they are whole: divided by `of`, of whom and how often."""

    of: int
    who: str
    when: str


def _rate(cost: Cost) -> _Rate:
    """By thread and iteration where all warps do the same in each; else by thread over the whole loop; else of all."""
    counts = [cost.executions, *(cost.opcodes.values() if cost.kind == "arithmetic" else ())]

    def divides(divisor: int) -> bool:
        return divisor > 0 and not any(count % divisor for count in counts)

    if divides(cost.times):
        return _Rate(cost.times, " a thread", f" each {cost.each}" if cost.each else "")
    if divides(cost.warps) and cost.times % cost.warps == 0:
        return _Rate(cost.warps, " a thread", f" in {cost.times // cost.warps} iterations of {cost.each}")
    return _Rate(1, " in all warps together", f" in loop {cost.each}" if cost.each else "")


def _arithmetic(cost: Cost, rate: _Rate) -> str:
    words = {
        "FFMA": "multiply-add",
        "FMUL": "multiplication",
        "FADD": "addition",
        "MOV": "assignment",
        "CVT": "conversion",
        "SHFL": "shuffle",
    }
    return " and ".join(
        _plural(instructions / rate.of, words.get(opcode, opcode)) for opcode, instructions in cost.opcodes.items()
    )


def _shared(cost: Cost) -> str:
    each, ideal = cost.wavefronts / cost.requests, cost.ideal_wavefronts / cost.requests
    if not cost.excess_wavefronts:
        return f"{_plural(each, 'wavefront')} each, the fewest: no bank conflicts"
    return f"{_plural(each, 'wavefront')} each where {number(ideal)} would do{_colon(why(cost))}"


def _global(cost: Cost) -> str:
    each, fewest = cost.sectors / cost.requests, cost.fewest_sectors / cost.requests
    used, moved = cost.bytes_used / cost.requests, cost.sectors * SECTOR_BYTES / cost.requests
    if cost.sectors > cost.fewest_sectors:
        bytes_said = f"{number(used)} of {number(moved)} bytes used"
        return f"{_plural(each, 'sector')} a request where {number(fewest)} would do, {bytes_said}{_colon(why(cost))}"
    shared = ", which its lanes share" if cost.bytes_asked > cost.bytes_used else ""
    return f"{_plural(each, 'sector')} a request, the fewest that hold its {number(used)} bytes{shared}"


def number(value: float) -> str:
    """A count, exact where it is whole, else three digits.

    >>> number(64.0), number(2.5), number(0.03125), number(4096)
    ('64', '2.5', '0.0312', '4,096')
    """
    return f"{round(value):,}" if value == round(value) else f"{value:.3g}"


def _plural(value: float, noun: str) -> str:
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number(value)} {noun if value == 1 else many}"


def _colon(why: str) -> str:
    return f": {why}" if why else ""


def _summary(costs: Sequence[Cost], spec: DeviceSpec, gemm: Gemm) -> tuple[Cost | None, tuple[str, ...]]:
    """What the pipes of an SM would take, and the largest cost of the busier one."""
    accesses = [cost for cost in costs if cost.kind in ("load", "store")]
    sums = [cost for cost in costs if cost.kind == "arithmetic"]
    lsu, fma = sum(cost.lsu_clocks() for cost in accesses), sum(cost.fma_clocks(spec) for cost in sums)
    tensor = sum(cost.tensor_clocks(spec, gemm) for cost in sums)
    if not lsu and not fma and not tensor:
        return None, ()
    of_tensor = f", its tensor cores for {tensor:,.0f}" if tensor else ""
    pipes = (
        f"If one SM of {spec.name} ran all the blocks, its load/store unit would be busy for {lsu:,.0f} clocks"
        f"{of_tensor} and its FP32 units for {fma:,.0f}, at least."
    )
    if max(fma, tensor) >= lsu:
        largest = max(sums, key=lambda cost: max(cost.fma_clocks(spec), cost.tensor_clocks(spec, gemm)))
        return largest, (pipes, "The largest cost is the arithmetic of the sum: the accesses fit beside it.")
    largest = max(accesses, key=Cost.lsu_clocks)
    memory = "shared" if largest.space is Space.SHARED else "global"
    what = f"{largest.kind}s of {largest.origin} {'from' if largest.kind == 'load' else 'to'} {memory} memory"
    share = largest.lsu_clocks() / lsu
    return largest, (pipes, f"The largest cost is the {what}: {share:.0%} of the load/store unit. {_waste(largest)}")


def _of_l2(l2: L2Estimate, spec: DeviceSpec) -> str:
    asked, read = l2.requested_bytes, l2.dram_read_bytes
    return (
        f"Estimated, by the order of the blocks: {l2.hit_rate:.0%} of what the L2 cache of {spec.name} is asked for "
        f"hits, and {format_bytes(read)} of the {format_bytes(asked)} that blocks read come from DRAM."
    )


def _waste(cost: Cost) -> str:
    """What of a cost could be saved without doing less."""
    if cost.space is Space.SHARED:
        if not cost.excess_wavefronts:
            return "None of it is lost to bank conflicts: only fewer or wider loads would save anything."
        lost, all_of = f"{cost.excess_wavefronts:,}", f"{cost.wavefronts:,}"
        return f"{lost} of its {all_of} wavefronts are bank conflicts{_colon(why(cost))}."
    if cost.sectors == cost.fewest_sectors:
        return "No sector is wasted: only fewer loads would save anything."
    return f"It moves {cost.sectors:,} sectors where {cost.fewest_sectors:,} would do{_colon(why(cost))}."


def why(cost: Cost) -> str:
    """What makes the worst request of a cost dear, in words; "" where nothing does."""
    if cost.worst is None:
        return ""
    return why_wavefronts(cost.worst) if cost.space is Space.SHARED else why_sectors(cost.worst)
