"""Vectors that an epilogue reads, in shared memory before the sum of the tile is complete.

    spare warps of the producer   wait until the epilogue of the tile before has read; rows and columns of the running
                                  tile -> shared memory; arrive
    consumers                     ... MMAs ...; wait; the epilogue, which reads shared memory; arrive

A row or column vector read from global memory in the epilogue is a latency of memory behind the loop over k. Here the
loads run beside the MMAs. Warpgroups in ping-pong have a copy each. Where shared memory has no room beside the ring,
the epilogue reads global memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import MBARRIER, DType
from tilewright.ir.async_stmt import ArriveBarrier, InitBarrier, WaitBarrier
from tilewright.ir.buffer import Buffer, Handoff, Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Ref, Var, binary
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Program
from tilewright.ir.stmt import Alloc, Body, For, If, Move
from tilewright.ir.tiles import tile_of
from tilewright.ir.visit import substitute
from tilewright.ir.work import SplitK, Walk
from tilewright.lowering.coordinates import GROUP, GROUP_LANE, ROUND, TURN, digit_sum, origin_of, tile_digits
from tilewright.lowering.groups import TABLE
from tilewright.lowering.kernel_parts import global_place, value_buffer
from tilewright.lowering.spare_warps import Team
from tilewright.problem.values import Added
from tilewright.units import ceil_div

_STEP = "vector_step"

_SHARED_BYTES_PER_SM = 233_472
_BESIDE_TILES_BYTES = 2048
"""What the system takes of a block's shared memory, and more than the mbarriers of any ring."""


@dataclass(frozen=True)
class EpilogueVectors:
    """The vectors of a program's epilogue that pass through shared memory; none where there is no room."""

    program: Program
    vectors: tuple[Added, ...]

    @property
    def _slots(self) -> int:
        """Tiles of C whose vectors are held: one for each warpgroup in ping-pong."""
        return 1 if self.program.specialized is None else self.program.specialized.ping_pong

    def dtype(self, operand: Added) -> DType:
        """Of a vector's elements."""
        return operand.dtype or self.program.gemm.out

    def _buffer(self, operand: Added) -> Buffer:
        assert operand.along is not None
        shape = (self._slots, self.program.block_tile(operand.along))
        return Buffer(
            f"{operand.name}_vector",
            Space.SHARED,
            self.dtype(operand),
            shape,
            ("slot", f"{operand.along}_in_tile"),
            note="read by the epilogue",
            handoff=Handoff.MBARRIERS,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return sum(self._buffer(operand).size_bytes for operand in self.vectors)

    # -- barriers ---------------------------------------------------------------------------------------------------

    def _barrier(self, name: str, slot: Expr) -> Ref:
        return Ref(Buffer(f"vectors_{name}", Space.SHARED, MBARRIER, (self._slots,), ("slot",)), (slot,))

    @property
    def _is_reused(self) -> bool:
        """Whether a block has another tile of C behind its first."""
        return self.program.walk is not Walk.ONE_TILE

    def barriers(self, team: Team, consumers: int) -> Body:
        """Made by one thread. consumers: warpgroups that share a tile of C."""
        if not self.vectors:
            return ()
        slot = Var("slot")
        made: Body = (InitBarrier(self._barrier("full", slot), team.threads),)
        if self._is_reused:
            arrivals = consumers * GROUP_LANES // WARP_LANES
            made = (*made, InitBarrier(self._barrier("empty", slot), arrivals))
        return (For(slot.name, Const(self._slots), made, unroll=True),)

    # -- spare warps ------------------------------------------------------------------------------------------------

    def copy(self, team: Team, number: Expr) -> Body:
        """The vectors of a tile of C, by all threads of a team. number: of the block's tiles before."""
        slot = binary(Op.MOD, number, self._slots)
        parity = binary(Op.MOD, binary(Op.DIV, number, self._slots), 2)
        wait: Body = (WaitBarrier(self._barrier("empty", slot), parity ^ 1),) if self._is_reused else ()
        copies = (stmt for operand in self.vectors for stmt in self._copy(team, operand, slot))
        return (*wait, *copies, ArriveBarrier(self._barrier("full", slot)))

    def _copy(self, team: Team, operand: Added, slot: Expr) -> Body:
        assert operand.along is not None
        buffer, dim = self._buffer(operand), operand.along
        count = self.program.block_tile(dim)
        steps = ceil_div(count, team.threads)
        value = value_buffer(operand.name, self.dtype(operand), steps)
        at = team.thread + Var(_STEP) * team.threads
        exists = binary(Op.LT, at, count) if count % team.threads else None
        here = digit_sum(tile_digits(self.program, dim)) + at
        place = (here, ZERO) if dim == "m" else (ZERO, here)
        source = global_place(self.program, operand.name, *place)
        held = Ref(value, (Var(_STEP),))
        load = Move(held, source, 1, exists, origin="C")
        store = Move(Ref(buffer, (slot, at)), held, 1, exists, origin="C")
        loops = (For(_STEP, Const(steps), (move,), unroll=True) for move in (load, store))
        return (Alloc(value), *loops)

    # -- consumers --------------------------------------------------------------------------------------------------

    def around(self, finish: Body) -> Body:
        """The epilogue of a tile of C, behind the arrival of its vectors."""
        if not self.vectors:
            return finish
        slot: Expr = Var(GROUP) if self._slots > 1 else ZERO
        number: Expr = ZERO
        if self._is_reused:
            number = binary(Op.MOD, Var(ROUND if self._slots > 1 else TURN), 2)
        wait = WaitBarrier(self._barrier("full", slot), number)
        if not self._is_reused:
            return (wait, *finish)
        first = binary(Op.EQ, Var(GROUP_LANE) % WARP_LANES, 0)
        return (wait, *finish, If(first, (ArriveBarrier(self._barrier("empty", slot)),)))

    def place(self, operand: Added, place: Ref, element: Expr) -> Ref:
        """The element of a vector in shared memory that belongs to an element of C, or to one further along its
        contiguous dimension."""
        assert operand.along is not None
        c = self.program.gemm.operand("C")
        index = place.index[c.dims.index(operand.along)]
        if c.contiguous == operand.along:
            index = index + element
        begins = {axis.name: ZERO for axis in tile_digits(self.program, operand.along)}
        origin = origin_of(self.program, operand.along)
        begins |= {origin.name: ZERO} if isinstance(origin, Var) else {}
        slot: Expr = Var(GROUP) if self._slots > 1 else ZERO
        return Ref(self._buffer(operand), (slot, substitute(index, begins)))


def vectors_of(program: Program, reads: tuple[Added, ...]) -> tuple[Added, ...]:
    """The vectors among the operands of an epilogue that pass through shared memory, all or none."""
    found = tuple(operand for operand in reads if operand.is_vector and not operand.single)
    if program.specialized is None or program.split_k is SplitK.CLUSTER or not found:
        return ()
    tiles = (tile_of(program, staged) for staged in program.staged if staged.space is Space.SHARED)
    used = _BESIDE_TILES_BYTES + sum(buffer.size_bytes for buffer in {tile.shared_buffer for tile in tiles})
    used += TABLE.size_bytes * (program.problems.along_m)
    blocks = max(_SHARED_BYTES_PER_SM // used, 1)
    wanted = used + EpilogueVectors(program, found).size_bytes
    return found if blocks * wanted <= _SHARED_BYTES_PER_SM else ()
