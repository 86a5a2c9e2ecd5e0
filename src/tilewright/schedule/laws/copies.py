"""Laws of copies that run ahead, are asynchronous, or fill the stages of a ring."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.buffer import Space
from tilewright.ir.program import WARP_LANES, Loop, Pipelined, Program, Route, Staged
from tilewright.ir.tiles import source_of, tile_of
from tilewright.schedule.laws.violation import Violation


def early_copies_are_shared_out(program: Program) -> Iterator[Violation]:
    """Only the copy of a shared, distributed operand tile can run ahead of its use."""
    for staged in program.staged:
        if staged.in_place and (staged.space is not Space.REGISTER or program.tensorized is None):
            yield Violation(
                f"{staged.name!r} holds no fragments, of which one is done before the others.",
                hint="leave in_place out.",
            )
        if staged.fenced and staged.space is not Space.SHARED:
            yield Violation(f"{staged.name!r} holds fragments, whose loads need no fence.", hint="leave fence out.")
        if not staged.prefetched and staged.route is not Route.ASYNC:
            continue
        if staged.space is Space.REGISTER and staged.prefetched:
            yield from _early_fragments(program, staged)
        elif staged.space is not Space.SHARED or staged.operand == "C" or staged.distribution is None:
            yield Violation(
                f"{staged.name!r} is not a shared tile of A or B that the threads of the block share out.",
                note="each thread must know which few elements are its own to copy.",
                hint=f"put Distribute({staged.name!r}) before this step.",
            )
        elif staged.prefetched and staged.route is not Route.REGISTERS:
            yield Violation(
                f"{staged.name!r} would be prefetched into registers and copied by {staged.route.value}.",
                hint="use Prefetch or Transfer: both hide the latency of global memory.",
            )
        elif staged.prefetched and program.loop(staged.under).level is not None:
            yield Violation(f"{staged.name!r} is filled once, so there is no next tile.", hint="leave Prefetch out.")


def _early_fragments(program: Program, staged: Staged) -> Iterator[Violation]:
    """Fragments can be loaded one inner step ahead where the next tile arrives early enough: in a ring of stages."""
    source = source_of(program, staged)
    order = [loop.name for loop in program.thread_serial_loops]
    loop = program.loop(staged.under)
    ring = program.pipelined
    if source is None or ring is None or program.slots(source) == 1 or ring.alternating:
        yield Violation(
            f"{staged.name!r} is not loaded from a tile with several stages.",
            note="the first fragments of the next tile are loaded while this one is still in use.",
            hint="put Pipeline(...) before this step.",
        )
    elif loop.extent is None or loop.extent % 2 or order.index(staged.under) != order.index(ring.loop) + 1:
        yield Violation(
            f"loop {staged.under!r} must follow {ring.loop!r} at once and have an even extent; "
            + (f"it has {loop.extent}." if loop.extent is not None else f"its own depends on {loop.axes[0].dim}."),
            hint="stage fragments under the one loop over k inside the pipelined loop.",
        )
    elif staged.in_place:
        yield from _in_place(program, staged)


def _in_place(program: Program, staged: Staged) -> Iterator[Violation]:
    """A fragment is free once the iteration of the loop around all MMAs of a step that reads it is over."""
    yield from _asynchronous_ring(program, "and where k ends its next stage would hold nothing", "in_place")
    outer = outer_of_products(program, staged.under)
    own = [axis.name for axis in tile_of(program, staged).register_axes]
    if outer is None or own != [axis.name for axis in outer.axes] or outer.turning:
        found = "nothing" if outer is None else f"{outer.name!r}{', forward and backward' if outer.turning else ''}"
        yield Violation(
            f"fragments of {staged.name!r} are counted by {', '.join(map(repr, own)) or 'nothing'}, "
            f"and the loop around the MMAs of a step counts {found}.",
            note="each register is refilled as soon as an iteration of that loop has read it for the last time.",
            hint="use in_place for the operand whose fragments the outer loop counts, and Snake the inner one.",
        )


def outer_of_products(program: Program, step: str) -> Loop | None:
    """The loop right inside a loop over steps of k, around all its MMAs; None where one instruction is all."""
    inside = program.thread_serial_loops[program.depth(step) + 1 :]
    held = {axis.name for axis in program.instruction_axes}
    return next((loop for loop in inside if not {axis.name for axis in loop.axes} & held), None)


def asynchronous_copies_are_legal(program: Program) -> Iterator[Violation]:
    """cp.async moves 4, 8 or 16 bytes that are neighbours in both memories."""
    for staged in program.staged:
        if staged.route is not Route.ASYNC or staged.distribution is None:
            continue
        tile = tile_of(program, staged)
        width = tile.copy_width(staged.distribution.vector)
        if width * tile.dtype.bytes < 4:
            yield Violation(
                f"{staged.name!r} keeps neighbours of {staged.operand} apart, so {width * tile.dtype.bytes} bytes "
                "would be copied at once, and cp.async moves 4, 8 or 16.",
                hint="leave the tile as the operand lies, or copy it through registers.",
            )


def _asynchronous_ring(program: Program, why: str, what: str) -> Iterator[Violation]:
    """Stages are filled whether there is a tile or not, without a branch: by cp.async, which can write zeros."""
    for staged in program.staged:
        ring = program.pipelined
        if ring is None or staged.under != ring.loop or staged.space is not Space.SHARED:
            continue
        if staged.route is not Route.ASYNC:
            yield Violation(
                f"{staged.name!r} travels through registers, {why}.",
                hint=f"put Transfer({staged.name!r}, Route.ASYNC) before this step, or leave {what} out.",
            )


def _behind(program: Program, ring: Pipelined) -> Iterator[Violation]:
    """Interleaved copies stand in the loop around them."""
    outer = outer_of_products(program, ring.interleave) if ring.interleave else None
    yield from _asynchronous_ring(program, "and interleaved copies would hold them", "issue_distance")
    if outer is None or outer.extent is None or ring.issue_distance >= outer.extent:
        found = "there is no such loop" if outer is None else f"{outer.name!r} has {outer.extent}"
        yield Violation(
            f"copies cannot start behind {ring.issue_distance} iteration(s) of the loop around the MMAs of a step: "
            f"{found}.",
            note="" if ring.interleave else "interleave says which loop has those steps.",
            hint="use fewer iterations, or leave issue_distance out."
            if ring.interleave
            else "say interleave as well, or leave issue_distance out.",
        )


def pipelines_have_tiles(program: Program) -> Iterator[Violation]:
    """A pipelined loop fills shared tiles that are shared out, and alternating halves are whole warps."""
    ring = program.pipelined
    if ring is None:
        return
    tiles = [s for s in program.staged if s.space is Space.SHARED and s.under == ring.loop]
    if not tiles:
        yield Violation(
            f"no tile is staged in shared memory under {ring.loop!r}.",
            hint=f"Stage('A', Space.SHARED, under={ring.loop!r}) before this step.",
        )
    for staged in tiles:
        if staged.distribution is None and staged.route is not Route.TMA:
            yield Violation(
                f"{staged.name!r} is copied whole by every thread.",
                hint=f"put Distribute({staged.name!r}) before this step.",
            )
        if ring.alternating and (staged.prefetched or staged.route is not Route.REGISTERS):
            yield Violation(
                f"{staged.name!r} travels by itself, so no half of the block need wait for it.",
                hint="leave out alternating, or Prefetch and Transfer.",
            )
        if ring.interleave and staged.route is Route.TMA:
            yield Violation(
                f"{staged.name!r} is brought by TMA, which one thread asks for at once.",
                hint="leave out interleave.",
            )
    if ring.interleave:
        order = [loop.name for loop in program.thread_serial_loops]
        inner = program.loop(ring.interleave)
        if ring.alternating or inner.extent is None or ring.interleave not in order[order.index(ring.loop) + 1 :][:1]:
            yield Violation(
                f"copies cannot be interleaved with {ring.interleave!r}: it is not a loop of known extent inside "
                f"{ring.loop!r}.",
                hint="name the inner loop over k, and leave out alternating.",
            )
            return
    if ring.issue_distance:
        yield from _behind(program, ring)
    if ring.alternating and program.tensorized is not None:
        yield Violation(
            f"halves of the block would run {program.tensorized.instruction.name} at different places.",
            note="instructions of tensor cores are placed where all warps of a block come.",
            hint="leave out alternating: cp.async needs no alternation.",
        )
    if ring.alternating and program.threads_per_block % (2 * WARP_LANES):
        yield Violation(
            f"the halves of a block of {program.threads_per_block} threads are not whole warps.",
            hint=f"use a multiple of {2 * WARP_LANES} threads.",
        )
