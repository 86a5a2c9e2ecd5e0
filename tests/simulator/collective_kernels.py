"""Kernels of one block around an instruction of a whole warp: A into shared memory, the instruction, registers to C."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simulated_kernels import A, C, at, kernel, loop, registers, shared, value

from tilewright.dtypes import F16, F32, Array, DType
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Expr, Ref, Var
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, Move, Stmt
from tilewright.problem import Gemm, make_operands
from tilewright.problem.reference import Operands

THREAD = Var("threadIdx.x")
LANE, WARP = THREAD % 32, THREAD // 32


def problem(elements: int, dtype: DType) -> Gemm:
    """A holds `elements` elements in a row of memory, C twice as many as 16 registers of a warp."""
    return Gemm(elements, 16, 1, dtype=dtype)


def operands_with(gemm: Gemm, values: Array) -> Operands:
    stored = gemm.dtype.encode(np.asarray(values, np.float32).reshape(-1))
    return replace(make_operands(gemm), a=stored)


def fill(tile: Buffer, *, threads: int) -> Body:
    """The shared tile from A, element by element; a barrier after it."""
    source, part = replace(A, dtype=tile.dtype), registers("part", dtype=tile.dtype)
    element = Var("round") * threads + THREAD
    return (
        Alloc(part),
        loop(
            "round",
            tile.elements // threads,
            Move(at(part), Ref(source, (element,))),
            Move(at(tile, element), at(part)),
        ),
        Barrier("the tile is complete"),
    )


def dump(fragment: Buffer) -> Body:
    """Register j of thread t to C[16 * t + j]."""
    out = registers("out")
    return (
        Alloc(out),
        loop(
            "j",
            fragment.elements,
            Assign(at(out), value(fragment, Var("j"))),
            Move(Ref(C, (THREAD * 16 + Var("j"),)), at(out)),
        ),
    )


def around(
    *instruction: Stmt, tile: Buffer, fragment: Buffer, threads: int = 32, filled: bool = True, more: Body = ()
) -> Kernel:
    """Fill the tile, run the instruction, dump a fragment. more: declarations and the like before the instruction."""
    body = (*(fill(tile, threads=threads) if filled else ()), Alloc(fragment), *more, *instruction, *dump(fragment))
    gemm = problem(tile.elements, tile.dtype)
    return kernel(body, block=(threads, 1, 1), shared_buffers=(tile,), gemm=gemm)


def dumped(c: Array, threads: int, count: int) -> Array:
    """(threads, count) from C."""
    return np.asarray(c)[: threads * 16].reshape(threads, 16)[:, :count]


def flat_tile(elements: int, dtype: DType = F16) -> Buffer:
    return shared("tile", elements, dtype=dtype)


def place(tile: Buffer, index: Expr | int) -> Ref:
    return at(tile, index)


__all__ = [
    "F16",
    "F32",
    "LANE",
    "THREAD",
    "WARP",
    "around",
    "dump",
    "dumped",
    "fill",
    "flat_tile",
    "operands_with",
    "place",
    "problem",
]
