"""Sums of one tile of C added up by the blocks of a cluster, which share out its k, through distributed shared memory.

    each block     stores slice i of its sums in shared memory of block i (st.async), i = 0, 1, ...
                   waits until the bytes of all blocks are there
                   owned = part of block 0 + part of block 1 + ...;  the epilogue of the slice that it owns

The order is that of the ranks, which is the order of k: bits do not depend on timing. A slice is as many registers of
every thread, so that a thread gets what the same thread of each block held, in whole vectors and without bank
conflicts. No block reads or writes another's shared memory behind its own wait, so that blocks end without a meeting.
What other blocks may not touch before it is there, the barrier, is made before the cluster meets at the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tilewright.dtypes import F32, MBARRIER
from tilewright.errors import LoweringError
from tilewright.ir.accumulators import accumulator_of
from tilewright.ir.async_stmt import ClusterBarrier, ExpectBytes, FenceBarriers, InitBarrier, StoreAsync, WaitBarrier
from tilewright.ir.buffer import Buffer, Handoff, Space
from tilewright.ir.clusters import cluster_size, neighbours
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.program import GROUP_LANES, Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Move
from tilewright.ir.tiles import fragment_of, quad_shuffle_axis
from tilewright.ir.work import Problems, SplitK, Walk
from tilewright.lowering.coordinates import GROUP, GROUP_LANE, RANK, linear_thread
from tilewright.lowering.epilogue import Epilogue
from tilewright.lowering.sums import Sums

_BLOCK, _CHUNK, _ELEMENT = Var("block_of_cluster"), Var("chunk"), Var("of_chunk")
_WIDEST = 4
"""Elements that one st.async stores. Source: PTX ISA 9.0, st.async."""


@dataclass(frozen=True)
class ClusterSums:
    """The statements around the epilogue of a program whose clusters share out k."""

    program: Program
    sums: Sums

    @property
    def _blocks(self) -> int:
        return cluster_size(self.program)

    @property
    def _accumulators(self) -> int:
        return self.sums.accumulator.count

    @property
    def _held(self) -> int:
        """Registers of a thread for one accumulator."""
        return self.sums.buffer.elements // self._accumulators

    @property
    def _slice(self) -> int:
        """Registers of an accumulator of a thread that one block of the cluster owns."""
        return self._held // self._blocks

    @property
    def _width(self) -> int:
        return gcd(self._slice, _WIDEST)

    @property
    def _chunks(self) -> int:
        """Vectors of a thread that one block owns, of one accumulator after the other."""
        return self._accumulators * (self._slice // self._width)

    @property
    def _threads(self) -> int:
        """That keep sums: those of the warpgroups that multiply, or all of the block."""
        if self.program.specialized is None:
            return self.program.threads_per_block
        return GROUP_LANES * prod(loop.extent or 1 for loop in self.program.thread_loops)

    @property
    def _thread(self) -> Expr:
        if self.program.specialized is None:
            return linear_thread(self.program)
        return Var(GROUP) * GROUP_LANES + Var(GROUP_LANE)

    @property
    def _parts(self) -> Buffer:
        """What each block of the cluster sends of the slice that this block owns."""
        return Buffer(
            "cluster_sums",
            Space.SHARED,
            F32,
            (self._blocks, self._chunks, self._threads, self._width),
            ("block of the cluster", "chunk", "thread", "element"),
            note="sums of this block's slice",
            handoff=Handoff.MBARRIERS,
        )

    @property
    def _complete(self) -> Ref:
        """The barrier that says that all parts are there."""
        return Ref(Buffer("cluster_sums_full", Space.SHARED, MBARRIER, (1,), ("",)), (ZERO,))

    @property
    def barriers(self) -> Body:
        """Made by one thread, which tells at once how many bytes will come."""
        return InitBarrier(self._complete, 1), ExpectBytes(self._complete, self._parts.size_bytes)

    def begin(self) -> Body:
        """One thread of a block without roles makes the barriers, and all of the cluster see them."""
        first = If(binary(Op.EQ, self._thread, 0), (*self.barriers, FenceBarriers()))
        return first, ClusterBarrier()

    def around(self, epilogue: Epilogue) -> Body:
        """The exchange of the sums, and the epilogue of the slice that the running block owns."""
        wait = WaitBarrier(self._complete, ZERO, of_cluster=True)
        owned = Buffer("owned_sums", Space.REGISTER, F32, (self._accumulators * self._slice,))
        store = epilogue.finish_owned(self.sums, owned, Var(RANK) * self._slice)
        return (*epilogue.empty_sum(self.sums), self._send(), wait, Alloc(owned), *self._add(owned), *store)

    @property
    def _part(self) -> Buffer:
        """A vector on its way."""
        return Buffer("part", Space.REGISTER, F32, (self._width,))

    def _place(self, block: Expr, element: Expr = ZERO) -> Ref:
        """The running chunk of the running thread among the parts of the slice. block: that has summed them."""
        return Ref(self._parts, (block, _CHUNK, self._thread, element))

    def _send(self) -> For:
        """The slices of the running block's sums to their owners."""
        number = _BLOCK * self._slice + _CHUNK * self._width
        if self._accumulators > 1:
            each = self._slice // self._width
            number = _CHUNK // each * self._held + _BLOCK * self._slice + _CHUNK % each * self._width
        source = Ref(self.sums.buffer, self.sums.numbered(number))
        pack: Body = ()
        if self.sums.fragment is None:
            value, element = self._part, self.sums.packed(number, _ELEMENT, self._width)
            copy = Assign(Ref(value, (_ELEMENT,)), Load(self.sums.buffer, element), origin=self.sums.name)
            source, pack = Ref(value, (ZERO,)), (Alloc(value), self._over(_ELEMENT, self._width, (copy,)))
        store = StoreAsync(self._place(Var(RANK)), source, self._width, _BLOCK, self._complete, origin=self.sums.name)
        return self._over(_BLOCK, self._blocks, (self._over(_CHUNK, self._chunks, (*pack, store)),))

    def _add(self, owned: Buffer) -> Body:
        """The parts of the slice, added up in the order of the blocks."""
        part = self._part
        here = Ref(owned, (_CHUNK * self._width + self.sums.in_vector(_ELEMENT, self._width),))
        value = Load(part, (_ELEMENT,))
        name = self.sums.name

        def each(block: Expr, total: Expr) -> Body:
            load = Move(Ref(part, (ZERO,)), self._place(block), self._width, origin=name)
            return (load, self._over(_ELEMENT, self._width, (Assign(here, total, origin=name),)))

        rest = self._over(_BLOCK, self._blocks - 1, each(_BLOCK + 1, Binary(Op.ADD, Load(owned, here.index), value)))
        return (self._over(_CHUNK, self._chunks, (Alloc(part), *each(ZERO, value), rest)),)

    @staticmethod
    def _over(name: Var, count: int, body: Body) -> For:
        return For(name.name, Const(count), body, unroll=True)


