"""What each pass of lowering leaves, on the real rungs."""

from __future__ import annotations

import pytest

from rung_runs import RUNGS, by_boxes, rungs, variants
from tilewright.dtypes import F16, F32, I64
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import WaitBarrier
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Load, Op, Ref, Var, binary, real
from tilewright.ir.kernel import SAFE, Kernel, Variant
from tilewright.ir.ranges import Interval
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Let, Move, Steady, SyncWarp
from tilewright.ir.verify import verify
from tilewright.ir.visit import simplify, substitute, walk, walk_expr
from tilewright.kernels.mma import MmaConfig
from tilewright.ladders import Rung, find_rung
from tilewright.lowering.expand import expand
from tilewright.lowering.hoist_offsets import hoist_offsets
from tilewright.lowering.narrow_accesses import narrow_accesses
from tilewright.lowering.place_barriers import place_barriers
from tilewright.problem import Gemm
from tilewright.toolchain import build, variant_for

PIPELINED = ("te/5", "worklog/12")


def kernel_of(name: str, gemm: Gemm | None = None, variant: Variant | None = None) -> Kernel:
    rung = find_rung(name)
    return build(gemm or rung.gemm(256, 256, 64), rung, variant=variant).kernel


def barriers_of(body: Body) -> list[bool]:
    """For each barrier, whether it stands in a loop."""
    loops = {path for path, stmt in walk(body) if isinstance(stmt, For)}
    return [any(path[:n] in loops for n in range(len(path))) for path, s in walk(body) if isinstance(s, Barrier)]


@pytest.mark.cross_section("rung", every=27)
@pytest.mark.parametrize("rung", rungs())
def test_every_rung_lowers_for_every_variant(rung: Rung) -> None:
    program = build(rung.gemm(256, 256, 64), rung)
    names = {build(program.gemm, rung, variant=variant).kernel.variant.name for variant in variants()}
    assert len(names) == 36


@pytest.mark.parametrize("name", ["worklog/3", "worklog/5", "worklog/6", "worklog/10", "te/2", "te/4"])
def test_single_tiles_need_two_barriers_a_step(name: str) -> None:
    assert barriers_of(kernel_of(name).body) == [True, True]


@pytest.mark.parametrize("name", PIPELINED)
def test_a_ring_needs_one_barrier_a_step(name: str) -> None:
    assert barriers_of(kernel_of(name).body) == [False, True]


@pytest.mark.parametrize("rung", rungs())
def test_no_barrier_where_nothing_is_shared(rung: Rung) -> None:
    kernel = build(rung.gemm(256, 256, 64), rung).kernel
    waits = [s for _, s in walk(kernel.body) if isinstance(s, (Barrier, WaitBarrier))]
    assert bool(waits) == bool(kernel.shared)


@pytest.mark.parametrize("rung", rungs())
def test_placing_barriers_twice_places_none_anew(rung: Rung) -> None:
    program = build(rung.gemm(256, 256, 64), rung).program
    once = place_barriers(expand(program, frozenset("mnk")))
    assert place_barriers(once) == once


@pytest.mark.cross_section("rung", every=3)
@pytest.mark.parametrize("rung", rungs())
def test_whole_tiles_need_no_guard_and_edges_do(rung: Rung) -> None:
    def guarded(exact: str) -> set[str]:
        kernel = build(rung.gemm(256, 1024, 64), rung, variant=Variant(frozenset(exact))).kernel  # type: ignore[arg-type]
        moves = [s for _, s in walk(kernel.body) if isinstance(s, Move) and s.guard is not None]
        return {place.buffer.name for m in moves for place in (m.dst, m.src) if place.buffer.space is Space.GLOBAL}

    program = build(rung.gemm(256, 1024, 64), rung).program
    ahead = program.pipelined is not None and program.tensorized is not None  # copies ask whether there is a tile
    assert guarded("mnk") <= ({"A", "B", "C"} if ahead else {"C"})  # beta 0 must not read C
    if not by_boxes(rung):  # TMA clips its boxes by itself
        assert "A" in guarded("") or rung.name in ("te/0", "te/1") or "B" in guarded("")


@pytest.mark.parametrize("rung", rungs())
def test_unaligned_operands_are_accessed_one_by_one(rung: Rung) -> None:
    program = build(rung.gemm(256, 256, 64), rung).program
    for _, stmt in walk(narrow_accesses(expand(program, frozenset()), program, Variant(alignment_bytes=1))):
        if isinstance(stmt, Move) and Space.GLOBAL in (stmt.dst.buffer.space, stmt.src.buffer.space):
            assert stmt.width == 1


