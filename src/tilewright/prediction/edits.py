"""Edits of a schedule that might make it faster: small ones, each a schedule of its own.

They are guesses by the form of the schedule. Many do not apply, and some make it slower: `advice` builds, simulates
and predicts each before it is said to help.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Program, RasterOrder, Route, Staged
from tilewright.layout.arrangement import Xor
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Schedule,
    Specialize,
    Split,
    Stage,
    Step,
    Transfer,
    Unroll,
    Vectorize,
)
from tilewright.toolchain import Build

WIDEST_BYTES = 16
"""Of one access by a lane."""

_DEPTH = 32
"""Of a tile along k: a line of 128 bytes of f32."""

_GROUP = 8
"""Rows of tiles in a group: near the square root of the blocks that run at once on most GPUs."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit. what: as one would say it. schedule: with the edit. family: edits of one are ways to the same end."""

    what: str
    schedule: Schedule
    family: str


def edits(built: Build, conflicts: Container[str]) -> Iterator[Edit]:
    """Edits of a build's schedule, the smallest first. conflicts: operands whose shared tiles have bank conflicts."""
    schedule, program = built.schedule, built.program
    width = WIDEST_BYTES // built.gemm.dtype.bytes
    tiles = [tile for tile in program.staged if tile.space is Space.SHARED and tile.operand != "C"]
    if not tiles:
        yield from _staged(schedule, program)
    for tile in tiles:
        if tile.operand in conflicts:
            yield from _layouts(schedule, tile, width)
    yield from _wider(schedule, program, width)
    yield from _pieces(built, width)
    yield from _ahead(schedule, program, tiles)
    if program.raster is None:
        yield Edit(f"walk tiles of C in groups of {_GROUP} rows", _with_raster(schedule), "order")
    yield from _larger(built)


def _staged(schedule: Schedule, program: Program) -> Iterator[Edit]:
    """Tiles of both operands in shared memory, where every multiply-add loads its own."""
    loop = next((loop.name for loop in program.loops if loop.is_reduction and loop.level is None), None)
    at = next((at for at, step in enumerate(schedule) if isinstance(step, Accumulate) and step.over == loop), None)
    if loop is None or at is None:
        return
    outer, inner = f"{loop}_tile", f"{loop}_in"
    new: list[Step] = [Split(loop, _DEPTH, into=(outer, inner)), Accumulate(over=outer)]
    new += [Stage(operand, Space.SHARED, under=outer) for operand in ("A", "B")]
    new += [Distribute("A_tile"), Distribute("B_tile"), Unroll(inner)]
    what = f"stage tiles of A and B in shared memory, {_DEPTH} deep"
    yield Edit(what, Schedule(*schedule.steps[:at], *new, *schedule.steps[at + 1 :]), "stage")


def _layouts(schedule: Schedule, tile: Staged, width: int) -> Iterator[Edit]:
    """Pads and XOR swizzles of one shared tile."""
    if tile.arrangement is None:
        for pad in (width, 2 * width):
            if pad != tile.pad:
                what = f"pad the {tile.operand} tile by {pad}"
                yield Edit(what, _laid_out(schedule, tile, pad=pad), f"layout of {tile.name}")
    if tile.arrangement is None and not tile.pad:
        bits_of_piece = width.bit_length() - 1
        for bits, shift in ((3, 0), (2, 0), (2, 1)):
            arrangement = Xor(bits=bits, base=bits_of_piece, shift=shift)
            what = f"swizzle the {tile.operand} tile by its row ({bits} bits of row >> {shift})"
            yield Edit(what, _laid_out(schedule, tile, arrangement=arrangement), f"layout of {tile.name}")


def _laid_out(schedule: Schedule, tile: Staged, *, pad: int = 0, arrangement: Xor | None = None) -> Schedule:
    step = Relayout(tile.name, rows=tile.rows, pad=pad, arrangement=arrangement)
    if any(isinstance(one, Relayout) and one.tile == tile.name for one in schedule):
        return _changed(schedule, lambda one: step if isinstance(one, Relayout) and one.tile == tile.name else one)
    return _after(schedule, lambda one: _speaks_of(one, tile.name), step)


def _wider(schedule: Schedule, program: Program, width: int) -> Iterator[Edit]:
    """Accesses that move 16 bytes at once, where they move less."""
    narrow = [one for one in schedule if isinstance(one, Distribute) and one.vector < width]
    if narrow:
        wide = _changed(schedule, lambda one: replace(one, vector=width) if one in narrow else one)
        yield Edit(f"let copies move {WIDEST_BYTES} bytes at once", wide, "copies")
    fragments = [tile for tile in program.staged if tile.space is Space.REGISTER and tile.vector < width]
    if fragments and program.tensorized is None:
        steps = [Vectorize(tile.name, width) for tile in fragments]
        yield Edit(f"load fragments {WIDEST_BYTES} bytes at once", Schedule(*schedule, *steps), "fragments")


