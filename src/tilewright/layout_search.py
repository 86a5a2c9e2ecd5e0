"""A layout for a staged tile that no access conflicts with: found by counting, and proved by the counts.

Pads and XOR swizzles are tried from the cheapest on. For each, the kernel is lowered and one of its blocks is simulated
for two steps over k; every access to the tile is counted as the hardware serves it. A layout whose accesses all take
the fewest wavefronts wins. If there is none, the answer names two accesses that no layout tried serves both.

A schedule may leave a layout open: `Relayout("A_tile", arrangement=Auto())`. Steps cannot search, for they come before
lowering and know nothing of banks; so the toolchain calls `resolve_layouts` before it applies a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeGuard

from tilewright.errors import ScheduleError, TilewrightError, UnknownName
from tilewright.ir.buffer import Space
from tilewright.ir.program import Program
from tilewright.ir.tiles import Tile, tile_of
from tilewright.layout.arrangement import Arrangement, Auto, Xor
from tilewright.lowering import lower
from tilewright.lowering.variants import variant_for
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.schedule import Relayout, Schedule, Step
from tilewright.units import type_name

MAX_PAD = 8


@dataclass(frozen=True, slots=True)
class Access:
    """One access to the tile: its line in the kernel, wavefronts, and the fewest that its width and lanes allow."""

    text: str
    kind: str
    requests: int
    wavefronts: int
    fewest: int

    @property
    def excess(self) -> int:
        return self.wavefronts - self.fewest


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that was counted. bytes: what the padded tile takes."""

    pad: int
    arrangement: Arrangement | None
    size_bytes: int
    accesses: tuple[Access, ...]

    @property
    def excess(self) -> int:
        return sum(access.excess for access in self.accesses)

    @property
    def text(self) -> str:
        parts = [f"pad {self.pad}"] if self.pad else []
        parts += [self.arrangement.text] if self.arrangement is not None else []
        return ", ".join(parts) or "as it is"


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search: the step that lays the tile out as cheaply as any, and what was tried."""

    tile: str
    cheapest: Relayout
    best: Candidate
    tried: tuple[Candidate, ...]

    @property
    def step(self) -> Relayout | None:
        """The step to use; None if every layout conflicts."""
        return None if self.best.excess else self.cheapest

    @property
    def proof(self) -> str:
        """The counts of each access under the best layout, a line each."""
        lines = [f"{self.tile}: {self.best.text}, {self.best.size_bytes} bytes; {len(self.tried)} layouts counted"]
        for access in self.best.accesses:
            per, least = access.wavefronts / access.requests, access.fewest / access.requests
            lines.append(f"  {access.kind} {per:g} wavefronts a request, {least:g} is the fewest: {access.text}")
        if self.step is None:
            lines.append(self._clash())
        return "\n".join(lines)

    def _clash(self) -> str:
        """Two accesses that no layout tried serves both without conflicts, or the one that none serves."""
        count = len(self.best.accesses)
        for index in range(count):
            if all(candidate.accesses[index].excess for candidate in self.tried):
                return f"  no layout tried serves: {self.best.accesses[index].text}"
        for a, b in combinations(range(count), 2):
            if all(c.accesses[a].excess or c.accesses[b].excess for c in self.tried):
                texts = (self.best.accesses[a].text, self.best.accesses[b].text)
                return f"  no layout tried serves both: {texts[0]}\n    and: {texts[1]}"
        return "  each pair of accesses can be served, but not all of them at once"


def resolve_layouts(gemm: Gemm, schedule: Schedule) -> tuple[Schedule, tuple[Found, ...]]:
    """The schedule with each layout that it leaves open replaced by the one found, and how each was found.

    Raises ScheduleError where every layout tried has bank conflicts, with the accesses that clash.
    """
    layouts: list[Found] = []
    for step in schedule:
        if not is_open(step):
            continue
        found = relayout_auto(gemm, schedule, step.tile)
        if found.step is None:
            raise ScheduleError(
                f"No layout of {step.tile!r} that was tried is free of bank conflicts.",
                place=found.proof,
                hint=f"{found.cheapest!r} loses fewest wavefronts.",
            )
        layouts.append(found)
        schedule = Schedule(*(found.step if old == step else old for old in schedule))
    return schedule, tuple(layouts)


def is_open(step: Step) -> TypeGuard[Relayout]:
    """Whether a step leaves a layout to be found."""
    return isinstance(step, Relayout) and isinstance(step.arrangement, Auto)


def relayout_auto(gemm: Gemm, schedule: Schedule, tile: str) -> Found:
    """Search pads and XOR swizzles of a shared tile of `schedule`. Raises ScheduleError if there is no such tile."""
    for given, kind in ((gemm, Gemm), (schedule, Schedule)):
        if not isinstance(given, kind):
            raise ScheduleError(
                f"A layout is searched for a Gemm and a Schedule, and this is {type_name(given)}.",
                hint="relayout_auto(gemm, rung.schedule(gemm), 'A_tile').",
            )
    # No access to one tile depends on how another one lies.
    schedule = Schedule(*(replace(step, arrangement=None) if is_open(step) else step for step in schedule))
    small = _one_block(gemm, schedule)
    program = schedule.apply(small)
    names = [staged.name for staged in program.staged if staged.space is Space.SHARED]
    if tile not in names:
        if not names:
            raise ScheduleError(f"Cannot lay out {tile!r}: the schedule stages nothing in shared memory.")
        raise UnknownName("shared tile", tile, names)
    tried: list[Candidate] = []
    for pad, arrangement in _layouts(tile_of(program, program.tile(tile))):
        candidate = _count(small, _with_layout(schedule, program, tile, pad, arrangement), tile, pad, arrangement)
        if candidate is not None:
            tried.append(candidate)
            if candidate.excess == 0:
                break
    if not tried:
        raise ScheduleError(
            f"Cannot lay out {tile!r}: the schedule cannot be lowered with any layout that was tried.",
            hint="narrow its vector accesses.",
        )
    best = min(tried, key=lambda c: (c.excess, c.size_bytes))
    return Found(tile, Relayout(tile, program.tile(tile).rows, best.pad, best.arrangement), best, tuple(tried))


def _one_block(gemm: Gemm, schedule: Schedule) -> Gemm:
    """The problem at the size of one block's tile and two steps over k."""
    program = schedule.apply(gemm)
    m, n, k = (program.block_tile(dim) for dim in ("m", "n", "k"))
    return replace(gemm, m=m, n=n, k=2 * k, lda=0, ldb=0, ldc=0)


