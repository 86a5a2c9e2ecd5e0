"""Laws of the units of tensor cores and of TMA, and of the warps that run them."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.buffer import Space
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Level, Program, Route, Specialized
from tilewright.ir.register_budgets import registers_at_start
from tilewright.ir.tiles import tile_of
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.schedule.laws.violation import Violation


def tma_boxes_are_whole(program: Program) -> Iterator[Violation]:
    """TMA moves boxes: neighbours along both dimensions, in swizzle atoms, as the operand lies."""
    for staged in program.staged:
        if staged.route is not Route.TMA:
            continue
        tile = tile_of(program, staged)
        if staged.space is not Space.SHARED or staged.distribution is not None:
            yield Violation(
                f"{staged.name!r} is not a tile in shared memory whose copy one thread issues.",
                hint="leave Distribute out: TMA shares nothing out over threads.",
            )
        if staged.operand != "C" and not isinstance(staged.arrangement, SwizzleAtoms):
            yield Violation(
                f"{staged.name!r} does not lie in swizzle atoms.",
                hint=f"Relayout({staged.name!r}, arrangement=SwizzleAtoms({128 // tile.dtype.bytes})) "
                "before this step.",
            )
        elif tile.is_transposed:
            yield Violation(
                f"{staged.name!r} would be transposed on the way, and TMA keeps rows as they are stored.",
                hint="leave rows= out of Relayout: wgmma reads elements of 2 bytes either way.",
            )
        for span in tile.spans:
            if len(span.runs) != 1 or span.runs[0].stride != 1 or span.extent > MAX_BOX:
                yield Violation(
                    f"{staged.name!r} takes {span.extent} of {span.dim}, no run of at most {MAX_BOX} neighbours.",
                    hint=f"split {span.dim} so that a block's tile is in one piece.",
                )
        if staged.operand == "C":
            columns, each = program.result_columns(staged), program.subtile_columns(staged)
            for width in (each, columns % each):
                if width * tile.dtype.bytes % BOX_BYTES:
                    yield Violation(
                        f"TMA stores {staged.name!r} in boxes of whole {BOX_BYTES} bytes, and {width} columns of "
                        f"{tile.dtype} are {width * tile.dtype.bytes}.",
                        hint=f"use a tile and subtiles of multiples of {BOX_BYTES // tile.dtype.bytes} columns.",
                    )


MAX_BOX = 256
"""Elements of a box along one dimension. Source: CUDA driver API, cuTensorMapEncodeTiled."""

BOX_BYTES = 16
"""What a row of a box is a multiple of. Source: as above."""


def roles_have_work(program: Program) -> Iterator[Violation]:
    """A warpgroup that only copies needs a ring that TMA fills, and partners that multiply by wgmma."""
    if program.specialized is None:
        return
    ring = program.pipelined
    by_tma = ring is not None and any(s.under == ring.loop and s.route is Route.TMA for s in program.staged)
    if not by_tma:
        yield Violation(
            "no pipelined loop has tiles loaded by TMA.",
            hint="Pipeline(loop, stages), Transfer(tile, Route.TMA) before this step.",
        )
    if program.tensorized is None or not program.tensorized.instruction.reads_shared:
        yield Violation("no warpgroup multiplies by wgmma.", hint='Tensorize(..., using="wgmma.m64n128k16") first.')
    yield from _budgets(program, program.specialized)
    apart = program.specialized.apart
    if ring is not None and apart >= ring.stages:
        yield Violation(
            f"the last {apart} stages of a tile are not in a ring of {ring.stages} before one is given back, and the "
            "warpgroup that would give it back waits.",
            hint=f"apart={ring.stages - 1}, or a longer ring.",
        )


def persistent_tma_has_a_producer(program: Program) -> Iterator[Violation]:
    """Tiles of a persistent block that come by TMA are loaded by a warpgroup of its own."""
    by_tma = [s.name for s in program.staged if s.route is Route.TMA and s.operand != "C"]
    if program.persistent and by_tma and program.specialized is None:
        yield Violation(
            f"no warpgroup loads {' and '.join(map(repr, by_tma))} of the next tile of C by TMA while this one is "
            "stored.",
            hint="put Specialize(...) before this step, or copy by cp.async.",
        )


def _budgets(program: Program, roles: Specialized) -> Iterator[Violation]:
    """What the warpgroups ask for in the end is no more than a block starts with: else they wait for ever."""
    if roles.registers is None:
        return
    threads, each = program.threads_per_block, registers_at_start(program.threads_per_block)
    copying, multiplying = roles.registers
    groups = threads // GROUP_LANES - 1
    wanted = copying + groups * multiplying
    if wanted * GROUP_LANES > each * threads:
        yield Violation(
            f"{copying} registers for one warpgroup and {multiplying} for {groups} are {wanted * GROUP_LANES}, and a "
            f"block of {threads} threads starts with {each * threads}.",
            note="a warpgroup waits until the registers that it asks for are given back.",
            hint=f"registers=({copying}, {(each * (groups + 1) - copying) // groups // 8 * 8}).",
        )


def lanes_belong_to_instructions(program: Program) -> Iterator[Violation]:
    """Where a matrix instruction runs the inner tile, threads are bound by whole warps."""
    if program.tensorized is None:
        return
    for loop in program.thread_loops:
        lanes = program.tensorized.instruction.c.lanes
        level = Level.WARP if lanes == WARP_LANES else Level.WARPGROUP
        if loop.level is not level:
            yield Violation(
                f"loop {loop.name!r} is bound to {loop.level.value if loop.level else ''}, and the {lanes} lanes of a "
                f"{level.value} run {program.tensorized.instruction.name} together.",
                hint=f"bind {loop.name!r} to {level!r}.",
            )