def _ahead(schedule: Schedule, program: Program, tiles: list[Staged]) -> Iterator[Edit]:
    """Copies that run ahead of their use."""
    if not tiles or program.specialized is not None:
        return
    loop = tiles[0].under
    names = " and ".join(f"the {tile.operand} tile" for tile in tiles)
    through_registers = [tile for tile in tiles if tile.route is Route.REGISTERS]
    early = [Prefetch(tile.name) for tile in through_registers if not tile.prefetched]
    if program.pipelined is None:
        if early:
            yield Edit(f"prefetch {names} into registers", _after_copies(schedule, tiles, *early), "ahead")
        yield Edit(
            f"prefetch {names} and pipeline {loop!r} over 2 stages",
            _after_copies(schedule, tiles, *early, Pipeline(loop, 2)),
            "ahead",
        )
        routes = [Transfer(tile.name, Route.ASYNC) for tile in through_registers]
        for stages in (3, 4):
            what = f"copy {names} asynchronously over {stages} stages of {loop!r}"
            yield Edit(what, _after_copies(schedule, tiles, *routes, Pipeline(loop, stages)), "ahead")
    elif not program.pipelined.alternating:
        for more in (1, 2):
            stages = program.pipelined.stages + more
            deeper = Schedule(*(replace(one, stages=stages) if isinstance(one, Pipeline) else one for one in schedule))
            yield Edit(f"pipeline {loop!r} over {stages} stages", deeper, "ahead")
        if all(tile.route is Route.TMA for tile in tiles):
            own = _after(schedule, lambda one: isinstance(one, Pipeline), Specialize())
            yield Edit("let a warpgroup of its own copy", own, "roles")


def _pieces(built: Build, width: int) -> Iterator[Edit]:
    """A thread's neighbouring results dealt out in runs of 16 bytes, so that lanes read neighbouring runs."""
    for at, step, reach in _register_splits(built):
        if step.by <= width or step.by % width:
            continue
        outer, inner = step.into
        runs = step.by // width
        piece, lanes = f"{inner}_run", f"{inner}_lanes"
        steps: list[Step] = list(built.schedule)
        steps[at : at + 1] = [
            Split(step.loop, reach // runs, into=(piece, lanes)),
            Split(lanes, width, into=(outer, inner)),
        ]
        dealt = Schedule(*steps)
        dealt = _changed(dealt, lambda one: _named_before(one, inner, piece))  # noqa: B023
        last = max((n for n, one in enumerate(dealt) if isinstance(one, Bind)), default=len(dealt) - 1)
        dealt = Schedule(*dealt.steps[: last + 1], Bind(piece, Level.VTHREAD), *dealt.steps[last + 1 :])
        dim = "rows" if step.loop.startswith("m") else "columns"
        yield Edit(f"deal each thread's {step.by} {dim} out in {runs} runs of {width}", dealt, f"runs of {dim}")


def _larger(built: Build) -> Iterator[Edit]:
    """Thread tiles twice as large, in fewer threads."""
    for at, step, reach in _register_splits(built):
        if reach % (2 * step.by) or step.by > _GROUP:
            continue
        steps: list[Step] = list(built.schedule)
        steps[at] = replace(step, by=2 * step.by)
        dim = "rows" if step.loop.startswith("m") else "columns"
        yield Edit(f"give each thread {2 * step.by} {dim} instead of {step.by}", Schedule(*steps), "thread tile")


def _register_splits(built: Build) -> Iterator[tuple[int, Split, int]]:
    """The splits that set what a thread computes: number of the step, the step, and the extent of what it splits."""
    if built.program.tensorized is not None:  # what the loops of an instruction cover is not for a thread to say
        return
    serial = {loop.name for loop in built.program.loops if loop.level is None and not loop.is_reduction}
    for at, step in enumerate(built.schedule):
        if isinstance(step, Split) and step.into[1] in serial and step.into[0] not in serial:
            extents = {loop.name: loop.extent for loop in built.programs[at].loops}
            reach = extents.get(step.loop)
            if reach is not None:
                yield at, step, reach


# -- editing -----------------------------------------------------------------------------------------------------------


def _changed(schedule: Schedule, change: Callable[[Step], Step]) -> Schedule:
    return Schedule(*(change(step) for step in schedule))


def _after(schedule: Schedule, holds: Callable[[Step], bool], *new: Step) -> Schedule:
    """With new steps behind the last that `holds`."""
    last = max((at for at, step in enumerate(schedule) if holds(step)), default=len(schedule) - 1)
    return Schedule(*schedule.steps[: last + 1], *new, *schedule.steps[last + 1 :])


def _after_copies(schedule: Schedule, tiles: list[Staged], *new: Step) -> Schedule:
    names = {tile.name for tile in tiles}
    return _after(schedule, lambda step: any(_speaks_of(step, name) for name in names), *new)


def _speaks_of(step: Step, tile: str) -> bool:
    staging = isinstance(step, Stage) and step.tile_name == tile
    return staging or (isinstance(step, (Distribute, Relayout, Prefetch, Transfer)) and step.tile == tile)


def _named_before(step: Step, name: str, new: str) -> Step:
    """A reordering that names a new loop right before another."""
    if not isinstance(step, Reorder) or name not in step.loops:
        return step
    at = step.loops.index(name)
    return Reorder(*step.loops[:at], new, *step.loops[at:])


def _with_raster(schedule: Schedule) -> Schedule:
    return _after(schedule, lambda step: isinstance(step, Bind), Raster(RasterOrder.GROUPED, group=_GROUP))
