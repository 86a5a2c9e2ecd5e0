"""All candidates and all estimates at once: a fault in a table, a constant or a term moves a mean that stands here.

The best plans stand in tests/golden/choices already; most faults leave the best one as it is. A line tells of all
candidates of a family: how many there are, the geometric mean of their estimates, and the mean of each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from planned import alignment_of
from test_dispatch import problem

import tilewright as tw
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F16, F32, TF32, DType
from tilewright.frontend import ops
from tilewright.frontend.symbols import Symbol
from tilewright.kernels import spaces, wgmma
from tilewright.kernels.wgmma import WgmmaConfig, consumer_registers, registers_of
from tilewright.kernels.wgmma_steps import function_registers
from tilewright.planning import account, candidates, coded
from tilewright.planning.assembly import Request
from tilewright.planning.coded_wgmma import wgmma_candidates
from tilewright.planning.cost import wgmma_terms
from tilewright.planning.cost.coded import product_clocks, sm_clocks
from tilewright.planning.cost.gemv import gemv_seconds
from tilewright.planning.emulated import splitting_us
from tilewright.planning.estimates import estimated
from tilewright.planning.gated import in_one_kernel, reading_us
from tilewright.planning.packing import Alignment, Stack
from tilewright.planning.ranking import Ranking, ranked, ranked_for_group
from tilewright.planning.skinny import skinny_for
from tilewright.problem import Gemm, Order
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.coded_product import CodedProduct, CodedWeight
from tilewright.problem.emulation import BF16X6, BF16X9, F16X3
from tilewright.problem.epilogue import PLAIN, Activation, Epilogue, Result
from tilewright.problem.functions import Operation
from tilewright.problem.values import Accumulated, Added, Applied, Combined, Element, Fold
from tilewright.problem.weight_codes import E4M3_CODES, INT4
from tilewright.toolchain import build

GPUS = ("H200", "A100 SXM 80 GB", "RTX 4090")
PRODUCTS = [
    # m, n, k, format, orders, problems of a batch
    (4096, 4096, 4096, "bf16", "NT", 1),
    (64, 4096, 7168, "f16", "NN", 1),
    (300, 500, 20_000, "bf16", "TN", 1),
    (1001, 999, 515, "f16", "NN", 1),
    (520, 264, 72, "bf16", "TT", 37),
    (700, 900, 1100, "f32", "NT", 1),
    (250, 190, 96, "f32", "TN", 20),
    (1024, 520, 2048, "tf32", "TN", 1),
    (48, 60, 40, "bf16", "NN", 1),
]
GATED = Combined(Operation.TIMES, Applied(Activation.SILU, Accumulated()), Accumulated(1))
DIGITS = 7
"""Of a mean."""


def mean(values: object) -> str:
    found = np.asarray(values, dtype=np.float64)
    return f"{float(np.mean(found)):.{DIGITS}g}" if found.size else "none"


def geometric_mean(values: Sequence[float]) -> str:
    return f"{float(np.exp(np.mean(np.log(values)))):.{DIGITS}g}" if len(values) else "none"


def told_of(ranking: Ranking) -> Iterator[str]:
    """A line for each table of candidates that was priced."""
    for table in ranking.tables:
        us = 1e6 * table.seconds[np.isfinite(table.seconds)]
        columns = {name: np.broadcast_to(getattr(table.columns, name), len(table.columns)) for name in known(table)}
        means = ", ".join(f"{name} {mean(column)}" for name, column in columns.items())
        packing = f"packed {sorted(table.packing.packed)}, transposed {sorted(table.packing.transposed)}"
        padded = ", padded" * table.packing.tile_multiples
        yield f"  {table.kind}, {packing}{padded}: {len(us)} of {len(table.seconds)}, {geometric_mean(us)} us"
        yield f"    {means}"


def known(table: object) -> list[str]:
    """The columns that are numbers."""
    columns = table.columns  # type: ignore[attr-defined]
    return sorted(name for name in columns.names if np.asarray(getattr(columns, name)).dtype.kind in "bif")


@pytest.mark.parametrize("name", GPUS)
def test_all_candidates_of_products(name: str, golden: Callable[[str, str], None]) -> None:
    lines = []
    for m, n, k, format, orders, count in PRODUCTS:
        gemm = problem(m, n, k, format, orders)
        stack = Stack(count, m * k, k * n, m * n) if count > 1 else None
        lines.append(f"{m}x{n}x{k} {format} {orders}" + (f", {count} of them" if count > 1 else ""))
        lines += told_of(ranked(gemm, device(name), alignment_of(gemm), stack=stack))
    golden(f"choices/tables_{device(name).name.lower().replace(' ', '_')}.txt", "\n".join(lines) + "\n")


def coded_lines() -> Iterator[str]:
    for name, codes, dtype, (m, n, k), group in product(
        GPUS, (INT4, E4M3_CODES), (BF16, F16), ((1, 4096, 4096), (24, 7168, 2048), (100, 1000, 4096)), (128, 0)
    ):
        if (dtype is F16) != (n == 7168):
            continue
        epilogue = Epilogue(scale=() if group else ("n",))
        one, spec = CodedProduct(m, CodedWeight(n, k, codes, group), dtype, dtype, epilogue=epilogue), device(name)
        yield f"{name}: {m}x{n}x{k} {dtype} {codes}, groups of {group}: " + coded.words_of(
            coded.chosen_config(one, spec), one
        )
        by_mma, by_wgmma = list(coded.candidates(one, spec)), list(wgmma_candidates(one, spec))
        yield f"  mma: {len(by_mma)}, {geometric_mean([sm_clocks(c, one, spec) for c in by_mma])} clocks, " + mean(
            [c.columns * c.rows + 1e4 * c.warps_k + 1e6 * c.stages + 1e8 * c.own_k for c in by_mma]
        )
        if by_wgmma:
            clocks = geometric_mean([product_clocks(c, one, spec) for c in by_wgmma])
            sizes = mean([c.columns * c.rows + 1e6 * c.stages + 1e8 * c.cluster + 1e10 * c.vector for c in by_wgmma])
            yield f"  wgmma: {len(by_wgmma)}, {clocks} clocks, {sizes}"


def test_all_candidates_of_coded_weights(golden: Callable[[str, str], None]) -> None:
    golden("choices/tables_of_codes.txt", "\n".join(coded_lines()) + "\n")


def compact(config: object) -> str:
    return ", ".join(f"{field.name} {getattr(config, field.name)}" for field in fields(config))  # type: ignore[arg-type]


def skinny_lines() -> Iterator[str]:
    for rows, long, depth, dtype, orders, name in product(
        (1, 3, 8), (40, 3000), (100, 28_672), (F32, BF16), ("NN", "NT"), GPUS[:2]
    ):
        b = Order.ROW if orders[1] == "N" else Order.COL
        gemm = Gemm(rows, long, depth, dtype, out=dtype, b=b)
        found = skinny_for(gemm, alignment_of(gemm), device(name))
        words = f"{rows}x{long}x{depth} {dtype} {orders} {name}"
        if found is None:
            yield f"{words}: no"
            continue
        us = [1e6 * gemv_seconds(found.config, gemm, device(name), count) for count in (1, 30)]
        yield f"{words}: {found}, {compact(found.config)}, {us[0]:.{DIGITS}g} us, 30 of them {us[1]:.{DIGITS}g} us"


def test_skinny_products(golden: Callable[[str, str], None]) -> None:
    golden("choices/skinny.txt", "\n".join(skinny_lines()) + "\n")


def other_lines() -> Iterator[str]:
    for name in GPUS:
        spec = device(name)
        for format, sizes in product(("bf16", "f32"), ([(100, 200, 300)], [(64, 64, 64), (4000, 8, 8), (8, 8, 9000)])):
            found = ranked_for_group([problem(*size, format) for size in sizes], spec)
            us = geometric_mean([us for us, _ in found])
            yield f"{name}: groups of {sizes} in {format}: {len(found)}, {us} us, first {found[0][1]}"
        for m, n, k in ((64, 1024, 1024), (2048, 4096, 4096)):
            gemm = Gemm(m, n, k, BF16, out=BF16, epilogue=Epilogue(function=GATED))
            pairs = list(in_one_kernel(Request(gemm, alignment_of(gemm)), spec))
            first = pairs[0][1] if pairs else None
            us = geometric_mean([us for us, _ in pairs])
            yield f"{name}: gated {m}x{n}x{k}: {len(pairs)}, {us} us, first {first}; {reading_us(gemm, spec):.7g} us"
    for how, (m, n, k), orders in product(
        (BF16X6, BF16X9, F16X3), ((64, 8000, 512), (3000, 200, 7000)), ("NN", "NT", "TN")
    ):
        gemm = problem(m, n, k, "f32", orders)
        us = splitting_us(Request(gemm, alignment_of(gemm), algorithm=how), device("H200"))
        yield f"H200: pieces of {m}x{n}x{k} {orders} by {how}: {us:.{DIGITS}g} us"


def test_groups_pairs_and_pieces(golden: Callable[[str, str], None]) -> None:
    golden("choices/tables_of_others.txt", "\n".join(other_lines()) + "\n")


CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]] = {
    "split-K": ((64, 8192), (8192, 64), {"dtype": "bf16", "device": "A100"}),
    "packed": ((2047, 2047), (2047, 2047), {}),
    "rows of 2047": ((300, 2047), (2047, 512), {"dtype": "f16"}),
    "pieces": ((2048, 1024), (1024, 2048), {"precision": "f32_emulated", "orders": "NT"}),
    "pieces of bf16": ((1000, 1000), (1000, 1000), {"precision": "bf16x9"}),
    "tf32": ((512, 4096), (4096, 512), {"precision": "tf32"}),
    "batch": ((7, 200, 300), (7, 300, 100), {"dtype": "bf16"}),
    "one row": ((1, 4097), (4097, 8192), {"dtype": "bf16"}),
    "wide rows": ((8, 4096), (4096, 4096), {"dtype": "f16", "orders": "NT"}),
}


def test_launches_of_calls(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `tw.plan` tells, with the next best plans."""
    monkeypatch.setattr(account, "_has_compiler", lambda: False)
    monkeypatch.setattr("tilewright.planning.dispatch._DATABASE", [None])  # estimates, whoever has tuned here
    lines = []
    for name, (a, b, options) in CALLS.items():
        found = tw.plan(a, b, **{"device": "H200", "best": 2, **options})  # type: ignore[arg-type]
        lines += [f"== {name}", str(found), f"{found.estimated_us:.{DIGITS}g} us, {found.scratch_bytes} bytes"]
        lines += [f"  {one.role} {one.grid} {one.estimated_us:.{DIGITS}g} us" for one in found.launches]
    golden("choices/calls.txt", "\n".join(lines) + "\n")


