"""Loops: split, fused, moved, bound, written out, turned."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import WARP_LANES, Axis, Level, Loop, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_member, check_new_names, check_unused, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Split(Step):
    """for m in M: body   ->   for outer in M/by: for inner in by: body[m := outer*by + inner]

    The outermost digit of a dimension may be split by anything: the edge is guarded. A loop of known extent is split
    by a divisor of it. A fused loop is split along its digits, fastest first.
    """

    loop: str
    by: int
    into: tuple[str, str]

    positional = 2
    speaks_of = ("into",)

    def apply(self, program: Program) -> Program:
        loop = find_loop(program, self.loop)
        # What types promise, a user who runs no checker may break.
        if not isinstance(self.by, int) or isinstance(self.by, bool) or self.by < 1:  # type: ignore[redundant-expr]
            refuse(
                f"Cannot split loop {self.loop!r} by {self.by!r}.",
                hint="an inner loop has a whole number of iterations, at least 1.",
            )
        if not isinstance(self.into, tuple) or len(self.into) != 2:  # type: ignore[redundant-expr]
            refuse(
                f"Cannot split loop {self.loop!r} into {self.into!r}: a split makes two loops.",
                hint="into=('outer', 'inner').",
            )
        if loop.level is not None:
            refuse(
                f"Cannot split loop {self.loop!r}: it is bound to {loop.level.value}.",
                hint="put Split before Bind.",
            )
        check_unused(program, self.loop, "split")
        check_new_names(program, self.into, gone=(self.loop,))
        outer, inner = _divide(loop, self.by, self.into)
        parts = {axis.name for part in (outer, inner) for axis in part.axes} - {
            *self.into,
            *(a.name for a in loop.axes),
        }
        check_new_names(program, tuple(sorted(parts)), gone=(self.loop,))
        at = program.position(self.loop)
        loops = (*program.loops[:at], outer, inner, *program.loops[at + 1 :])
        return check_program(replace(program, loops=loops), f"Cannot split loop {self.loop!r} by {self.by}")


def _divide(loop: Loop, by: int, into: tuple[str, str]) -> tuple[Loop, Loop]:
    """The loop's digits parted so that the inner loop has `by` iterations."""
    if len(loop.axes) == 1:
        axis = loop.axes[0]
        _check_divides(loop, by, axis.extent)
        outer = Axis(into[0], axis.dim, axis.stride * by, None if axis.extent is None else axis.extent // by)
        return Loop(into[0], (outer,)), Loop(into[1], (Axis(into[1], axis.dim, axis.stride, by),))
    left = by
    inner: list[Axis] = []
    outer_axes = list(loop.axes)
    while left > 1 and outer_axes:
        axis = outer_axes.pop()
        extent = axis.extent
        if extent is not None and left % extent == 0:
            inner.insert(0, axis)
            left //= extent
            continue
        _check_divides(loop, left, extent)
        fast = Axis(f"{axis.name}_{into[1]}", axis.dim, axis.stride, left)
        slow_extent = None if extent is None else extent // left
        slow = Axis(f"{axis.name}_{into[0]}", axis.dim, axis.stride * left, slow_extent)
        inner.insert(0, fast)
        outer_axes.append(slow)
        left = 1
    if left > 1 or not outer_axes:
        refuse(
            f"Cannot split loop {loop.name!r} by {by}: it has {loop.extent} iterations in all.",
            hint="use a smaller inner loop.",
        )
    if not inner:
        refuse(f"Cannot split the fused loop {loop.name!r} by 1.", hint="leave the step out.")
    return _loop(into[0], outer_axes), _loop(into[1], inner)


def _loop(name: str, axes: list[Axis]) -> Loop:
    """A loop over these digits; a single digit has the name of its loop."""
    return Loop(name, (replace(axes[0], name=name),) if len(axes) == 1 else tuple(axes))


def _check_divides(loop: Loop, by: int, extent: int | None) -> None:
    if extent is None or extent % by == 0:
        return
    divisors = [d for d in range(2, extent) if extent % d == 0]
    hint = f"use {', '.join(str(d) for d in divisors)}." if divisors else "leave the loop whole."
    refuse(f"Cannot split loop {loop.name!r} by {by}: its extent {extent} is not a multiple.", hint=hint)


@dataclass(frozen=True, repr=False, init=False)
class _OfLoops(Step):
    """A step that is written with the names of its loops alone."""

    loops: tuple[str, ...]

    def __init__(self, *loops: str) -> None:
        object.__setattr__(self, "loops", tuple(loops))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(name) for name in self.loops)})"


