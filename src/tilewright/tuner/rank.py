"""What a candidate is predicted to take before it is compiled: the order in which a search tries candidates.

The time is that of the performance model (docs/model.md): a block is simulated for a few steps, with registers
estimated, since nothing is compiled yet. What runs around a product is priced by the bytes it moves, as dispatch does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.ir.program import GROUP_LANES
from tilewright.ir.register_budgets import register_budgets
from tilewright.ir.work import SplitK
from tilewright.model.occupancy import occupancy
from tilewright.model.time import DRAM_SHARE, LAUNCH_SECONDS, predict_seconds
from tilewright.model.work import Work
from tilewright.planning.choices import copy_seconds, finish_seconds, launch_seconds
from tilewright.planning.on_paper import PaperLaunch, launches_of
from tilewright.prediction.counting import work_of
from tilewright.prediction.predict import dram_bytes
from tilewright.problem.gemm import Gemm
from tilewright.toolchain import Build
from tilewright.tuner.space import Paper, Space
from tilewright.units import ceil_div
from tilewright.winners.choice import Choice

_OTHER_REGISTERS = 40
"""Registers of a thread beside its sums: addresses and fragments, roughly."""

_LINE_BYTES = 128

_ROUNDS_FOLLOWED = 3
"""Rounds of blocks whose use of the L2 is followed: more change the order of candidates little, and take seconds."""

_COUNTED: dict[Hashable, Work] = {}
"""What blocks of a kernel do, whatever the size of its problem: many problems and splits ask the same."""

_COUNTED_KEPT = 4096


def predicted_us(space: Space, choice: Choice) -> float:
    """Microseconds of one multiplication by a plan. Raises TilewrightError for a candidate that is no kernel."""
    gemm, spec = space.gemm, space.spec
    paper = space.paper(choice)
    if paper.product is None:
        seconds = _thin_seconds(gemm, spec, launches_of(paper.plan)[0])
    else:
        seconds = _product_seconds(gemm, spec, paper, paper.product)
    if choice.splits > 1:
        seconds += finish_seconds(gemm, spec, choice.splits)
    return (seconds + copy_seconds(gemm, spec, choice)) * 1e6


def _product_seconds(gemm: Gemm, spec: DeviceSpec, paper: Paper, built: Build) -> float:
    launch = next(one for one in launches_of(paper.plan) if one.source == built.source)
    tile_k = built.kernel.tile["k"]
    parts = launch.grid[2] if built.split_k is not SplitK.NONE else 1
    whole = replace(built, split_k=SplitK.NONE)
    work = replace(
        _counted(whole),
        steps=ceil_div(ceil_div(gemm.k, parts), tile_k),
        blocks=prod(launch.grid),
        flops=gemm.flops,
    )
    per_sm = max(1, _blocks_per_sm(built, spec))
    early = LAUNCH_SECONDS - launch_seconds(spec) if built.kernel.overlapped else 0.0
    seconds = predict_seconds(work, spec, blocks_per_sm=per_sm, dram_bytes=gemm.compulsory_bytes) - early
    # What the L2 holds is read once, in whatever order blocks ask for it; and where the SMs are busy for longer than
    # memory would be if no block found anything there, the order does not matter either.
    fits = gemm.compulsory_bytes <= spec.l2_bytes // 2
    if (
        built.split_k is not SplitK.NONE
        or fits
        or _moving(work.strip_bytes * work.steps * work.blocks, spec) <= seconds
    ):
        return seconds
    rounds = _ROUNDS_FOLLOWED * spec.sm_count * per_sm
    moved_bytes = dram_bytes(built, spec, per_sm, most=rounds)
    return predict_seconds(work, spec, blocks_per_sm=per_sm, dram_bytes=moved_bytes) - early


def _counted(built: Build) -> Work:
    """What a block does, found by simulating one the first time."""
    gemm = built.gemm
    rows = tuple(gemm.leading(one.name) * one.dtype.bytes % _LINE_BYTES for one in gemm.operands)
    key = (built.schedule, built.variant, gemm.dtype, gemm.multiplied, gemm.out, gemm.a, gemm.b, gemm.c, rows)
    found = _COUNTED.get(key)
    if found is None:
        if len(_COUNTED) >= _COUNTED_KEPT:
            _COUNTED.clear()
        found = _COUNTED[key] = work_of(built)
    return found


def _thin_seconds(gemm: Gemm, spec: DeviceSpec, launch: PaperLaunch) -> float:
    """Of the GEMV kernel: the long matrix is read by as many SMs as have a block."""
    busy = min(1.0, prod(launch.grid) / spec.sm_count)
    return LAUNCH_SECONDS + _moving(gemm.compulsory_bytes / busy, spec)


def _moving(size_bytes: float, spec: DeviceSpec) -> float:
    return size_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)


def _blocks_per_sm(built: Build, spec: DeviceSpec) -> int:
    program = built.program
    if program.persistent:
        return 1
    if program.specialized is not None:
        groups = built.kernel.threads_per_block // GROUP_LANES
        copies, multiplies = register_budgets(program)
        registers = ceil_div(copies + (groups - 1) * multiplies, groups)
    else:
        sums = prod(axis.extent or 1 for axis in program.sum_axes)
        used = program.tensorized
        each = 1 if used is None else used.instruction.m * used.instruction.n // used.instruction.c.lanes
        registers = min(spec.max_registers_per_thread, sums * each + _OTHER_REGISTERS)
    try:
        return occupancy(
            spec,
            threads_per_block=built.kernel.threads_per_block,
            registers_per_thread=max(registers, 16),
            static_shared_bytes=built.kernel.shared_bytes,
        ).blocks_per_sm
    except TilewrightError:
        return 1


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a candidate before it is compiled. refusal: why it is no kernel here, "" if it is one.

    kind: its rung and tile, whether blocks walk or how many an SM holds, and its parts.
    """

    candidate: Choice
    predicted_us: float
    refusal: str = ""
    kind: str = ""