def last_offset(kernel: Kernel, values: dict[str, Expr]) -> tuple[Expr, int]:
    """The offset of the last store to C, and its value where every coordinate is the largest."""
    known = dict(values)
    for path, stmt in walk(kernel.body):
        if isinstance(stmt, Let):
            known[stmt.name] = simplify(substitute(stmt.value, known))
        elif isinstance(stmt, For):
            extent = simplify(substitute(stmt.extent, known))
            known[stmt.var] = Const(int(extent.value) - 1) if isinstance(extent, Const) else ZERO
        elif isinstance(stmt, Move) and stmt.dst.buffer.name == "C" and path:
            offset = stmt.dst.index[0]
    exact = simplify(substitute(offset, known))
    parts = [part.value if isinstance(part, Cast) else part for part in [exact]]
    assert isinstance(parts[0], (Const, Binary))
    return offset, python_value(parts[0])


def python_value(expr: Expr) -> int:
    """An expression of constants in Python's integers."""
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, Cast):
        return python_value(expr.value)
    assert isinstance(expr, Binary) and expr.op.text in "+*"
    a, b = python_value(expr.a), python_value(expr.b)
    return a + b if expr.op.text == "+" else a * b


def test_a_large_c_has_64_bit_offsets_that_are_right() -> None:
    side, rung = 70_000, find_rung("worklog/6")
    gemm = rung.gemm(side, side, 8)
    built = build(gemm, rung)
    assert not variant_for(built.program, gemm).near and not built.kernel.variant.near
    blocks = -(-side // 128)
    values: dict[str, Expr] = {"blockIdx.x": Const(blocks - 1), "blockIdx.y": Const(blocks - 1)}
    values |= {"threadIdx.x": Const(255), "ldc": Const(side, I64)}
    offset, value = last_offset(built.kernel, values)
    first_of_vector = blocks * 128 - 4
    assert value in ((blocks * 128 - 1) * side + first_of_vector + extra for extra in (0, 3))
    assert value > 2**32
    casts = [part for part in walk_expr(offset) if isinstance(part, Cast)]
    assert offset.dtype is I64 and casts and all(cast.dtype is I64 for cast in casts)
    near = build(gemm, rung, variant=Variant(frozenset("mn"))).kernel
    assert last_offset(near, values)[0].dtype is not I64


@pytest.mark.parametrize(("side", "near"), [(46_336, True), (46_337, False), (70_000, False)])
def test_near_ends_where_31_bits_do(side: int, near: bool) -> None:
    rung = find_rung("worklog/6")
    gemm = rung.gemm(side, side, 8)
    assert variant_for(build(gemm, rung).program, gemm).near is near


@pytest.mark.parametrize(("lda", "near"), [(2**24 - 9, True), (2**24 - 8, False), (2**24 - 1, False)])
def test_near_counts_the_last_row_as_well(lda: int, near: bool) -> None:
    """128 rows of the tile and the columns of the last one: 128 (lda + 8) elements."""
    gemm = Gemm(128, 128, 1024, lda=lda)
    assert variant_for(build(gemm, find_rung("worklog/6")).program, gemm).near is near


def test_a_copy_of_one_step_a_thread_has_no_loop() -> None:
    """256 threads copy tiles of 256 vectors. A loop around them costs eight registers (NVRTC 13, sm_80)."""
    gemm = Gemm(100, 136, 104, F16, out=F16)
    config = MmaConfig((64, 64, 32), (32, 16), stages=3, double_buffered_fragments=False, in_place_fragments=False)
    kernel = build(gemm, config.schedule(gemm)).kernel
    assert not any(isinstance(stmt, For) and stmt.extent == Const(1) for _, stmt in walk(kernel.body))


@pytest.mark.parametrize(("k", "near"), [(63, True), (64, False)])
def test_31_bits_hold_one_less_than_2_to_the_31(k: int, near: bool) -> None:
    """32 rows of a tile and the k of the last one: 2^31 - 64 + k elements."""
    gemm = Gemm(32, 32, k, lda=2**26 - 2)
    assert variant_for(build(gemm, find_rung("worklog/1")).program, gemm).near is near


def test_global_offsets_are_64_bits_wide_unless_near() -> None:
    for rung in RUNGS:
        for _, stmt in walk(build(rung.gemm(256, 256, 64), rung, variant=SAFE).kernel.body):
            if isinstance(stmt, Move):
                for place in (stmt.dst, stmt.src):
                    assert place.buffer.space is not Space.GLOBAL or place.index[0].dtype is I64


X, TILE = Buffer("x", Space.REGISTER, F32, (4,)), Buffer("tile", Space.SHARED, F32, (8, 4))
A = Buffer("A", Space.GLOBAL, F32, ())
HERE = Ref(X, (ZERO,))
BROKEN: dict[str, tuple[Body, str]] = {
    "unknown name": ((Let("a", Var("b")),), "b has no value here"),
    "name twice": ((Let("a", ZERO), Let("a", ZERO)), "a has a value already"),
    "loop name": ((Let("a", ZERO), For("a", Const(2), ())), "a or a counter it carries has a value already"),
    "not declared": ((Assign(HERE, ZERO),), "x is not declared here"),
    "read undeclared": ((Let("a", Load(X, (ZERO,))),), "x is not declared here"),
    "write memory": ((Assign(Ref(TILE, (ZERO, ZERO)), ZERO),), "arithmetic writes registers only"),
    "both in memory": ((Move(Ref(TILE, (ZERO, ZERO)), Ref(A, (ZERO,))),), "2 of its two sides are in memory"),
    "width": ((Alloc(X), Move(HERE, Ref(A, (ZERO,)), 3)), "no instruction moves 3 x 4 bytes"),
    "rank": ((Alloc(X), Move(HERE, Ref(TILE, (ZERO,)))), "tile has 2 indices, not 1"),
    "bounds": ((Alloc(X), Move(HERE, Ref(TILE, (Const(8), ZERO)))), "index 8 of tile is outside 0 .. 7"),
    "turns": (
        (Alloc(X), For("i", Const(5), (Assign(Ref(X, (Var("i"),)), real(0.0)),))),
        "index 0 .. 4 of x leaves 0 .. 3",
    ),
    "turns of what is read": (
        (Alloc(X), For("i", Const(2), (Let("a", Load(X, (Var("i") * 2 + 2,))),))),
        "index 2 .. 4 of x leaves 0 .. 3",
    ),
    "before the first": (
        (Alloc(X), For("i", Const(2), (Let("a", Load(X, (Var("i") - 1,))),))),
        "index -1 .. 0 of x leaves 0 .. 3",
    ),
    "divergent": ((If(Var("threadIdx.x"), (Barrier(),)),), "a barrier stands where only some"),
    "lanes apart": ((If(Var("threadIdx.x"), (SyncWarp(),)),), "the lanes of a warp meet where only some"),
}


def test_a_branch_may_keep_turns_away_from_registers() -> None:
    guarded = If(Binary(Op.LT, Var("i"), Const(4)), (Assign(Ref(X, (Var("i"),)), real(0.0)),))
    verify((Alloc(X), For("i", Const(5), (guarded,))), after="a pass")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_names_the_pass(name: str) -> None:
    body, why = BROKEN[name]
    with pytest.raises(LoweringError) as refused:
        verify(body, after="a pass")
    assert f"The pass 'a pass' broke a rule: {why}" in str(refused.value)
    assert "this is a mistake in tilewright, not in your schedule." in str(refused.value)


@pytest.mark.parametrize("turns", [(2, 4), (4, 2)])
def test_offsets_that_loops_of_different_lengths_need_are_kept_for_the_longer_one(turns: tuple[int, int]) -> None:
    """Two copies, of 2 and of 4 steps, from the same addresses."""
    a, held = Buffer("A", Space.GLOBAL, F32, (1024,)), Buffer("held", Space.REGISTER, F32, (4,))
    offset = binary(Op.XOR, Var("threadIdx.x"), Var("step")) + 64 * Var("k_tile")
    copies = tuple(
        For("step", Const(count), (Move(Ref(held, (Var("step"),)), Ref(a, (offset,))),), unroll=True) for count in turns
    )
    loop = For("k_tile", Const(8), copies, steady=Steady())
    hoisted = hoist_offsets((loop,), {"threadIdx.x": Interval(0, 31), "k_tile": Interval(0, 7)})
    (kept,) = (stmt.buffer for stmt in hoisted if isinstance(stmt, Alloc))
    (fill,) = (stmt for stmt in hoisted if isinstance(stmt, For) and stmt.unroll)
    assert (kept.shape, fill.extent) == ((4,), Const(4))
