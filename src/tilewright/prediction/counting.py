"""From a build to the input of the time model: what one block does, by simulating a few steps of one.

What a block does is a line in k: so much before and after, so much each step. Two short runs of one block, at the
leading dimensions of the whole problem, give both. Edges are left out: a block at an edge takes as long as any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, prod

from tilewright.ir.async_stmt import WgmmaWait
from tilewright.ir.buffer import Space
from tilewright.ir.clusters import cluster_tile, neighbours
from tilewright.ir.expr import Const, Expr
from tilewright.ir.kernel import Kernel
from tilewright.ir.program import Program, Route, Staged
from tilewright.ir.stmt import Alloc, Assign, For, Let, Move
from tilewright.ir.visit import Path, simplify, substitute, variables, walk
from tilewright.kernels.work import Access, Phase, Work, asked_rows, round_trips
from tilewright.layout.banks import LINE_BYTES
from tilewright.lowering.plan import plan_of
from tilewright.lowering.products import multicast
from tilewright.model.demand import ADDED_PER_COPY
from tilewright.prediction.joined_loads import JoinedLoads
from tilewright.prediction.l1_passes import L1Passes
from tilewright.problem.gemm import Gemm, OperandName
from tilewright.problem.reference import blank_operands
from tilewright.simulator import counting, simulate, standard_listeners
from tilewright.simulator.line_counts import LineCounts
from tilewright.toolchain import Build, grid_of
from tilewright.units import ceil_div, round_up

_FEWEST_K = 32
"""A warp's sectors and wavefronts repeat within this many steps of one."""

_FEWEST_STEPS = 4
"""Longer than the ring of most pipelines, so that both runs have filled it; even, as roles alternate."""

