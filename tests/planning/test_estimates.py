"""What kernels are estimated to take: a change of the cost model, or of candidates, shows in tests/golden/choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from named_problems import request_of
from planned import alignment_of
from test_dispatch import problem
from test_ragged import REQUESTS

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F16, DType
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Columns
from tilewright.kernels.configuration import rows_of
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.tile_sizes import warps_of
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning import ranking
from tilewright.planning.assembly import Request
from tilewright.planning.candidates import candidates, other_options, table_of
from tilewright.planning.cost import plans
from tilewright.planning.cost.first_cut import PLANS
from tilewright.planning.cost.plans import shared_factor
from tilewright.planning.cost.wgmma_terms import fragment_clocks, promotion_clocks, read_bytes
from tilewright.planning.emulated import of_pieces
from tilewright.planning.estimates import estimated
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows
from tilewright.planning.packing import Stack
from tilewright.planning.ragged import _by_tma, ranked_ragged
from tilewright.planning.ranking import Ranking, core_of, estimate_us, packings_for, ranked, whole_space
from tilewright.problem import Gemm, Order
from tilewright.problem.emulation import F16X3
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.gemm import orders_of
from tilewright.suite.problems import Problem
from tilewright.suite.stacks import Batched
from tilewright.units import ceil_div
from tilewright.winners.plan_config import PlanConfig

GPUS = ("H200", "A100 SXM 80 GB", "RTX 4090")
PROBLEMS = [
    # m, n, k, format, orders, problems of a batch
    (4096, 4096, 4096, "bf16", "NN", 1),
    (8192, 16, 8192, "f16", "NT", 1),
    (512, 512, 16384, "bf16", "TN", 1),
    (1000, 1000, 1000, "f16", "NN", 1),
    (96, 4096, 64, "bf16", "NN", 64),
    (128, 128, 4096, "f32", "NT", 16),
    (2047, 2049, 2045, "bf16", "NN", 6),
    (1024, 1024, 1024, "tf32", "TN", 1),
    (2048, 2048, 512, "f32", "NN", 1),
    (16384, 16384, 8192, "bf16", "NN", 1),
    (65536, 256, 4096, "bf16", "NN", 1),
    (1024, 1024, 1, "bf16", "TN", 1),
    (64, 100_000, 256, "f32", "NN", 1),
]
OF_EACH = 2
"""Plans of each family that are told: the best ones."""


def estimates(name: str) -> list[str]:
    """The best plans of each family for each problem, with their estimated time."""
    lines = []
    for m, n, k, format, orders, count in PROBLEMS:
        gemm = problem(m, n, k, format, orders)
        stack = Stack(count, m * k, k * n, m * n) if count > 1 else None
        lines.append(f"\n{name}: {m}x{n}x{k} {format} {orders}" + (f", {count} of them" if count > 1 else ""))
        told: dict[str, list[str]] = {}
        for us, config in ranked(gemm, device(name), alignment_of(gemm), stack=stack):
            told.setdefault(config.kernel.kind, []).append(f"{us:10.4g} us  {config}")
        lines += [line for kind in sorted(told) for line in told[kind][:OF_EACH]]
    return lines


@pytest.mark.parametrize("name", GPUS)
def test_estimates_of_products(name: str, golden: Callable[[str, str], None]) -> None:
    file = device(name).name.lower().replace(" ", "_")
    golden(f"choices/estimates_{file}.txt", "\n".join(estimates(name)).lstrip() + "\n")


def test_choices_for_groups(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, request in REQUESTS.items():
        configs = list(ranked_ragged(request, device("H200")))
        lines += [f"{name}: the best of {len(configs)}", *(f"  {config}" for config in configs[:4])]
    golden("choices/groups.txt", "\n".join(lines) + "\n")


# -- what holds of every estimate, and of all candidates ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["A100 SXM 80 GB", "RTX 4090"])
@pytest.mark.parametrize("count", [1, 50])
def test_no_product_is_faster_than_its_operands_arrive(name: str, count: int) -> None:
    gemm, spec = problem(2048, 2048, 64, "bf16"), device(name)
    stack = Stack(count, 2048 * 64, 2048 * 64, 2048 * 2048) if count > 1 else None
    found = ranked(gemm, spec, alignment_of(gemm), stack=stack)
    least_us = count * gemm.compulsory_bytes / spec.dram_gb_per_s / 1e3
    assert found and all(us >= least_us for us, _ in found)


def test_kernels_of_groups_leave_registers_for_the_names_of_groups() -> None:
    """The most accumulators of a thread without spills, by consumers and by what the epilogue stores with."""
    most: dict[str, int] = {}
    for request in REQUESTS.values():
        for config in _by_tma(request, device("H200")):
            kernel = config.kernel
            assert isinstance(kernel, WgmmaConfig)
            held = int(wgmma.accumulators_of(Columns.of([kernel], WgmmaConfig.columns))[0])
            stores = "threads" if not kernel.subtile else "shared memory"
            in_turn = kernel.ping_pong and kernel.subtile > 0
            kind = "three consumers" if kernel.consumers > 2 else stores + ", ping-pong" * in_turn
            most[kind] = max(most.get(kind, 0), held)
    assert most == {"three consumers": 80, "shared memory": 128, "shared memory, ping-pong": 200}


def test_rows_of_skinny_groups_lie_along_the_columns_of_an_instruction() -> None:
    request = REQUESTS["many of 16"]
    kernels = [config.kernel for config in _by_tma(request, device("H200"))]
    skinny = {(one.n, one.consumers) for one in kernels if isinstance(one, WgmmaConfig) and one.swap_ab}
    assert skinny == {(64, 1), (128, 1), (128, 2)}
    assert {one.m for one in kernels if isinstance(one, WgmmaConfig) and one.swap_ab} == set(range(8, 65, 8))


@pytest.mark.parametrize("format", ["bf16", "tf32"])
def test_every_proposed_kernel_of_mma_is_one(format: str) -> None:
    gemm = problem(1024, 1024, 1024, format)
    table = candidates(gemm, device("A100 SXM 80 GB"))["mma"]
    kernels = rows_of("mma", table, np.arange(len(table)))
    assert kernels and not any(one.reasons_against(gemm) for one in kernels)


def test_a_kernel_starts_under_the_one_before_where_the_device_has_that() -> None:
    """From compute capability 9.0 on."""
    assert [PaperKernels(device(name)).overlaps for name in GPUS] == [True, False, False]


@pytest.mark.parametrize("swap", [False, True])
def test_instructions_read_both_operands_from_shared_memory(swap: bool) -> None:
    """A 128 x 64 x 64 tile of bf16: wgmma of 64 rows, or with swap-AB of 64 columns, times all of the other side."""
    config = WgmmaConfig((128, 64, 64), consumers=1, swap_ab=swap)
    rows, columns = (64, 128) if swap else (128, 64)
    found = read_bytes(Columns.of([config], WgmmaConfig.columns), Gemm(1, 1, 1, BF16))
    assert found.tolist() == [rows / 64 * (64 + columns) * 64 * BF16.bytes]


def stages_of(c: Columns, gemm: Gemm) -> set[tuple[int, ...]]:
    """Of a kernel's options: stages of the ring, columns of an epilogue subtile, and its stages."""
    found = other_options(c, gemm, 1)
    assert wgmma.fits(found).all() and (found.stages >= 3).all()
    names = ("stages", "subtile", "subtile_stages")
    return set(zip(*(getattr(found, name).tolist() for name in names), strict=True))


