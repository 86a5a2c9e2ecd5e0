"""C out through shared memory by the lanes of each warpgroup: rows that begin and end anywhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.lowering.traffic import Traffic, check_product
from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import LoweringError, ScheduleError
from tilewright.ir.async_stmt import StoreMatrices, TeamBarrier, TmaStore
from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO
from tilewright.ir.kernel import C_ODD, SAFE, Variant
from tilewright.ir.program import Route
from tilewright.ir.stmt import Body, Stmt
from tilewright.ir.visit import map_exprs, rewrite, substitute, walk
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import COOPERATIVE, PING_PONG, at_depth, persistent
from tilewright.kernels.wgmma_steps import loaded_by_tma, nest, staged
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.problem import Activation, Epilogue, Gemm, Order, check, make_operands
from tilewright.schedule import Pipeline, Relayout, Schedule, Stage, Transfer
from tilewright.simulator import Kind, Run, simulate
from tilewright.simulator.listeners import standard_listeners
from tilewright.toolchain import Build, build, run_on_simulator
from tilewright.units import round_up

TALL, NARROW = persistent(256, 128, 2, subtile=64), persistent(64, 64, 1, subtile=64)
ONE_PART = persistent(64, 128, 1, subtile=128)
SMALL_PING_PONG = persistent(128, 128, 2, subtile=64, ping_pong=True)
ONE_STAGE = persistent(256, 128, 2, subtile=64, subtile_stages=1)
WHOLE_ROWS = persistent(64, 256, 1, subtile=256, subtile_stages=1)
NO_POWER_OF_TWO = persistent(128, 160, 2, subtile=160, subtile_stages=1)


def schedule_at(gemm: Gemm, config: WgmmaConfig) -> Schedule:
    return at_depth(config, gemm).schedule(gemm)


def problem(m: int, n: int, k: int, ldc: int, **options: Any) -> Gemm:
    """TMA loads A and B, whose rows begin at multiples of 16 bytes."""
    a, b = options.get("a", Order.ROW), options.get("b", Order.ROW)
    lda, ldb = (round_up(size, 8) for size in (k if a is Order.ROW else m, n if b is Order.ROW else k))
    formats = {"dtype": BF16, "out": BF16} | options
    return Gemm(m, n, k, lda=lda, ldb=ldb, ldc=ldc, **formats)


def by_lanes(gemm: Gemm, point: Any, variant: Variant | None = None) -> Build:
    built = build(gemm, schedule_at(gemm, point), variant=variant)
    statements = [stmt for _, stmt in walk(built.kernel.body)]
    assert any(isinstance(stmt, StoreMatrices) for stmt in statements) is (gemm.out.bytes == 2)
    assert not any(isinstance(stmt, TmaStore) for stmt in statements)
    assert [one.route for one in built.program.staged if one.operand == "C"] == [Route.MATRICES]
    return built


def right(gemm: Gemm, built: Build, **options: Any) -> Run:
    operands = make_operands(gemm)
    traffic = Traffic(operands)
    computed, run = run_on_simulator(built, operands, listeners=(*standard_listeners(), traffic), **options)
    verdict = check(operands, computed)
    assert verdict.ok and not run.errors, verdict.message
    check_product(traffic, built)
    return run


@pytest.mark.cross_section("point", "n", every=13)
@pytest.mark.parametrize("point", [TALL, NARROW, ONE_PART, COOPERATIVE, SMALL_PING_PONG, ONE_STAGE, WHOLE_ROWS])
@pytest.mark.parametrize(
    ("n", "ldc"), [(261, 261), (197, 197), (197, 200), (196, 197), (198, 198), (1, 1), (63, 65), (129, 131)]
)
def test_rows_of_any_length_any_distance_apart(point: Any, n: int, ldc: int) -> None:
    gemm = problem(131, n, 77, ldc)
    right(gemm, by_lanes(gemm, point))


@pytest.mark.cross_section("n", every=3)
@pytest.mark.parametrize("n", [61, 64, 7])
def test_a_warp_that_stores_one_and_a_half_times_as_many_rows_as_it_has_lanes(n: int) -> None:
    gemm = problem(200, n, 24, n + 1 + n % 2)
    right(gemm, by_lanes(gemm, persistent(192, 64, 1, subtile=64)))


@pytest.mark.cross_section("start", "ldc", every=2)
@pytest.mark.parametrize("start", [0, 2, 4, 6, 14])
@pytest.mark.parametrize("ldc", [130, 133])
def test_a_matrix_that_begins_anywhere(start: int, ldc: int) -> None:
    gemm = problem(70, 129, 40, ldc, beta=0.5)
    for point in (NARROW, ONE_PART):
        right(gemm, by_lanes(gemm, point, SAFE), base_bytes={"C": start})


@pytest.mark.cross_section("point", "n", "start", every=4)
@pytest.mark.parametrize("point", [TALL, NARROW, SMALL_PING_PONG, NO_POWER_OF_TWO, ONE_PART])
@pytest.mark.parametrize(("n", "ldc"), [(197, 197), (130, 131), (127, 129), (1, 1)])
@pytest.mark.parametrize("start", [0, 4, 12])
def test_elements_of_4_bytes(point: Any, n: int, ldc: int, start: int) -> None:
    gemm = problem(131, n, 77, ldc, out=F32)
    right(gemm, by_lanes(gemm, point), base_bytes={"C": start})


@pytest.mark.cross_section("dtype", "a", "b", every=6)
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("a", "b"), [(Order.ROW, Order.ROW), (Order.ROW, Order.COL), (Order.COL, Order.ROW)])
def test_orders_formats_and_factors(dtype: Any, a: Order, b: Order) -> None:
    epilogue = Epilogue("n", True, Activation.RELU)
    for point, rest in ((TALL, {}), (SMALL_PING_PONG, {"epilogue": epilogue})):
        gemm = problem(131, 197, 77, 199, a=a, b=b, dtype=dtype, out=dtype, alpha=0.5, beta=-1.25, **rest)
        right(gemm, by_lanes(gemm, point), schedule="warps")


@pytest.mark.parametrize("exact", ["m", "n", "mn"])
def test_tiles_that_are_whole(exact: str) -> None:
    gemm = problem(256 if "m" in exact else 131, 256 if "n" in exact else 131, 77, 257)
    built = by_lanes(gemm, TALL)
    assert frozenset(exact) <= built.variant.exact
    right(gemm, built)


@pytest.mark.cross_section("point", every=3)
@pytest.mark.parametrize("point", [SMALL_PING_PONG, replace(PING_PONG, ping_pong=False), ONE_PART])
def test_more_tiles_than_blocks_and_an_odd_number_of_parts(point: WgmmaConfig) -> None:
    """A place that was stored from for one tile is filled again for the next."""
    gemm = problem(132, 260, 40, 261)
    right(gemm, by_lanes(gemm, replace(point, stages=2)), resident_blocks=1, schedule="warps")


def test_a_warp_stores_whole_lines() -> None:
    """A lane on its own touches a sector for each of eight rows; 64 neighbours are 5 sectors, and few stand alone."""
    gemm = problem(256, 256, 64, 257)
    ours = right(gemm, by_lanes(gemm, TALL)).counters
    alone = right(gemm, build(gemm, schedule_at(gemm, persistent(256, 128, 2, subtile=0)))).counters
    size_bytes = gemm.m * gemm.n * 2
    assert ours.global_stores.sectors < 1.5 * size_bytes / 32 < 5 * size_bytes / 32 < alone.global_stores.sectors
    assert ours.global_stores.requests < 0.55 * alone.global_stores.requests
    assert ours.global_stores.bytes_asked == size_bytes


def test_pairs_have_no_bank_conflicts() -> None:
    """Where all rows begin at pairs there are no ends, which alone have some."""
    even = problem(256, 256, 64, 258)
    counters = right(even, by_lanes(even, TALL)).counters
    assert counters.shared_stores.excess_wavefronts == counters.shared_loads.excess_wavefronts == 0
    odd = problem(256, 256, 64, 257)
    loads = right(odd, by_lanes(odd, TALL)).counters.shared_loads
    assert 0 < loads.excess_wavefronts < 0.5 * loads.requests


def without_teams(built: Build, dropped: tuple[int, ...]) -> frozenset[Kind]:
    """What is found where the meetings of these numbers are gone from the text of a kernel."""
    numbers = count()

    def change(stmt: Stmt) -> Body | None:
        return () if isinstance(stmt, TeamBarrier) and next(numbers) in dropped else None

    kernel = replace(built.kernel, body=rewrite(built.kernel.body, change))
    operands = make_operands(built.gemm)
    run = simulate(kernel, operands, on_finding="collect", schedule="warps", resident_blocks=1)
    return frozenset(finding.kind for finding in run.errors)


@pytest.mark.cross_section("point", every=3)
@pytest.mark.parametrize("point", [TALL, COOPERATIVE, SMALL_PING_PONG])
def test_warps_meet_once_where_there_are_two_places(point: Any) -> None:
    built = by_lanes(problem(131, 261, 40, 263), point)
    assert without_teams(built, ()) == frozenset()
    of_empty_sums = int(point.ping_pong)  # a barrier in front of the epilogue
    assert without_teams(built, (of_empty_sums,)) & {Kind.RACE, Kind.UNWRITTEN}


@pytest.mark.cross_section("point", every=2)
@pytest.mark.parametrize("point", [ONE_PART, ONE_STAGE])
def test_warps_also_meet_before_a_lone_place_is_filled_again(point: Any) -> None:
    built = by_lanes(problem(131, 261, 40, 263), point)
    assert without_teams(built, ()) == frozenset()
    for dropped in (0, 1):
        assert without_teams(built, (dropped,)) & {Kind.RACE, Kind.UNWRITTEN}


def test_where_c_begins_decides_what_is_a_pair() -> None:
    """As if C began at a multiple of two elements, and it does not: the simulator refuses the stores, as GPUs do."""
    gemm = problem(70, 129, 40, 130)
    built = by_lanes(gemm, NARROW, SAFE)

    def change(stmt: Stmt) -> Body:
        return (map_exprs(stmt, lambda expr: substitute(expr, {C_ODD.name: ZERO})),)

    kernel = replace(built.kernel, body=rewrite(built.kernel.body, change))
    run = simulate(kernel, make_operands(gemm), base_bytes={"C": 2}, on_finding="collect")
    assert Kind.MISALIGNED in {finding.kind for finding in run.errors}


@pytest.mark.cross_section("variant", every=3)
@pytest.mark.parametrize("variant", [SAFE, Variant(alignment_bytes=16, result_bytes=1), Variant(frozenset("m"), 16)])
def test_the_widest_tile_that_goes_by_lanes_leaves_registers_for_its_store(variant: Variant) -> None:
    """128 sums a thread; what is needed to store them must not be kept beside them. A spill would be refused."""
    pytest.importorskip("nvidia")
    assert (
        by_lanes(problem(4096, 4097, 4096, 4097), COOPERATIVE, variant).compile("sm_90a").resources.spill_load_bytes
        == 0
    )


def test_wider_tiles_of_a_warpgroup_store_odd_rows_from_registers() -> None:
    """192 accumulators a thread: NVRTC 13.0 would spill. Rows at 16 bytes are still stored by TMA."""
    for columns, route in ((4097, None), (4096, Route.TMA)):
        program = build(
            problem(4096, columns, 4096, columns), schedule_at(problem(4096, columns, 4096, columns), PING_PONG)
        ).program
        assert next((staged.route for staged in program.staged if staged.operand == "C"), None) is route


def test_c_that_cannot_go_in_parts_is_stored_from_registers() -> None:
    gemm = problem(72, 72, 64, 73, c=Order.COL)
    built = build(gemm, schedule_at(gemm, TALL))
    assert not any(isinstance(stmt, StoreMatrices) for _, stmt in walk(built.kernel.body))


def steps(n: int, parts: int) -> Schedule:
    point = replace(NARROW, tile=(64, n, 64), subtile=64, stages=2)
    gemm = problem(72, 72, 64, 73)
    return Schedule(
        *nest(gemm, point.steps_tile),
        *staged(gemm),
        *loaded_by_tma(gemm),
        Pipeline("k_tile", 2),
        Stage("C", Space.SHARED, subtile=n // parts),
        Relayout("C_tile", arrangement=SwizzleAtoms(64)),
        Transfer("C_tile", Route.MATRICES),
    )


def test_it_does_without_roles() -> None:
    """Where every thread multiplies, and one of them starts the copies."""
    gemm = problem(72, 72, 64, 73)
    right(gemm, build(gemm, steps(64, 1)))


def test_a_part_is_made_of_whole_pieces_of_64_columns() -> None:
    gemm = problem(72, 72, 64, 73)
    with pytest.raises((LoweringError, ScheduleError), match="columns"):
        _ = build(gemm, steps(128, 4)).kernel


def test_tma_also_does_with_one_place() -> None:
    gemm = problem(260, 264, 40, 264)
    built = build(gemm, schedule_at(gemm, replace(ONE_STAGE, stages=2)))
    assert any(isinstance(stmt, TmaStore) for _, stmt in walk(built.kernel.body))
    right(gemm, built, resident_blocks=1, schedule="warps")
