"""Rows that begin at any 2 bytes: whole aligned vectors are read, and chunks of 16 bytes cut out of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import count, product
from typing import Any

import numpy as np
import pytest

from tests.mutations.broken import Runs, needless_guards
from tilewright import BF16, F16, F32, Gemm, Order, build
from tilewright.dtypes import DType
from tilewright.ir.expr import Const, Op, binary
from tilewright.ir.kernel import SAFE, Kernel
from tilewright.ir.stmt import Barrier, Body, CutOut, Let, Move, Stmt, WaitCopies
from tilewright.ir.visit import rewrite, walk
from tilewright.ir.work import Problems, SplitK
from tilewright.ladders import find_rung
from tilewright.ladders.ampere.r6_full import ODD_TALL, ODD_WIDE, point_for, schedule_at
from tilewright.problem import check, make_operands
from tilewright.problem.reference import Operands, view
from tilewright.schedule import Pipeline, Prefetch, Schedule
from tilewright.simulator.coverage import miscounts
from tilewright.simulator.findings import Kind
from tilewright.simulator.run import Run, simulate
from tilewright.simulator.sampling import count_sampled
from tilewright.toolchain import Build

POINT = {**ODD_TALL, "m": 64, "n": 64, "warp_m": 32, "warp_n": 32}
ORDERS = list(product(Order, Order))
NAMES = ["NN", "NT", "TN", "TT"]


def built(gemm: Gemm, **point: Any) -> Build:
    return build(gemm, schedule_at(gemm, {**POINT, **point}), variant=SAFE)


def problem(m: int, n: int, k: int, dtype: DType = F16, **options: Any) -> Gemm:
    return Gemm(m, n, k, dtype, **{"out": dtype, **options})


@cache
def kernel_for(a: Order, b: Order) -> Kernel:
    return built(problem(65, 67, 37, a=a, b=b)).kernel


def is_right(run: Run, operands: Operands) -> bool:
    gemm = operands.gemm
    return check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok


@pytest.mark.parametrize(("a", "b"), ORDERS, ids=NAMES)
@pytest.mark.parametrize(
    "base_bytes", [{}, {"A": 2, "B": 14}, {"A": 8, "B": 6}], ids=["at 0", "at 1 and 7", "at 4 and 3"]
)
@pytest.mark.parametrize("size", [(65, 67, 37), (1, 1, 1), (3, 130, 101), (70, 9, 0), (64, 64, 96)], ids=str)
def test_any_size_from_any_element_on(
    a: Order, b: Order, base_bytes: dict[str, int], size: tuple[int, int, int]
) -> None:
    """Gaps behind rows are NaN, and so is what lies in front of and behind an operand. One kernel is for all sizes."""
    kernel = kernel_for(a, b)
    for extra in (0, 3):
        tight = problem(*size, a=a, b=b)
        operands = make_operands(replace(tight, lda=tight.lda + extra, ldb=tight.ldb + extra))
        run = simulate(kernel, operands, base_bytes=base_bytes)
        assert is_right(run, operands) and not run.findings


@pytest.mark.parametrize(
    "point",
    [{"stages": 2}, {"stages": 5}, {"spread": True}, {"ahead": False}, {"n": 128, "warp_n": 64}, {"k_bytes": 128}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_every_ring_waits_for_its_vectors(point: dict[str, Any], dtype: DType) -> None:
    gemm = problem(67, 131, 133, dtype, beta=0.5)
    operands = make_operands(gemm)
    run = simulate(built(gemm, **point).kernel, operands)
    assert is_right(run, operands) and not run.findings


@pytest.mark.parametrize("name", ["ampere/4", "ampere/5"])
@pytest.mark.parametrize("ring", [True, False], ids=["ring", "no ring"])
@pytest.mark.parametrize("b", Order)
def test_every_ring_of_chunks_of_16_bytes_is_cut_out(name: str, ring: bool, b: Order) -> None:
    rung = find_rung(name)
    gemm = rung.gemm(67, 69, 45, dtype=F16, out=F16, b=b)
    steps = [step for step in rung.schedule(gemm) if ring or not isinstance(step, (Pipeline, Prefetch))]
    kernel = build(gemm, Schedule(*steps), variant=SAFE).kernel
    operands = make_operands(gemm)
    assert any(isinstance(stmt, CutOut) for _, stmt in walk(kernel.body)) is ring
    run = simulate(kernel, operands, base_bytes={"A": 2, "B": 10})
    assert is_right(run, operands) and not run.findings


@pytest.mark.parametrize(("a", "b"), ORDERS, ids=NAMES)
def test_rows_that_lie_alike_are_right_as_well(a: Order, b: Order) -> None:
    """An even leading dimension: rows have turns of their own, and not each a skip of its own."""
    gemm = problem(67, 69, 101, a=a, b=b)
    gemm = replace(gemm, lda=112, ldb=106)
    operands = make_operands(gemm)
    run = simulate(built(gemm).kernel, operands, base_bytes={"A": 2, "B": 6})
    assert is_right(run, operands) and not run.findings


def test_chunks_of_fewer_bytes_go_in_pairs() -> None:
    rung = find_rung("swizzle/async_copy")
    gemm = rung.gemm(67, 69, 45, dtype=F16, out=F16)
    kernel = build(gemm, rung, variant=SAFE).kernel
    operands = make_operands(gemm)
    assert not any(isinstance(stmt, CutOut) for _, stmt in walk(kernel.body))
    assert is_right(simulate(kernel, operands), operands)


def test_no_product_is_missing_or_taken_twice() -> None:
    gemm = problem(67, 69, 75, a=Order.COL)
    assert miscounts(built(gemm).kernel, gemm) == ()


@pytest.mark.parametrize(("a", "b"), ORDERS, ids=NAMES)
def test_parts_of_k_add_up(a: Order, b: Order) -> None:
    gemm = problem(67, 69, 109, a=a, b=b, out=F32)
    operands = make_operands(gemm)
    stacked = replace(operands, c=np.full(3 * gemm.m * gemm.ldc, np.nan, np.float32))
    run = replace(built(gemm, in_parts=False), split_k=SplitK.PARTIALS).simulate(stacked, part_of_k=64, listeners=())
    total = run.c.reshape(3, gemm.m, gemm.ldc)[:2].sum(axis=0, dtype=np.float32)
    assert check(operands, total).ok


@pytest.mark.parametrize("many", [Problems.STRIDED, Problems.LISTED])
def test_each_of_many_problems_begins_where_its_own_operands_do(many: Problems) -> None:
    """Addresses are set in front of the body, and how far to skip is asked of them."""
    made = replace(built(problem(67, 69, 45)), problems=many)
    text = made.cuda[made.cuda.index('extern "C"') :]
    moved = text.index("A += blockIdx.z * A_step" if many is Problems.STRIDED else "A = (")
    assert moved < text.index("reinterpret_cast<size_t>(A) / 2 % 64")


# What is read, and what it costs.


@pytest.mark.parametrize("extra", [0, 2, 4], ids=str)
def test_lanes_that_cut_their_own_fragments_load_each_word_once_and_no_banks_conflict(extra: int) -> None:
    """Of 32 elements of k a lane's run has four words, and ends in a fifth."""
    gemm = problem(256, 256, 256, b=Order.COL)
    gemm = replace(gemm, lda=gemm.lda + 1 + extra, ldb=gemm.ldb + 1 + extra)
    run = simulate(build(gemm, schedule_at(gemm, {**ODD_TALL, "stages": 6})).kernel, make_operands(gemm))
    tiles, warps, loads = gemm.k // 32, 2 * 8, 5 * 8
    for fragments in ("A_frag", "B_frag"):
        own = run.counters.of_origin(fragments)
        assert set(own.instructions) == {"LDS", "PRMT"}
        assert own.shared_loads.wavefronts == own.shared_loads.ideal_wavefronts
        begun = 3 * 8  # after the last tile, the first words of one that is not there
        assert own.instructions["LDS"] == (tiles * loads + begun) * warps
        assert own.instructions["PRMT"] == tiles * 2 * 16 * warps
    for tile in ("A_tile", "B_tile"):
        assert set(run.counters.of_origin(tile).instructions) == {"LDGSTS.128"}


