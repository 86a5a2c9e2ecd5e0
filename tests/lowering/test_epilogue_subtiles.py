"""C through shared memory in epilogue subtiles: any n that is a multiple of 8, by TMA or by warps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from tilewright.dtypes import BF16, E4M3, F16, F32, TF32, DType
from tilewright.errors import LoweringError, ScheduleError
from tilewright.ir.async_stmt import FenceProxy, StoreMatrices, TeamBarrier, TmaStore, WaitStores
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Variant
from tilewright.ir.program import RasterOrder, Route
from tilewright.ir.stmt import Body, Move, Stmt
from tilewright.ir.visit import rewrite, walk
from tilewright.kernels.wgmma_steps import WgmmaTile, loaded_by_tma, nest, staged, stored_in_subtiles
from tilewright.layout.epilogue import default_subtile, subtile_layout
from tilewright.problem import Activation, Epilogue, Gemm, Order, check, make_operands
from tilewright.schedule import (
    Cluster,
    Persist,
    Pipeline,
    Raster,
    Relayout,
    Schedule,
    Specialize,
    Stage,
    Transfer,
    Vectorize,
)
from tilewright.simulator import Kind, Run, simulate
from tilewright.toolchain import Build, build, run_on_simulator
from tilewright.units import round_up


@dataclass(frozen=True)
class Case:
    """A tile and how its epilogue is divided; `aligned`: TMA can store C."""

    m: int
    n: int
    groups: int = 1
    ping_pong: int = 1
    swap: bool = False
    subtile: int = 0
    stages: int = 2
    out: DType = BF16
    c: Order = Order.ROW
    cluster: str = ""
    persistent: bool = True
    aligned: bool = True

    def __str__(self) -> str:
        flags = [str(self.out)] * (self.out is not BF16) + ["swap"] * self.swap + ["warps"] * (not self.aligned)
        flags += [f"x{self.groups}"] + ["ping-pong"] * (self.ping_pong > 1) + [self.c.value] * (self.c is Order.COL)
        parts = f"{self.subtile or ''}" + f"s{self.stages}"
        return "-".join((f"{self.m}x{self.n}", *flags, parts, *([self.cluster] * bool(self.cluster))))

    def gemm(self, **options: Any) -> Gemm:
        """A few more rows and columns than a tile, C at any leading dimension where TMA does not store it."""
        m, n = (self.m + (8 if self.aligned else 3), self.n + (8 if self.aligned else 5))
        length = n if self.c is Order.ROW else m
        ldc = round_up(length, 8) if self.aligned else length + 2
        dtype = self.out if self.out is not F32 else BF16
        formats = {"dtype": dtype, "out": self.out} | options
        return Gemm(m, n, 24, b=Order.COL, c=self.c, ldc=ldc, lda=24, ldb=24, **formats)

    def schedule(self, gemm: Gemm, stages: int = 2) -> Schedule:
        tiles = WgmmaTile(self.m, self.n, self.groups, swap_ab=self.swap)
        registers = {3: (32, 160)}.get(self.groups, (24, 240))
        walk_over = (Raster(RasterOrder.GROUPED, group=4), Persist()) if self.persistent else (Raster(RasterOrder.ROW),)
        return Schedule(
            *nest(gemm, tiles),
            *staged(gemm, tiles),
            *loaded_by_tma(gemm),
            Pipeline("k_tile", stages),
            Specialize(registers=registers, ping_pong=self.ping_pong),
            *walk_over,
            *((Cluster(self.cluster, 2),) if self.cluster else ()),
            *stored_in_subtiles(gemm, tiles, subtile=self.subtile, stages=self.stages, owners=self.ping_pong),
        )

    def build(self, **options: Any) -> Build:
        gemm = self.gemm(**options)
        return build(gemm, self.schedule(gemm))


def right(built: Build, **options: Any) -> Run:
    operands = make_operands(built.gemm)
    computed, run = run_on_simulator(built, operands, **options)
    verdict = check(operands, computed)
    assert verdict.ok and not run.errors, (verdict.message, run.errors)
    return run


COOPERATIVE = [
    *(Case(128, n, 2) for n in (8, 80, 136)),
    Case(64, 24),
    Case(64, 200, subtile=64),
    Case(192, 88, 3),
    Case(256, 48, 2),
    Case(128, 104, 2, stages=1),
    Case(128, 72, 2, subtile=72, stages=1),
    Case(128, 96, 2, subtile=24, stages=3, cluster="m_block"),
    Case(128, 40, 2, cluster="n_block"),
    Case(64, 56, persistent=False),
]
PING_PONG = [Case(64, n, ping_pong=2) for n in (16, 40, 72)] + [Case(128, 136, ping_pong=2, stages=1)]
OTHER_FORMATS = [
    Case(128, 40, 2, out=F32),
    Case(64, 64, out=F32),
    Case(64, 24, out=F16),
    Case(64, 72, out=F32, stages=1),
    Case(128, 136, 2, out=F32, subtile=32),
    Case(64, 112, ping_pong=2, out=F32, subtile=32),
    Case(64, 64, ping_pong=2, out=F32, subtile=16),
    Case(192, 32, 3, out=F32, cluster="n_block"),
]
SWAPPED = [
    Case(8, 64, swap=True),
    Case(24, 128, 2, swap=True),
    Case(40, 128, swap=True, persistent=False),
    Case(16, 128, swap=True, subtile=128),
    Case(24, 64, swap=True, out=F32),
    Case(40, 128, 2, swap=True, out=F32, persistent=False),
    Case(64, 40, c=Order.COL),
    Case(40, 64, swap=True, c=Order.COL),
]
WIDE = [
    Case(128, 128, 2, subtile=128, stages=1),
    Case(64, 192, subtile=192, stages=1),
    Case(64, 128, ping_pong=2, subtile=128, stages=1, cluster="n_block"),
    Case(64, 80, ping_pong=2, subtile=80),
    Case(128, 256, 2, subtile=128),
    Case(16, 128, swap=True, subtile=128),
]
"""Rows of C begin inside sectors, and subtiles are wider than a swizzle atom."""
BY_TMA = COOPERATIVE + PING_PONG + OTHER_FORMATS + [case for case in SWAPPED if case not in WIDE]
BY_WARPS = [replace(case, aligned=False) for case in (*COOPERATIVE[2:8], *PING_PONG[1:], *OTHER_FORMATS, *SWAPPED[1:])]


@pytest.mark.cross_section("case", every=6)
@pytest.mark.parametrize("case", BY_TMA + BY_WARPS, ids=str)
def test_every_tile_is_right_and_has_no_bank_conflicts(case: Case) -> None:
    built = case.build()
    statements = [stmt for _, stmt in walk(built.kernel.body)]
    assert any(isinstance(stmt, TmaStore) for stmt in statements) == case.aligned
    assert any(isinstance(stmt, StoreMatrices) for stmt in statements) == (case.out is not F32)
    run = right(built, schedule="warps", resident_blocks=2)
    assert run.counters.shared_stores.excess_wavefronts == 0


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_rows_that_begin_inside_sectors_leave_whole(case: Case) -> None:
    built = case.build()
    stores = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, Move) and stmt.origin == "C"]
    assert {stmt.width for stmt in stores} == {8}
    run = right(built, schedule="warps", resident_blocks=2)
    assert run.counters.shared_stores.excess_wavefronts == 0
    assert (run.counters.shared_loads.excess_wavefronts == 0) == (case.subtile % 64 == 0)
    narrow = replace(case, subtile=min(case.n, 64)).build()
    assert any(isinstance(stmt, TmaStore) for _, stmt in walk(narrow.kernel.body))


@pytest.mark.cross_section("case", "beta", every=2)
@pytest.mark.parametrize("beta", [0.0, -1.25])
@pytest.mark.parametrize("case", [WIDE[0], COOPERATIVE[2], PING_PONG[2], SWAPPED[1], OTHER_FORMATS[0]], ids=str)
def test_what_is_added_and_applied(case: Case, beta: float) -> None:
    for aligned in (True, False):
        right(replace(case, aligned=aligned).build(alpha=0.5, beta=beta, epilogue=Epilogue("n", True, Activation.RELU)))


def test_the_result_of_tf32_leaves_by_tma() -> None:
    gemm = Gemm(72, 48, 24, F32, out=F32, product=TF32, b=Order.COL)
    right(build(gemm, Case(64, 40, out=F32).schedule(gemm)))


@pytest.mark.parametrize("epilogue", [Epilogue(), Epilogue("n", True), Epilogue(residual=True)], ids=str)
def test_lanes_store_4_byte_elements_in_an_order_of_their_own(epilogue: Epilogue) -> None:
    """Where their rows would meet in the banks: of an element the order changes neither place nor value."""
    built = Case(64, 64, out=F32, subtile=32).build(epilogue=epilogue, beta=0.5 if epilogue.residual else 0.0)
    assert any("C_in_order" in str(stmt) for _, stmt in walk(built.kernel.body))
    assert right(built, schedule="warps").counters.shared_stores.excess_wavefronts == 0


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_no_layout_of_a_subtile_that_is_chosen_has_conflicts(columns: int) -> None:
    """Known without a run: rows begin in different groups of banks."""
    for rows in (64, 128, 192, 256):
        for element_bytes in (2, 4):
            width = default_subtile(columns, rows, element_bytes)
            assert width % 8 == 0 and 8 <= width <= columns
            assert 2 * rows * width * element_bytes <= (10 * element_bytes) << 10 or width == 8
            layout = subtile_layout(width, element_bytes)
            assert layout is None or width % layout.columns == 0


def test_a_row_of_an_odd_number_of_units_needs_no_swizzle() -> None:
    assert [subtile_layout(width, 2) for width in (8, 24, 40, 104, 136)] == [None] * 5
    wide = [layout.row_bytes if layout else 0 for layout in (subtile_layout(w, 2) for w in (64, 32, 96, 16, 80))]
    assert wide == [128, 64, 64, 32, 32]


def test_the_stages_of_an_epilogue_take_little_of_shared_memory() -> None:
    """The deepest ring fits beside them: 128 x 208 has five stages, 256 x 208 three."""
    for case, stages in ((Case(128, 208, 2), 5), (Case(256, 208, 2), 3), (Case(128, 136, 2), 6)):
        gemm = Gemm(4096, 4096, 4096, BF16, out=BF16, b=Order.COL)
        kernel = build(gemm, case.schedule(gemm, stages)).kernel
        (tile,) = (buffer for buffer in kernel.shared if buffer.name == "C_tile")
        assert tile.size_bytes <= 20 << 10


# -- waits that are left out ----------------------------------------------------------------------------------------


def found_without(built: Build, kind: type[Any], dropped: int, **options: Any) -> frozenset[Kind]:
    """What the simulator reports where the statement of this kind and number is gone."""
    numbers = count()

    def change(stmt: Stmt) -> Body | None:
        return () if isinstance(stmt, kind) and next(numbers) == dropped else None

    kernel = replace(built.kernel, body=rewrite(built.kernel.body, change))
    assert kernel != built.kernel
    run = simulate(kernel, make_operands(built.gemm), on_finding="collect", schedule="moments", **options)
    return frozenset(finding.kind for finding in run.errors)


STAGED = [Case(64, 40, subtile=8, stages=1), Case(64, 72, subtile=32), Case(64, 40, ping_pong=2, subtile=16)]

WAITS: list[tuple[type[Any], int, frozenset[Kind]]] = [
    (WaitStores, 0, frozenset({Kind.RACE})),  # before a stage is filled again
    (TeamBarrier, 0, frozenset({Kind.RACE})),  # the others know it from the one thread that waits
    (FenceProxy, 0, frozenset({Kind.UNFENCED})),
    (TeamBarrier, 1, frozenset({Kind.RACE, Kind.UNFENCED})),  # all have filled the stage
]


@pytest.mark.parametrize(("kind", "number", "kinds"), WAITS)
@pytest.mark.parametrize(
    "case",
    [
        Case(64, 40, subtile=8, stages=1),
        Case(64, 72, subtile=32),
        Case(64, 40, ping_pong=2, subtile=16),
        Case(64, 72, subtile=32, out=F32),
    ],
    ids=str,
)
def test_each_wait_around_a_tma_store_is_needed(
    case: Case, kind: type[Any], number: int, kinds: frozenset[Kind]
) -> None:
    built = case.build()
    before = kind is TeamBarrier and case.ping_pong > 1  # the barrier of empty sums stands in front of the epilogue
    assert found_without(built, kind, number + before, resident_blocks=1) & kinds


def test_a_block_waits_for_its_last_stores() -> None:
    built = Case(64, 40).build()
    waits = sum(isinstance(stmt, WaitStores) for _, stmt in walk(built.kernel.body))
    assert found_without(built, WaitStores, waits - 1, resident_blocks=1)


@pytest.mark.parametrize("dropped", [0, 1])
def test_warps_meet_around_a_single_stage(dropped: int) -> None:
    built = Case(64, 40, subtile=24, stages=1, aligned=False).build()
    assert found_without(built, TeamBarrier, dropped, resident_blocks=1) & {Kind.RACE, Kind.UNWRITTEN}


# -- what cannot be -------------------------------------------------------------------------------------------------


def kernel_with(case: Case, change: Callable[[Schedule], Schedule]) -> Any:
    gemm = case.gemm()
    return build(gemm, change(case.schedule(gemm))).kernel


def test_a_subtile_is_made_of_whole_matrices() -> None:
    def steps(schedule: Schedule) -> Schedule:
        kept = [s for s in schedule if not (isinstance(s, Relayout) and s.tile == "C_tile")]
        return Schedule(*(replace(s, subtile=12) if isinstance(s, Stage) and s.operand == "C" else s for s in kept))

    with pytest.raises(ScheduleError, match="in boxes of whole 16 bytes, and 12 columns of bf16 are 24"):
        kernel_with(Case(64, 40), steps)


def test_under_swap_ab_a_subtile_is_made_of_whole_fragments() -> None:
    with pytest.raises((LoweringError, ScheduleError), match="in subtiles of 32 of its 128 columns"):
        _ = Case(16, 128, swap=True, subtile=32).build().kernel


def test_boxes_have_no_pads() -> None:
    gemm = Case(64, 40).gemm()
    steps = [step for step in Case(64, 40).schedule(gemm) if "C" not in str(step)]
    padded = (Stage("C", Space.SHARED), Relayout("C_tile", pad=8), Transfer("C_tile", Route.TMA))
    with pytest.raises(LoweringError, match="it is padded"):
        _ = build(gemm, Schedule(*steps, *padded)).kernel


def test_rows_of_unknown_alignment_leave_in_pairs() -> None:
    case = WIDE[0]
    gemm = case.gemm()
    known, unknown = (build(gemm, case.schedule(gemm), variant=one) for one in (None, Variant(result_bytes=2)))
    for built, width in ((known, 8), (unknown, 2)):
        stores = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, Move) and stmt.origin == "C"]
        assert max(stmt.width for stmt in stores) == width
    right(unknown, schedule="warps")


def test_a_lane_stores_what_divides_a_subtile() -> None:
    case = replace(WIDE[0], n=144, subtile=72)
    gemm = case.gemm()
    by_warps = case.schedule(gemm)
    assert build(gemm, by_warps).kernel
    for width, match in ((16, "would access 16 x 2 bytes at once"), (6, "would access 6 x 2 bytes at once")):
        with pytest.raises(ScheduleError, match=match):
            build(gemm, Schedule(*by_warps.steps, Vectorize("C_tile", width))).kernel  # noqa: B018
    with pytest.raises(ScheduleError, match="is a shared tile, whose copy"):
        build(gemm, Schedule(*by_warps.steps, Vectorize("A_tile", 8))).kernel  # noqa: B018
    bytes_ = Case(64, 24, out=E4M3, aligned=False)
    gemm = bytes_.gemm()
    with pytest.raises(ScheduleError, match="rows of 'C_tile' are 24 of 24 columns, not multiples of 16"):
        build(gemm, Schedule(*bytes_.schedule(gemm).steps, Vectorize("C_tile", 16))).kernel  # noqa: B018