def test_rows_that_begin_inside_sectors_may_leave_whole() -> None:
    gemm = Gemm(4096, 1160, 96, BF16, out=BF16)
    core = table_of("wgmma", gemm, device("H200"))
    alone = (core.ping_pong == 1) & (core.cluster_m * core.cluster_n == 1) & (core.persistent == 1) & (core.m == 128)
    found = {
        128: {(5, 64, 2), (6, 64, 1), (5, 128, 1)},
        160: {(4, 64, 2), (5, 64, 1)},
        192: {(4, 64, 2)},
    }  # 192 lack registers
    for n, expected in found.items():
        c = core[np.flatnonzero(alone & (core.n == n))]
        assert len(c) == 1 and stages_of(c, gemm) == expected


def test_the_best_kernels_are_priced_with_less_and_more_of_c_staged() -> None:
    gemm = Gemm(8192, 8192, 512, BF16, out=BF16, b=Order.COL)

    def one_tile_of(core: Columns) -> Any:
        alone = (core.persistent == 1) & (core.cluster_m * core.cluster_n == 1)
        return alone & (core.m == 128) & (core.n == 192) & (core.consumers == 2)

    core = table_of("wgmma", gemm, device("H200"))
    for ping_pong, expected in ((1, {(5, 32, 1), (4, 64, 2)}), (0, {(5, 32, 2), (4, 64, 2)})):
        c = core[np.flatnonzero(one_tile_of(core) & (core.ping_pong == ping_pong) & (core.swap_ab == 0))]
        assert len(c) == 1 and stages_of(c, gemm) == expected
    eights = Gemm(8192, 8192, 1024, E4M3, out=BF16, b=Order.COL)
    core = table_of("wgmma", eights, device("H200"))
    c = core[np.flatnonzero(one_tile_of(core) & (core.ping_pong == 1))]
    for scale, more in (((), (4, 64, 2)), (("a", "b"), (4, 64, 2)), (("m", "n"), (4, 32, 2))):  # 64 columns spill then
        assert stages_of(c, replace(eights, epilogue=Epilogue(scale=scale))) == {(5, 32, 1), more}
    core = table_of("wgmma", gemm, device("H200"))
    turned = core[np.flatnonzero((core.swap_ab == 1) & (core.persistent == 1) & (core.subtile > 0))]
    for at in range(len(turned)):
        one = turned[np.array([at])]
        assert (wgmma.staged_c_bytes(other_options(one, gemm, 1)) <= wgmma.staged_c_bytes(one)).all()


