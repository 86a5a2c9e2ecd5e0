"""What holds for every program, whatever steps made it: stated once, checked after each step that could break it.

A law looks at the whole program, because a step can break what another one declared: moving a loop inward can make a
tile span the whole of k, and a pad can misalign a vector load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.ir.buffer import Space
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Clustered, Level, Program, Route, Specialized, Staged
from tilewright.ir.tiles import VECTOR_BYTES, Tile, fragment_of, result_span, source_of, tile_of
from tilewright.layout.arrangement import Slabs
from tilewright.layout.fragment import MATRIX_ROW_BYTES

MAX_REGISTER_TILE = 4096
"""Elements of a register tile or sum that are worth compiling; a thread has 255 registers, the rest spills."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that does not hold: the reason (the end of a sentence), why it is a law, and the way out."""

    reason: str
    note: str = ""
    hint: str = ""


def check_program(program: Program, doing: str) -> Program:
    """The program itself, or a `ScheduleError` that begins with `doing` and names the first law it breaks."""
    for law in LAWS:
        for broken in law(program):
            raise ScheduleError(f"{doing}: {broken.reason}", note=broken.note, hint=broken.hint)
    return program


def sums_stay_inside(program: Program) -> Iterator[Violation]:
    """Every loop over k runs inside the loop over which the sum is kept."""
    if program.accumulation is None:
        return
    start = program.position(program.accumulation.over)
    for loop in program.loops[:start]:
        if loop.is_reduction:
            yield Violation(
                f"loop {loop.name!r} sums over k outside {program.accumulation.over!r}.",
                note=f"{program.accumulation.name!r} would be finished, and stored, once for each {loop.name}.",
                hint=f"keep the sum over {loop.name!r}, or Reorder it inward.",
            )


def sum_fits_a_thread(program: Program) -> Iterator[Violation]:
    """The running sum has a fixed, reasonable number of elements."""
    if program.accumulation is None:
        return
    elements = 1
    for axis in program.sum_axes:
        if axis.extent is None:
            yield Violation(
                f"{program.accumulation.name!r} would hold every {axis.dim} of the problem, one for each {axis.name}.",
                note="registers have a fixed number; each thread can sum only a fixed number of results.",
                hint=f"Split({axis.name!r}, ...) and Bind the outer loop, or Reorder it outside "
                f"{program.accumulation.over!r}.",
            )
            return
        elements *= axis.extent
    fragment = fragment_of(program, "C")
    elements *= 1 if fragment is None else fragment.registers
    if elements > MAX_REGISTER_TILE:
        yield Violation(
            f"{program.accumulation.name!r} would hold {elements} elements a thread.",
            hint="bind more of the loops over m and n to threads.",
        )


def tiles_are_fixed(program: Program) -> Iterator[Violation]:
    """A staged tile has a fixed number of elements."""
    for staged in program.staged:
        row_axes, col_axes = program.tile_axes(staged)
        for axis in (*row_axes, *col_axes):
            if axis.extent is None:
                yield Violation(
                    f"{staged.name!r} would span every {axis.dim} of the problem: loop {axis.name!r} runs inside "
                    f"{staged.under!r}.",
                    note="a tile in shared memory or registers has a fixed size.",
                    hint=f"Split({axis.name!r}, 8, into=(...)) and stage under the outer loop.",
                )
        if staged.space is Space.REGISTER and staged.operand != "C":
            elements = tile_of(program, staged).register_buffer.elements if not _unbounded(program, staged) else 0
            if elements > MAX_REGISTER_TILE:
                yield Violation(f"{staged.name!r} would hold {elements} elements a thread.", hint="stage further in.")


def _unbounded(program: Program, staged: Staged) -> bool:
    return any(axis.extent is None for axes in program.tile_axes(staged) for axis in axes)


