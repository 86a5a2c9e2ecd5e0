"""Kernels built by hand from IR nodes, so that the printer is tested without the lowering that feeds it."""

from __future__ import annotations

from tilewright.dtypes import F32, I64, DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    ONE,
    ZERO,
    Binary,
    Cast,
    Expr,
    Fma,
    Load,
    Op,
    Ref,
    Select,
    Var,
    as_expr,
    binary,
    both,
    ceil_div,
    real,
)
from tilewright.ir.kernel import SAFE, Kernel, Variant
from tilewright.ir.stmt import (
    Alloc,
    Assign,
    Barrier,
    Body,
    Carried,
    CommitCopies,
    For,
    If,
    Let,
    Move,
    Stmt,
    WaitCopies,
)
from tilewright.problem import Gemm, Order

M, N, K = Var("M"), Var("N"), Var("K")
LDA, LDB, LDC = Var("lda"), Var("ldb"), Var("ldc")
ALPHA, BETA = Var("alpha", F32), Var("beta", F32)
BLOCK_X, BLOCK_Y, THREAD = Var("blockIdx.x"), Var("blockIdx.y"), Var("threadIdx.x")


def registers(name: str, dtype: DType, *shape: int, axes: tuple[str, ...] = (), note: str = "") -> Buffer:
    return Buffer(name, Space.REGISTER, dtype, shape or (1,), axes, note)


def at(buffer: Buffer, *index: Expr | int) -> Ref:
    return Ref(buffer, tuple(as_expr(i) for i in index) or (ZERO,))


def value(buffer: Buffer, *index: Expr | int) -> Expr:
    """A register as a float to compute with."""
    load = Load(buffer, at(buffer, *index).index)
    return load if buffer.dtype is F32 else Cast(F32, load)


def loop(var: str, extent: Expr | int, *body: Stmt, unroll: bool = False, note: str = "") -> For:
    return For(var, as_expr(extent), body, unroll, note)


def store_result(gemm: Gemm, total: Expr, offset: Expr, inside: Expr) -> Body:
    """`C[offset] = alpha * total + beta * C[offset]`; C is not read when beta is 0."""
    c = Buffer("C", Space.GLOBAL, gemm.out, ())
    out, old = registers("out", gemm.out), registers("old", gemm.out)
    scaled = Binary(Op.MUL, ALPHA, total)
    plain = scaled if gemm.out is F32 else Cast(gemm.out, scaled)
    blended: Expr = Fma(BETA, value(old), scaled)
    return (
        Alloc(out),
        Assign(at(out), plain),
        If(
            Binary(Op.NE, BETA, real(0)),
            (
                Alloc(old),
                Move(at(old), Ref(c, (offset,)), guard=inside),
                Assign(at(out), blended if gemm.out is F32 else Cast(gemm.out, blended)),
            ),
        ),
        Move(Ref(c, (offset,)), at(out), guard=inside),
    )


