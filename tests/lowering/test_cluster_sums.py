"""The blocks of a cluster share out k and add up through distributed shared memory: right, clean, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.work_items import check_batch
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.errors import LoweringError, ScheduleError, SimulationError
from tilewright.ir.async_stmt import ClusterBarrier, InitBarrier, StoreAsync, WaitBarrier
from tilewright.ir.expr import ZERO, Ref, as_expr
from tilewright.ir.kernel import Kernel
from tilewright.ir.program import RasterOrder
from tilewright.ir.stmt import Barrier, Body, Move, Stmt
from tilewright.ir.visit import rewrite, walk
from tilewright.ir.work import SplitK
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma_steps import (
    WgmmaTile,
    loaded_by_tma,
    nest,
    staged,
    stored_in_subtiles,
    stored_per_thread,
)
from tilewright.problem import Epilogue, Gemm, Order, check, make_operands
from tilewright.problem.epilogue import Result
from tilewright.problem.functions import Operation
from tilewright.problem.values import Accumulated, Added, Fold
from tilewright.schedule import Cluster, DependentLaunch, Persist, Pipeline, Raster, Schedule, Specialize, Step
from tilewright.simulator import Kind, simulate
from tilewright.toolchain import Build, build, run_on_simulator

SMALL = WgmmaTile(64, 64, 1)
SKINNY = WgmmaTile(16, 64, 1, swap_ab=True)


def schedule(gemm: Gemm, tile: WgmmaTile, blocks: int, *more: Step, promote_every: int = 0) -> Schedule:
    return Schedule(
        *nest(gemm, tile, promote_every=promote_every),
        *staged(gemm, tile),
        *loaded_by_tma(gemm),
        Pipeline("k_tile", 3),
        Specialize((24, 240)),
        Raster(RasterOrder.GROUPED, group=2),
        Cluster("k_tile", blocks),
        DependentLaunch(),
        *(more or stored_per_thread(gemm, tile)),
    )


def shared_out(gemm: Gemm, tile: WgmmaTile, blocks: int) -> Build:
    return build(gemm, schedule(gemm, tile, blocks))


NT = Gemm(75, 130, 64 * 9 + 8, BF16, out=BF16, beta=0.5, b=Order.COL)


@pytest.mark.cross_section("gemm", "tile", every=6)
@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("tile", [SMALL, SKINNY, WgmmaTile(32, 128, 2, swap_ab=True), WgmmaTile(128, 40, 2)], ids=str)
@pytest.mark.parametrize(
    "gemm",
    [
        NT,
        replace(NT, c=Order.COL, ldc=75, out=F32, beta=0),
        Gemm(75, 136, 130, F16, out=F16, a=Order.COL, lda=80, b=Order.COL, ldb=136),
        Gemm(70, 128, 96, product=TF32, b=Order.COL),
    ],
    ids=str,
)
def test_a_cluster_adds_up_right_and_clean(gemm: Gemm, tile: WgmmaTile, blocks: int) -> None:
    operands = make_operands(gemm)
    result, run = run_on_simulator(shared_out(gemm, tile, blocks), operands, on_finding="collect")
    assert run.findings == ()
    assert check(operands, result).ok


@pytest.mark.parametrize("k", [0, 8, 64, 448])
def test_blocks_may_have_no_k_at_all(k: int) -> None:
    """448 are seven tiles for four blocks: two of them for three blocks, and one for the last."""
    gemm = Gemm(64, 64, k, BF16, out=F32, beta=0.5, lda=max(k, 8), b=Order.COL, ldb=max(k, 8))
    operands = make_operands(gemm)
    result, run = run_on_simulator(shared_out(gemm, SMALL, 4), operands, on_finding="collect")
    assert run.findings == ()
    assert check(operands, result).ok


def test_timing_changes_no_bit() -> None:
    built, operands = shared_out(NT, SKINNY, 4), make_operands(NT)
    once = built.simulate(operands, listeners=()).c
    for seed in (1, 2):
        np.testing.assert_array_equal(once, built.simulate(operands, listeners=(), schedule="warps", seed=seed).c)


def test_a_strided_batch() -> None:
    gemm = Gemm(24, 72, 192, BF16, out=BF16, b=Order.COL)
    check_batch(gemm, schedule(gemm, SKINNY, 2), 3)


def test_sums_that_are_promoted() -> None:
    gemm = Gemm(64, 64, 256, BF16, out=F32, b=Order.COL)
    built = build(gemm, schedule(gemm, SMALL, 2, promote_every=64))
    operands = make_operands(gemm)
    result, run = run_on_simulator(built, operands, on_finding="collect")
    assert run.findings == () and check(operands, result).ok


# -- kernels of mma.sync and FMAs --------------------------------------------------------------------------------------

OTHERS: dict[str, SimtConfig | MmaConfig] = {
    "registers": SimtConfig((64, 64, 16), (32, 32), unroll=8),
    "cp.async": SimtConfig((32, 64, 16), (16, 32), unroll=8, b_transport="cp_async", stages=4),
    "element by element": SimtConfig((64, 64, 16), (32, 32), unroll=8, columns_together=1, copied=1),
    "mma": MmaConfig((64, 64, 32), (32, 32), stages=3),
}


def in_clusters(gemm: Gemm, config: SimtConfig | MmaConfig, blocks: int) -> Build:
    steps = config.schedule(gemm).steps
    raster = () if any(isinstance(step, Raster) for step in steps) else (Raster(RasterOrder.ROW),)
    return build(gemm, Schedule(*steps, *raster, Cluster("k_tile", blocks)))


@pytest.mark.cross_section("k", "name", every=8)
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("k", [0, 32, 192, 203])
def test_kernels_without_roles(name: str, blocks: int, k: int) -> None:
    """32 are two k tiles of FMAs, and one of MMAs: some blocks have none."""
    dtype = BF16 if name == "mma" else F32
    whole = k % 64 == 0
    size = (64, 128, k) if whole else (75, 130, k)
    gemm = Gemm(*size, dtype, out=dtype, beta=0.5, b=Order.COL, lda=max(k, 1) + 5 * (not whole), ldb=max(k, 1))
    built, operands = in_clusters(gemm, OTHERS[name], blocks), make_operands(gemm)
    result, run = run_on_simulator(built, operands, on_finding="collect", schedule="warps")
    assert run.errors == ()
    assert check(operands, result).ok


def test_vectors_of_c_stay_vectors() -> None:
    gemm = Gemm(64, 128, 192)
    stores = [
        stmt
        for _, stmt in walk(in_clusters(gemm, OTHERS["registers"], 2).kernel.body)
        if isinstance(stmt, Move) and stmt.dst.buffer.name == "C"
    ]
    assert {stmt.width for stmt in stores} == {4}


# -- planted faults ----------------------------------------------------------------------------------------------------


def broken(change: Callable[[Stmt], Body | None]) -> set[Kind]:
    """The kinds of what is found in a kernel that was changed."""
    gemm = replace(NT, m=16, n=64)
    kernel = shared_out(gemm, SKINNY, 2).kernel
    return found(replace(kernel, body=rewrite(kernel.body, change)), gemm)


def found(kernel: Kernel, gemm: Gemm) -> set[Kind]:
    try:
        run = simulate(kernel, make_operands(gemm), listeners=(), on_finding="collect")
    except SimulationError as error:
        return {finding.kind for finding in error.findings}
    return {finding.kind for finding in run.findings}


def _waits_for_sums(stmt: Stmt) -> bool:
    return isinstance(stmt, WaitBarrier) and stmt.of_cluster


def test_nothing_is_found_where_nothing_is_broken() -> None:
    assert broken(lambda stmt: None) == set()


def test_sums_are_read_before_they_are_there() -> None:
    """Nobody waits: they are read too early, and the block may end before others have stored in it."""
    assert broken(lambda stmt: () if _waits_for_sums(stmt) else None) >= {Kind.RACE, Kind.MBARRIER}


def test_a_block_stores_in_another_that_may_not_have_begun() -> None:
    kinds = broken(lambda stmt: (Barrier("of the block only"),) if isinstance(stmt, ClusterBarrier) else None)
    assert Kind.MBARRIER in kinds


def test_a_wait_that_acquires_nothing_of_other_blocks() -> None:
    kinds = broken(lambda stmt: (replace(stmt, of_cluster=False),) if _waits_for_sums(stmt) else None)  # type: ignore[type-var]
    assert kinds == {Kind.UNFENCED}


def test_a_slice_that_is_not_sent_is_waited_for_for_ever() -> None:
    assert broken(lambda stmt: () if isinstance(stmt, StoreAsync) else None) == {Kind.DEADLOCK}


def test_a_wait_for_the_phase_before() -> None:
    kinds = broken(lambda stmt: (replace(stmt, parity=as_expr(1)),) if _waits_for_sums(stmt) else None)  # type: ignore[type-var]
    assert kinds & {Kind.RACE, Kind.DEADLOCK}


def test_sums_stored_in_stages_that_others_still_read() -> None:
    """As if the exchange used the ring's shared memory without asking whether it is drained."""

    def change(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, StoreAsync):
            return None
        stages = next(s for s in shared_out(NT, SKINNY, 2).kernel.shared if s.name == "B_tile")
        *outer, _ = stmt.dst.index
        _, chunk, thread = outer
        return (replace(stmt, dst=Ref(stages, (ZERO, ZERO, thread // 16, thread % 16 * 4 + chunk)), count=4),)

    assert Kind.RACE in broken(change)


@pytest.mark.parametrize("rank", [2, -1])
def test_a_block_that_does_not_exist(rank: int) -> None:
    kinds = broken(lambda stmt: (replace(stmt, rank=as_expr(rank)),) if isinstance(stmt, StoreAsync) else None)
    assert Kind.OUT_OF_BOUNDS in kinds


def test_a_barrier_of_too_many_arrivals() -> None:
    def change(stmt: Stmt) -> Body | None:
        of_sums = isinstance(stmt, InitBarrier) and stmt.place.buffer.name == "cluster_sums_full"
        return (replace(stmt, arrivals=2),) if of_sums else None  # type: ignore[type-var]

    assert broken(change) == {Kind.DEADLOCK}


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((Persist(),), "one tile per block only"),
        ((Cluster("m_block", 2),), "share out k and have several tiles"),
        (stored_in_subtiles(NT, SMALL, subtile=64), "store slices of a tile of C from registers"),
    ],
)
def test_what_does_not_go_with_it(steps: tuple[Step, ...], why: str) -> None:
    with pytest.raises(LoweringError, match=why):
        _ = build(NT, schedule(NT, SMALL, 2, *steps)).kernel


def test_items_and_clusters_do_not_both_share_out_k() -> None:
    with pytest.raises(LoweringError, match="one way to add up"):
        _ = replace(shared_out(replace(NT, out=F32), SMALL, 2), split_k=SplitK.PARTIALS).kernel


def test_sums_that_blocks_cannot_share_equally() -> None:
    with pytest.raises(LoweringError, match="A thread has 4 sums, which 8 blocks"):
        _ = shared_out(NT, WgmmaTile(8, 64, 1, swap_ab=True), 8).kernel


def test_folds_of_neighbours_that_blocks_would_cut_apart() -> None:
    folded = Result(Added("rows", "m", F32, own=True, fold=Fold(Operation.PLUS, 8)), Accumulated())
    gemm = replace(NT, epilogue=Epilogue(results=(folded,)))
    _ = shared_out(gemm, WgmmaTile(64, 8, 1), 2).kernel
    with pytest.raises(LoweringError, match="cut neighbours apart that 'rows' folds"):
        _ = shared_out(gemm, WgmmaTile(64, 8, 1), 4).kernel


def test_blocks_share_out_whole_k_tiles() -> None:
    with pytest.raises(ScheduleError, match="does not count the tiles of k"):
        _ = build(NT, schedule(NT, SMALL, 2, Cluster("k_step", 2))).program


@pytest.mark.parametrize(
    ("tile", "blocks"), [(SMALL, 2), (WgmmaTile(8, 128, 2, swap_ab=True), 4), (WgmmaTile(80, 128, 2, swap_ab=True), 8)]
)
def test_kernels_do_not_spill(tile: WgmmaTile, blocks: int) -> None:
    built = shared_out(NT, tile, blocks)
    assert built.compile("sm_90a").resources.spill_load_bytes == 0
    assert sum(isinstance(stmt, StoreAsync) for _, stmt in walk(built.kernel.body)) == 1
