"""Persistent blocks that copy for themselves, fragments loaded in place, and interleaved copies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.mutations.broken import edited, run_of, without
from tilewright.dtypes import BF16, F16, F32, TF32, DType
from tilewright.errors import ScheduleError
from tilewright.ir.expr import Const
from tilewright.ir.kernel import SAFE, Kernel, Variant
from tilewright.ir.program import Pattern
from tilewright.ir.stmt import Alloc, Assign, Barrier, For, If, LoadMatrices, Move, MultiplyTiles, Stmt, WaitCopies
from tilewright.ir.visit import walk
from tilewright.kernels.mma_presets import PERSISTENT, best_for
from tilewright.problem import Gemm, Operands, Order, check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Distribute, Persist, Pipeline, Prefetch, Schedule, Snake, Step, Transfer
from tilewright.toolchain import build, run_on_simulator

SMALL = replace(PERSISTENT, tile=(64, 128, 64), warp_tile=(32, 64))
"""The tile halved both ways: as many copies and loads of each kind, in less simulated time."""

ORDERS = [(a, b) for a in Order for b in Order]


def steps_of(gemm: Gemm, **changed: Step) -> Schedule:
    """The schedule with steps of some kinds replaced; those of tiles by the names of the tiles."""
    named = {f"{type(step).__name__}_{getattr(step, 'tile', '')}".rstrip("_"): step for step in changed.values()}

    def new(step: Step) -> Step:
        return named.get(f"{type(step).__name__}_{getattr(step, 'tile', '')}".rstrip("_"), step)

    return Schedule(*(new(step) for step in SMALL.schedule(gemm)))


def kernel_of(gemm: Gemm, variant: Variant | None = None) -> Kernel:
    return build(gemm, SMALL.schedule(gemm), variant=variant).kernel


@pytest.mark.cross_section("k", "a", "blocks", every=4)
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(("a", "b"), ORDERS)
@pytest.mark.parametrize("k", [0, 8, 200])
def test_tile_after_tile_is_right(k: int, a: Order, b: Order, blocks: int) -> None:
    """Also where k has fewer tiles than are copied early, and where one block computes all of C."""
    gemm = Gemm(136, 264, k, F16, out=F16, a=a, b=b, beta=0.5 if k == 200 else 0.0)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, SMALL.schedule(gemm)), operands, resident_blocks=blocks)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message
    assert run.errors == ()


IN_UNEQUAL_PARTS = [
    ((64, 64, 32), TF32),
    ((64, 64, 64), BF16),
    ((64, 256, 64), F16),
]
"""The copies of a tile are interleaved unevenly, the longer runs behind the shorter."""


@pytest.mark.cross_section("m", "tile", every=3)
@pytest.mark.parametrize("m", [5, 72])
@pytest.mark.parametrize(("tile", "multiplied"), IN_UNEQUAL_PARTS)
def test_a_pointer_for_every_copy_of_a_tile_that_is_issued_in_parts(
    m: int, tile: tuple[int, int, int], multiplied: DType
) -> None:
    """A longer part once went on past the pointers of a shorter one: an illegal address on a GPU."""
    config = replace(PERSISTENT, tile=tile, warp_tile=(64, 64), stages=2, n_outer=True, store="per_thread")
    dtype = multiplied if multiplied is not TF32 else F32
    gemm = Gemm(m, 512, 128, dtype, out=dtype, product=multiplied, b=Order.COL)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, config.schedule(gemm)), operands, resident_blocks=1)
    assert check(operands, computed).ok and run.errors == ()


@pytest.mark.cross_section("variant", "stages", every=6)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("variant", [Variant(frozenset("mnk")), Variant(), Variant(alignment_bytes=8), SAFE])
def test_whatever_is_assumed_and_however_deep_the_ring(variant: Variant, stages: int) -> None:
    gemm = Gemm(128, 384, 256, BF16, out=BF16)
    schedule = replace(SMALL, stages=stages).schedule(gemm)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, schedule, variant=variant), operands, resident_blocks=2)
    assert check(operands, computed).ok and run.errors == ()


def test_rows_that_copies_cannot_take_whole_leave_blocks_as_they_were() -> None:
    """What narrow copies need registers for goes before what whole ones allow."""
    gemm = Gemm(128, 256, 64, F16, out=F16)
    assert kernel_of(gemm).resident
    for variant in (SAFE, Variant(alignment_bytes=8)):
        kernel = kernel_of(gemm, variant)
        held = next(s.buffer for _, s in walk(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "B_frag")
        assert not kernel.resident
        # Two steps' fragments at a time, or one where registers hold copies on their way.
        assert (held.shape[0] == 2) is (variant != SAFE)


def test_a_fragment_takes_the_registers_of_the_one_that_is_done() -> None:
    """Only the inner fragments are there twice; loads of the outer ones stand behind their products."""
    kernel = kernel_of(Gemm(128, 256, 64, F16, out=F16))
    shapes = {s.buffer.name: s.buffer.shape for _, s in walk(kernel.body) if isinstance(s, Alloc)}
    assert shapes["A_frag"] == (2, 2, 8)
    assert shapes["B_frag"] == (8, 4)
    turns = [s for s in ring_of(kernel) if isinstance(s, For) and s.var == "n_frag_vec" and multiplies(s)]
    assert len(turns) == 2  # of all steps but the last, and of the last
    for stmt in turns:
        last = stmt.body[-1]
        assert isinstance(last, LoadMatrices) and last.dst.buffer.name == "B_frag"


def test_copies_are_dealt_out_evenly_behind_products() -> None:
    kernel = kernel_of(Gemm(128, 256, 64, F16, out=F16))
    dealt: Counter[tuple[str, int]] = Counter()
    for stmt in ring_of(kernel):
        if isinstance(stmt, If):
            for _, inner in walk(stmt.then):
                if isinstance(inner, For) and isinstance(inner.body[-1], Move) and isinstance(inner.extent, Const):
                    dealt[str(stmt.condition), int(inner.extent.value)] += 1
    # 512 chunks of A and 1024 of B for 128 threads: 12 copies each, of which every step starts 4.
    assert sum(count * number for (_, count), number in dealt.items()) == 2 * 12  # once around, once in each step
    assert {count for _, count in dealt} == {4}


def test_what_copies_come_from_is_found_by_pointers_that_move_on() -> None:
    gemm = Gemm(128, 256, 64, F16, out=F16)
    kernel = kernel_of(gemm)
    pointers = [s.buffer for _, s in walk(kernel.body) if isinstance(s, Alloc) and s.buffer.offsets_into is not None]
    assert {b.name: b.shape for b in pointers} == {"A_tile_here": (4,), "B_tile_here": (4,)}
    moves = [s for s in ring_of(kernel) if isinstance(s, Assign) and s.dst.buffer in pointers]
    assert len(moves) == 2
    assert "const half_bits* A_tile_here[4];" in build(gemm, SMALL.schedule(gemm)).cuda


def ring_of(kernel: Kernel) -> list[Stmt]:
    """The statements in the loop over k."""
    (loop,) = (s for _, s in walk(kernel.body) if isinstance(s, For) and s.var == "k_tile")
    return [stmt for _, stmt in walk(loop.body)]


LONG = Gemm(128, 256, 320, F16, out=F16)
"""Two tiles by two for one block, with more turns than slots."""


def multiplies(stmt: Stmt) -> bool:
    return any(isinstance(inner, MultiplyTiles) for _, inner in walk((stmt,)))


def is_noticed(kernel: Kernel, operands: Operands, schedule: str = "lockstep") -> bool:
    run, gemm = run_of(kernel, operands, resident_blocks=1, schedule=schedule), operands.gemm
    return run is None or not check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok


def test_every_wait_and_barrier_of_the_ring_is_needed() -> None:
    kernel, operands = kernel_of(LONG), make_operands(LONG)
    assert not is_noticed(kernel, operands)
    orders = [path for path, stmt in walk(kernel.body) if isinstance(stmt, (Barrier, WaitCopies))]
    assert len(orders) == 4
    for path in orders:
        assert is_noticed(without(kernel, path), operands, "moments"), path


def test_every_load_in_place_is_needed_where_it_stands() -> None:
    """Too early it overwrites what is still multiplied; left out, a step multiplies the last one's fragments."""
    kernel, operands = kernel_of(LONG), make_operands(LONG)
    turns = [path for path, s in walk(kernel.body) if isinstance(s, For) and s.var == "n_frag_vec" and multiplies(s)]
    assert len(turns) == 2  # of all steps but the last, and of the last
    for path in turns:

        def early(stmt: Stmt) -> tuple[Stmt, ...]:
            assert isinstance(stmt, For)
            return (For(stmt.var, stmt.extent, (stmt.body[-1], *stmt.body[:-1]), unroll=True),)

        assert is_noticed(edited(kernel, path, early), operands)
    loads = [p for p, s in walk(kernel.body) if isinstance(s, LoadMatrices) and s.dst.buffer.name == "B_frag"]
    for path in loads:
        assert is_noticed(without(kernel, path), operands)