def test_boxes_of_c_are_wide_where_its_rows_begin_inside_sectors() -> None:
    odd, whole = (Gemm(4096, columns, 512, BF16, out=BF16, b=Order.COL) for columns in (4104, 4096))
    narrow, wide = (table_of("wgmma", gemm, device("H200")) for gemm in (whole, odd))
    assert len(narrow) == len(wide)
    changed = np.flatnonzero(narrow.subtile != wide.subtile)
    assert (wide.ping_pong[changed] > 0).any() and (wide.ping_pong[changed] == 0).any()
    assert (wide.subtile[changed] == np.minimum(64, wide.n[changed])).all()
    assert (wide.stages[changed] >= 3).all() and wgmma.fits(wide).all()
    assert (wgmma.accumulators_of(wide[changed]) < 192)[wide.ping_pong[changed] == 0].all()


def test_estimates_of_all_launches_are_corrected_together(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm, spec = problem(5, 3072, 3072, "bf16", "TN"), device("H200")  # rows of A begin at 10 bytes
    alignment = alignment_of_rows(gemm)

    def first(kind: str, packed: frozenset[Any]) -> PlanConfig:
        plans = whole_space(gemm, spec, alignment, family=kind)
        return next(config for _, config in plans if config.packed == packed)

    asked = [first("mma", frozenset({"A"})), first("wgmma", frozenset({"A"}))]
    before = [estimate_us(one, gemm, spec, alignment) for one in asked]
    monkeypatch.setattr(plans, "shared_factor", lambda *_: 2 * shared_factor(*_))
    after = [estimate_us(one, gemm, spec, alignment) for one in asked]
    assert [late / early for late, early in zip(after, before, strict=True)] == pytest.approx([2.0] * 2)


@pytest.mark.parametrize("order", ["TN", "NT"])
def test_where_wgmma_is_priced_kernels_of_warps_read_operands_as_they_lie(order: str) -> None:
    gemm = problem(1001, 1003, 1005, "bf16", order)
    for spec, expected in ((device("H200"), {frozenset()}), (device("A100"), {frozenset(), frozenset("AB")})):
        tables = ranked(gemm, spec, alignment_of_rows(gemm)).tables
        assert {one.packing.packed for one in tables if one.kind == "mma"} == expected


def test_the_likely_kernels_of_wgmma_are_priced_with_their_options_and_the_others_follow() -> None:
    gemm = problem(1024, 1000, 1024, "bf16", "TN")
    (likely,) = (one for one in ranked(gemm, device("H200"), alignment_of_rows(gemm)).tables if one.kind == "wgmma")
    options = {*zip(likely.columns.dependent_launch.tolist(), likely.columns.raster_rows.tolist(), strict=True)}
    assert len(options) > 1
    assert PLANS <= len(likely.seconds) < 2 * PLANS
    found = [*estimated(Request(gemm, alignment_of_rows(gemm)), device("H200"))]
    assert len(found) == len({*found}) > 10 * len(likely.seconds)


@pytest.mark.parametrize("sizes", [(48, 4096, 1024), (4096, 48, 1024)])
def test_one_row_or_column_of_tiles_has_one_order(sizes: tuple[int, int, int]) -> None:
    gemm = problem(*sizes, "bf16", "NT")
    options = next(iter(ranked(gemm, device("H200"), alignment_of_rows(gemm), corrected=400).tables)).columns
    in_line = (options.m >= gemm.m) | (options.n >= gemm.n)
    assert in_line.any() and set(options.raster_rows[in_line & (options.persistent == 0)].tolist()) == {1}
    assert set(options.raster_rows[options.persistent > 0].tolist()) <= {16}
    assert {1, 16} <= set(options.raster_rows[~in_line].tolist()) or in_line.all()


def test_plans_that_are_drawn_differ_in_more_than_options() -> None:
    gemm = problem(1024, 1024, 1024, "bf16")
    ranking = ranked(gemm, device("H200"), alignment_of(gemm))
    drawn = ranking.drawn(12, seed=1)
    assert len({core_of(config) for _, config in drawn}) == len(drawn) == 12
    assert drawn == ranking.drawn(12, seed=1) != ranking.drawn(12, seed=2)


@pytest.mark.parametrize("dtype", [E4M3, F16], ids=str)
def test_kernels_of_warps_are_left_out_where_they_would_not_be_chosen(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose k steps alone take longer than the best plan of wgmma: some are, and none of them is the best."""
    rng, left_out = np.random.default_rng(5), 0
    for sizes in np.exp(rng.uniform(np.log(16), np.log(4096), (30, 3))).astype(int) // 16 * 16:
        gemm = Gemm(*sizes.tolist(), dtype, out=BF16, b=Order.COL)
        found = ranked(gemm, device("H200"), alignment_of_rows(gemm))
        with monkeypatch.context() as patched:
            patched.setattr(ranking, "_best_alone", lambda tables: np.inf)
            every = ranked(gemm, device("H200"), alignment_of_rows(gemm))
        left_out += every.priced - found.priced
        assert found[0] == every[0]
    assert left_out > 0


def test_where_nothing_is_proposed_nothing_is_ranked() -> None:
    assert len(Ranking(())) == 0 and Ranking(()).of_each_table(10) == []


def test_small_products_are_rescaled_in_two_instructions_for_each_accumulator() -> None:
    """64 of a thread, half of whose clocks are hidden by the other warpgroup."""
    c = Columns.of([WgmmaConfig((128, 128, 64))], WgmmaConfig.columns)
    gemm = problem(256, 256, 256, "f32")
    pieces = of_pieces(Request(gemm, alignment_of(gemm), algorithm=F16X3)).gemm
    assert promotion_clocks(c, pieces).tolist() == [2 * 64 / 2]
    assert promotion_clocks(c, gemm).tolist() == [0]


def test_clocks_in_which_an_operand_is_read_through_registers() -> None:
    """Eight loads for each 64 rows, two latencies; each warpgroup of a ping-pong kernel reads a tile of its own."""
    both = WgmmaConfig((128, 128, 32), left_in_registers=True)
    alternating = WgmmaConfig((64, 128, 32), ping_pong=True, left_in_registers=True)
    c = Columns.of([both, alternating, replace(both, left_in_registers=False)], WgmmaConfig.columns)
    assert fragment_clocks(c).tolist() == [16 + 80, 8 + 80, 0]


def test_the_whole_space_of_promoted_sums_holds_kernels_that_promote_them_alone() -> None:
    one = Problem.of("300x512x512 e4m3 NT row")
    found = whole_space(
        one.gemm, device("H200"), alignment_of(one.gemm), family="wgmma", promote_every=one.promote_every
    )
    kernels = [config.kernel for _, config in found[:200]]
    assert {getattr(kernel, "promote_every", 0) for kernel in kernels} == {128}
    assert not any(kernel.reasons_against(one.gemm) for kernel in kernels if isinstance(kernel, WgmmaConfig))


@pytest.mark.parametrize("family", ["wgmma", "mma", "simt"])
def test_the_whole_space_of_a_batch_holds_what_a_batch_can_run_priced_for_all_of_it(family: str) -> None:
    one = request_of(Batched(96, 200, 300, 96, "bf16" if family != "simt" else "f32"))
    spec = device("H200")
    found = whole_space(one.gemm, spec, one.alignment, family=family, stack=one.stack)
    configs = [config for _, config in found[:300]]
    assert {getattr(config.kernel, "split_k", 1) for config in configs} == {1}
    assert {getattr(config.kernel, "cluster_k", 1) for config in configs} == {1}
    assert not any(config.tile_multiples for config in configs)
    best_us, best = found[0]
    assert best_us == pytest.approx(estimate_us(best, one.gemm, spec, one.alignment, one.stack), rel=0.02)
    assert best_us > 1.1 * estimate_us(best, one.gemm, spec, one.alignment)


def test_the_whole_space_behind_one_packing_holds_no_other() -> None:
    gemm, spec = Problem.of("225x2343x15 bf16 NT").gemm, device("H200")
    alignment = alignment_of(gemm)
    ways = packings_for("mma", gemm, alignment)
    assert len(ways) == 2
    for way in ways:
        found = whole_space(gemm, spec, alignment, family="mma", packing=way)
        assert {config.packed for _, config in found[:20]} == {way.packed}


def test_no_simt_kernel_of_the_whole_space_copies_two_bytes_by_cp_async() -> None:
    gemm, spec = Problem.of("225x2343x15 bf16 NT").gemm, device("H200")
    found = whole_space(gemm, spec, alignment_of(gemm), family="simt")
    assert {getattr(config.kernel, "b_transport", "") for _, config in found[:100]} == {"registers"}
    in_f32 = Problem.of("225x2343x15 f32 NT").gemm
    found = whole_space(in_f32, spec, alignment_of(in_f32), family="simt")
    assert {getattr(config.kernel, "b_transport", "") for _, config in found} == {"registers", "cp_async"}


@pytest.mark.parametrize("rows", [1, 8, 12, 17, 24, 40, 56])
@pytest.mark.parametrize("orders", ["NT", "TN", "TT"])
def test_few_rows_find_the_tile_that_they_fit(orders: str, rows: int) -> None:
    """Whatever the order of A: tiles of A that lies in columns are 16 rows apart, others 8. Of 40 rows in columns one
    of 64 comes in wider boxes than one of 48."""
    a, b = orders_of(orders)
    table = table_of("wgmma", Gemm(rows, 16384, 3072, BF16, a=a, b=b, out=BF16), device("H100 SXM"))
    swapped = set(table.m[table.swap_ab > 0].tolist())
    step = 16 if a is Order.COL else 8
    wider = a is Order.COL and rows == 40
    assert max(swapped) == (64 if wider else ceil_div(rows, step) * step)


@pytest.mark.parametrize("shape", [(8, 50265, 768), (33, 50265, 768), (77, 50265, 768)])
@pytest.mark.parametrize("orders", [(Order.COL, Order.ROW), (Order.ROW, Order.ROW)])
def test_no_thread_of_mma_sync_copies_more_than_the_caches_of_instructions_hold(
    shape: tuple[int, int, int], orders: tuple[Order, Order]
) -> None:
    """Rows of an odd length are copied element by element: with 64 copies a stage a kernel took 5.6 times as long."""
    gemm = Gemm(*shape, BF16, a=orders[0], b=orders[1], out=BF16)
    alignment = alignment_of_rows(gemm)
    for config in islice(estimated(Request(gemm, alignment), device("H100 SXM")), 20):
        kernel = config.kernel
        if isinstance(kernel, MmaConfig):
            a, b = (16 if name in config.packed else least for name, least in (("A", alignment.a), ("B", alignment.b)))
            copies = 2 * kernel.k * (kernel.m / min(16, a) + kernel.n / min(16, b)) / (32 * warps_of(kernel))
            assert copies < 64, config


@pytest.mark.parametrize("orders", [(Order.ROW, Order.COL), (Order.COL, Order.ROW)])
def test_fp8_of_rows_at_any_byte_is_priced_where_mma_sync_multiplies_it(orders: tuple[Order, Order]) -> None:
    """On a GPU without wgmma `scaled_matmul` of an odd k asks for it."""
    gemm = Gemm(513, 1001, 2049, E4M3, out=BF16, a=orders[0], b=orders[1])
    least, best = next(iter(ranked(gemm, device("RTX 4090"), alignment_of(gemm))))
    assert best.kernel.kind == "mma" and 0 < least < 1e4
