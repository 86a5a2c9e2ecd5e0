"""The analytical choice: which kernel for every problem of the suite, on GPUs that are known by their data sheets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from planned import asked, paper_dispatcher

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F32
from tilewright.kernels.columns import Columns
from tilewright.kernels.configuration import name_of
from tilewright.kernels.gemv import GemvConfig
from tilewright.planning.cost.plans import Around, plan_seconds
from tilewright.planning.estimates import estimated
from tilewright.planning.kernels import build_of
from tilewright.planning.packing import Alignment
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm, Order
from tilewright.suite.problems import ORDERS, SHAPES
from tilewright.units import ceil_div
from tilewright.winners.plan_config import PlanConfig

FORMATS = ("bf16", "f16", "tf32", "f32")
GPUS = {"h200": "H200", "a100": "A100 SXM 80 GB", "rtx_4090": "RTX 4090", "rtx_3090": "RTX 3090"}
SAME = "same"


def short(config: PlanConfig) -> str:
    """A plan in a column: its family, its tile, split-K, and what is packed or transposed first."""
    parts = f" /{config.split_k}" if config.split_k > 1 else ""
    packing = "".join(
        f" {'transpose' if name in config.transposed else 'pack'} {name}" for name in sorted(config.packed)
    )
    return f"{name_of(config.kernel)}{parts}{packing}"


def table(name: str) -> str:
    """A row for each shape and format, a column for each order; `same` as the column before it."""
    planner = paper_dispatcher(device(name))
    lines = [
        f"Kernels that matmul chooses on the {name} where nothing was tuned.",
        "/4: split-K in four parts. pack A: a copy with aligned rows first. transpose B: a transposed copy first.",
        "same: as in the column to the left.",
        "",
        f"{'M x N x K':18}{'format':8}" + "".join(f"{orders:38}" for orders in ORDERS).rstrip(),
    ]
    for number, (m, n, k) in enumerate(SHAPES):
        for format in FORMATS:
            found = []
            for at, orders in enumerate(ORDERS):
                request = asked(m, n, k, format, orders)
                best = next(estimated(request, planner.spec))
                found.append(short(best))
                if (number + at) % len(ORDERS):
                    continue  # plans of one order of each shape are made
                plan = planner.plan(request)
                is_best = plan.words == str(best) or isinstance(best.kernel, GemvConfig)
                assert is_best, f"{best} was chosen and {plan.words} planned for {request}"
            told = [own if not i or own != found[i - 1] else SAME for i, own in enumerate(found)]
            lines.append(f"{f'{m}x{n}x{k}':18}{format:8}" + "".join(f"{one:38}" for one in told).rstrip())
    return "\n".join(lines) + "\n"


def test_rows_that_end_inside_16_bytes_are_not_stored_by_tma() -> None:
    """TMA would write behind them: columns of a view's neighbours."""
    for m, n in ((2048, 2048), (2048, 2045), (1, 2045)):
        gemm = Gemm(m, n, 1024, dtype=BF16, out=BF16, b=Order.ROW, ldb=2048, ldc=2048)
        found = [config for _, config in ranked(gemm, device("H200"), Alignment(16, 16, 16))]
        best = next(config for config in found if config.kernel.kind == "wgmma")
        stored = [known.operand for known in build_of(gemm, best).kernel.maps]
        assert ("C" in stored) == (n == 2048)


@pytest.mark.cross_section("gpu", every=4)
@pytest.mark.parametrize("gpu", GPUS)
def test_the_kernels_of_the_suite(gpu: str, golden: Callable[[str, str], None]) -> None:
    golden(f"choices/{gpu}.txt", table(GPUS[gpu]))


def test_choosing_prices_the_likely_kernels_at_once_then_all_others_and_builds_and_simulates_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few passes over columns, whatever the number of candidates."""
    passes: list[int] = []

    def counted(kind: str, tables: list[tuple[Columns, Around]], *asked: Any, **options: Any) -> Any:
        passes.extend(len(rows) for rows, _ in tables)
        return plan_seconds(kind, tables, *asked, **options)

    for forbidden in ("prediction.counting.simulate", "planning.kernels.build", "toolchain.build"):
        monkeypatch.setattr(f"tilewright.{forbidden}", None)
    monkeypatch.setattr("tilewright.planning.ranking.plan_seconds", counted)
    assert next(estimated(asked(512, 512, 16384, "bf16", "NN"), device("H200")))
    assert 64 < sum(passes) <= 1000 and len(passes) <= 2
    found = list(estimated(asked(512, 512, 16384, "bf16", "NN"), device("H200")))
    assert 1000 < len(found) <= sum(passes) <= 40_000 and len(passes) <= 6


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_no_size_changes_is_found_once_for_a_format(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws, blocks that share an SM, and clocks of a block: the second problem asks none of them again."""
    spec = device("H200")
    assert next(estimated(asked(1152, 160, 8192, dtype, "NT"), spec))
    for known in (
        "kernels.spaces.legal",
        "planning.cost.block_clocks.work_of",
        "planning.cost.block_clocks.blocks_that_fit",
    ):
        monkeypatch.setattr(f"tilewright.{known}", None)
    monkeypatch.setattr("tilewright.kernels.wgmma.shared_bytes", None)
    assert next(estimated(asked(1280, 96, 4096, dtype, "NT"), spec))


def test_a_tile_that_does_not_fit_on_an_sm_is_no_choice() -> None:
    small = replace(device("RTX 3090"), max_shared_bytes_per_block=48 * 1024, shared_bytes_per_sm=48 * 1024)
    found = ranked(Gemm(4096, 4096, 4096, BF16, out=BF16), small, Alignment(16, 16, 16))
    assert len(found) and all(config.kernel.m * config.kernel.n < 128 * 256 for _, config in found)