@dataclass(frozen=True, repr=False, init=False)
class Fuse(Step):
    """for i in I: for j in J: body   ->   for t in I*J: body[i := t / J, j := t % J]"""

    loops: tuple[str, ...]
    into: str

    positional = 0
    speaks_of = ("into",)

    def __init__(self, *loops: str, into: str) -> None:
        object.__setattr__(self, "loops", tuple(loops))
        object.__setattr__(self, "into", into)

    def apply(self, program: Program) -> Program:
        if len(self.loops) < 2:
            refuse(f"Cannot fuse {len(self.loops)} loop(s).", hint="name two or more neighbouring loops.")
        loops = [find_loop(program, name) for name in self.loops]
        at = program.position(self.loops[0])
        if tuple(program.loop_names[at : at + len(loops)]) != self.loops:
            others = [name for name in program.loop_names[at:] if name not in self.loops]
            order = (*program.loop_names[:at], *self.loops, *others)
            order = tuple(name for i, name in enumerate(order) if name not in order[:i])
            refuse(
                f"Cannot fuse {', '.join(self.loops)}: they do not follow each other in the nest "
                f"{' > '.join(program.loop_names)}.",
                hint=f"put Reorder({', '.join(repr(n) for n in order)}) before this step.",
            )
        for loop in loops:
            if loop.level is not None:
                refuse(
                    f"Cannot fuse loop {loop.name!r}: it is bound to {loop.level.value}.", hint="put Fuse before Bind."
                )
            check_unused(program, loop.name, "fuse")
        check_new_names(program, (self.into,), gone=tuple(loop.name for loop in loops if len(loop.axes) > 1))
        if len({loop.is_reduction for loop in loops}) == 2:
            refuse(
                f"Cannot fuse {', '.join(self.loops)}: one of them sums over k and another does not.",
                note="the iterations of a fused loop are run by one thing; a sum must stay in one thread.",
                hint="fuse loops over m and n, or loops over k.",
            )
        fused = Loop(self.into, tuple(axis for loop in loops for axis in loop.axes))
        nest = (*program.loops[:at], fused, *program.loops[at + len(loops) :])
        return check_program(replace(program, loops=nest), f"Cannot fuse {', '.join(self.loops)}")

    def __repr__(self) -> str:
        return f"Fuse({', '.join(repr(n) for n in self.loops)}, into={self.into!r})"


@dataclass(frozen=True, repr=False, init=False)
class Reorder(_OfLoops):
    """for i: for j: body   ->   for j: for i: body

    The named loops take, in the order given, the places that they hold now; all others stay where they are.
    """

    def apply(self, program: Program) -> Program:
        for name in self.loops:
            find_loop(program, name)
        if len(set(self.loops)) != len(self.loops):
            refuse(f"Cannot reorder {', '.join(self.loops)}: a loop is named twice.", hint="name each loop once.")
        places = sorted(program.position(name) for name in self.loops)
        order = list(program.loops)
        for place, name in zip(places, self.loops, strict=True):
            order[place] = program.loop(name)
        return check_program(replace(program, loops=tuple(order)), f"Cannot reorder to {', '.join(self.loops)}")


MAX_THREADS_PER_BLOCK = 1024  # every compute capability; CUDA C++ Programming Guide, technical specifications


@dataclass(frozen=True, repr=False)
class Bind(Step):
    """for i in I: body   ->   body, once for each i, run by `level`

    A virtual thread stays inside the thread: its iterations are unrolled and its registers are strided over the tile.
    """

    loop: str
    level: Level

    positional = 2
    speaks_of = ("loop",)

    def apply(self, program: Program) -> Program:
        check_member(self.level, Level)
        loop = find_loop(program, self.loop)
        doing = f"Cannot bind loop {self.loop!r} to {self.level.value}"
        if self.level is Level.INSTRUCTION:
            refuse(
                f"{doing}: an instruction runs three loops together, one of each dimension.",
                hint="Tensorize(...) gives loops to a matrix instruction.",
            )
        if loop.level is not None:
            refuse(f"{doing}: it is bound to {loop.level.value}.", hint="bind a loop once.")
        holder = program.at_level(self.level)
        if holder is not None and self.level is not Level.VTHREAD:
            refuse(
                f"{doing}: loop {holder.name!r} is bound there.",
                hint=f"Fuse({holder.name!r}, {self.loop!r}, into=...) first, or use another level.",
            )
        if loop.is_reduction:
            refuse(
                f"{doing}: it sums over k, and its iterations would add to the same element of C at once.",
                hint="leave loops over k serial.",
            )
        _check_extent(loop, self.level, doing)
        _check_mix(program, self.level, doing)
        bound = program.with_loop(replace(loop, level=self.level))
        if bound.threads_per_block > MAX_THREADS_PER_BLOCK:
            refuse(
                f"{doing}: the block would have {bound.threads_per_block} threads, and a block has at most "
                f"{MAX_THREADS_PER_BLOCK}.",
                hint="split the loop smaller, or give each thread more results.",
            )
        return check_program(bound, doing)