_HALVES = 2
_REGISTER_BYTES = 4
_GROUP_WARPS = 4
_WGMMA_ROWS, _WGMMA_K_BYTES = 64, 32


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the kernel: what it is, and its counts, by name, in one block."""

    what: LineCounts
    counts: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.counts.get(name, 0.0)


_FIELDS = ("executions", "requests", "wavefronts", "ideal_wavefronts", "cache_lines", "sectors", "bulk_bytes")
_NAMES = (*_FIELDS, "passes")


def work_of(built: Build) -> Work:
    """What one block of a build does at the size of its problem."""
    gemm, kernel, program = built.gemm, built.kernel, built.program
    tile = kernel.tile
    period = round_up(ceil_div(_FEWEST_K, tile["k"]), 2)
    steps = max(_FEWEST_STEPS, period)
    few, many = _count(built, steps), _count(built, steps + period)
    each = [
        _Line(one.what, {n: (two[n] - one[n]) / period for n in _NAMES}) for one, two in zip(few, many, strict=True)
    ]
    rest = [
        _Line(one.what, {n: max(0.0, one[n] - steps * step[n]) for n in _NAMES})
        for one, step in zip(few, each, strict=True)
    ]
    kept = kept_in_registers(kernel)
    rest += [line for line in each if line.what.path in kept]
    each = [line for line in each if line.what.path not in kept]
    instruction = program.tensorized.instruction if program.tensorized is not None else None
    warps = ceil_div(kernel.threads_per_block, 32)
    halves = _HALVES if _alternates(program) else 1
    return Work(
        step=_phase(each, gemm),
        rest=_phase(rest, gemm),
        steps=ceil_div(gemm.k, tile["k"] * neighbours(program, "k")),
        warps=warps,
        blocks=prod(grid_of(kernel, gemm)),
        strip_bytes=_strip_bytes(built),
        flops=gemm.flops,
        resident=kernel.resident and (program.specialized is not None or plan_of(program).runs_on),
        load_groups=_load_groups(each, warps / halves) / halves,
        products_awaited=_awaits_products(each, kernel),
        ends_overlap=program.specialized is not None and program.specialized.ping_pong > 1,
        steps_ahead=_steps_ahead(program),
        awaited_ahead=_steps_ahead(program) if _copies_by_threads(program) else 0,
        warpgroups=instruction is not None and instruction.name.startswith("wgmma"),
        inputs="" if instruction is None else instruction.product.rate,
        sums="f32" if instruction is None else str(instruction.accumulate),
        code=_code(each, kernel, warps) if instruction is None else 0,
    )


def kept_in_registers(kernel: Kernel) -> set[Path]:
    """Loads and stores of an element of global memory that all iterations of a loop share: the compiler loads it
    before the loop and stores it behind. Machine code of te/0 has neither in its loop."""
    found: set[Path] = set()
    for path, loop in walk(kernel.body):
        if len(path) > 1 or not isinstance(loop, For):
            continue
        inside = list(walk(loop.body, path))
        if not all(isinstance(stmt, Let | Alloc | Assign | Move | For) for _, stmt in inside):
            continue  # a barrier, or what other threads may hear of
        names: dict[str, Expr] = {}
        turned = {loop.var}
        places: dict[str, dict[Path, Expr | None]] = {}
        for at, stmt in inside:
            if isinstance(stmt, Let):
                names[stmt.name] = substitute(stmt.value, names)
            elif isinstance(stmt, For):
                turned.add(stmt.var)
            elif isinstance(stmt, Move):
                ref = stmt.src if stmt.src.buffer.space is not Space.REGISTER else stmt.dst
                flat = simplify(substitute(ref.flat, names)) if stmt.guard is None else None
                places.setdefault(ref.buffer.name, {})[at] = flat if ref.buffer.space is Space.GLOBAL else None
        for accesses in places.values():
            first, *others = accesses.values()
            if first is not None and all(one == first for one in others) and turned.isdisjoint(variables(first)):
                found |= accesses.keys()
    return found


def _code(steps: Sequence[_Line], kernel: Kernel, warps: int) -> int:
    """Instructions of a warp that a step is written out to: loops that the compiler leaves rolled stand there once."""
    rolled = {
        path: stmt.extent.value
        for path, stmt in walk(kernel.body)
        if isinstance(stmt, For) and not stmt.unroll and isinstance(stmt.extent, Const)
    }
    total = 0.0
    for line in steps:
        what = line.what
        copies = what.kind in ("load", "store") and (what.space is Space.GLOBAL or what.kind == "store")
        each = sum(count for _, count in what.opcodes) + (ADDED_PER_COPY if copies and what.opcodes else 0.0)
        total += line["executions"] * each / prod(rolled.get(loop, 1) for loop in what.loops)
    return round(total / warps)


def _strip_bytes(built: Build) -> float:
    """What the L2 is asked for in a step of one block, as TMA asks for it, or lanes do."""
    program, tile, total = built.program, built.kernel.tile, 0.0
    sides: tuple[tuple[OperandName, int], ...] = (("A", tile["m"]), ("B", tile["n"]))
    for name, rows in sides:
        boxes = [staged for staged in program.chain(name) if staged.route is Route.TMA]
        asked = asked_rows(built.gemm, name, rows, multicast(program, boxes[0]).blocks) if boxes else rows
        total += asked * tile["k"] * built.gemm.operand(name).dtype.bytes
    return total


@dataclass(frozen=True, slots=True)
class _Sample:
    """What is counted: a kernel on a problem for one block. told: what its counts follow from."""

    told: tuple[object, ...]
    gemm: Gemm
    kernel: Kernel = field(compare=False)


def _count(built: Build, steps: int) -> tuple[_Line, ...]:
    """The lines of one block that makes `steps` steps over k."""
    kernel = built.kernel
    told = (kernel.variant, kernel.grid, kernel.block, kernel.shared, kernel.body, kernel.cluster, kernel.resident)
    return _counted(_Sample(told, sample_gemm(built, steps), kernel))


@lru_cache(maxsize=256)  # other sizes and GPUs often ask for the same
def _counted(sample: _Sample) -> tuple[_Line, ...]:
    kernel = sample.kernel
    joined, passes = JoinedLoads(kernel), L1Passes()
    run = simulate(
        kernel,
        blank_operands(sample.gemm),
        listeners=(*standard_listeners(), joined, passes),
        detectors=False,
        arithmetic=counting(),
        resident_blocks=kernel.cluster if kernel.resident else None,
    )
    wide = {site.path: row for site, row in joined.counts().items()}
    scattered = passes.clocks()
    blocks, lines = run.counters.blocks, run.counters.lines
    return tuple(_line(line, blocks, wide, scattered.get(line.path, 0.0)) for line in lines)


def sample_gemm(built: Build, steps: int) -> Gemm:
    """A problem for one block (or cluster) of a kernel, of so many steps over k, aligned as the whole problem is."""
    kernel, gemm = built.kernel, built.gemm
    m, n = (cluster_tile(built.program, dim) for dim in ("m", "n"))
    k = kernel.tile["k"] * steps * neighbours(built.program, "k")
    small = replace(gemm, m=m, n=n, k=k, lda=0, ldb=0, ldc=0, ld_added=())
    lda, ldb, ldc = (
        _as_aligned(small.leading(operand.name), gemm.leading(operand.name), operand.dtype.bytes)
        for operand in gemm.operands
    )
    return replace(small, lda=lda, ldb=ldb, ldc=ldc)


def _as_aligned(tight: int, leading: int, element_bytes: int) -> int:
    """A leading dimension near `tight` that sets rows as far from a line of 128 bytes as `leading` does."""
    line = LINE_BYTES // element_bytes
    return max(tight, line) + (leading - max(tight, line)) % line


def _line(line: LineCounts, blocks: int, wide: dict[Path, dict[str, int]], passes: float) -> _Line:
    counts = {name: float(getattr(line, name)) for name in _FIELDS} | {"passes": passes}
    joined = wide.get(line.path)
    if joined is not None and line.kind == "load" and counts["requests"]:
        share = joined["joined_requests"] / counts["requests"]
        counts["executions"] *= share
        counts["requests"] = joined["joined_requests"]
        counts["wavefronts"] = joined["joined_wavefronts"]
        counts["ideal_wavefronts"] = joined["joined_ideal"]
    return _Line(line, {name: value / blocks for name, value in counts.items()})


def _phase(lines: Sequence[_Line], gemm: Gemm) -> Phase:
    fp32 = flops = matrix = conversions = other = barriers = operand_bytes = tma_bytes = 0.0
    accesses: dict[tuple[object, ...], Access] = {}
    for line in lines:
        times, what = line["executions"], line.what
        is_access = what.kind in ("load", "store") and what.space is not None
        if not (line["requests"] if is_access else times):  # a load of C for a beta of 0 is not issued
            continue
        opcodes = dict(what.opcodes)
        if is_access:
            one = _access(line)
            key = (one.name, one.kind, one.space, one.width_bytes, one.copies)
            accesses[key] = one if key not in accesses else accesses[key] + one
        elif what.kind in ("bulk load", "bulk store"):
            tma_bytes += line["bulk_bytes"]
            other += times
        elif what.kind == "barrier":
            barriers += times
            other += times
        elif what.tile_multiply_adds:
            flops += 2 * times * what.tile_multiply_adds
            matrix += times * sum(opcodes.values())
            if any(opcode.endswith("GMMA") for opcode in opcodes):
                operand_bytes += times / _GROUP_WARPS * _wgmma_bytes(what.tile_multiply_adds, gemm)
        else:
            floats = sum(opcodes.get(name, 0) for name in ("FFMA", "FMUL", "FADD"))
            fp32 += times * floats
            conversions += times * opcodes.get("CVT", 0)
            other += times * (sum(opcodes.values()) - floats)
    told = tuple(_without_lines(one) for one in accesses.values())
    return Phase(fp32, flops, matrix, conversions, other, told, barriers, operand_bytes, tma_bytes)


def _without_lines(one: Access) -> Access:
    """Passes that are the lines of the requests say nothing."""
    return replace(one, passes=0.0) if one.passes == one.lines else one


def _wgmma_bytes(multiply_adds_of_warp: int, gemm: Gemm) -> int:
    """Of A and B that one wgmma reads from shared memory."""
    depth = _WGMMA_K_BYTES // gemm.multiplied.bytes
    columns = multiply_adds_of_warp * _GROUP_WARPS // (_WGMMA_ROWS * depth)
    return (_WGMMA_ROWS + columns) * _WGMMA_K_BYTES


def _access(line: _Line) -> Access:
    what = line.what
    return Access(
        name=what.origin or what.buffer,
        kind="load" if what.kind == "load" else "store",
        space="shared" if what.space is Space.SHARED else "global",
        width_bytes=what.width_bytes,
        requests=line["requests"],
        wavefronts=line["wavefronts"],
        ideal=line["ideal_wavefronts"],
        lines=line["cache_lines"],
        sectors=line["sectors"],
        passes=line["passes"],
        copies=_is_copy(what),
    )


def _is_copy(what: LineCounts) -> bool:
    """Whether a line is a cp.async copy; its side in shared memory has no instruction of its own."""
    return not what.opcodes or any(opcode.startswith("LDGSTS") for opcode, _ in what.opcodes)


def _load_groups(lines: Iterable[_Line], warps: float) -> float:
    """How often in a step a thread stops for values of global memory, with no arithmetic to do before they come.

    The compiler moves the loads of a stretch without arithmetic together, so that they wait once, as far as a thread
    has registers for their values. warps: that load in one step.
    """
    groups, registers, used = 0, 0.0, False
    for line in lines:
        what = line.what
        if not line["executions"]:
            continue
        if what.kind == "load" and what.space is Space.GLOBAL and not _is_copy(what):
            registers += line["executions"] / warps * ceil(what.width_bytes / _REGISTER_BYTES)
        elif what.kind == "store" and what.space is Space.SHARED:
            used |= registers > 0
        elif _multiplies(what):
            groups, registers, used = groups + (round_trips(registers) if used else 0), 0.0, False
    return float(groups + (round_trips(registers) if used else 0))


def _awaits_products(steps: Iterable[_Line], kernel: Kernel) -> bool:
    """Whether each step ends in a wait for all of its MMAs."""
    waits = {path for path, stmt in walk(kernel.body) if isinstance(stmt, WgmmaWait) and not stmt.pending}
    return any(line.what.path in waits and line["executions"] > 0 for line in steps)


def _multiplies(what: LineCounts) -> bool:
    return what.tile_multiply_adds > 0 or any(opcode == "FFMA" for opcode, _ in what.opcodes)


def _alternates(program: Program) -> bool:
    """Whether one half of the block loads while the other computes."""
    return program.pipelined is not None and program.pipelined.alternating


def _operands_in_shared(program: Program) -> list[Staged]:
    """Tiles of the operands in shared memory, a step's each."""
    staged_operands = (staged for staged in program.staged if staged.operand != "C")
    return [staged for staged in staged_operands if staged.space is Space.SHARED and staged.under]


def _copies_by_threads(program: Program) -> bool:
    """Whether they arrive by cp.async alone."""
    return all(staged.route is Route.ASYNC for staged in _operands_in_shared(program))


def _steps_ahead(program: Program) -> int:
    """Steps by which the copies of tiles of the operands run ahead of their use."""
    shared = _operands_in_shared(program)
    if program.pipelined is None or not shared:
        return 0
    if all(staged.route in (Route.ASYNC, Route.TMA) for staged in shared):
        return program.pipelined.stages - 1
    return 1 if all(staged.route is not Route.REGISTERS or staged.prefetched for staged in shared) else 0
