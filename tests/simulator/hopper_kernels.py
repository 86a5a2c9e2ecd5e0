"""Kernels of Hopper's units by hand: a ring of boxes filled by one warpgroup and multiplied by another, and its ends.

Tiles of C are 64 x 64. A is row-major (its rows run along k), B is row-major (its rows run along n, so it is
transposed).
"""

from __future__ import annotations

from dataclasses import replace

from simulated_kernels import at, loop, registers, value

from tilewright.dtypes import BF16, F32, MBARRIER
from tilewright.ir.async_stmt import (
    ArriveBarrier,
    ClusterBarrier,
    CommitStores,
    ExpectBytes,
    FenceBarriers,
    FenceProxy,
    InitBarrier,
    SetRegisters,
    SharedMatrix,
    StoreMatrices,
    TeamBarrier,
    TensorMap,
    TmaLoad,
    TmaStore,
    WaitBarrier,
    WaitStores,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, Cast, Const, Expr, Op, Var, as_expr, binary, ceil_div, real
from tilewright.ir.kernel import Kernel, Variant
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, If, Let, Stmt
from tilewright.isa.catalog import instruction
from tilewright.layout.swizzle import SWIZZLE_128B
from tilewright.problem import Gemm
from tilewright.problem.gemm import Dim

SIDE = 64
"""Rows, columns and depth of a tile: 128 bytes of bf16."""

WGMMA = instruction("wgmma.m64n64k16", BF16, F32)
THREAD, GROUP, STEP, TURN, SLOT = (Var(name) for name in ("threadIdx.x", "group", "step", "turn", "slot"))
BLOCK, RANK, TILE = Var("blockIdx.x"), Var("rank"), Var("tile")
K_TILES = ceil_div(Var("K"), SIDE)


def _shared(name: str, *shape: int) -> Buffer:
    return Buffer(name, Space.SHARED, BF16, shape, align_bytes=1024)


def _first(*body: Stmt) -> If:
    """One thread of a warpgroup."""
    return If(binary(Op.EQ, THREAD % 128, 0), body)


def _matrix(tile: Buffer, row: Expr | int, column: Expr | int, *, turned: bool) -> SharedMatrix:
    return SharedMatrix(at(tile, SLOT, row, column), SWIZZLE_128B, turned, leading_bytes=8192, stride_bytes=1024)


class Ring:
    """The parts of the kernel. stages: of the ring. cluster: blocks along m that share B."""

    def __init__(self, stages: int, cluster: int) -> None:
        self.cluster, self.stages = cluster, stages
        self.a, self.b = _shared("A_tile", stages, SIDE, SIDE), _shared("B_tile", stages, SIDE, SIDE)
        self.c_tile = _shared("C_tile", SIDE, SIDE)
        self.full, self.empty = (Buffer(name, Space.SHARED, MBARRIER, (stages,)) for name in ("full", "empty"))
        self.maps = (
            TensorMap("A_map", "A", (SIDE, SIDE), SWIZZLE_128B),
            TensorMap("B_map", "B", (SIDE, SIDE // cluster), SWIZZLE_128B),
            TensorMap("C_map", "C", (SIDE, SIDE), SWIZZLE_128B),
        )
        self.sums, self.out = registers("sums", 32), registers("out", 8, dtype=BF16)

    @property
    def shared(self) -> tuple[Buffer, ...]:
        return self.a, self.b, self.c_tile, self.full, self.empty

    def start(self) -> Body:
        slot = Var("made")
        made = loop(
            "made", self.stages, InitBarrier(at(self.full, slot), 1), InitBarrier(at(self.empty, slot), self.cluster)
        )
        meet: Stmt = ClusterBarrier() if self.cluster > 1 else Barrier()
        return (
            Let("group", THREAD // 128, uniform=True),
            Let("rank", BLOCK % self.cluster),
            If(binary(Op.EQ, THREAD, 0), (made, FenceBarriers())),
            meet,
        )

    def _use(self) -> Body:
        """Names the running use of the ring."""
        return (
            Let("use", TURN * K_TILES + STEP),
            Let("slot", Var("use") % self.stages),
            Let("parity", Var("use") // self.stages % 2),
        )

    def fill(self) -> Body:
        a_map, b_map, _ = self.maps
        share = SIDE // self.cluster
        mask = Const((1 << self.cluster) - 1) if self.cluster > 1 else None
        signal = at(self.full, SLOT)
        return (
            *self._use(),
            WaitBarrier(at(self.empty, SLOT), Var("parity") ^ 1),
            ExpectBytes(signal, 2 * SIDE * SIDE * 2),
            TmaLoad(at(self.a, SLOT, 0, 0), a_map, (STEP * SIDE, TILE * SIDE), signal),
            TmaLoad(
                at(self.b, SLOT, RANK * share, 0),
                b_map,
                (Var("blockIdx.y") * SIDE, STEP * SIDE + RANK * share),
                signal,
                mask,
            ),
        )

    def multiply(self) -> Body:
        part = Var("part")
        a, b = _matrix(self.a, 0, part * 16, turned=False), _matrix(self.b, part * 16, 0, turned=True)
        fresh = binary(Op.EQ, STEP + part, 0)
        back: Stmt = _first(ArriveBarrier(at(self.empty, SLOT)))
        if self.cluster > 1:
            told = ArriveBarrier(at(self.empty, SLOT), THREAD % 128)
            back = If(binary(Op.LT, THREAD % 128, self.cluster), (told,))
        return (
            *self._use(),
            WaitBarrier(at(self.full, SLOT), Var("parity")),
            WgmmaFence(),
            loop("part", SIDE // 16, Wgmma(WGMMA, at(self.sums), a, b, fresh), unroll=True),
            WgmmaCommit(),
            WgmmaWait(0),
            back,
        )

    def store(self) -> Body:
        part, element, lane = Var("columns"), Var("element"), THREAD % 32
        row = THREAD % 128 // 32 * 16 + lane // 8 % 2 * 8 + lane % 8
        chunk = part * 2 + lane // 16
        column = binary(Op.XOR, chunk, row % 8) * 8
        finish = Assign(
            at(self.out, element), Cast(BF16, binary(Op.MUL, Var("alpha", F32), value(self.sums, part * 8 + element)))
        )
        return (
            _first(WaitStores(0)),
            TeamBarrier(as_expr(1), 128),
            Alloc(self.out),
            loop(
                "columns",
                4,
                loop("element", 8, finish, unroll=True),
                StoreMatrices(at(self.c_tile, row, column), at(self.out), 4),
                unroll=True,
            ),
            FenceProxy(),
            TeamBarrier(as_expr(1), 128),
            _first(
                TmaStore(self.maps[2], (Var("blockIdx.y") * SIDE, TILE * SIDE), at(self.c_tile, 0, 0)), CommitStores()
            ),
        )


def ring(*, stages: int = 2, cluster: int = 1) -> Kernel:
    """The kernel. Blocks are resident: each computes several tiles along m."""
    parts = Ring(stages, cluster)
    tiles = ceil_div(ceil_div(Var("M"), SIDE), cluster) * cluster
    turns = (tiles - BLOCK + Var("gridDim.x") - 1) // Var("gridDim.x")
    tile = Let("tile", BLOCK + TURN * Var("gridDim.x"))
    producer = loop("turn", turns, tile, loop("step", K_TILES, *parts.fill()))
    consumer = loop("turn", turns, tile, loop("step", K_TILES, *parts.multiply()), *parts.store())
    body: Body = (
        *parts.start(),
        If(
            binary(Op.EQ, GROUP, 1),
            (SetRegisters(24, grow=False), _first(producer)),
            (SetRegisters(240, grow=True), Alloc(parts.sums), consumer, _first(WaitStores(0))),
        ),
        *((ClusterBarrier(),) if cluster > 1 else ()),
    )
    gemm = Gemm(1, 1, 1, dtype=BF16, out=BF16)
    sides: dict[Dim, int] = {"m": SIDE, "n": SIDE, "k": SIDE}
    grid = (tiles, ceil_div(Var("N"), SIDE), ONE)
    kernel = Kernel("ring", gemm, Variant(), grid, (256, 1, 1), parts.shared, body, sides)
    return replace(kernel, cluster=cluster, resident=True)


def zeroed(sums: Buffer) -> Stmt:
    return loop("zero", sums.elements, Assign(at(sums, Var("zero")), real(0)), unroll=True)