def check_cluster_sums(program: Program) -> None:
    """Raise LoweringError where the blocks of a cluster share out k, and cannot add up."""
    blocks = neighbours(program, "k")
    if blocks == 1:
        return
    if program.split_k is not SplitK.CLUSTER or program.problems not in (Problems.ONE, Problems.STRIDED):
        raise LoweringError(
            f"The {blocks} blocks of a cluster share out k, and so do work items, or groups along k.",
            note="there is one way to add up the sums of a tile.",
            hint="leave out SplitK or the groups, or make no cluster along a loop over k.",
        )
    if program.walk is not Walk.ONE_TILE or (program.specialized is not None and program.specialized.ping_pong > 1):
        raise LoweringError(
            f"The {blocks} blocks of a cluster share out k in a kernel of one tile per block only.",
            note="a place for sums of other blocks is filled once.",
            hint="leave out Persist() and ping_pong.",
        )
    if blocks != cluster_size(program):
        raise LoweringError(
            f"A cluster of {cluster_size(program)} blocks cannot share out k and have several tiles of C.",
            note="a multicast load is for all blocks of a cluster that read the same range of k.",
            hint="use Cluster for the loop over k only.",
        )
    _check_owned(program, blocks)


def _check_owned(program: Program, blocks: int) -> None:
    """The sums of a thread are equal slices, which each block finishes and stores from registers."""
    kept = accumulator_of(program)
    if kept.space is not Space.REGISTER or kept.result_dtype is not F32 or not program.late_beta:
        raise LoweringError(
            f"The {blocks} blocks of a cluster add up sums in f32, which begin with zero, in registers.",
            hint="Accumulate(over=...) and Epilogue().",
        )
    if any(staged.operand == "C" for staged in program.staged) or quad_shuffle_axis(program) is not None:
        raise LoweringError(
            f"The {blocks} blocks of a cluster store slices of a tile of C from registers, each its own.",
            hint='leave Stage("C", ...) out, and use Vectorize("C", 2) with mma.sync.',
        )
    fragment = fragment_of(program, "C")
    if program.specialized is None and program.uses_tma:
        raise LoweringError(
            f"The {blocks} blocks of a cluster that share out k load by TMA with a warpgroup of its own only.",
            hint="Specialize(...), or copies through registers or cp.async.",
        )
    held = (1 if fragment is None else fragment.registers) * prod(axis.extent or 1 for axis in program.sum_axes)
    if held % blocks:
        raise LoweringError(
            f"A thread has {held} sums, which {blocks} blocks cannot share equally.",
            hint="use a smaller cluster along k, or a larger tile.",
        )
    folds = [added.name for added in program.gemm.epilogue.written if added.fold is not None]
    if folds and gcd(Sums(program, kept).side_by_side, held // blocks) != program.result_vector:
        raise LoweringError(
            f"The {blocks} blocks of a cluster cut neighbours apart that {folds[0]!r} folds.",
            note=f"a thread of each block has {held // blocks} of {held} sums.",
            hint="use a smaller cluster along k.",
        )
