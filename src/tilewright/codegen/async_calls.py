"""Statements of the asynchronous units as calls: a node, a case, a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from tilewright.codegen.async_prelude import (
    TENSOR_MAP,
    flag_name,
    store_async_name,
    store_matrices_name,
    wait_guarded_name,
    wgmma_name,
)
from tilewright.codegen.expr import CudaExpr
from tilewright.codegen.lines import Line
from tilewright.ir import async_stmt
from tilewright.ir.async_stmt import SharedMatrix, Wgmma
from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO, Const, Expr, Ref
from tilewright.ir.guard import GUARD_FLAGS
from tilewright.ir.stmt import Body
from tilewright.ir.visit import walk
from tilewright.isa.wgmma import transposes

_UNIT_BYTES = 16
"""What a descriptor counts in. Source: PTX ISA 9.0, wgmma, matrix descriptor."""


def declared(body: Body, expr: CudaExpr) -> list[Line]:
    """The lines that find where each buffer begins that wgmma reads."""
    found = dict.fromkeys((one.place.buffer.name, one.leading_bytes) for one in _matrices(body))
    if found:
        expr.used.add("wgmma_descriptor_base")
    return [
        Line(1, f"const unsigned {name}_start = wgmma_descriptor_base<{leading}>({name});") for name, leading in found
    ]


def descriptor(matrix: SharedMatrix, expr: CudaExpr) -> str:
    """The descriptor of a tile, as a sum of what is known of its buffer, and an offset.

    From the end of a promotion to the first MMA of the next stage the tensor cores wait for a warpgroup. A descriptor
    made of an address there takes a chain of seven instructions on a thread's scalar registers, one of a sum two.
    """
    expr.used.add("wgmma_descriptor")
    numbers = f"{matrix.stride_bytes}, {matrix.swizzle.descriptor_code}"
    return f"wgmma_descriptor<{numbers}>({matrix.place.buffer.name}_start + {expr(offset_of(matrix))})"


def offset_of(matrix: SharedMatrix) -> Expr:
    """Of a tile from the start of its buffer, in units of a descriptor. Each index counts whole units."""
    buffer, offset = matrix.place.buffer, ZERO + ZERO
    for position, stride in zip(matrix.place.index, buffer.strides, strict=True):
        size_bytes = stride * buffer.dtype.bytes
        units, rest = divmod(size_bytes, _UNIT_BYTES)
        offset = offset + (position * units if not rest else position // (_UNIT_BYTES // size_bytes))
    return offset


def _matrices(body: Body) -> Iterable[SharedMatrix]:
    for _, stmt in walk(body):
        if isinstance(stmt, Wgmma):
            yield from (one for one in (stmt.a, stmt.b) if isinstance(one, SharedMatrix))


RAGGED_LINES = 1 << 30
"""Lines of the map of a ragged matrix: a box reaches its end where the group of the box ends.
Source: triton.tools.ragged_tma."""


def async_call(stmt: async_stmt.AsyncStmt, expr: CudaExpr, address: Callable[[Ref], str]) -> str:
    """The call that a statement prints. address: a place as a pointer."""
    call = expr.call
    match stmt:
        case async_stmt.InitBarrier():
            return call("mbarrier_init", address(stmt.place), str(stmt.arrivals))
        case async_stmt.FenceBarriers():
            return call("fence_mbarrier_init")
        case async_stmt.ExpectBytes():
            return call("mbarrier_arrive_expect_tx", address(stmt.place), str(stmt.size_bytes))
        case async_stmt.ArriveBarrier(rank=None):
            return call(
                "mbarrier_arrive_after_cp_async" if stmt.behind_copies else "mbarrier_arrive", address(stmt.place)
            )
        case async_stmt.ArriveBarrier():
            assert stmt.rank is not None
            return call("mbarrier_arrive_cluster", address(stmt.place), expr(stmt.rank))
        case async_stmt.SignalFlag():
            name = "add_to_flag" if stmt.adds else "signal_flag" if stmt.releases else "set_flag"
            return call(flag_name(name, stmt.scope), address(stmt.place), expr(stmt.value))
        case async_stmt.WaitFlag():
            name = "wait_count" if stmt.or_later else "wait_flag"
            return call(flag_name(name, stmt.scope), address(stmt.place), expr(stmt.value))
        case async_stmt.WaitBarrier():
            name = "mbarrier_wait_cluster" if stmt.of_cluster else "mbarrier_wait"
            return call(name, address(stmt.place), expr(stmt.parity))
        case async_stmt.StoreAsync():
            places = address(stmt.dst), address(stmt.src)
            return call(store_async_name(stmt.count), *places, expr(stmt.rank), address(stmt.signal))
        case async_stmt.TmaLoad():
            return _tma_load(stmt, expr, address)
        case async_stmt.TmaPrefetch() | async_stmt.BulkPrefetch() | async_stmt.L2Prefetch():
            return _prefetch(stmt, expr, address)
        case async_stmt.TmaStore():
            expr.used.add(TENSOR_MAP)
            name = tma_name(stmt.map, evict_first=stmt.evict_first, of="tma_store")
            return call(name, f"&{stmt.map.name}", *_box(stmt, expr), address(stmt.src))
        case async_stmt.PrefetchMap():
            expr.used.add(TENSOR_MAP)
            return call("prefetch_tensormap", f"&{stmt.map.name}")
        case async_stmt.CommitStores():
            return call("tma_store_commit_group")
        case async_stmt.WaitStores():
            name = "tma_store_wait_group" if stmt.written else "tma_store_wait_group_read"
            return _counted(expr, name, stmt.pending)
        case async_stmt.FenceProxy():
            return call("fence_proxy_async" if stmt.space is Space.SHARED else "fence_proxy_async_global")
        case async_stmt.ClusterBarrier():
            return call("cluster_sync")
        case async_stmt.TeamBarrier():
            return call("named_barrier_sync", expr(stmt.number), str(stmt.threads))
        case async_stmt.SetRegisters():
            return _counted(expr, "setmaxnreg_inc" if stmt.grow else "setmaxnreg_dec", stmt.count)
        case async_stmt.StartNextGrid():
            return call("griddep_launch_dependents")
        case async_stmt.WaitPreviousGrid(guard=None):
            return call("griddep_wait")
        case async_stmt.WaitPreviousGrid():
            assert stmt.guard is not None
            return f"if (!{call(wait_guarded_name(stmt.guard), *GUARD_FLAGS)}) return"
        case async_stmt.WgmmaFence():
            return call("wgmma_fence")
        case async_stmt.WgmmaCommit():
            return call("wgmma_commit_group")
        case async_stmt.WgmmaWait(sums=None):
            return _counted(expr, "wgmma_wait_group", stmt.pending)
        case async_stmt.WgmmaWait():
            assert stmt.sums is not None
            expr.used.add("wgmma_wait_group")
            count = stmt.sums.buffer.elements
            return f"wgmma_wait_group<{stmt.pending}, {count}>(&{expr.place(stmt.sums)})"
        case async_stmt.Wgmma():
            return _multiply(stmt, expr, address)
        case async_stmt.StoreMatrices():
            return call(store_matrices_name(stmt.count, stmt.transposed), address(stmt.dst), address(stmt.src))
        case _:
            assert_never(stmt)


def _counted(expr: CudaExpr, name: str, count: int) -> str:
    expr.used.add(name)
    return f"{name}<{count}>()"


def _tma_load(stmt: async_stmt.TmaLoad, expr: CudaExpr, address: Callable[[Ref], str]) -> str:
    expr.used.add(TENSOR_MAP)
    arguments = [address(stmt.dst), f"&{stmt.map.name}", *_box(stmt, expr), address(stmt.signal)]
    name = tma_name(stmt.map, multicast=stmt.mask is not None, evict_first=stmt.evict_first)
    return expr.call(name, *arguments, *(() if stmt.mask is None else (expr.bits(stmt.mask),)))


def _prefetch(
    stmt: async_stmt.TmaPrefetch | async_stmt.BulkPrefetch | async_stmt.L2Prefetch,
    expr: CudaExpr,
    address: Callable[[Ref], str],
) -> str:
    match stmt:
        case async_stmt.TmaPrefetch():
            expr.used.add(TENSOR_MAP)
            return expr.call(tma_name(stmt.map, of="tma_prefetch"), f"&{stmt.map.name}", *_box(stmt, expr))
        case async_stmt.BulkPrefetch():
            return expr.call("bulk_prefetch", address(stmt.place), str(stmt.size_bytes))
        case async_stmt.L2Prefetch():
            there = "true" if stmt.guard is None else expr(stmt.guard)
            return expr.call("prefetch_l2", address(stmt.place), there)


def _box(stmt: async_stmt.TmaLoad | async_stmt.TmaPrefetch | async_stmt.TmaStore, expr: CudaExpr) -> list[str]:
    """The coordinates of a box, from the contiguous dimension on."""
    if not stmt.map.ragged:
        return [expr(part) for part in stmt.at]
    along, across, first, lines = stmt.at
    return [expr(along), expr(Const(RAGGED_LINES) - lines + across), expr(first + lines), str(RAGGED_LINES)]


def tma_name(
    told: async_stmt.TensorMap, *, multicast: bool = False, evict_first: bool = False, of: str = "tma_load"
) -> str:
    """The function that copies a box, or asks for it, by the number of its coordinates."""
    base = f"{of}{'_multicast' * multicast}{'_evict_first' * evict_first}"
    return f"{base}_{told.rank}d" if told.rank > 2 else base


def _multiply(stmt: async_stmt.Wgmma, expr: CudaExpr, address: Callable[[Ref], str]) -> str:
    in_registers = isinstance(stmt.a, Ref)
    name = wgmma_name(stmt.instruction, a_in_registers=in_registers)
    expr.used.add(name)
    sides = [side for side in (stmt.a, stmt.b) if isinstance(side, async_stmt.SharedMatrix)]
    turned = ", ".join(str(int(side.turned)) for side in sides)
    transposed = f"<{turned}>" if transposes(stmt.instruction.product) else ""
    add = "1" if stmt.fresh is None else f"!({expr(stmt.fresh)})"
    a, b = (address(one) if isinstance(one, Ref) else descriptor(one, expr) for one in (stmt.a, stmt.b))
    return f"{name}{transposed}({address(stmt.d)}, {a}, {b}, {add})"