def test_ping_pong_is_for_blocks_with_several_tiles() -> None:
    def tiles(*shape: int) -> list[int]:
        found = ranked(Gemm(*shape, BF16, out=BF16), device("H200"), Alignment(16, 16, 16))
        kernels = [config.kernel for _, config in found if getattr(config.kernel, "ping_pong", False)]
        return [ceil_div(shape[0], one.m) * ceil_div(shape[1], one.n) for one in kernels]

    assert min(tiles(512, 512, 512), default=1000) > device("H200").sm_count
    assert min(tiles(8192, 8192, 512)) > device("H200").sm_count


def test_more_sms_split_more() -> None:
    gemm, aligned = Gemm(256, 256, 65536, BF16, out=BF16), Alignment(16, 16, 16)
    few, many = (replace(device("A100 SXM 80 GB"), sm_count=sms) for sms in (8, 108))
    assert ranked(gemm, few, aligned)[0][1].split_k < ranked(gemm, many, aligned)[0][1].split_k


def test_tiny_problems_are_one_launch() -> None:
    for name in GPUS.values():
        for size in (1, 8, 33, 64, 128, 256):
            for format in FORMATS:
                if (size, format) != (256, "f32"):
                    best = next(estimated(asked(size, size, size, format, "NN"), device(name)))
                    assert best.split_k == 1 and not best.packed, (name, size, format, str(best))


def test_a_few_blocks_of_few_warps_share_out_k_as_each_of_their_steps_waits_for_memory() -> None:
    # Measured on the H200 at 256^3 in f32: 10.8 us by 32 blocks, 5.9 us in 4 parts.
    kernel: Any = next(estimated(asked(256, 256, 256, "f32", "NN"), device("H200"))).kernel
    assert kernel.split_k * kernel.cluster_k >= 4


def test_copies_pay_for_large_problems_only() -> None:
    def copied(size: int) -> bool:
        return bool(next(estimated(asked(size, size, size, "bf16", "NN"), device("H200"))).packed)

    first = next(size for size in range(101, 8192, 200) if copied(size))
    assert first <= 2500 and all(copied(size) for size in range(first, 8192, 800))


def test_a_result_that_tma_cannot_store_is_not_given_to_it() -> None:
    gemm = Gemm(4096, 4096, 4096, BF16, out=BF16)
    assert ranked(gemm, device("H200"), Alignment(16, 16, 16))[0][1].kernel.kind == "wgmma"
    found = [config for _, config in ranked(gemm, device("H200"), Alignment(16, 16, 4), corrected=400)]
    stores = ("ping_pong", "swap_ab", "persistent", "consumers", "cluster", "subtile", "split_k")
    kinds = {
        tuple(getattr(config.kernel, name) for name in stores): config
        for config in reversed(found)
        if config.kernel.kind == "wgmma"
    }
    brought = [build_of(gemm, config).kernel.maps for config in list(kinds.values())[::3]]
    assert len(brought) > 3 and all(told.operand != "C" for maps in brought for told in maps)


def test_a_gpu_without_tensor_cores_for_a_format_multiplies_it_on_its_cuda_cores() -> None:
    spec = device("T4")
    request = asked(1024, 1024, 1024, "bf16", "NN")
    found = list(estimated(request, spec))
    assert found and {config.kernel.kind for config in found} == {"simt"}
    assert paper_dispatcher(spec).plan(request).words == str(found[0])


def test_estimates_tell_of_copies_and_parts() -> None:
    spec, aligned = device("H200"), Alignment(16, 16, 16)
    turned = Gemm(4096, 4096, 4096, product=device_format("tf32"), a=Order.COL)
    as_read = replace(turned, a=Order.ROW, b=Order.COL)
    (slow, config), (fast, other) = (ranked(gemm, spec, aligned)[0] for gemm in (turned, as_read))
    assert config.packed == {"A"} and not other.packed
    assert 20 < slow - fast < 80  # 134 MB moved, and a launch


def device_format(name: str) -> object:
    from tilewright.dtypes import dtype

    return dtype(name)


def test_odd_rows_of_f32_may_be_copied_first_and_those_of_c_leave_room_for_whole_tiles() -> None:
    spec, gemm = device("H200"), Gemm(4095, 4097, 4093, F32)
    found = [config.packed for _, config in ranked(gemm, spec, Alignment(4, 4, 4)) if config.split_k == 1]
    assert {frozenset(), frozenset("AB")} == set(found)
    ways = {(config.packed, config.tile_multiples) for _, config in ranked(gemm, spec, Alignment(16, 16, 4))}
    assert ways == {(frozenset(), False), (frozenset("AB"), True)}
    exact = ranked(Gemm(4096, 4096, 4096, ldc=4097), spec, Alignment(16, 16, 4))
    assert any(config.tile_multiples for _, config in exact), "an unaligned C alone is reason enough"
    assert not any(config.tile_multiples for _, config in ranked(Gemm(4096, 4096, 4096), spec, Alignment(16, 16, 16)))
    narrow, wide, results = (
        ranked(gemm, spec, aligned)[0][0]
        for aligned in (Alignment(4, 4, 4), Alignment(16, 16, 16), Alignment(16, 16, 4))
    )
    assert (
        results == pytest.approx(narrow, rel=0.04) and 0.9 * results < wide < results
    )  # loads are wide in all of them