def _layouts(tile: Tile) -> Iterator[tuple[int, Arrangement | None]]:
    """Layouts, those that cost no memory first: as it is, swizzles, pads, pads with swizzles."""
    widest = max(1, 16 // tile.dtype.bytes)
    swizzles = [
        Xor(bits, base, shift)
        for base in range(widest.bit_length() + 2)
        for bits in range(1, 6)
        for shift in range(4)
        if (1 << (bits + base)) <= tile.row_length and tile.row_length % (1 << (bits + base)) == 0
    ]
    yield 0, None
    for swizzle in swizzles:
        yield 0, swizzle
    for pad in range(1, MAX_PAD + 1):
        yield pad, None
    for pad in (widest, 2 * widest):
        for swizzle in swizzles:
            yield pad, swizzle


def _with_layout(
    schedule: Schedule, program: Program, tile: str, pad: int, arrangement: Arrangement | None
) -> Schedule:
    """The schedule with the tile laid out so: its own Relayout replaced, or one put after the tile's Distribute."""
    step = Relayout(tile, program.tile(tile).rows, pad, arrangement)
    steps = [step if isinstance(old, Relayout) and old.tile == tile else old for old in schedule]
    if step not in steps:
        names = [index for index, old in enumerate(steps) if tile in old.names()]
        steps.insert(names[0] + 1 if len(names) < 2 else names[1] + 1, step)
    return Schedule(*steps)


def _count(gemm: Gemm, schedule: Schedule, tile: str, pad: int, arrangement: Arrangement | None) -> Candidate | None:
    """The counts of one layout; None where the schedule does not allow it (a pad may break a vector access)."""
    try:
        program = schedule.apply(gemm)
        kernel = lower(program, variant_for(program, gemm))
        from tilewright.simulator import (
            counting,
            simulate,
        )  # here, so that schedules without open layouts need no simulator

        counters = simulate(kernel, make_operands(gemm), detectors=False, arithmetic=counting()).counters
    except TilewrightError:
        return None
    accesses = tuple(
        Access(line.text, line.kind, line.requests, line.wavefronts, line.ideal_wavefronts)
        for line in counters.lines
        if line.space is Space.SHARED and line.buffer == tile and line.requests
    )
    size = next(buffer.size_bytes for buffer in kernel.shared if buffer.name == tile)
    return Candidate(pad, arrangement, size, accesses)