def naive(dtype: DType = F32) -> Kernel:
    """One thread per element of C, every access guarded, A stored column-major, 64-bit offsets."""
    gemm = Gemm(8, 8, 8, dtype=dtype, out=dtype, a=Order.COL)
    kernel = Kernel("naive", gemm, SAFE, (ONE, ONE, ONE), (1, 1, 1), (), (), {})
    row, col, k = Var("m"), Var("n"), Var("k")
    lda, ldb, ldc = Var("lda", I64), Var("ldb", I64), Var("ldc", I64)
    inside = both(Binary(Op.LT, row, M), Binary(Op.LT, col, N))
    total, a, b = registers("sum", F32, note="of C[m, n]"), registers("a", dtype), registers("b", dtype)
    body = (
        Let("m", BLOCK_Y * 16 + THREAD // 16),
        Let("n", BLOCK_X * 16 + THREAD % 16),
        Alloc(total),
        Assign(at(total), real(0)),
        loop(
            "k",
            K,
            Alloc(a),
            Alloc(b),
            Move(at(a), Ref(kernel.global_buffer("A"), (row + k * lda,)), guard=Binary(Op.LT, row, M)),
            Move(at(b), Ref(kernel.global_buffer("B"), (k * ldb + col,)), guard=Binary(Op.LT, col, N)),
            Assign(at(total), Fma(value(a), value(b), value(total))),
        ),
        *store_result(gemm, value(total), Cast(I64, row) * ldc + col, inside),
    )
    grid = (ceil_div(N, 16), ceil_div(M, 16), ONE)
    return Kernel("naive", gemm, SAFE, grid, (256, 1, 1), (), body, {"m": 16, "n": 16, "k": 1})


def shared_tiles(dtype: DType = F32, *, barriers: int = 2) -> Kernel:
    """32 x 32 x 32 tiles of A and B in shared memory, one thread per element of C.

    barriers: 1 leaves out the one that keeps a tile from being overwritten while it is read.
    """
    gemm = Gemm(32, 32, 32, dtype=dtype, out=dtype)
    kernel = Kernel("shared_tiles", gemm, Variant(alignment_bytes=1), (ONE, ONE, ONE), (1, 1, 1), (), (), {})
    a_tile = Buffer("A_tile", Space.SHARED, dtype, (32, 32), ("m", "k"))
    b_tile = Buffer("B_tile", Space.SHARED, dtype, (32, 32), ("k", "n"))
    m_in, n_in, k_tile, k_in = Var("m_in"), Var("n_in"), Var("k_tile"), Var("k_in")
    row, col = Var("m"), Var("n")
    a, b, total = registers("a", dtype), registers("b", dtype), registers("sum", F32)
    a_inside = both(Binary(Op.LT, row, M), Binary(Op.LT, k_tile * 32 + n_in, K))
    b_inside = both(Binary(Op.LT, k_tile * 32 + m_in, K), Binary(Op.LT, col, N))
    a_at = Ref(kernel.global_buffer("A"), (row * LDA + (k_tile * 32 + n_in),))
    b_at = Ref(kernel.global_buffer("B"), ((k_tile * 32 + m_in) * LDB + col,))
    last = (Barrier("A_tile and B_tile are free"),) if barriers == 2 else ()
    body = (
        Let("m_in", THREAD // 32),
        Let("n_in", THREAD % 32),
        Let("m", BLOCK_Y * 32 + m_in, "of C"),
        Let("n", BLOCK_X * 32 + n_in, "of C"),
        Alloc(total),
        Assign(at(total), real(0)),
        loop(
            "k_tile",
            ceil_div(K, 32),
            *(Alloc(a), Move(at(a), a_at, guard=a_inside), Move(at(a_tile, m_in, n_in), at(a))),
            *(Alloc(b), Move(at(b), b_at, guard=b_inside), Move(at(b_tile, m_in, n_in), at(b))),
            Barrier("A_tile and B_tile are complete"),
            loop(
                "k_in",
                32,
                *(Alloc(a), Alloc(b)),
                *(Move(at(a), at(a_tile, m_in, k_in)), Move(at(b), at(b_tile, k_in, n_in))),
                Assign(at(total), Fma(value(a), value(b), value(total))),
                unroll=True,
            ),
            *last,
            note="tiles of K",
        ),
        *store_result(gemm, value(total), row * LDC + col, both(Binary(Op.LT, row, M), Binary(Op.LT, col, N))),
    )
    grid = (ceil_div(N, 32), ceil_div(M, 32), ONE)
    tile = {"m": 32, "n": 32, "k": 32}
    return Kernel("shared_tiles", gemm, kernel.variant, grid, (1024, 1, 1), (a_tile, b_tile), body, tile)


def ring(dtype: DType = F32, *, slots: int = 3, waits: bool = True) -> Kernel:
    """32 x 32 x 32 tiles that asynchronous copies bring into a ring of stages, one barrier a step.

    waits: False leaves out the wait for a tile to arrive.
    """
    gemm = Gemm(32, 32, 32, dtype=dtype, out=dtype)
    kernel = Kernel("ring", gemm, Variant(), (ONE, ONE, ONE), (1, 1, 1), (), (), {})
    a_tile = Buffer("A_tile", Space.SHARED, dtype, (slots, 32, 32), ("stage", "m", "k"), stages=slots)
    b_tile = Buffer("B_tile", Space.SHARED, dtype, (slots, 32, 32), ("stage", "k", "n"), stages=slots)
    m_in, n_in, k_in, slot = Var("m_in"), Var("n_in"), Var("k_in"), Var("slot")
    a, b, total = registers("a", dtype), registers("b", dtype), registers("sum", F32)

    def following(name: str) -> Expr:
        last = Binary(Op.EQ, Var(name), as_expr(slots - 1))
        return Select(last, ZERO, Var(name) + 1)

    body = (
        Let("thread", THREAD),
        Let("m_in", Var("thread") // 32),
        Let("n_in", Var("thread") % 32),
        Alloc(total),
        Assign(at(total), real(0)),
        loop("early", slots - 1, *_start_copies(kernel, a_tile, b_tile, Var("early"), Var("early")), unroll=True),
        For(
            "k_tile",
            ceil_div(K, 32),
            (
                *((WaitCopies(slots - 2),) if waits else ()),
                Barrier("the tiles of this step have arrived, those of the last are read"),
                *_start_copies(kernel, a_tile, b_tile, Var("k_tile") + (slots - 1), Var("fill")),
                loop(
                    "k_in",
                    32,
                    *(Alloc(a), Alloc(b)),
                    *(Move(at(a), at(a_tile, slot, m_in, k_in)), Move(at(b), at(b_tile, slot, k_in, n_in))),
                    Assign(at(total), Fma(value(a), value(b), value(total))),
                    unroll=True,
                ),
            ),
            carried=(Carried("slot", ZERO, following("slot")), Carried("fill", as_expr(slots - 1), following("fill"))),
        ),
        Let("m", BLOCK_Y * 32 + m_in),
        Let("n", BLOCK_X * 32 + n_in),
        *store_result(
            gemm,
            value(total),
            Var("m") * LDC + Var("n"),
            both(Binary(Op.LT, Var("m"), M), Binary(Op.LT, Var("n"), N)),
        ),
    )
    grid = (ceil_div(N, 32), ceil_div(M, 32), ONE)
    tile = {"m": 32, "n": 32, "k": 32}
    return Kernel("ring", gemm, Variant(), grid, (1024, 1, 1), (a_tile, b_tile), body, tile)


def _start_copies(kernel: Kernel, a_tile: Buffer, b_tile: Buffer, k_tile: Expr, slot: Expr) -> Body:
    """One group: A in 16-byte pieces that may hang over the edge of K, B element by element."""
    thread = Var("thread")
    a_m, a_k, b_k, b_n = thread // 8, thread % 8 * 4, thread // 32, thread % 32
    row, col, k = BLOCK_Y * 32 + a_m, BLOCK_X * 32 + b_n, k_tile * 32 + b_k
    left = binary(Op.MAX, ZERO, binary(Op.MIN, as_expr(4), K - (k_tile * 32 + a_k)))
    a_from = Ref(kernel.global_buffer("A"), (row * LDA + (k_tile * 32 + a_k),))
    b_from = Ref(kernel.global_buffer("B"), (k * LDB + col,))
    inside = both(Binary(Op.LT, k, K), Binary(Op.LT, col, N))
    return (
        If(
            Binary(Op.LT, thread, as_expr(256)),
            (
                Move(
                    at(a_tile, slot, a_m, a_k),
                    a_from,
                    width=4,
                    guard=Binary(Op.LT, row, M),
                    asynchronous=True,
                    valid=left,
                ),
            ),
        ),
        Move(at(b_tile, slot, b_k, b_n), b_from, guard=inside, asynchronous=True),
        CommitCopies(),
    )


def vectorized(dtype: DType = F32, *, pad: int = 4) -> Kernel:
    """64 x 64 x 8 tiles, 8 x 4 results per thread, 16-byte global accesses; rows of C are guarded."""
    gemm = Gemm(64, 64, 8, dtype=dtype, out=dtype)
    wide = 16 // dtype.bytes
    a_tile = Buffer("A_tile", Space.SHARED, dtype, (8, 64 + pad), ("k", "m"), f"transposed, rows padded by {pad}")
    b_tile = Buffer("B_tile", Space.SHARED, dtype, (8, 64), ("k", "n"))
    total = registers("sum", F32, 8, 4, axes=("m", "n"))
    variant = Variant(exact=frozenset(("n", "k")))
    kernel = Kernel("vectorized", gemm, variant, (ONE, ONE, ONE), (1, 1, 1), (), (), {})
    thread = Var("thread")
    body = (
        Let("thread", THREAD),
        Let("m_thread", thread // 16, "of 8"),
        Let("n_thread", thread % 16, "of 16"),
        Let("m_block", BLOCK_Y * 64),
        Let("n_block", BLOCK_X * 64),
        Alloc(total),
        _each_result(Assign(at(total, Var("m"), Var("n")), real(0))),
        loop(
            "k_tile",
            K // 8,
            *_stage_a(kernel, a_tile, wide, thread),
            *_stage_b(kernel, b_tile, wide, thread),
            Barrier("A_tile and B_tile are complete"),
            _multiply(a_tile, b_tile, total),
            Barrier("A_tile and B_tile are free"),
            note="K / 8 tiles",
        ),
        *_store_rows(kernel, total),
    )
    heading = ('Split("m", 64, into=("m_block", "m_in"))', 'Stage("A", Space.SHARED, under="k_tile")')
    grid = (N // 64, ceil_div(M, 64), ONE)
    tile = {"m": 64, "n": 64, "k": 8}
    return Kernel("vectorized", gemm, variant, grid, (128, 1, 1), (a_tile, b_tile), body, tile, heading)


def _each_result(*body: Stmt) -> For:
    return loop("m", 8, loop("n", 4, *body, unroll=True), unroll=True)


def _stage_a(kernel: Kernel, tile: Buffer, wide: int, thread: Expr) -> Body:
    """A is contiguous along k: a vector of it becomes a column of the transposed tile."""
    vectors = 8 // wide
    held = registers("A_in", tile.dtype, wide, axes=("k",), note="on its way to A_tile")
    row, k, lane = Var("a_m"), Var("a_k"), Var("k")
    source = Ref(kernel.global_buffer("A"), ((Var("m_block") + row) * LDA + (Var("k_tile") * 8 + k),))
    move = Move(at(held, 0), source, width=wide, guard=Binary(Op.LT, Var("m_block") + row, M))
    copy = loop("k", wide, Move(at(tile, k + lane, row), at(held, lane)), unroll=True)
    busy = Binary(Op.LT, thread, as_expr(64 * vectors))
    return (If(busy, (Let("a_m", thread // vectors), Let("a_k", thread % vectors * wide), Alloc(held), move, copy)),)


def _stage_b(kernel: Kernel, tile: Buffer, wide: int, thread: Expr) -> Body:
    vectors = 64 // wide
    held = registers("B_in", tile.dtype, wide, axes=("n",), note="on its way to B_tile")
    k, n = Var("b_k"), Var("b_n")
    source = Ref(kernel.global_buffer("B"), ((Var("k_tile") * 8 + k) * LDB + (Var("n_block") + n),))
    copy = (Move(at(held, 0), source, width=wide), Move(at(tile, k, n), at(held, 0), width=wide))
    busy = Binary(Op.LT, thread, as_expr(8 * vectors))
    return (If(busy, (Let("b_k", thread // vectors), Let("b_n", thread % vectors * wide), Alloc(held), *copy)),)


def _multiply(a_tile: Buffer, b_tile: Buffer, total: Buffer) -> For:
    a = registers("A_frag", a_tile.dtype, 8, axes=("m",))
    b = registers("B_frag", b_tile.dtype, 4, axes=("n",))
    k, m, n = Var("k"), Var("m"), Var("n")
    part = Var("part")
    return loop(
        "k",
        8,
        *(Alloc(a), Alloc(b)),
        loop("part", 2, Move(at(a, part * 4), at(a_tile, k, Var("m_thread") * 8 + part * 4), width=4), unroll=True),
        Move(at(b, 0), at(b_tile, k, Var("n_thread") * 4), width=4),
        _each_result(Assign(at(total, m, n), Fma(value(a, m), value(b, n), value(total, m, n)))),
        unroll=True,
    )


def _store_rows(kernel: Kernel, total: Buffer) -> Body:
    out = registers("out", kernel.gemm.out, 4, axes=("n",))
    m, n, row, col = Var("m"), Var("n"), Var("row"), Var("col")
    scaled: Expr = Binary(Op.MUL, ALPHA, value(total, m, n))
    c, old = kernel.global_buffer("C"), registers("old", kernel.gemm.out)
    place = row * LDC + (col + n)
    blended: Expr = Fma(BETA, value(old), scaled)
    half = kernel.gemm.out is not F32
    element = (
        Alloc(old),
        Move(at(old), Ref(c, (place,)), guard=both(Binary(Op.NE, BETA, real(0)), Binary(Op.LT, row, M))),
        Assign(at(out, n), Cast(kernel.gemm.out, blended) if half else blended),
    )
    return (
        Let("col", Var("n_block") + Var("n_thread") * 4),
        loop(
            "m",
            8,
            Let("row", Var("m_block") + Var("m_thread") * 8 + m),
            Alloc(out),
            loop("n", 4, *element, unroll=True),
            Move(Ref(c, (row * LDC + col,)), at(out, 0), width=4, guard=Binary(Op.LT, row, M)),
            unroll=True,
        ),
    )
