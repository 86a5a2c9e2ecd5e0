"""Lowered kernels built by hand, as small as they can be, and ways to break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.dtypes import F32, DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Binary, Cast, Expr, Fma, Load, Op, Ref, Var, as_expr, both, ceil_div, real
from tilewright.ir.kernel import Kernel, Variant
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Let, Move, Stmt
from tilewright.ir.visit import rewrite
from tilewright.problem import Gemm

M, N, K = Var("M"), Var("N"), Var("K")
LDA, LDB, LDC = Var("lda"), Var("ldb"), Var("ldc")
ALPHA, BETA = Var("alpha", F32), Var("beta", F32)
BLOCK_X, BLOCK_Y = Var("blockIdx.x"), Var("blockIdx.y")
THREAD_X, THREAD_Y = Var("threadIdx.x"), Var("threadIdx.y")
A, B, C = (Buffer(name, Space.GLOBAL, F32, ()) for name in "ABC")
EDGES = Variant(alignment_bytes=1)


def registers(name: str, *shape: int, dtype: DType = F32) -> Buffer:
    return Buffer(name, Space.REGISTER, dtype, shape or (1,))


def shared(name: str, *shape: int, dtype: DType = F32) -> Buffer:
    return Buffer(name, Space.SHARED, dtype, shape)


def at(buffer: Buffer, *index: Expr | int) -> Ref:
    return Ref(buffer, tuple(as_expr(i) for i in index) or (ZERO,))


def value(buffer: Buffer, *index: Expr | int) -> Expr:
    load = Load(buffer, at(buffer, *index).index)
    return load if buffer.dtype is F32 else Cast(F32, load)


def loop(var: str, extent: Expr | int, *body: Stmt, unroll: bool = False) -> For:
    return For(var, as_expr(extent), body, unroll)


def less(a: Expr, b: Expr | int) -> Expr:
    return Binary(Op.LT, a, as_expr(b))


def accumulate(total: Ref, a: Expr, b: Expr) -> Assign:
    return Assign(total, Fma(a, b, Load(total.buffer, total.index)), origin="sum")


def kernel(
    body: Body,
    *,
    grid: tuple[Expr, Expr, Expr] = (ONE, ONE, ONE),
    block: tuple[int, int, int] = (32, 1, 1),
    shared_buffers: tuple[Buffer, ...] = (),
    gemm: Gemm | None = None,
) -> Kernel:
    return Kernel("by_hand", gemm or Gemm(1, 1, 1), EDGES, grid, block, shared_buffers, body, {"m": 1, "n": 1, "k": 1})


def store_result(total: Expr, offset: Expr, inside: Expr) -> Body:
    """`C[offset] = alpha * total + beta * C[offset]`; C is not read when beta is 0."""
    out, old = registers("out"), registers("old")
    return (
        Alloc(out),
        Assign(at(out), Binary(Op.MUL, ALPHA, total), origin="C"),
        If(
            Binary(Op.NE, BETA, real(0)),
            (
                Alloc(old),
                Move(at(old), Ref(C, (offset,)), guard=inside, origin="C"),
                Assign(at(out), Fma(BETA, value(old), value(out)), origin="C"),
            ),
        ),
        Move(Ref(C, (offset,)), at(out), guard=inside, origin="C"),
    )


def naive(*, rows_first: bool = False, side: int = 32) -> Kernel:
    """One thread per element of C. rows_first: threadIdx.x runs down the rows, so that nothing is coalesced."""
    row_thread, col_thread = (THREAD_X, THREAD_Y) if rows_first else (THREAD_Y, THREAD_X)
    row_block, col_block = (BLOCK_X, BLOCK_Y) if rows_first else (BLOCK_Y, BLOCK_X)
    row, col, k = Var("m"), Var("n"), Var("k")
    a, b, total = registers("a"), registers("b"), registers("sum")
    body = (
        Let("m", row_block * side + row_thread),
        Let("n", col_block * side + col_thread),
        Alloc(total),
        Assign(at(total), real(0), origin="sum"),
        loop(
            "k",
            K,
            *(Alloc(a), Alloc(b)),
            Move(at(a), Ref(A, (row * LDA + k,)), guard=less(row, M), origin="A"),
            Move(at(b), Ref(B, (k * LDB + col,)), guard=less(col, N), origin="B"),
            accumulate(at(total), value(a), value(b)),
        ),
        *store_result(value(total), row * LDC + col, both(less(row, M), less(col, N))),
    )
    sizes = (M, N) if rows_first else (N, M)
    grid = (ceil_div(sizes[0], side), ceil_div(sizes[1], side), ONE)
    return Kernel("naive", Gemm(1, 1, 1), EDGES, grid, (side, side, 1), (), body, {"m": side, "n": side, "k": 1})


def tiled(side: int = 32, *, quads: bool = False) -> Kernel:
    """Square tiles of A and B in shared memory, a thread per element, two barriers a K step.

    quads: the row of A is read from shared memory four elements at a time.
    """
    a_tile, b_tile = shared("A_tile", side, side), shared("B_tile", side, side)
    m_in, n_in, k_tile, k_in, row, col = (Var(name) for name in ("m_in", "n_in", "k_tile", "k_in", "m", "n"))
    a, b, total = registers("a"), registers("b"), registers("sum")
    a_k, b_k = k_tile * side + n_in, k_tile * side + m_in
    body = (
        Let("m_in", THREAD_X // side),
        Let("n_in", THREAD_X % side),
        Let("m", BLOCK_Y * side + m_in),
        Let("n", BLOCK_X * side + n_in),
        Alloc(total),
        Assign(at(total), real(0), origin="sum"),
        loop(
            "k_tile",
            ceil_div(K, side),
            *(Alloc(a), Alloc(b)),
            Move(at(a), Ref(A, (row * LDA + a_k,)), guard=both(less(row, M), less(a_k, K)), origin="A_tile"),
            Move(at(a_tile, m_in, n_in), at(a), origin="A_tile"),
            Move(at(b), Ref(B, (b_k * LDB + col,)), guard=both(less(b_k, K), less(col, N)), origin="B_tile"),
            Move(at(b_tile, m_in, n_in), at(b), origin="B_tile"),
            Barrier("tiles are complete"),
            _dot_quads(a_tile, b_tile, total)
            if quads
            else loop(
                "k_in",
                side,
                Move(at(a), at(a_tile, m_in, k_in), origin="A_tile"),
                Move(at(b), at(b_tile, k_in, n_in), origin="B_tile"),
                accumulate(at(total), value(a), value(b)),
                unroll=True,
            ),
            Barrier("tiles are free"),
        ),
        *store_result(value(total), row * LDC + col, both(less(row, M), less(col, N))),
    )
    grid = (ceil_div(N, side), ceil_div(M, side), ONE)
    tile = {"m": side, "n": side, "k": side}
    return Kernel("tiled", Gemm(1, 1, 1), EDGES, grid, (side * side, 1, 1), (a_tile, b_tile), body, tile)


def _dot_quads(a_tile: Buffer, b_tile: Buffer, total: Buffer) -> For:
    a, b, quad, part = registers("a_quad", 4), registers("b"), Var("quad"), Var("part")
    return loop(
        "quad",
        a_tile.shape[1] // 4,
        *(Alloc(a), Alloc(b)),
        Move(at(a), at(a_tile, Var("m_in"), quad * 4), 4, origin="A_tile"),
        loop(
            "part",
            4,
            Move(at(b), at(b_tile, quad * 4 + part, Var("n_in")), origin="B_tile"),
            accumulate(at(total), value(a, part), value(b)),
            unroll=True,
        ),
        unroll=True,
    )


def register_tiled(*, pad: int = 0) -> Kernel:
    """128 x 128 x 8 tiles, 8 x 8 results a thread, 16-byte accesses, A stored transposed; M may be any, N % 4 == 0."""
    a_tile, b_tile = shared("A_tile", 8, 128 + pad), shared("B_tile", 8, 128)
    total, k_tile = registers("sum", 8, 8), Var("k_tile")
    a_row, a_k, b_k, b_col = Var("a_row"), Var("a_k"), Var("b_k"), Var("b_col")
    a_in, b_in, quad = registers("A_in", 4), registers("B_in", 4), Var("quad")
    a_at, b_at = (BLOCK_Y * 128 + a_row) * LDA + (k_tile * 8 + a_k), (k_tile * 8 + b_k) * LDB + (BLOCK_X * 128 + b_col)
    a_inside = both(less(BLOCK_Y * 128 + a_row, M), less(k_tile * 8 + a_k + 3, K))
    b_inside = both(less(k_tile * 8 + b_k, K), less(BLOCK_X * 128 + b_col + 3, N))
    body = (
        Let("a_row", THREAD_X // 2),
        Let("a_k", THREAD_X % 2 * 4),
        Let("b_k", THREAD_X // 32),
        Let("b_col", THREAD_X % 32 * 4),
        Alloc(total),
        _each(8, 8, Assign(at(total, Var("i"), Var("j")), real(0), origin="sum")),
        loop(
            "k_tile",
            ceil_div(K, 8),
            *(Alloc(a_in), Alloc(b_in)),
            Move(at(a_in), Ref(A, (a_at,)), 4, a_inside, origin="A_tile"),
            Move(at(b_in), Ref(B, (b_at,)), 4, b_inside, origin="B_tile"),
            loop("quad", 4, Move(at(a_tile, a_k + quad, a_row), at(a_in, quad), origin="A_tile"), unroll=True),
            Move(at(b_tile, b_k, b_col), at(b_in), 4, origin="B_tile"),
            Barrier("tiles are complete"),
            _outer_products(a_tile, b_tile, total),
            Barrier("tiles are free"),
        ),
        _store_rows(total),
    )
    grid = (ceil_div(N, 128), ceil_div(M, 128), ONE)
    tile = {"m": 128, "n": 128, "k": 8}
    return Kernel("register_tiled", Gemm(4, 4, 4), EDGES, grid, (256, 1, 1), (a_tile, b_tile), body, tile)


def _each(rows: int, cols: int, *body: Stmt) -> For:
    return loop("i", rows, loop("j", cols, *body, unroll=True), unroll=True)


def _outer_products(a_tile: Buffer, b_tile: Buffer, total: Buffer) -> For:
    a, b, k_in, i, j, part = registers("a", 8), registers("b", 8), Var("k_in"), Var("i"), Var("j"), Var("part")
    return loop(
        "k_in",
        8,
        *(Alloc(a), Alloc(b)),
        loop(
            "part",
            2,
            Move(at(a, part * 4), at(a_tile, k_in, THREAD_X // 16 * 8 + part * 4), 4, origin="A_tile"),
            Move(at(b, part * 4), at(b_tile, k_in, THREAD_X % 16 * 8 + part * 4), 4, origin="B_tile"),
            unroll=True,
        ),
        _each(8, 8, accumulate(at(total, i, j), value(a, i), value(b, j))),
        unroll=True,
    )


def _store_rows(total: Buffer) -> For:
    out, i, part, element = registers("out", 4), Var("i"), Var("part"), Var("element")
    row, col = BLOCK_Y * 128 + THREAD_X // 16 * 8 + i, BLOCK_X * 128 + THREAD_X % 16 * 8 + part * 4
    return _rows_of_quads(
        Alloc(out),
        loop(
            "element",
            4,
            Assign(at(out, element), Binary(Op.MUL, ALPHA, value(total, i, part * 4 + element)), origin="C"),
            unroll=True,
        ),
        Move(Ref(C, (row * LDC + col,)), at(out), 4, both(less(row, M), less(col + 3, N)), origin="C"),
    )


def _rows_of_quads(*body: Stmt) -> For:
    return loop("i", 8, loop("part", 2, *body, unroll=True), unroll=True)


def without(kernel: Kernel, drop: Callable[[Stmt], bool]) -> Kernel:
    """The kernel without the statements that `drop` chooses."""
    return replace(kernel, body=rewrite(kernel.body, lambda stmt: () if drop(stmt) else None))


def changed(kernel: Kernel, change: Callable[[Stmt], Stmt | None]) -> Kernel:
    """The kernel with each statement replaced by what `change` returns; None keeps it."""

    def step(stmt: Stmt) -> Body | None:
        new = change(stmt)
        return None if new is None else (new,)

    return replace(kernel, body=rewrite(kernel.body, step))