@pytest.mark.parametrize(("a", "b"), [one for one in ORDERS if one != (Order.ROW, Order.COL)], ids=["NN", "TN", "TT"])
@pytest.mark.parametrize("extra", [0, 2, 4], ids=str)
def test_vectors_are_of_16_bytes_and_no_banks_conflict(a: Order, b: Order, extra: int) -> None:
    gemm = problem(255, 257, 253, a=a, b=b)
    gemm = replace(gemm, lda=gemm.lda + extra, ldb=gemm.ldb + extra)
    run = simulate(build(gemm, schedule_at(gemm, ODD_TALL)).kernel, make_operands(gemm))
    for tile in ("A_tile", "B_tile"):
        copies = run.counters.of_origin(tile)
        assert set(copies.instructions) == {"LDGSTS.128", "LDS", "SHF", "STS.128"}
        loads, stores = copies.shared_loads, copies.shared_stores
        assert loads.wavefronts == loads.ideal_wavefronts
        # Pieces along k begin with lines, some vectors apart: their copies, and these alone, may meet in a bank.
        along_k = (a is Order.ROW) if tile == "A_tile" else (b is Order.COL)
        assert stores.wavefronts <= (1.5 if along_k else 1) * stores.ideal_wavefronts


def test_a_row_along_k_asks_for_whole_sectors() -> None:
    """Of 64 bytes a tile: two sectors, and one more where the ring begins again."""
    gemm = problem(256, 128, 320, lda=321, ldb=129)
    run = simulate(build(gemm, schedule_at(gemm, ODD_TALL)).kernel, make_operands(gemm))
    pieces = gemm.k // 32 + 1  # a row may begin in the middle of one
    sectors = run.counters.of_origin("A_tile").global_loads.sectors
    assert 2 * gemm.m * (pieces - 1) <= sectors <= gemm.m * (2 * pieces + pieces // 5 + 1)


def test_a_sample_counts_as_the_whole_does() -> None:
    gemm = Gemm(511, 513, 101, F16, out=F16)
    kernel, operands = build(gemm, schedule_at(gemm, {**ODD_WIDE, "group": 1})).kernel, make_operands(gemm)
    sampled = count_sampled(kernel, operands)
    assert not sampled.is_estimate
    assert [line.sectors for line in sampled.lines] == [
        line.sectors for line in simulate(kernel, operands).counters.lines
    ]


@pytest.mark.parametrize(("a", "b"), ORDERS, ids=NAMES)
def test_what_is_cut_out_leaves_registers_for_the_sums(a: Order, b: Order) -> None:
    """Where lanes cut their own fragments, and rows have an edge, a compiler may keep some addresses in memory."""
    pytest.importorskip("nvidia")
    gemm = problem(4095, 4097, 4093, a=a, b=b)
    most = 64 if (a, b) == (Order.ROW, Order.COL) else 0
    assert build(gemm, schedule_at(gemm, point_for(gemm))).compile("sm_90a").resources.spill_load_bytes <= most
    gemm = problem(4096, 4096, 4096, a=a, b=b)
    gemm = replace(gemm, lda=gemm.lda + 1, ldb=gemm.ldb + 1)
    assert build(gemm, schedule_at(gemm, point_for(gemm))).compile("sm_90a").resources.spill_load_bytes == 0


# What the tests above must notice.


def broken(gemm: Gemm, change: Callable[[Stmt], Stmt], **options: Any) -> tuple[bool, frozenset[Kind]]:
    """Whether a kernel with every statement changed is right, and what is found."""
    kernel = built(gemm).kernel

    def changed(stmt: Stmt) -> Body:
        return (change(stmt),)

    mutant: Kernel = replace(kernel, body=rewrite(kernel.body, changed))
    operands = make_operands(gemm)
    run = simulate(mutant, operands, on_finding="collect", **options)
    return is_right(run, operands), frozenset(finding.kind for finding in run.findings)


def test_what_lies_behind_k_must_be_cleared() -> None:
    """Vectors are copied whole, and lanes cut out what there is."""

    def change(stmt: Stmt) -> Stmt:
        stored = isinstance(stmt, Move) and stmt.dst.buffer.name.endswith("_around") and not stmt.asynchronous
        return replace(stmt, guard=binary(Op.LT, 1, 0)) if stored else stmt  # type: ignore[call-arg]

    for k in (37, 64):
        gemm = problem(65, 67, k, b=Order.COL, lda=k + 4, ldb=k + 6)
        assert broken(gemm, lambda stmt: stmt) == (True, frozenset())
        assert broken(gemm, change)[0] is (k % 32 == 0)


def test_what_lies_behind_a_row_along_k_must_be_cut_off() -> None:
    gemm = problem(65, 67, 37, lda=41, ldb=71)
    assert broken(gemm, lambda stmt: stmt) == (True, frozenset())
    assert not broken(gemm, lambda stmt: replace(stmt, valid=None) if is_vector(stmt) else stmt)[0]  # type: ignore[call-arg]


def is_vector(stmt: Stmt) -> bool:
    return isinstance(stmt, Move) and stmt.asynchronous


def test_each_part_of_each_guard_of_vectors_that_lanes_cut_is_needed() -> None:
    kernel = kernel_for(Order.ROW, Order.COL)
    sizes = [(3, 67, 5), (65, 3, 131), (70, 66, 0), (70, 66, 45), (70, 66, 157), (70, 66, 173)]
    gemms = [problem(m, n, k, b=Order.COL, lda=k + 2, ldb=k + 4) for m, n, k in sizes]
    runs: Runs = [(make_operands(gemm), base) for gemm in gemms for base in ({}, {"A": 34, "B": 50})]

    def is_noticed(one: Kernel, operands: Operands, base: Mapping[str, int]) -> bool:
        run = simulate(one, operands, listeners=(), on_finding="collect", base_bytes=base)
        return bool(run.errors) or not is_right(run, operands)

    needless = needless_guards(kernel, runs, is_noticed, of="_tile")
    # The first vectors stand behind the ring as well, for the tile in front: of the first tile, and of the one that k
    # ends in, nobody reads them there any more, and the latter need no zeros.
    again = [one for one in needless if "+ 160] <" in one and ("&& 0 < K &&" in one or "element + 32" not in one)]
    assert len(again) == 4 and needless == again, "\n".join(needless)


@pytest.mark.parametrize("order", Order)
def test_the_vector_in_which_a_row_ends_is_needed(order: Order) -> None:
    """Along k it stands where the ring begins again; along m it is one more."""
    number = count()

    def change(stmt: Stmt) -> Stmt:
        """Of A there are two copies in turn: of each chunk's own vector, and of these."""
        if not is_vector(stmt) or stmt.src.buffer.name != "A" or next(number) % 2 == 0:  # type: ignore[union-attr]
            return stmt
        return replace(stmt, guard=binary(Op.LT, 1, 0))  # type: ignore[call-arg]

    assert not broken(problem(65, 67, 200, a=order, lda=233), change)[0]


@pytest.mark.parametrize("b", Order)
def test_whoever_waits_for_too_few_vectors_is_found(b: Order) -> None:
    def change(stmt: Stmt) -> Stmt:
        return replace(stmt, pending=stmt.pending + 1) if isinstance(stmt, WaitCopies) else stmt

    assert broken(problem(65, 67, 200, b=b), change)[1]


@pytest.mark.parametrize("b", Order)
def test_each_barrier_is_needed(b: Order) -> None:
    gemm = problem(65, 67, 197, b=b)
    kernel = built(gemm).kernel
    notes = {stmt.note for _, stmt in walk(kernel.body) if isinstance(stmt, Barrier)}
    assert len(notes) == (3 if b is Order.ROW else 4)
    for note in notes:
        mutant = replace(
            kernel,
            body=rewrite(kernel.body, lambda s, note=note: () if isinstance(s, Barrier) and s.note == note else None),
        )
        assert simulate(mutant, make_operands(gemm), on_finding="collect").findings, note


def test_what_is_skipped_depends_on_where_an_operand_begins() -> None:
    """Both sides skip as much, so that results are right; but no GPU loads from there."""

    def change(stmt: Stmt) -> Stmt:
        return replace(stmt, value=Const(1)) if isinstance(stmt, Let) and stmt.name.endswith("_skip") else stmt

    assert Kind.MISALIGNED in broken(problem(65, 67, 40), change, base_bytes={"A": 2, "B": 6})[1]


def test_a_vector_without_one_element_inside_is_refused() -> None:
    """As if no load asked whether its row, or its part of a row, is there."""

    def change(stmt: Stmt) -> Stmt:
        return replace(stmt, guard=None) if is_vector(stmt) else stmt  # type: ignore[call-arg]

    assert Kind.OUT_OF_BOUNDS in broken(problem(1, 1, 1), change)[1]


def test_skipping_more_than_an_element_is_refused() -> None:
    def change(stmt: Stmt) -> Stmt:
        return replace(stmt, skip=Const(2)) if isinstance(stmt, CutOut) else stmt

    assert Kind.OUT_OF_BOUNDS in broken(problem(65, 67, 40), change)[1]