def look(space: Space, candidate: Choice) -> Look:
    """One candidate written out and predicted: about a tenth of a second."""
    reasons = space.reasons(candidate)
    if reasons:
        return Look(candidate, inf, reasons[0])
    try:
        return Look(candidate, predicted_us(space, candidate), "", _kind(space, candidate))
    except TilewrightError as refusal:
        return Look(candidate, inf, refusal.headline)


def _kind(space: Space, candidate: Choice) -> str:
    product = space.paper(candidate).product
    if product is None:
        return f"{candidate.rung} {candidate.splits}"
    tile = " ".join(f"{dim}{size}" for dim, size in product.kernel.tile.items())
    blocks = "walking" if product.kernel.resident else f"{_blocks_per_sm(product, space.spec)} blocks"
    copies = f"{sorted(candidate.pads)} {sorted(candidate.turned)} {candidate.filled}"
    return f"{candidate.rung} {tile} {blocks} {candidate.splits} {copies}"


def ranked(looks: Iterable[Look]) -> list[Look]:
    """Those that are kernels, the best predicted first."""
    legal = (one for one in looks if not one.refusal)
    return sorted(legal, key=lambda one: (one.predicted_us, one.candidate.key))


def to_look_at(space: Space, most: int) -> list[Choice]:
    """What dispatch knows, where each rung itself stands, then at most so many, evenly spread: what can be ranked in
    time."""
    defaults = [found for rung in space.rungs if (found := space.default(rung)) is not None]
    chosen = [*space.also, *defaults, *spread(space.candidates, most)]
    return list({one.key: one for one in chosen}.values())


def spread(candidates: Sequence[Choice], most: int) -> list[Choice]:
    """At most so many candidates and one a group, each group's evenly spread, small groups whole. The plans of a rung
    in one launch are a group, those in several another."""
    by_rung: dict[tuple[str, bool], list[Choice]] = {}
    for candidate in candidates:
        by_rung.setdefault((candidate.rung, candidate.splits > 1), []).append(candidate)
    found: list[Choice] = []
    left = most
    for rungs_left, members in zip(range(len(by_rung), 0, -1), sorted(by_rung.values(), key=len), strict=True):
        step = max(1, ceil_div(len(members), max(1, left // rungs_left)))
        found += members[::step]
        left -= len(members[::step])
    return found


def seeds(space: Space, order: Sequence[Look], most: int) -> list[Choice]:
    """What to measure first: the best ranked, few of each rung and tile, and where each rung itself stands."""
    defaults = {found.key for rung in space.rungs if (found := space.default(rung)) is not None}
    chosen = [one.candidate for one in order if one.candidate.key in defaults][: most // 2]
    known = {choice.key for choice in chosen}
    alike: dict[str, int] = {}
    for one in order:
        if len(chosen) < most and one.candidate.key not in known and alike.get(one.kind, 0) < _ALIKE:
            alike[one.kind] = alike.get(one.kind, 0) + 1
            chosen.append(one.candidate)
    return chosen


_ALIKE = 2
"""Candidates of one rung and tile among the first: they are predicted alike."""
