"""Costs: the counts of a kernel, summed by what they come from and by what they do, with how often and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.ir.buffer import Space
from tilewright.ir.visit import Path
from tilewright.kernels.tensor_rate import tensor_rate
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import blank_operands
from tilewright.report.samples import Request, Side, WorstRequests
from tilewright.simulator import Counters, counting, standard_listeners
from tilewright.simulator.line_counts import COUNTED, Amounts, LineCounts, LineKind
from tilewright.simulator.run import Progress
from tilewright.toolchain import Build

_SECTORS_PER_CLOCK = 4  # that the tag stage of L1 resolves; NVIDIA developer forum, thread 312884


@dataclass(frozen=True, slots=True)
class Cost(Amounts):
    """What lines of one origin, one kind and one space of memory did, over all blocks.

    each: the loop over k in which they stand ("" for none). executions: by warps; times: iterations of that loop by
    warps, or warps where there is no loop. opcodes: warp instructions by name. bytes_used: distinct bytes of each
    request; fewest_sectors: that could hold them. worst: the request that took most. note: of a barrier.
    multiply_adds: of tensor cores. boxes, bulk_bytes: of TMA.
    """

    origin: str
    kind: LineKind
    space: Space | None
    width_bytes: int
    each: str
    opcodes: dict[str, int]
    times: int = 0
    warps: int = 0
    worst: Request | None = None
    note: str = ""
    multiply_adds: int = 0

    @property
    def per_thread(self) -> float:
        """How often a thread executes them each time around the loop, on average over warps and iterations."""
        return self.executions / self.times if self.times else 0.0

    @property
    def is_predicated_off(self) -> bool:
        """Whether these are accesses of which no lane took part: they move nothing."""
        return self.kind in ("load", "store") and not self.requests

    @property
    def is_asynchronous(self) -> bool:
        """Whether these are cp.async copies: they have a side in each memory, and one instruction, where they read."""
        return self.kind in ("load", "store") and all(opcode.startswith("LDGSTS") for opcode in self.opcodes)

    def lsu_clocks(self) -> float:
        """Clocks of one SM's load/store unit, at least, if that SM ran all the blocks.

        Shared memory gives one wavefront a clock. A request of global memory takes a clock for each line, for each
        four sectors, and for each 128 bytes that it returns, whichever is most.
        """
        if self.space is Space.SHARED:
            return self.wavefronts
        returned = self.requests * self.width_bytes / 4
        return max(self.cache_lines, self.sectors / _SECTORS_PER_CLOCK, returned)

    def tensor_clocks(self, spec: DeviceSpec, gemm: Gemm) -> float:
        """Clocks of one SM's tensor cores, at least, if that SM ran all the blocks; 0 where it has none for these."""
        if not self.multiply_adds:
            return 0.0
        rate = tensor_rate(gemm, spec)
        return 2 * self.multiply_adds / rate if rate else 0.0

    def fma_clocks(self, spec: DeviceSpec) -> float:
        """Clocks of one SM's FP32 units, at least, if that SM ran all the blocks."""
        floats = sum(count for opcode, count in self.opcodes.items() if opcode in ("FFMA", "FMUL", "FADD"))
        return floats * spec.ffma_issue_interval_clk / spec.schedulers_per_sm


def costs_of(built: Build, progress: Progress | None = None) -> tuple[Counters, list[Cost]]:
    """Count what a build does, and the costs in order of the text. progress: told of (blocks done, in all).

    Addresses are computed, numbers of A, B and C are not, and no detector looks: blocks that do the same count as one.
    """
    worst = WorstRequests()
    run = built.simulate(
        blank_operands(built.gemm),
        listeners=(*standard_listeners(), worst),
        detectors=False,
        arithmetic=counting(),
        progress=progress,
    )
    loops = _loops_over_k(built, run.counters)
    groups: dict[tuple[object, ...], list[LineCounts]] = {}
    for line in run.counters.lines:
        if line.kind in ("loop", "branch") or not line.executions:
            continue
        barrier = line.line if line.kind == "barrier" else 0
        unit = line.opcodes if line.kind == "unit" else ()
        key = (
            line.origin if not unit else "",
            line.kind,
            line.space,
            line.width_bytes,
            _each(line, loops),
            barrier,
            unit,
        )
        groups.setdefault(key, []).append(line)
    warps = run.counters.blocks * run.counters.warps_per_block
    costs = []
    for lines in groups.values():
        around = {path for line in lines if (path := _innermost(line, loops)) is not None}
        times = sum(loops[path].executions for path in around) or warps
        costs.append(_cost(lines, _each(lines[0], loops), times, warps, worst.of_line))
    return run.counters, costs


def _loops_over_k(built: Build, counters: Counters) -> dict[Path, LineCounts]:
    """The loops of the kernel that walk k: those of the program, and what pipelining made of them (`k_tile_pair`)."""
    names = tuple(loop.name for loop in built.program.loops if loop.is_reduction)
    walked = (line for line in counters.lines if line.kind == "loop")

    def is_over_k(line: LineCounts) -> bool:
        name = _loop_name(line)
        derived = name.startswith(tuple(f"{known}_" for known in names)) and not line.text.endswith("unrolled:")
        return name in names or derived

    return {line.path: line for line in walked if is_over_k(line)}


def _loop_name(line: LineCounts) -> str:
    """The loop of "for k_in in 8 unrolled:"."""
    return line.text.split()[1]


def _innermost(line: LineCounts, loops: dict[Path, LineCounts]) -> Path | None:
    """The innermost loop over k around a line."""
    around = [path for path in line.loops if path in loops]
    return around[-1] if around else None


def _each(line: LineCounts, loops: dict[Path, LineCounts]) -> str:
    """Its name; "" where there is none."""
    path = _innermost(line, loops)
    return "" if path is None else _loop_name(loops[path])


def _cost(lines: Sequence[LineCounts], each: str, times: int, warps: int, worst: dict[Side, Request]) -> Cost:
    opcodes: dict[str, int] = {}
    for line in lines:
        for opcode, count in line.opcodes:
            opcodes[opcode] = opcodes.get(opcode, 0) + count * line.executions
    sides: list[Side] = [(line.path, line.space) for line in lines]
    first = lines[0]
    return Cost(
        origin=first.origin,
        kind=first.kind,
        space=first.space,
        width_bytes=first.width_bytes,
        each=each,
        opcodes=opcodes,
        times=times,
        warps=warps,
        worst=max((worst[side] for side in sides if side in worst), key=lambda request: request.cost, default=None),
        note=(first.text.partition("#")[2].strip() or first.text) if first.kind == "barrier" else "",
        multiply_adds=sum(line.executions * line.tile_multiply_adds for line in lines),
        **{name: sum(getattr(line, name) for line in lines) for name in COUNTED},
    )