def test_no_function_takes_kernels_from_later_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are kept by formats and orders: a function that leaves a thread fewer registers must not shrink them."""
    acc, gate = Symbol(Accumulated()), Symbol(Element(Added("gate_operand", None, BF16)))
    plain = Gemm(8192, 28672, 4096, BF16, out=BF16, b=Order.COL)
    crowded = replace(plain, epilogue=Epilogue(function=(ops.silu(acc) * gate).value), ld_added=(28672,))
    assert function_registers(crowded) > 0 == function_registers(plain)
    found = []
    for first in (plain, crowded):
        monkeypatch.setattr(spaces, "_CORES", {})
        assert next(iter(ranked(first, device("H200"), Alignment(16, 16, 16))))
        found.append([config for _, config in islice(ranked(plain, device("H200"), Alignment(16, 16, 16)), 400)])
    assert found[0] == found[1]
    some = islice(ranked(crowded, device("H200"), Alignment(16, 16, 16)), 400)
    kernels = [config.kernel for _, config in some if isinstance(config.kernel, WgmmaConfig)]
    assert all(registers_of(one, crowded) <= consumer_registers(one, crowded) for one in kernels)


def test_kernels_that_hold_no_pairs_or_columns_are_no_candidates() -> None:
    """Under swap-AB a thread has both columns of no pair, and eight rows of a column in no eight lanes."""
    acc, gate = Symbol(Accumulated()), Symbol(Element(Added("gate_operand", None, BF16)))
    columns = Result(Added("columns", "n", F32, own=True, fold=Fold(Operation.PLUS)), acc.value)
    rows = Result(Added("rows", "m", F32, own=True, fold=Fold(Operation.PLUS)), acc.value)
    epilogues = {
        "pairs": Epilogue(function=ops.rotary(acc, gate, gate).value),
        "columns": Epilogue(function=acc.value, results=(columns,)),
        "rows": Epilogue(function=acc.value, results=(rows,)),
    }
    found = {}
    for name, epilogue in epilogues.items():
        gemm = Gemm(300, 2048, 4096, BF16, out=BF16, b=Order.COL, epilogue=epilogue)
        some = islice(ranked(gemm, device("H200"), Alignment(16, 16, 16)), 200)
        found[name] = {config.kernel.swap_ab for _, config in some if isinstance(config.kernel, WgmmaConfig)}
    assert found == {"pairs": {False}, "columns": {False}, "rows": {False, True}}


ROWS = WgmmaConfig((128, 192, 64), ping_pong=True, stages=3, raster_rows=16, subtile=192, subtile_stages=1)
"""Stores whole rows by warps where rows of C begin inside sectors."""


def test_kernels_that_spill_are_refused() -> None:
    """Beside the nearest that do not, as NVRTC 13.0 and 13.5 compile them."""
    inside, whole = (Gemm(1664, n, 64, BF16, out=BF16, b=Order.COL) for n in (1752, 1792))
    assert "192 accumulators" in ROWS.reasons_against(inside)[0]
    assert not ROWS.reasons_against(whole)
    assert not replace(ROWS, tile=(64, 256, 64), subtile=256).reasons_against(inside)
    across = WgmmaConfig((216, 128, 64), stages=3, swap_ab=True, subtile=64)
    assert "108 accumulators" in across.reasons_against(whole)[0]
    assert not any(replace(across, tile=(m, 128, 64)).reasons_against(whole) for m in (200, 208, 224))


def test_narrow_rows_of_c_leave_registers_in_ping_pong() -> None:
    """As NVRTC 13.0 and 13.5 compile them: 200 accumulators beside subtiles of 32 columns, 208 beside 16, 192 beside
    64, but the last not with scales of rows and of columns."""
    plain = Gemm(8192, 8192, 8192, E4M3, out=BF16, b=Order.COL)
    scaled = replace(plain, epilogue=Epilogue(scale=("m", "n")))
    config = WgmmaConfig((128, 200, 128), ping_pong=True, subtile=32, raster_rows=16)
    for n, subtile, fits in (
        *((200, 32, (True, True)), (200, 64, (False, False)), (192, 64, (True, False))),
        *((208, 16, (True, True)), (208, 32, (False, False)), (208, 24, (False, False))),
    ):
        one = replace(config, tile=(128, n, 128), subtile=subtile, stages=3)
        assert tuple(not one.reasons_against(gemm) for gemm in (plain, scaled)) == fits, (n, subtile)
    assert not replace(config, tile=(128, 184, 128), subtile=64).reasons_against(scaled)
    across = Gemm(8192, 8192, 8192, BF16, out=BF16)
    assert replace(config, tile=(128, 208, 64), subtile=16).reasons_against(across)
    assert not replace(config, tile=(128, 192, 64), subtile=16).reasons_against(across)
    assert replace(config, ping_pong=False, consumers=1).reasons_against(plain)
    for gemm in (plain, scaled):
        some = [
            one.kernel for _, one in islice(ranked(gemm, device("H200"), Alignment(16, 16, 16), corrected=4000), 2000)
        ]
        kernels = [one for one in some if isinstance(one, WgmmaConfig) and one.ping_pong]
        assert max(one.n for one in kernels if one.m == 128) == 208
        assert not any(one.reasons_against(gemm) for one in kernels)


def test_rings_leave_vectors_room() -> None:
    """Beside 128 x 208 with two stages of C a ring of five takes the room of scales of rows and of columns; one of four
    leaves it. One stage of C of 16 columns would too, and is left out."""
    rings = {}
    for name, epilogue in {"plain": PLAIN, "scaled": Epilogue(scale=("m", "n"))}.items():
        gemm = Gemm(4096, 4096, 4096, E4M3, out=BF16, b=Order.COL, epilogue=epilogue)
        some = [
            one.kernel for _, one in islice(ranked(gemm, device("H200"), Alignment(16, 16, 16), corrected=4000), 500)
        ]
        kernels = [one for one in some if isinstance(one, WgmmaConfig)]
        assert all(wgmma.fits(one, gemm=gemm) for one in kernels)
        wide = [one for one in kernels if one.ping_pong and (one.m, one.n) == (128, 208)]
        rings[name] = {(one.stages, one.subtile_stages) for one in wide}
        shared = {buffer.name for buffer in build(gemm, wide[0].schedule(gemm)).kernel.shared}
        assert {"scale_m_vector", "scale_n_vector"} <= shared or name == "plain"
    assert rings == {"plain": {(5, 2)}, "scaled": {(4, 2)}}


@pytest.mark.parametrize(
    ("tile", "options", "in_step"),
    [
        ((128, 128), {}, True),
        ((152, 128), {"swap_ab": True}, False),
        ((256, 64), {}, False),
        ((88, 192), {"swap_ab": True, "consumers": 3}, False),
        ((88, 128), {"swap_ab": True, "consumers": 1}, True),
    ],
    ids=str,
)
def test_warpgroups_fall_into_step_where_nothing_hides_a_promotion(
    tile: tuple[int, int], options: dict[str, Any], in_step: bool
) -> None:
    """Promotion of one fragment of at most 144 columns takes longer than the MMAs of the other warpgroup; of two, or
    with three warpgroups, others hide it."""
    kernel = WgmmaConfig((*tile, 128), promote_every=128, **options)
    both, one = (
        Gemm(2048, 2048, 2048, E4M3, out=BF16, b=Order.COL, block_scales=BlockScales(a, b, lie=("side", "side")))
        for a, b in ((1, 1), (1, 128) if kernel.swap_ab else (128, 1))
    )
    more = wgmma_terms.scaling_clocks(kernel, both) - wgmma_terms.scaling_clocks(kernel, one)
    assert more == pytest.approx(wgmma_terms._IN_STEP if in_step else 0)


@pytest.mark.parametrize("dtype", [E4M3, BF16])
def test_fp8_in_clusters_along_n_starts_early(dtype: DType) -> None:
    """However large the product is; other kernels in both ways."""
    gemm = Gemm(8192, 8192, 8192, dtype, out=BF16, b=Order.COL)
    found: dict[bool, set[bool]] = {False: set(), True: set()}
    for _, one in islice(ranked(gemm, device("H200"), Alignment(16, 16, 16), corrected=4000), 2000):
        kernel = one.kernel
        if isinstance(kernel, WgmmaConfig) and kernel.persistent:
            found[kernel.cluster[1] > 1].add(kernel.dependent_launch)
    assert found == {False: {False, True}, True: {True} if dtype is E4M3 else {False, True}}


def test_no_choice_stores_rows_with_too_few_registers() -> None:
    gemm = Gemm(1664, 1752, 48, BF16, out=BF16)
    request = Request(gemm, alignment_of(gemm), stack=Stack(225, 1664 * 48, 48 * 1752, 1664 * 1752))
    first = [one.kernel for one in islice(estimated(request, device("H200")), 400)]
    rows = [one for one in first if isinstance(one, WgmmaConfig) and one.subtile > 64]
    assert rows, "no kernel stores rows by warps"
    assert not any(one.reasons_against(request.gemm) for one in rows)


def test_results_of_4_bytes_may_be_staged_by_every_kernel() -> None:
    for gemm in (Gemm(512, 512, 64, F32, product=TF32, b=Order.COL), Gemm(512, 512, 64, BF16, out=F32, b=Order.COL)):
        c = spaces.wgmma_core(gemm)
        ways = {(bool(persistent), bool(staged)) for persistent, staged in zip(c.persistent, c.subtile, strict=True)}
        assert ways == {(True, True), (True, False), (False, True), (False, False)}
        assert (wgmma.plain_bytes(c, gemm) == c.shared_bytes).all() and wgmma.fits(c, gemm=gemm).all()
        assert (c.subtile * gemm.out.bytes <= np.where(c.swap_ab, 256, 128)).all()


def test_rows_that_tma_cannot_store_are_staged_as_long_as_two_lines_by_warps() -> None:
    """Of elements of 2 and of 4 bytes. With all of a tile in one stage the best are priced as well."""
    for formats in ({"dtype": BF16, "out": BF16}, {"product": TF32}):
        gemm = Gemm(512, 511, 64, b=Order.COL, ldc=511, **formats)
        c = spaces.wgmma_core(gemm)
        rows = (c.subtile > 0) & (c.swap_ab == 0) & (c.persistent > 0)
        long = rows & (c.subtile * gemm.out.bytes == 256)
        assert long.any() and (c.subtile_stages[long & (c.n > c.subtile)] == 2).all()
        assert wgmma.fits(c, gemm=gemm).all()
        more = candidates._more_staged(c.kept(), gemm)
        worth = more.worth > 0
        assert (more.subtile[worth] == more.n[worth]).all()
        assert worth[long & (c.n == 192)].any()
