"""What tests of single operations of the units share: how a kernel ran, who told whom, tiles of wgmma by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulated_kernels import C, at, kernel, less, loop, registers, shared

from tilewright.dtypes import F16, F32, DType
from tilewright.ir.async_stmt import FenceProxy, SharedMatrix, Wgmma
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, Expr, Load, Ref, Var, as_expr
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, If, Move, Stmt
from tilewright.isa.catalog import instruction
from tilewright.layout.swizzle import NO_SWIZZLE
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Finding, Kind, Run, simulate
from tilewright.simulator.journal import Effect, Role
from tilewright.simulator.stepped import Actor

THREAD, BLOCK = Var("threadIdx.x"), Var("blockIdx.x")
LANE, WARP, GROUP = THREAD % 32, THREAD // 32, THREAD // 128
N, K = 16, 16
"""Columns and depth of a product; it has 64 rows a warpgroup."""
SUMS = 8
"""Registers of a lane that hold its part of the sum."""


def ran(broken: Kernel, gemm: Gemm, **options: Any) -> Run:
    return simulate(broken, make_operands(gemm), on_finding="collect", **options)


def only(run: Run) -> Finding:
    (found,) = run.errors
    return found


def told(run: Run) -> list[tuple[Kind, str]]:
    return [(one.kind, one.headline) for one in run.errors]


class Recorded:
    """The first actor that is ready takes each step; what the steps did is kept."""

    name = "first come"

    def __init__(self) -> None:
        self.effects: list[Effect] = []

    def choose(self, actors: Sequence[Actor], ready: Callable[[Actor], bool]) -> Actor | None:
        return next((actor for actor in actors if ready(actor)), None)

    def took(self, actor: Actor, effects: tuple[Effect, ...], started: Sequence[Actor]) -> None:
        self.effects += effects

    def of(self, role: Role, name: str) -> list[Effect]:
        return [one for one in self.effects if one.role is role and one.thing[0] == name]


# -- wgmma ------------------------------------------------------------------------------------------------------------

WGMMA, NARROW = (instruction(f"wgmma.m64n{n}k16", F16, F32) for n in (N, 8))


def piece(row: Expr, k: Expr | int) -> Expr:
    """The element of a tile without a swizzle: pieces of 8 x 8, along k first."""
    k = as_expr(k)
    return row // 8 * 128 + k // 8 * 64 + row % 8 * 8 + k % 8


def matrix(tile: Buffer, first: Expr | int, stride_bytes: int = 256) -> SharedMatrix:
    return SharedMatrix(at(tile, first), NO_SWIZZLE, False, leading_bytes=128, stride_bytes=stride_bytes)


def row_of(register: Expr) -> Expr:
    """The row of a warpgroup's tile of the sum that a lane holds. Source: PTX ISA 9.0, "Matrix Fragments of wgmma"."""
    return THREAD % 128 // 32 * 16 + register // 2 % 2 * 8 + LANE // 4


def column_of(register: Expr) -> Expr:
    return register // 4 * 8 + LANE % 4 * 2 + register % 2


class Tiles:
    """Two tiles in shared memory, filled from A and B, and the sum of each warpgroup. first: of the sum's registers."""

    def __init__(self, groups: int = 2, *, first: int = 0, spare: int = 0, dtype: DType = F16, blocks: int = 1) -> None:
        self.groups, self.first, self.blocks = groups, first, blocks
        self.a, self.b = shared("a", groups * 64 * K, dtype=dtype), shared("b", N * K, dtype=dtype)
        self.sums = registers("sums", first + SUMS + spare)
        self.gemm = Gemm(64 * groups * blocks, N, K, dtype=F16, out=F32)

    def multiply(self, **fields: Any) -> Wgmma:
        usual = {"d": at(self.sums, self.first), "a": matrix(self.a, GROUP * 64 * K), "b": matrix(self.b, 0)}
        return Wgmma(WGMMA, **(usual | {"fresh": as_expr(1)} | fields))

    def fill(self) -> Body:
        """Two threads a row of A, one a column of B; then the tiles are there for the units."""
        part, k, row = registers("part", dtype=self.a.dtype), Var("k"), THREAD // 2
        from_a, from_b = (Buffer(name, Space.GLOBAL, self.a.dtype, ()) for name in "AB")
        column = THREAD % 2 * 8 + k
        return (
            Alloc(part),
            loop(
                "k",
                8,
                Move(at(part), Ref(from_a, ((BLOCK * 64 * self.groups + row) * Var("lda") + column,))),
                Move(at(self.a, piece(row, column)), at(part)),
            ),
            If(
                less(THREAD, N),
                (
                    loop(
                        "k",
                        K,
                        Move(at(part), Ref(from_b, (k * Var("ldb") + THREAD,))),
                        Move(at(self.b, piece(THREAD, k)), at(part)),
                    ),
                ),
            ),
            FenceProxy(),
            Barrier("tiles are complete"),
        )

    def store(self, buffer: Buffer | None = None, first: int | None = None) -> Body:
        """The sum to C."""
        sums, register, out = buffer or self.sums, Var("register"), registers("out")
        held = Load(sums, ((self.first if first is None else first) + register,))
        place = (BLOCK * 64 * self.groups + GROUP * 64 + row_of(register)) * Var("ldc") + column_of(register)
        return (
            Alloc(out),
            loop("register", SUMS, Assign(at(out), held), Move(Ref(C, (place,)), at(out))),
        )

    def kernel(self, *body: Stmt, threads: int | None = None) -> Kernel:
        return kernel(
            body,
            grid=(as_expr(self.blocks), ONE, ONE),
            block=(threads or 128 * self.groups, 1, 1),
            shared_buffers=(self.a, self.b),
            gemm=self.gemm,
        )
