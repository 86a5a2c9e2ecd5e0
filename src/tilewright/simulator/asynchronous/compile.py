"""From the statements of the units to operations, and to instructions where a warp may have to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.ir import async_stmt
from tilewright.ir.expr import Expr, Ref
from tilewright.isa.wgmma import numbered_by_ptx
from tilewright.simulator.asynchronous.barrier_ops import ArriveOp, FenceBarriersOp, InitOp, WaitBarrierStep
from tilewright.simulator.asynchronous.bulk_ops import CommitStoresOp, StoreAsyncOp, TmaLoadOp, TmaStoreOp, WaitStoresOp
from tilewright.simulator.asynchronous.descriptor import Reader, tile_offsets
from tilewright.simulator.asynchronous.flag_ops import SignalFlagOp, WaitFlagStep
from tilewright.simulator.asynchronous.lanes import SharedPlace
from tilewright.simulator.asynchronous.meeting_ops import (
    ClusterBarrierStep,
    FenceProxyOp,
    PassOp,
    SetRegistersOp,
    TeamBarrierStep,
    WaitPreviousOp,
)
from tilewright.simulator.asynchronous.product_ops import (
    Held,
    Side,
    WgmmaCommitOp,
    WgmmaFenceOp,
    WgmmaStep,
    WgmmaWaitStep,
)
from tilewright.simulator.context import Context
from tilewright.simulator.control import Instruction
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Site
from tilewright.simulator.index import Place
from tilewright.simulator.values import Values

WAITING = (
    *(async_stmt.WaitBarrier, async_stmt.WaitFlag, async_stmt.TeamBarrier, async_stmt.ClusterBarrier),
    *(async_stmt.Wgmma, async_stmt.WgmmaWait),
)
"""Statements at which warps part; a product is one, since all lanes of a warpgroup start it."""

TELLING = (async_stmt.ArriveBarrier, async_stmt.ExpectBytes, async_stmt.SignalFlag, async_stmt.StoreAsync)
"""Statements for which others may be waiting."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles one statement. values: the expressions of its scope."""

    values: Values

    @property
    def here(self) -> tuple[Site, Context]:
        return self.values.site, self.values.context

    def place(self, expr: Expr) -> Place:
        return self.values.place(expr)

    def shared(self, ref: Ref) -> SharedPlace:
        return SharedPlace(ref.buffer, self.place(ref.flat))

    def instruction(self, stmt: async_stmt.AsyncStmt) -> Instruction:
        """The instruction of a statement in `WAITING`."""
        here = self.here
        match stmt:
            case async_stmt.WaitBarrier():
                return WaitBarrierStep(*here, self.shared(stmt.place), self.place(stmt.parity), stmt.of_cluster)
            case async_stmt.WaitFlag():
                return WaitFlagStep(*self._flag(stmt), stmt.or_later)
            case async_stmt.TeamBarrier():
                return TeamBarrierStep(*here, self.place(stmt.number), stmt.threads)
            case async_stmt.ClusterBarrier():
                return ClusterBarrierStep(*here)
            case async_stmt.Wgmma():
                return self._multiply(stmt)
            case async_stmt.WgmmaWait():
                return WgmmaWaitStep(*here, stmt.pending)
            case _:
                raise AssertionError(f"{type(stmt).__name__} never waits")

    def operation(self, stmt: async_stmt.AsyncStmt) -> Callable[[Convoy], None]:
        """The operation of any other statement."""
        here: tuple[Any, Any] = self.here
        match stmt:
            case async_stmt.InitBarrier():
                return InitOp(*here, self.shared(stmt.place), stmt.arrivals)
            case async_stmt.FenceBarriers():
                return FenceBarriersOp(*here)
            case async_stmt.ExpectBytes():
                return ArriveOp(*here, self.shared(stmt.place), size_bytes=stmt.size_bytes)
            case async_stmt.ArriveBarrier():
                rank = None if stmt.rank is None else self.place(stmt.rank)
                return ArriveOp(*here, self.shared(stmt.place), rank, behind_copies=stmt.behind_copies)
            case async_stmt.StoreAsync():
                source = self.values.run(stmt.src, stmt.count)
                target, rank = self.shared(stmt.dst), self.place(stmt.rank)
                return StoreAsyncOp(*here, self.shared(stmt.signal), target, source, stmt.count, rank)
            case async_stmt.TmaLoad():
                mask = None if stmt.mask is None else self.place(stmt.mask)
                return TmaLoadOp(
                    *here, self.shared(stmt.signal), stmt.map, self._at(stmt.at), self.shared(stmt.dst), mask
                )
            case async_stmt.TmaStore():
                return TmaStoreOp(*here, stmt.map, self._at(stmt.at), self.shared(stmt.src))
            case async_stmt.SignalFlag():
                return SignalFlagOp(*self._flag(stmt), stmt.releases, stmt.adds)
            case async_stmt.CommitStores():
                return CommitStoresOp(*here)
            case async_stmt.WaitStores():
                return WaitStoresOp(*here, stmt.pending)
            case async_stmt.FenceProxy():
                return FenceProxyOp(*here, stmt.space)
            case async_stmt.SetRegisters():
                return SetRegistersOp(*here, stmt.count, stmt.grow)
            case async_stmt.WgmmaFence():
                return WgmmaFenceOp(*here)
            case async_stmt.WgmmaCommit():
                return WgmmaCommitOp(*here)
            case async_stmt.WaitPreviousGrid():
                return WaitPreviousOp(*here)
            case (
                async_stmt.PrefetchMap()
                | async_stmt.StartNextGrid()
                | async_stmt.TmaPrefetch()
                | async_stmt.BulkPrefetch()
                | async_stmt.L2Prefetch()
            ):
                return PassOp(*here)
            case _:
                raise AssertionError(f"{type(stmt).__name__} is not an operation of a unit")

    def _flag(
        self, stmt: async_stmt.SignalFlag | async_stmt.WaitFlag
    ) -> tuple[Site, Context, str, Place, Place, async_stmt.Scope]:
        flag, value = self.place(stmt.place.flat), self.place(stmt.value)
        return *self.here, stmt.place.buffer.name, flag, value, stmt.scope

    def _at(self, at: tuple[Expr, ...]) -> tuple[Place, ...]:
        return tuple(self.place(part) for part in at)

    def _multiply(self, stmt: async_stmt.Wgmma) -> WgmmaStep:
        instruction = numbered_by_ptx(stmt.instruction)
        sums = self.values.run(stmt.d, instruction.c.registers)
        fresh = None if stmt.fresh is None else self.values.condition(stmt.fresh)
        if isinstance(stmt.a, Ref):
            assert instruction.left is not None
            run = self.values.run(stmt.a, instruction.left.registers)
            a: Side | Held = Held(run.array, run.base, instruction.left)
        else:
            a = self._side(stmt.a, instruction.m, stmt)
        b = self._side(stmt.b, instruction.n, stmt)
        return WgmmaStep(*self.here, instruction, sums.array, sums.base, a, b, fresh)

    def _side(self, matrix: async_stmt.SharedMatrix, rows: int, stmt: async_stmt.Wgmma) -> Side:
        memory, buffer = self.values.context.memory, matrix.place.buffer
        itemsize = stmt.instruction.product.bytes
        offsets = tile_offsets(matrix, rows, stmt.instruction.k, itemsize)
        place = self.place(matrix.place.flat)
        return Side(
            place, memory.base_of(buffer.name), buffer.dtype.bytes, Reader(matrix, offsets, itemsize, memory), rows
        )