def test_every_pointer_must_move_on() -> None:
    kernel, operands = kernel_of(LONG), make_operands(LONG)
    moved = [
        path
        for path, stmt in walk(kernel.body)
        if isinstance(stmt, Assign) and stmt.dst.buffer.offsets_into is not None
    ]
    assert len(moved) == 4  # begun, and moved
    for path in moved:
        assert is_noticed(without(kernel, path), operands)


def test_the_rung_makes_blocks_persistent_where_they_have_several_tiles() -> None:
    def stays(gemm: Gemm) -> bool:
        return best_for(gemm).persistent

    assert stays(Gemm(4096, 4096, 4096, F16, out=F16))
    assert stays(Gemm(4095, 4096, 4096, F16, out=F16))  # whole chunks of A and B still
    assert not stays(Gemm(2048, 2048, 2048, F16, out=F16))  # a tile for each block
    assert not stays(Gemm(4096, 4088, 4096, F16, out=F16))  # chunks of B that end inside a row
    assert not stays(Gemm(4096, 4096, 4096, F16, out=F16, lda=4097))


def refusal(**changed: Step) -> str:
    gemm = Gemm(128, 256, 64, F16, out=F16)
    with pytest.raises(ScheduleError) as refused:
        _ = build(gemm, steps_of(gemm, **changed)).program
    return str(refused.value)


