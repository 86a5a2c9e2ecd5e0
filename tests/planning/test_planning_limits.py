"""Limits of planning where a size equals them, and what the time of launches around a product is made of."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from planned import alignment_of, asked, paper_dispatcher
from test_boundaries import GPUS, made_up  # noqa: F401  every test here has it

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F32, TF32
from tilewright.kernels.splitting import LONGEST_LINE
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_steps import reads_orders
from tilewright.planning import emulated, gated, ragged, ranking
from tilewright.planning.account import account_of, dispatcher_on_paper, next_best
from tilewright.planning.assembly import Request
from tilewright.planning.coded_wgmma import wgmma_candidates
from tilewright.planning.cost.plans import MORE_LAUNCHES_SECONDS, moving
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Alignment, Groups, Packing, Stack
from tilewright.planning.plan import Role
from tilewright.planning.ragged import reads_groups_by_tma
from tilewright.planning.ranking import Priced, Ranking, estimate_us
from tilewright.planning.raster import rows_together
from tilewright.problem import Gemm, Order
from tilewright.problem.coded_product import CodedProduct, CodedWeight
from tilewright.problem.emulation import BF16X3, BF16X6, F16X3, TF32X3
from tilewright.problem.quantization import Quantization
from tilewright.problem.weight_codes import INT4
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
NOT_NEAR = np.array([np.inf])  # to the time of memory
SERVED = [Priced("wgmma", None, Packing(), NOT_NEAR)]  # type: ignore[arg-type]
PACKED = [Priced("wgmma", None, Packing(frozenset("A")), NOT_NEAR)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "count", "worth"),
    [
        ((400, 400, 400), 1, True),  # 64 million products
        ((400, 400, 401), 1, False),
        ((200, 400, 400), 2, True),
        ((200, 400, 400), 3, False),
        ((2, 699_050, 1), 1, True),  # 4 MiB
        ((2, 699_051, 1), 1, False),
    ],
)
def test_small_problems_may_be_faster_by_mma_sync(size: tuple[int, int, int], count: int, worth: bool) -> None:
    gemm = Gemm(*size, BF16, out=BF16)
    assert ranking._may_be_worth_warps(SERVED, gemm, H200, 16, count) == worth
    assert ranking._may_be_worth_warps(PACKED, gemm, H200, 16, count)  # where wgmma would need a copy
    assert not ranking._may_be_worth_warps(SERVED, gemm, device("A100 SXM 80 GB"), 16, count)


@pytest.mark.parametrize(("size", "never"), [((2, 699_051, 1), True), ((2, 699_050, 1), False)])
def test_what_wgmma_does_in_the_time_of_memory_nothing_does_faster(size: tuple[int, int, int], never: bool) -> None:
    gemm = Gemm(*size, BF16, out=BF16)
    for times, worth in ((1.1, not never), (1.1001, True)):
        seconds = np.array([np.inf, times * float(moving(gemm.compulsory_bytes, H200))])
        priced = [Priced("wgmma", None, Packing(frozenset("A")), seconds)]  # type: ignore[arg-type]
        assert ranking._may_be_worth_warps(priced, gemm, H200, 16, 1) == worth


@pytest.mark.parametrize(("least", "loads", "worth"), [(128, 16, True), (129, 16, False), (129, 8, True)])
def test_tf32_that_is_transposed_is_compared_where_it_reads_more_than_it_computes(
    least: int, loads: int, worth: bool
) -> None:
    gemm = Gemm(4096, 4096, least, F32, product=TF32, b=Order.ROW)
    assert not reads_orders(gemm)
    assert ranking._may_be_worth_warps(SERVED, gemm, H200, loads, 1) == worth
    small = Gemm(640, 640, 625, F32, product=TF32)  # four times as many products as otherwise
    assert ranking._may_be_worth_warps(SERVED, small, H200, 16, 1)
    assert not ranking._may_be_worth_warps(SERVED, Gemm(640, 640, 626, F32, product=TF32), H200, 16, 1)


@pytest.mark.parametrize("more", [0, 1])
def test_lines_that_a_block_holds_are_scaled_and_split_in_one_launch(more: int) -> None:
    gemm = Gemm(64, 64, LONGEST_LINE + 64 * more, F32, b=Order.COL)
    found = emulated._splitting_of(Request(gemm, alignment_of(gemm), algorithm=F16X3), "A")
    assert found.to_length == gemm.k and found.own_scales == (not more)
    across = Gemm(64, 64, 64, F32, a=Order.COL)
    assert not emulated._splitting_of(Request(across, alignment_of(across), algorithm=F16X3), "A").own_scales
    assert not emulated._splitting_of(Request(gemm, alignment_of(gemm), algorithm=BF16X3), "A").own_scales


@pytest.mark.parametrize("how", [BF16X3, BF16X6, F16X3, TF32X3], ids=str)
@pytest.mark.parametrize("orders", [(Order.ROW, Order.COL), (Order.COL, Order.ROW)])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_splitting_takes_as_long_as_its_launches_move_bytes(how: Any, orders: Any, prepared: bool, count: int) -> None:
    """Each launch a start and its bytes, and what a further launch costs; beside prepared pieces, no start."""
    gemm = Gemm(192, 320, 520, F32, a=orders[0], b=orders[1])
    stack = Stack(count, 192 * 520, 520 * 320, 192 * 320) if count > 1 else None
    request = Request(gemm, alignment_of(gemm), stack, algorithm=how, prepared=prepared)
    plan = paper_dispatcher(GPUS["H200"]).plan(request)
    before = [step for step in plan.steps if step.role in (Role.SCALE, Role.SPLIT, Role.TRANSPOSE)]
    expected = sum(
        float(moving(step.moved_bytes, H200, 0 if prepared and step.role is Role.SPLIT else 1)) + MORE_LAUNCHES_SECONDS
        for step in before
    )
    assert emulated.splitting_us(request, H200) == pytest.approx(1e6 * expected)
    if not how.shift:
        return
    fallback = Request(gemm, alignment_of(gemm), stack, algorithm=how, prepared=prepared, fallback=BF16X6)
    more = emulated.splitting_us(fallback, H200) - emulated.splitting_us(request, H200)
    assert more == pytest.approx(1.0 if prepared else 3.0)


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_a_cluster_of_coded_kernels_shares_no_more_than_k(cluster: int) -> None:
    for k, m in product((128, 256, 512), (16, 48)):
        one = CodedProduct(m, CodedWeight(1024, k, INT4), BF16, BF16)
        found = [config for config in wgmma_candidates(one, H200) if config.cluster == cluster]
        assert all(config.stage_k * cluster <= max(k, config.stage_k) for config in found)
        assert not any(config.reasons_against(one, H200) for config in found)
        assert not found or 128 * cluster <= k
        assert found or cluster > 1


def test_plans_of_other_calls_are_kept_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.planning.dispatch._KEPT_PLANS", 2)
    dispatcher = paper_dispatcher(GPUS["H200"])
    problems = [Quantization(lines, 128, 128, 128, BF16, E4M3, "line") for lines in (1, 2, 3, 4)]
    for at, one in enumerate(problems):
        dispatcher.quantizing(one, 16, capturing=lambda: False)
        assert len(dispatcher._others) == 1 + at % 2
    requests = []
    for tokens in (128, 256, 384):
        gemm = Gemm(tokens, 256, 256, BF16, b=Order.COL, out=BF16)
        requests.append(Request(gemm, alignment_of(gemm), groups=Groups(2, "m", 256 * 256)))
    for at, request in enumerate(requests):
        plan = dispatcher.ragged(request)
        assert dispatcher.ragged(request) is plan and dispatcher.knows_ragged(request)
        assert len(dispatcher._ragged) == 1 + at % 2
    dispatcher.forget()
    assert not dispatcher._others and not dispatcher._ragged


def test_groups_that_tma_reads() -> None:
    gemm = Gemm(512, 256, 256, BF16, b=Order.COL, out=BF16)
    whole = Request(gemm, Alignment(16, 16, 4), groups=Groups(2, "m", 0))
    assert reads_groups_by_tma(whole, H200)
    for alignment in (Alignment(8, 16, 16), Alignment(16, 8, 16)):
        assert not reads_groups_by_tma(Request(gemm, alignment, groups=Groups(2, "m", 0)), H200)
    for other, groups in (
        (gemm, Groups(2, "m", -1)),
        (Gemm(512, 256, 0, BF16, b=Order.COL, out=BF16), Groups(2, "m", 0)),
        (Gemm(512, 256, 256, BF16, a=Order.COL, b=Order.COL, out=BF16), Groups(2, "m", 0)),
        (gemm, Groups(2, "k", 0)),
        (Gemm(512, 256, 256, F32, b=Order.COL), Groups(2, "m", 0)),
    ):
        assert not reads_groups_by_tma(Request(other, Alignment(16, 16, 16), groups=groups), H200)
    along_k = Gemm(512, 256, 256, BF16, a=Order.COL, out=BF16)
    assert reads_groups_by_tma(Request(along_k, Alignment(16, 16, 16), groups=Groups(2, "k", 0)), H200)
    assert not reads_groups_by_tma(whole, device("A100 SXM 80 GB"))


def test_strips_of_groups_are_those_of_a_group() -> None:
    gemm = Gemm(8192, 4096, 8192, BF16, b=Order.COL, out=BF16)
    for count in (1, 8):
        request = Request(gemm, alignment_of(gemm), groups=Groups(count, "m", 4096 * 8192))
        found = [config.kernel for config in ragged._by_tma(request, H200)]
        of_group = replace(gemm, m=8192 // count)
        told = [(one.raster_rows, rows_together(one, of_group, H200)) for one in found if isinstance(one, WgmmaConfig)]
        assert told and all(rows == best for rows, best in told)
        assert ({rows for rows, _ in told} == {16}) is (count == 8)


@pytest.mark.parametrize(("n", "early"), [(512, True), (4096, False)])
def test_groups_that_take_long_do_not_start_early(n: int, early: bool) -> None:
    gemm = Gemm(8 * 1024, n, 4096, BF16, b=Order.COL, out=BF16)
    request = Request(gemm, alignment_of(gemm), groups=Groups(8, "m", n * 4096))
    kernels = [config.kernel for config in ragged._by_tma(request, H200)]
    assert {one.dependent_launch for one in kernels if isinstance(one, WgmmaConfig)} == {early}


@pytest.mark.parametrize(("rows", "hint"), [(16, "B"), (64, ""), (1024, "")])
def test_b_of_skinny_groups_leaves_first(rows: int, hint: str) -> None:
    """Nobody asks for it again: not where groups of half as many rows more have a second row of tiles."""
    gemm = Gemm(16 * rows, 1408, 2048, BF16, b=Order.COL, out=BF16)
    request = Request(gemm, alignment_of(gemm), groups=Groups(16, "m", 1408 * 2048))
    first = next(ragged._by_tma(request, H200)).kernel
    assert isinstance(first, WgmmaConfig) and first.evict_first == hint


@pytest.mark.parametrize("rows", [150, 177, 210, 240])
def test_tiles_of_small_groups_are_not_as_high_as_their_mean(rows: int) -> None:
    """Groups of any size up to twice the mean fill 128 rows twice as often as 192, or clusters of 256 (record 0085)."""
    gemm = Gemm(64 * rows, 2048, 4096, BF16, b=Order.COL, out=BF16)
    request = Request(gemm, alignment_of(gemm), groups=Groups(64, "m", 2048 * 4096))
    first = next(ragged._by_tma(request, H200)).kernel
    assert isinstance(first, WgmmaConfig) and first.m * first.cluster_m == 128


def test_large_groups_stage_more_of_c_beside_a_shorter_ring() -> None:
    """Ping-pong of about as many columns as a thread has registers for, two stages of C and a ring of four: 0070,
    0078."""
    gemm = Gemm(8192, 14336, 4096, BF16, b=Order.COL, out=BF16)
    request = Request(gemm, alignment_of(gemm), groups=Groups(8, "m", 14336 * 4096))
    first = next(ragged._by_tma(request, H200)).kernel
    assert isinstance(first, WgmmaConfig)
    assert first.ping_pong and first.m == 128 and first.n in (192, 200)
    assert (first.stages, first.subtile_stages) == (4, 2) and first.subtile >= 32


def test_groups_in_ping_pong_stage_two_subtiles() -> None:
    """And others what they like: 18 fresh groups took 1.2 % longer where ping-pong staged one (record 0078)."""
    gemm = Gemm(8192, 4096, 512, BF16, b=Order.COL, out=BF16)
    request = Request(gemm, alignment_of(gemm), groups=Groups(8, "m", 4096 * 512))
    kernels = [config.kernel for config in ragged._by_tma(request, H200)]
    staged = [one for one in kernels if isinstance(one, WgmmaConfig) and one.subtile and one.m * one.n >= 128 * 128]
    stages = {turn: {one.subtile_stages for one in staged if one.ping_pong is turn} for turn in (False, True)}
    assert stages == {False: {1, 2}, True: {2}}


@pytest.mark.parametrize(("c", "staged"), [(16, True), (8, False)])
def test_groups_leave_through_shared_memory_where_tma_can_store_them(c: int, staged: bool) -> None:
    gemm = Gemm(8192, 4096, 512, BF16, b=Order.COL, out=BF16)
    request = Request(gemm, Alignment(16, 16, c), groups=Groups(8, "m", 4096 * 512))
    kernels = [config.kernel for config in ragged._by_tma(request, H200)]
    assert any(one.subtile for one in kernels if isinstance(one, WgmmaConfig)) == staged


@pytest.mark.parametrize("rows", [16, 8, 4, 2, 24, 40, 6])
def test_rows_are_multiples_of_what_they_are(rows: int) -> None:
    """At addresses that are multiples of 16 bytes, or of fewer."""
    gemm = Gemm(64, 64, 64, BF16, lda=64 + rows // 2, out=BF16)
    own = max(size for size in (16, 8, 4, 2) if (128 + rows) % size == 0)
    assert alignment_of_rows(gemm) == Alignment(own, 16, 16)
    assert alignment_of_rows(gemm, 4) == Alignment(min(own, 4), 4, 4)


def test_what_the_second_of_two_products_adds() -> None:
    gemm = Gemm(300, 200, 100, BF16, out=BF16)
    assert gated.reading_us(gemm, H200) == pytest.approx(1.0 + 1e6 * float(moving(300 * 200 * 4, H200, 0)))


def test_an_account_adds_up_its_launches_and_leaves_out_those_that_end() -> None:
    dispatcher = paper_dispatcher(GPUS["H200"])
    gemm = Gemm(512, 1024, 1024, F32, b=Order.COL)
    request = Request(gemm, alignment_of(gemm), algorithm=F16X3, fallback=BF16X6)
    found = account_of(dispatcher, request, dispatcher.plan(request))
    own = [one.estimated_us for one in found.launches if one.condition != "a flag is raised"]
    ended = len(found.launches) - len(own)
    assert found.is_guarded and ended > 0
    assert found.estimated_us == pytest.approx(sum(own) + ended)
    decided = [one.estimated_us if one.condition != "flags are clear" else 1.0 for one in found.launches]
    assert found.fallback_us == pytest.approx(sum(decided))
    plain = asked(2047, 2047, 2047, "bf16", "NN")
    plan = dispatcher.plan(plain)
    told = account_of(dispatcher, plain, plan)
    assert not told.is_guarded and told.fallback_us is None
    (multiplied,) = (step.multiplied for step in plan.steps if step.multiplied is not None)
    total = estimate_us(multiplied.config, multiplied.gemm, dispatcher.spec, multiplied.alignment)
    assert told.estimated_us == pytest.approx(total, rel=0.1)


def test_other_plans_are_as_many_as_are_asked_for_and_other_ones() -> None:
    spec = GPUS["A100 SXM 80 GB"]
    dispatcher = dispatcher_on_paper(spec)
    request = asked(1000, 512, 512, "f32", "NT")
    plan = dispatcher.plan(request)
    assert next_best(dispatcher, request, plan, 0) == ()
    for most in (1, 3):
        found = next_best(dispatcher, request, plan, most)
        assert len(found) == most and plan.words not in {one.words for one in found}
        assert [one.estimated_us for one in found] == sorted(one.estimated_us for one in found)


def test_a_ranking_of_nothing() -> None:
    assert list(Ranking(())) == [] and Ranking(()).drawn(3, seed=1) == []


def test_a_plan_that_does_not_fit_takes_for_ever() -> None:
    large = WgmmaConfig((256, 256, 64), stages=8)
    gemm = Gemm(512, 512, 512, BF16, out=BF16)
    assert estimate_us(PlanConfig(large), gemm, GPUS["H200"], Alignment(16, 16, 16)) == float("inf")