def registers_fill_from_shared(program: Program) -> Iterator[Violation]:
    """A register tile stands inside the loop under which its shared tile is filled."""
    for staged in program.staged:
        source = source_of(program, staged)
        if source is None or staged.space is not Space.REGISTER:
            continue
        if program.depth(staged.under) < program.depth(source.under):
            yield Violation(
                f"{staged.name!r} under {staged.under!r} would be filled before {source.name!r} under "
                f"{source.under!r} is.",
                hint=f"stage {staged.operand} in registers under {source.under!r} or a loop inside it.",
            )


def tiles_are_filled_together(program: Program) -> Iterator[Violation]:
    """No shared tile is filled under a loop that only some threads run."""
    for staged in program.staged:
        if staged.space is not Space.SHARED or staged.operand == "C":
            continue
        loop = program.loop(staged.under)
        if loop.level is not None and not loop.level.is_grid and not loop.level.is_thread:
            yield Violation(
                f"{staged.name!r} would be filled under {staged.under!r}, which is unrolled inside each thread.",
                hint="stage under a serial loop, such as the outer loop over k.",
            )


def arrangements_fit(program: Program) -> Iterator[Violation]:
    """A permutation of columns fits the tile it permutes."""
    for staged in program.staged:
        if staged.arrangement is None:
            continue
        tile = tile_of(program, staged)
        problem = staged.arrangement.problem(tile.rows, tile.row_length)
        if problem is not None:
            yield Violation(f"{staged.name!r} is {tile.rows} x {tile.row_length}: {problem}.")
        if isinstance(staged.arrangement, Slabs):
            yield from _slabs(program, staged, staged.arrangement)


def _slabs(program: Program, staged: Staged, slabs: Slabs) -> Iterator[Violation]:
    """A row of a slab is as long as its columns, and no longer."""
    element = program.gemm.operand(staged.operand).dtype
    if slabs.columns * element.bytes != slabs.row_bytes:
        yield Violation(
            f"{slabs.columns} columns of {element} are {slabs.columns * element.bytes} bytes, and a row of a slab "
            f"has {slabs.row_bytes}.",
            hint=f"Slabs({slabs.row_bytes // element.bytes}"
            + (")." if slabs.row_bytes == 128 else f", row_bytes={slabs.row_bytes})."),
        )
    if staged.pad:
        yield Violation(
            f"{staged.name!r} lies in slabs, whose rows follow each other, and is padded by {staged.pad}.",
            note="the copy engine and wgmma know no pads; the permutation keeps rows in different banks.",
            hint="leave the pad out.",
        )


def early_copies_are_shared_out(program: Program) -> Iterator[Violation]:
    """Only the copy of a shared, distributed operand tile can run ahead of its use."""
    for staged in program.staged:
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
    """Fragments can be loaded one inner step ahead where the next tile is there early enough: in a ring of slots."""
    source = source_of(program, staged)
    order = [loop.name for loop in program.thread_serial_loops]
    loop = program.loop(staged.under)
    ring = program.pipelined
    if source is None or ring is None or program.slots(source) == 1 or ring.alternating:
        yield Violation(
            f"{staged.name!r} is not loaded from a tile with several slots.",
            note="the first fragments of the next tile are loaded while this one is still in use.",
            hint="put Pipeline(...) before this step.",
        )
    elif loop.extent is None or loop.extent % 2 or order.index(staged.under) != order.index(ring.loop) + 1:
        yield Violation(
            f"loop {staged.under!r} must follow {ring.loop!r} at once and have an even extent; "
            + (f"it has {loop.extent}." if loop.extent is not None else f"its own depends on {loop.axes[0].dim}."),
            hint="stage fragments under the one loop over k inside the pipelined loop.",
        )


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
        if ring.spread and staged.route is Route.TMA:
            yield Violation(
                f"{staged.name!r} is brought by TMA, which one thread asks for at once.",
                hint="leave out spread.",
            )
    if ring.spread:
        order = [loop.name for loop in program.thread_serial_loops]
        inner = program.loop(ring.spread)
        if ring.alternating or inner.extent is None or ring.spread not in order[order.index(ring.loop) + 1 :][:1]:
            yield Violation(
                f"copies cannot be spread over {ring.spread!r}: it is no loop of known extent inside {ring.loop!r}.",
                hint="name the inner loop over k, and leave out alternating.",
            )
    if ring.alternating and program.tensorized is not None:
        yield Violation(
            f"halves of the block would run {program.tensorized.instruction.name} at different places.",
            note="instructions of tensor cores are placed where all warps of a block come.",
            hint="leave out alternating: cp.async copies without taking turns.",
        )
    if ring.alternating and program.threads_per_block % (2 * WARP_LANES):
        yield Violation(
            f"the halves of a block of {program.threads_per_block} threads are not whole warps.",
            hint=f"use a multiple of {2 * WARP_LANES} threads.",
        )


