"""Partial sums of one tile of C added up in the kernel, in the order of k, so that results do not depend on timing.

    first part       partial = sums;  flag = k summed so far
    parts between    wait for flag;   partial = sums = partial + sums;  flag = k summed so far
    last part        wait for flag;   sums = partial + sums;  flag = 0;  the epilogue

A part waits for items with smaller numbers only, which blocks of a resident grid come to first. The flag is 0 again
when a launch ends, but where whole waves stand behind the items that add up. Partial sums lie in the workspace in the
order of the registers, thread beside thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from tilewright.dtypes import I32, I64
from tilewright.ir.async_stmt import SignalFlag, TeamBarrier, WaitFlag
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.kernel import PARTIAL_SUMS, SIZES, TILE_FLAGS
from tilewright.ir.program import GROUP_LANES, Program
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Move, Stmt
from tilewright.ir.work import Walk
from tilewright.lowering.coordinates import GROUP, GROUP_LANE, K_FIRST, linear_thread, size_of
from tilewright.lowering.scheduler import Scheduler
from tilewright.lowering.sums import Sums

CHUNK, ELEMENT = "chunk", "of_chunk"
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class OrderedSums:
    """The statements around the epilogue of a program whose items share out k."""

    program: Program
    sums: Sums

    @property
    def _groups(self) -> int:
        """Teams of a block that keep the sums of a tile: warpgroups that run by themselves, or the block."""
        if self.program.specialized is None:
            return 1
        count = 1
        for loop in self.program.thread_loops:
            count *= loop.extent or 1
        return count

    @property
    def _threads(self) -> int:
        """Threads of a team."""
        return self.program.threads_per_block if self.program.specialized is None else GROUP_LANES

    @property
    def _thread(self) -> Expr:
        return linear_thread(self.program) if self.program.specialized is None else Var(GROUP_LANE)

    def _meet(self) -> Stmt:
        if self.program.specialized is None:
            return Barrier("all of the block have come to the partial sums")
        return TeamBarrier(Var(GROUP) + 1, GROUP_LANES)

    @property
    def _team(self) -> Expr:
        """The number of the running team's part of the tile among all of the launch."""
        tile = Scheduler(self.program).tile_number
        groups = self._groups
        return tile * groups + Var(GROUP) % groups if groups > 1 else tile

    def around(self, finish: Body) -> Body:
        """`finish` where the running item is the last of its tile, behind what the items before have summed."""
        flag = Ref(Buffer(TILE_FLAGS, Space.GLOBAL, I32, ()), (self._team,))
        one = binary(Op.EQ, self._thread, 0)
        summed = K_FIRST + size_of(self.program, "k")
        wait: Body = (If(one, (WaitFlag(flag, K_FIRST),)), self._meet(), *self._each(self._add))
        keep: Body = (*self._each(self._put), self._meet(), If(one, (SignalFlag(flag, summed),)))
        last = binary(Op.LE, SIZES["k"], summed)
        reset: Body = (If(binary(Op.LAND, binary(Op.LT, 0, K_FIRST), one), (SignalFlag(flag, ZERO),)),)
        if self.program.walk is Walk.HYBRID:  # its flags are cleared before each launch: a release waits for stores
            reset = ()
        return (If(binary(Op.LT, 0, K_FIRST), wait), If(last, (*reset, *finish), keep))

    # -- the workspace ----------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return gcd(_VECTOR_BYTES // self.sums.buffer.dtype.bytes, self.sums.buffer.elements)

    def _each(self, one: Callable[[Ref, Ref], Body]) -> Body:
        """`one` for each vector of a thread's registers, from the first of them on, and its place in the workspace."""
        buffer, width = self.sums.buffer, self._width
        each = self._threads * buffer.elements
        base = Binary(Op.MUL, Cast(I64, self._team), Const(each, I64))
        place = Ref(
            Buffer(PARTIAL_SUMS, Space.GLOBAL, buffer.dtype, ()),
            (base, (Var(CHUNK) * self._threads + self._thread) * width),
        )
        value = Ref(Buffer("partial", Space.REGISTER, buffer.dtype, (width,)), (ZERO,))
        body: Body = (Alloc(value.buffer), *one(value, place))
        return (For(CHUNK, Const(buffer.elements // width), body, unroll=True),)

    def _add(self, value: Ref, place: Ref) -> Body:
        here = self._register()
        total = Binary(Op.ADD, Load(value.buffer, (Var(ELEMENT),)), Load(here.buffer, here.index))
        load = Move(value, place, self._width, origin=self.sums.name)
        return (load, self._over_vector(Assign(here, total, origin=self.sums.name)))

    def _put(self, value: Ref, place: Ref) -> Body:
        here = self._register()
        copy = Assign(Ref(value.buffer, (Var(ELEMENT),)), Load(here.buffer, here.index), origin=self.sums.name)
        return (self._over_vector(copy), Move(place, value, self._width, origin=self.sums.name))

    def _over_vector(self, stmt: Stmt) -> Stmt:
        return For(ELEMENT, Const(self._width), (stmt,), unroll=True)

    def _register(self) -> Ref:
        """The running element of the sums, by its number."""
        return Ref(self.sums.buffer, self.sums.packed(Var(CHUNK) * self._width, Var(ELEMENT), self._width))


def partial_elements(program: Program) -> int:
    """Elements of the workspace that a block needs for the partial sums of one tile."""
    return program.block_tile("m") * program.block_tile("n") * program.gemm.accumulators