def _check_extent(loop: Loop, level: Level, doing: str) -> None:
    if level.is_grid:
        return
    if loop.extent is None:
        dim = loop.axes[0].dim
        refuse(
            f"{doing}: its extent depends on the size of {dim}, and a block has a fixed number of threads.",
            hint=f"Split({loop.name!r}, 32, into=(...)) and bind the inner loop.",
        )
    if level is Level.LANE and loop.extent != WARP_LANES:
        refuse(
            f"{doing}: its extent is {loop.extent}, and a warp has {WARP_LANES} lanes.",
            hint=f"split or fuse so that the lanes are {WARP_LANES}.",
        )


def _check_mix(program: Program, level: Level, doing: str) -> None:
    """Warps and lanes are numbered along x: they share it with no block axis."""
    warps = {Level.WARP, Level.LANE}
    axes = {Level.BLOCK_X, Level.BLOCK_Y, Level.BLOCK_Z}
    others = axes if level in warps else warps if level in axes else set()
    clash = next((loop for loop in program.loops if loop.level in others), None)
    if clash is not None and clash.level is not None:
        refuse(
            f"{doing}: loop {clash.name!r} is bound to {clash.level.value}.",
            note="warps and lanes number the threads of a block by themselves.",
            hint="use warp and lane, or block.x, block.y and block.z, not both.",
        )


@dataclass(frozen=True, repr=False)
class Unroll(Step):
    """for i in 4: body   ->   body[0]; body[1]; body[2]; body[3]

    Loops that index registers are always unrolled; this asks for others, such as the inner loop over k. blocks: no more
    share an SM in any case, so the compiler may use up the registers of so many to load ahead; 0: it decides. Left
    alone, it may save registers for a block more and miss, with loads close before their use for nothing.
    """

    loop: str
    blocks: int = 0

    speaks_of = ("loop",)

    def apply(self, program: Program) -> Program:
        loop = find_loop(program, self.loop)
        if loop.level is not None:
            refuse(
                f"Cannot unroll loop {self.loop!r}: it is bound to {loop.level.value}.",
                hint="unroll loops that a thread runs itself.",
            )
        if loop.extent is None:
            refuse(
                f"Cannot unroll loop {self.loop!r}: its extent depends on the size of {loop.axes[0].dim}.",
                hint=f"Split({self.loop!r}, 8, into=(...)) and unroll the inner loop.",
            )
        check_count(self.blocks, 0, f"Cannot unroll loop {self.loop!r}", "the number of blocks of an SM")
        return program.with_loop(replace(loop, unroll=True, blocks=self.blocks))


@dataclass(frozen=True, repr=False, init=False)
class Snake(_OfLoops):
    """for i: for j in 0 .. n: body   ->   for i: for j forward on even i, backward on odd i: body

    The last multiply-add of one row and the first of the next then share an operand, which the register file's reuse
    cache can hold. The loops named run inside a thread, over m or n, and the loop around them counts their runs.
    """

    speaks_of = ("loops",)

    def apply(self, program: Program) -> Program:
        doing = f"Cannot make loop(s) {', '.join(map(str, self.loops))} serpentine"
        for name in self.loops:
            loop = find_loop(program, name)
            if loop.level not in (None, Level.VTHREAD) or loop.is_reduction or loop.extent is None:
                refuse(
                    f"{doing}: {name!r} is not a loop of known extent over m or n inside a thread.",
                    hint="reverse the innermost loops over registers.",
                )
            program = program.with_loop(replace(loop, turning=True))
        return check_program(program, doing)