def vectors_are_whole(program: Program) -> Iterator[Violation]:
    """Every vector access covers neighbouring elements that lie within one aligned run."""
    if program.result_vector > 1:
        yield from _result_vector(program)
    for staged in program.staged:
        tile = tile_of(program, staged)
        if staged.distribution is not None and staged.distribution.vector > 1:
            yield from _copy_vector(tile, staged.distribution.vector)
        if tile.fragment is not None and staged.operand != "C":
            yield from _fragment_vector(program, tile)
        elif staged.vector > 1:
            yield from _register_vector(program, tile)


def _legal_width(width: int, element_bytes: int, what: str) -> Iterator[Violation]:
    if width * element_bytes not in VECTOR_BYTES:
        widths = ", ".join(str(size // element_bytes) for size in VECTOR_BYTES if size // element_bytes > 1)
        yield Violation(
            f"{what} would access {width} x {element_bytes} bytes at once.",
            note="one access is 4, 8 or 16 bytes.",
            hint=f"use a width of {widths}.",
        )


def _copy_vector(tile: Tile, width: int) -> Iterator[Violation]:
    yield from _legal_width(width, tile.dtype.bytes, tile.staged.name)
    span = tile.spans[tile.global_minor]
    if span.unit_run % width:
        yield Violation(
            f"{tile.staged.name!r} has {span.unit_run} neighbouring elements along {span.dim}, "
            f"not a multiple of {width}.",
            note=f"{tile.staged.operand} is contiguous along {span.dim}.",
            hint=f"make the tile's extent along {span.dim} a multiple of {width}, or use a smaller vector.",
        )


def _register_vector(program: Program, tile: Tile) -> Iterator[Violation]:
    staged, width = tile.staged, tile.staged.vector
    yield from _legal_width(width, tile.dtype.bytes, staged.name)
    source = source_of(program, staged)
    span = tile.spans[tile.minor]
    where = staged.operand if source is None else source.name
    finest = span.axes[-1] if span.axes else None
    if source is None:
        step = finest.stride if finest else 0
        widest = 16 // tile.dtype.bytes
    else:
        parent = tile_of(program, source)
        step = parent.spans[parent.minor].local_stride(finest) if finest else 0
        widest = parent.widest_row_access
    if finest is None or step != 1 or (finest.extent or 1) % width:
        found = (
            f"it takes none of them along {span.dim}"
            if finest is None
            else f"it takes {finest.extent}, {step} apart, along {span.dim}"
        )
        hint = f"Relayout({where!r}, rows={span.dim!r}) turns it." if source is not None and finest is None else ""
        yield Violation(
            f"{where} holds neighbours along {span.dim}, and of those {staged.name!r} does not take a multiple of "
            f"{width} in a row: {found}.",
            hint=hint or f"split so that the innermost loop over {span.dim} has a multiple of {width} iterations.",
        )
    elif widest % width:
        yield Violation(
            f"rows of {where!r} are aligned for accesses of {widest} element(s), not {width}.",
            hint=f"use a pad and an arrangement that keep runs of {width} elements together and aligned.",
        )


def _fragment_vector(program: Program, tile: Tile) -> Iterator[Violation]:
    """How much of a fragment one instruction loads: neighbours that a lane holds, or matrices."""
    staged, fragment = tile.staged, tile.fragment
    assert fragment is not None
    if staged.route is Route.MATRICES:
        yield from _matrices(program, tile)
        return
    if fragment.opaque and staged.vector > 1:
        yield Violation(f"{staged.name!r} is loaded as a whole.", hint="leave Vectorize out.")
        return
    held = fragment.neighbours(tile.minor)
    if staged.vector > 1 and held % staged.vector:
        yield Violation(
            f"a lane holds {held} neighbour(s) of {staged.name!r} along {tile.spans[tile.minor].dim}, "
            f"not a multiple of {staged.vector}.",
            hint=f"Transfer({staged.name!r}, Route.MATRICES) loads whole fragments."
            if not fragment.opaque
            else "leave Vectorize out.",
        )
        return
    source = source_of(program, staged)
    if source is None:
        return
    widest = tile_of(program, source).widest_row_access
    if widest % max(staged.vector, 1):
        yield Violation(
            f"rows of {source.name!r} are aligned for accesses of {widest} element(s), not {staged.vector}.",
            hint=f"use a pad and an arrangement that keep runs of {staged.vector} elements together and aligned.",
        )


def _matrices(program: Program, tile: Tile) -> Iterator[Violation]:
    """ldmatrix reads rows of 16 bytes from shared memory, and turns only elements of 2 bytes."""
    staged, fragment = tile.staged, tile.fragment
    source = source_of(program, staged)
    assert fragment is not None
    if source is None or fragment.opaque:
        yield Violation(
            f"{staged.name!r} is no fragment of known layout that is loaded from shared memory.",
            hint=f"Stage({staged.operand!r}, Space.SHARED, ...) first; fragments of wmma have loads of their own.",
        )
        return
    parent = tile_of(program, source)
    if parent.widest_row_access * parent.dtype.bytes < MATRIX_ROW_BYTES:
        yield Violation(
            f"{source.name!r} does not keep 16 bytes of a row together and aligned.",
            hint="use a pad and an arrangement that keep runs of 16 bytes.",
        )
    if parent.spans[parent.minor].dim != "k" and tile.dtype.bytes != 2:
        yield Violation(
            f"rows of {source.name!r} run along {parent.spans[parent.minor].dim}, and ldmatrix turns only elements of "
            f"2 bytes, not {tile.dtype.bytes}.",
            hint=f"leave Transfer({staged.name!r}, ...) out: lanes load their elements one by one.",
        )
    each = fragment.registers * tile.dtype.bytes // 4
    count = max(staged.vector, 1)
    last = tile.register_axes[-1] if tile.register_axes else None
    beside = 1 if last is None else last.extent or 1
    if count > 1 and (count > MOST_MATRICES or count % each or beside % (count // each)):
        yield Violation(
            f"{count} matrices at once are no whole fragments of {staged.name!r}: each has {each}, {beside} in a row.",
            hint=f"use {each} matrices, or {MOST_MATRICES} where fragments stand side by side in pairs."
            if each < MOST_MATRICES
            else f"use {each} matrices.",
        )


MOST_MATRICES = 4
"""Matrices that one ldmatrix loads. Source: PTX ISA 9.0, ldmatrix."""


def boxes_are_whole(program: Program) -> Iterator[Violation]:
    """The copy engine moves boxes: neighbours along both dimensions, in slabs, as the operand lies."""
    for staged in program.staged:
        if staged.route is not Route.TMA:
            continue
        tile = tile_of(program, staged)
        if staged.space is not Space.SHARED or staged.distribution is not None:
            yield Violation(
                f"{staged.name!r} is not a tile in shared memory that one thread asks for.",
                hint="leave Distribute out: the copy engine shares nothing out over threads.",
            )
        if not isinstance(staged.arrangement, Slabs):
            yield Violation(
                f"{staged.name!r} does not lie in slabs.",
                hint=f"Relayout({staged.name!r}, arrangement=Slabs({128 // tile.dtype.bytes})) before this step.",
            )
        elif tile.is_transposed:
            yield Violation(
                f"{staged.name!r} would be turned on the way, and the copy engine keeps rows as they lie.",
                hint="leave rows= out of Relayout: wgmma reads elements of 2 bytes either way.",
            )
        for span in tile.spans:
            if len(span.runs) != 1 or span.runs[0].stride != 1 or span.extent > MAX_BOX:
                yield Violation(
                    f"{staged.name!r} takes {span.extent} of {span.dim}, no run of at most {MAX_BOX} neighbours.",
                    hint=f"split {span.dim} so that a block's tile is in one piece.",
                )
        if program.clustered is not None and isinstance(staged.arrangement, Slabs):
            yield from _shared_out(program, program.clustered, tile, staged.arrangement)


def _shared_out(program: Program, cluster: Clustered, tile: Tile, slabs: Slabs) -> Iterator[Violation]:
    """Blocks of a cluster share out the slabs of a tile that is the same for all, or rows of them by the eight."""
    dim = program.loop(cluster.loop).axes[0].dim
    staged, count = tile.staged, tile.row_length // slabs.columns
    if dim in program.gemm.operand(staged.operand).dims or count % cluster.size == 0:
        return
    if tile.rows % (cluster.size * SLAB_ROWS):
        yield Violation(
            f"{cluster.size} blocks cannot share out {staged.name!r}, which is {count} slab(s) of {tile.rows} rows.",
            note=f"each brings whole slabs, or a multiple of {SLAB_ROWS} rows of each: the permutation repeats there.",
            hint="use smaller clusters, or a larger tile.",
        )


SLAB_ROWS = 8
"""Rows after which the permutation of a slab repeats. Source: PTX ISA 9.0, wgmma, swizzling modes."""

MAX_BOX = 256
"""Elements of a box along one dimension. Source: CUDA driver API, cuTensorMapEncodeTiled."""


def roles_have_work(program: Program) -> Iterator[Violation]:
    """A warpgroup that only copies needs a ring that the copy engine fills, and partners that multiply by wgmma."""
    if program.specialized is None:
        return
    ring = program.pipelined
    by_engine = ring is not None and any(s.under == ring.loop and s.route is Route.TMA for s in program.staged)
    if not by_engine:
        yield Violation(
            "no pipelined loop has tiles that come by TMA.",
            hint="Pipeline(loop, stages), Transfer(tile, Route.TMA) before this step.",
        )
    if program.tensorized is None or not program.tensorized.instruction.reads_shared:
        yield Violation("nobody multiplies by wgmma.", hint='Tensorize(..., using="wgmma.m64n128k16") first.')
    yield from _budgets(program, program.specialized)


def _budgets(program: Program, roles: Specialized) -> Iterator[Violation]:
    """What the warpgroups ask for in the end is no more than a block starts with: else they wait for ever."""
    threads = program.threads_per_block
    each = min(REGISTERS_PER_SM // threads // 8 * 8, MAX_REGISTERS)
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


REGISTERS_PER_SM = 65536
MAX_REGISTERS = 248
"""Of a thread when a kernel starts: 255, in whole steps. Source: CUDA C++ Programming Guide, compute capability 9.0."""


def overlap_needs_an_engine(program: Program) -> Iterator[Violation]:
    """A kernel starts early only where all it reads comes behind one wait: through the copy engine."""
    if program.overlapped and not any(staged.route is Route.TMA for staged in program.staged):
        yield Violation(
            "no tile comes by TMA, and the wait for the kernels before stands in front of its ring.",
            hint="put Transfer(tile, Route.TMA) before this step, or leave it out.",
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


def _result_vector(program: Program) -> Iterator[Violation]:
    width = program.result_vector
    yield from _legal_width(width, program.gemm.out.bytes, "the store of C")
    fragment = fragment_of(program, "C")
    if fragment is not None:
        operand = program.gemm.operand("C")
        held = fragment.neighbours(operand.dims.index(operand.contiguous))
        if fragment.opaque:
            yield Violation(
                "which lane holds which result is not known.",
                hint="stage C in shared memory and Distribute it in wide vectors.",
            )
        elif held % width:
            yield Violation(
                f"a lane holds {held} neighbouring result(s) along {operand.contiguous}, not a multiple of {width}.",
                hint="stage C in shared memory and Distribute it in wide vectors.",
            )
        return
    span = result_span(program)
    finest = span.axes[-1] if span.axes else None
    if program.accumulation is None or finest is None or finest.stride != 1 or (finest.extent or 1) % width:
        count = finest.extent if finest is not None and finest.stride == 1 else 1
        yield Violation(
            f"a thread has {count} neighbouring result(s) along {span.dim}, not a multiple of {width}.",
            note=f"C is contiguous along {span.dim}.",
            hint=f"Split {span.dim} so that each thread keeps {width} neighbours, and Accumulate before this step.",
        )


def turning_loops_have_a_count(program: Program) -> Iterator[Violation]:
    """A loop that turns at its ends stands inside one that counts the turns."""
    around = False
    for loop in program.thread_serial_loops:
        around = around or not loop.turning
        if not around:
            yield Violation(f"no loop around {loop.name!r} counts its turns.", hint="turn an inner loop.")


def loops_run_ahead_by_one_digit(program: Program) -> Iterator[Violation]:
    """A loop whose copies run ahead counts one digit, so that the next iteration is that digit plus 1."""
    ahead = [(staged.name, staged.under) for staged in program.staged if staged.prefetched]
    if program.pipelined is not None:
        ahead.append(("the pipeline", program.pipelined.loop))
    for what, name in ahead:
        digits = [axis.name for axis in program.loop(name).axes]
        if len(digits) > 1:
            yield Violation(
                f"{what} would run ahead in {name!r}, which is fused of {', '.join(digits)}.",
                hint="stage under a loop that counts tiles of k by itself.",
            )


def rasters_number_a_plane(program: Program) -> Iterator[Violation]:
    """Blocks that are numbered in an order of their own count tiles of m and of n, and nothing else."""
    dims = [loop.axes[0].dim for loop in program.grid_loops if len(loop.axes) == 1]
    if program.raster is not None and (sorted(dims) != ["m", "n"] or len(program.grid_loops) != 2):
        bound = ", ".join(loop.name for loop in program.grid_loops) or "none"
        yield Violation(
            f"the grid must count tiles of m and of n, a loop each; bound to it: {bound}.",
            note="a raster order turns the number of a block into a row and a column of tiles.",
            hint="Bind('m_block', Level.GRID_Y) and Bind('n_block', Level.GRID_X) before Raster, and no other loop.",
        )


LAWS: tuple[Callable[[Program], Iterator[Violation]], ...] = (
    sums_stay_inside,
    sum_fits_a_thread,
    tiles_are_fixed,
    tiles_are_filled_together,
    registers_fill_from_shared,
    arrangements_fit,
    lanes_belong_to_instructions,
    boxes_are_whole,
    roles_have_work,
    overlap_needs_an_engine,
    vectors_are_whole,
    early_copies_are_shared_out,
    asynchronous_copies_are_legal,
    pipelines_have_tiles,
    turning_loops_have_a_count,
    loops_run_ahead_by_one_digit,
    rasters_number_a_plane,
)
"""In the order in which they are checked: later ones rely on earlier ones."""