def test_what_cannot_be_is_refused_with_the_way_out() -> None:
    inner = refusal(one=Prefetch("A_frag", in_place=True))
    assert "'n_frag'" in inner and "in_place for the operand whose fragments the outer loop counts" in inner
    assert "'n_frag', forward and backward" in refusal(one=Snake("n_frag"))
    assert "9 iteration(s)" in refusal(one=Pipeline("k_tile", 3, interleave="k_step", issue_distance=9))
    assert "say interleave as well" in refusal(one=Pipeline("k_tile", 3, issue_distance=2))
    assert "7 of 128 threads" in refusal(one=Distribute("B_tile", vector=8, row_threads=7))
    assert "a run of chunks" in refusal(one=Distribute("B_tile", vector=8, pattern=Pattern.BLOCKED, row_threads=8))


def test_a_ring_runs_on_only_where_all_its_copies_are_asynchronous() -> None:
    """Other persistent blocks begin anew with each tile of C."""
    gemm = Gemm(72, 264, 72, F16, out=F16)
    some = list(replace(SMALL, in_place_fragments=False, copy_issue_distance=0).schedule(gemm))
    assert isinstance(some[-1], Persist)
    by_registers = [s for s in some if not (isinstance(s, Transfer) and s.tile == "A_tile")]
    without_ring = [s for s in some if not isinstance(s, (Pipeline, Prefetch))]
    for schedule, runs_on in ((some, True), (by_registers, False), (without_ring, False)):
        built, operands = build(gemm, Schedule(*schedule)), make_operands(gemm)
        assert built.kernel.resident
        loops = {stmt.var for _, stmt in walk(built.kernel.body) if isinstance(stmt, For)}
        assert ("part" in loops) is runs_on
        computed, run = run_on_simulator(built, operands, resident_blocks=2, schedule="warps")
        assert check(operands, computed).ok and run.errors == ()
    with pytest.raises(ScheduleError, match="holds no fragments"):
        _ = build(gemm, Schedule(*some[:-1], Prefetch("A_tile", in_place=True))).program
