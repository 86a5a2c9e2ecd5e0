"""The time model: each term does what its unit does, and the terms make up the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from tilewright.bench.records import recorded_folder
from tilewright.device.catalog import A100, H200, RTX_3090
from tilewright.device.spec import DeviceSpec
from tilewright.kernels.work import Access, Phase, WarpStep, Work
from tilewright.model.demand import (
    MMA_SYNC_SHARE,
    TF32_ROUNDING,
    WAVEFRONT_CLOCKS,
    access_clocks,
    demand_of,
    tensor_rate,
)
from tilewright.model.prediction import Prediction, Term
from tilewright.model.relief import relief_of
from tilewright.model.sm import CHAIN_CLOCKS, FETCH_CLOCKS, RESTART_CLOCKS, Sm, overlapped, shared_clocks
from tilewright.model.time import LAUNCH_SECONDS, predict_time

FRAGMENTS = Access("B_frag", "load", "shared", 16, requests=128, wavefronts=2048, ideal=512)
COPY = Access("A_tile", "load", "global", 16, requests=8, lines=128, sectors=128)
WORK = Work(
    step=Phase(fp32=4096, accesses=(FRAGMENTS, COPY), barriers=16),
    rest=Phase(fp32=512),
    steps=512,
    warps=8,
    blocks=1024,
    strip_bytes=8192,
    flops=2 * 4096**3,
    load_groups=1,
)


def predicted(
    work: Work = WORK, spec: DeviceSpec = H200, blocks_per_sm: int = 2, dram_bytes: float = 1e9
) -> Prediction:
    return predict_time(work, spec, blocks_per_sm=blocks_per_sm, dram_bytes=dram_bytes)


def term(name: str, found: Prediction) -> float:
    return next(one.seconds for one in found.terms if one.name == name)


def test_twice_the_bandwidth_halves_the_term() -> None:
    fast = replace(H200, l2_bytes_per_clk_per_sm=2 * H200.l2_bytes_per_clk_per_sm, dram_gb_per_s=2 * H200.dram_gb_per_s)
    for name in ("L2", "DRAM"):
        assert term(name, predicted(spec=fast)) == pytest.approx(term(name, predicted()) / 2)


def test_a_kernel_bound_by_dram_takes_as_long_as_its_bytes() -> None:
    slow = predicted(dram_bytes=1e12)
    assert slow.binding.name == "DRAM"
    assert slow.seconds == pytest.approx(term("DRAM", slow) + LAUNCH_SECONDS)


def test_bank_conflicts_cost_time_where_shared_memory_binds() -> None:
    clean = replace(WORK, step=replace(WORK.step, accesses=(replace(FRAGMENTS, wavefronts=512), COPY)))
    assert predicted().binding.name == "shared memory"
    assert "16 wavefronts a load of B_frag, 12 of them bank conflicts" in predicted().relief
    assert predicted(clean).seconds < 0.95 * predicted().seconds


def test_of_several_accesses_the_one_that_loses_most_to_conflicts_is_told() -> None:
    """Also if another one takes more wavefronts without any; few of them are not worth telling."""
    clean = replace(FRAGMENTS, wavefronts=512, ideal=512)

    def told(lost: int, *, copies: bool = False) -> str:
        worse = replace(FRAGMENTS, name="A_tile", requests=64, wavefronts=64 + lost, ideal=64, copies=copies)
        work = replace(WORK, step=replace(WORK.step, accesses=(clean, worse)))
        return relief_of(Term("shared memory", 1.0, ""), work, H200, 1)

    assert told(128).startswith("3 wavefronts a load of A_tile, 2 of them bank conflicts: pad")
    assert told(128, copies=True).startswith("3 wavefronts a copy of A_tile, 2 of them bank conflicts of what cp.async")
    assert told(32).startswith("B_frag: ") and "none of them bank conflicts: only larger thread tiles" in told(32)


def test_the_order_of_ffmas_is_no_cure() -> None:
    full = replace(WORK, step=Phase(fp32=4096), load_groups=0)
    relief = relief_of(Term("issue slots", 1.0, ""), full, H200, 1)
    assert (
        relief.startswith("FFMA fill most issue slots: only tensor cores are much faster.")
        and "a few percent" in relief
    )


def test_more_blocks_cover_the_latency_of_loads() -> None:
    one, two, three = (term("latency", predicted(blocks_per_sm=count)) for count in (1, 2, 3))
    assert one > two > three > 0


def test_what_runs_ahead_is_not_waited_for() -> None:
    ahead = replace(WORK, load_groups=0, steps_ahead=2)
    assert term("latency", predicted(ahead)) < 0.2 * term("latency", predicted())


@pytest.mark.parametrize(("share", "latency"), [(0.0, 260), (0.25, 370), (1.0, 700), (3.0, 700)])
def test_each_round_of_loads_waits_for_the_latency_but_moves_its_bytes_once(share: float, latency: float) -> None:
    """The latency of L2, 260 clocks on the H200, and for the share of the bytes that DRAM serves that of DRAM, 700."""
    moved = share * WORK.strip_bytes * WORK.steps * WORK.blocks
    fast = replace(H200, dram_gb_per_s=1e9)  # no bound of its own
    once, four = (
        predicted(replace(WORK, load_groups=count), fast, blocks_per_sm=1, dram_bytes=moved).seconds for count in (1, 4)
    )
    most = ceil(WORK.blocks / H200.sm_count)
    assert four - once == pytest.approx(most * WORK.steps * 3 * latency / predicted().clock_hz)


def test_products_that_a_block_waits_for_cost_a_restart_each_step_and_say_so() -> None:
    awaited = replace(WORK, load_groups=0, products_awaited=True)
    found = predicted(awaited, blocks_per_sm=1)
    restarts = ceil(WORK.blocks / H200.sm_count) * WORK.steps * RESTART_CLOCKS / found.clock_hz
    assert found.seconds - predicted(replace(awaited, products_awaited=False), blocks_per_sm=1).seconds == (
        pytest.approx(restarts)
    )
    assert 0.9 * restarts < term("MMAs awaited", found) <= restarts
    assert "MMAs awaited" not in {one.name for one in predicted().terms}
    assert term("MMAs awaited", predicted(awaited, blocks_per_sm=4)) < 0.3 * restarts  # other blocks multiply


def test_restarts_are_told_of_beside_a_larger_term() -> None:
    short = replace(WORK, load_groups=0, products_awaited=True)
    found = predicted(short, blocks_per_sm=1)
    assert found.binding.name == "shared memory"
    assert "bank conflicts" in found.relief and "Specialize" in found.relief


def test_the_relief_of_awaited_products_is_a_warpgroup_that_copies() -> None:
    found = Term("MMAs awaited", 1.0, "", "exposed")
    assert "Specialize" in relief_of(found, replace(WORK, products_awaited=True), H200, 1)


def test_a_warp_that_has_its_scheduler_to_itself_waits_for_memory_in_every_step() -> None:
    ahead = replace(WORK, load_groups=0, steps_ahead=1, step=Phase(fp32=1024), blocks=132)
    few, many = (predicted(replace(ahead, warps=warps), blocks_per_sm=1, dram_bytes=0) for warps in (4, 16))
    assert few.seconds > 1.25 * many.seconds
    own = 1024 / 4 * CHAIN_CLOCKS + H200.dram_latency_clk
    assert few.seconds - LAUNCH_SECONDS == pytest.approx(
        (WORK.steps * own + 2 * H200.l2_latency_clk) / few.clock_hz, rel=0.02
    )


def test_a_warp_alone_on_its_scheduler_waits_for_instructions_of_long_loops() -> None:
    """As measured, loop by loop: what an FFMA takes beyond what it takes in the shortest loop."""
    recorded = json.loads((recorded_folder() / "instruction_fetch_h100.json").read_text())["rows"]
    shortest = recorded[0]["clocks_a_ffma"]
    for row in recorded:
        loop = replace(WORK, step=Phase(fp32=4 * row["ffmas"]), warps=4, code=row["ffmas"])
        sm = Sm.of(loop, H200)
        assert sm.fetch(1) / row["ffmas"] == pytest.approx(row["clocks_a_ffma"]["1"] - shortest["1"], abs=0.2)
        assert sm.fetch(2) == 0 and row["clocks_a_ffma"]["2"] < 1.15
        assert Sm.of(loop, A100).fetch(1) == 0  # not measured
    long = replace(WORK, warps=4, code=4096, blocks=132)
    slow, quick = (predicted(replace(long, code=code), blocks_per_sm=1) for code in (4096, 0))
    assert slow.seconds - quick.seconds == pytest.approx(WORK.steps * 4096 * FETCH_CLOCKS / slow.clock_hz)
    assert "instructions" in next(one.what for one in slow.terms if one.name == "latency")


def read_as(issued: float = 0.0, covered: float = 0.0, constants: float = 0.0, ffma: float = 0.0, code: int = 0) -> Sm:
    return Sm.of(replace(WORK, read=WarpStep(issued, covered, constants, ffma, code)), H200)


def test_other_warps_of_a_scheduler_cover_what_a_warp_waits_for_in_its_own_step() -> None:
    counted = Sm.of(WORK, H200).busy
    assert WORK.warps == 8  # two a scheduler
    assert read_as(issued=500, covered=100).busy == counted  # which takes longer than that
    assert read_as(issued=500, covered=8000).busy == shared_clocks(500, 8000, 2) > counted
    assert read_as().busy == counted


def test_no_warp_of_a_block_covers_what_all_of_them_wait_for_behind_a_barrier() -> None:
    assert read_as(constants=90).wait == Sm.of(WORK, H200).wait + 90


def test_register_banks_and_the_length_of_the_loop_are_those_of_the_machine_code() -> None:
    assert read_as(ffma=1.4).step.fp32 == pytest.approx(1.4 * WORK.step.fp32 / 4)
    assert read_as().step.fp32 == Sm.of(WORK, H200).step.fp32
    turing = replace(H200, ffma_issue_interval_clk=2)
    assert Sm.of(replace(WORK, read=WarpStep(0, 0, 0, 1.4, 0)), turing).step.fp32 == 2 * WORK.step.fp32 / 4
    alone = replace(WORK, warps=4, code=1024)
    long = replace(alone, read=WarpStep(0, 0, 0, 0, 4096))
    assert not Sm.of(alone, H200).fetch(1) and Sm.of(long, H200).fetch(1) == 4096 * FETCH_CLOCKS


def test_copies_that_run_ahead_come_from_where_the_data_lies_if_that_is_known() -> None:
    ahead = replace(WORK, steps_ahead=2)
    assert Sm.of(ahead, H200).ahead == H200.dram_latency_clk / 2
    assert Sm.of(replace(ahead, from_dram=1.0), H200).ahead == H200.dram_latency_clk / 2
    near = Sm.of(replace(ahead, from_dram=1e-9), H200)
    assert near.ahead == pytest.approx(H200.l2_latency_clk / 2)


def test_a_warp_alone_waits_for_its_fragments_as_its_machine_code_does() -> None:
    few = replace(WORK, warps=4, step=Phase(fp32=1024), load_groups=0, read=WarpStep(300, 500, 0, 0, 0))
    assert Sm.of(few, H200).warps_clocks(1) == 800
    assert Sm.of(replace(few, steps_ahead=1), H200).warps_clocks(1) == 800 + H200.dram_latency_clk


@pytest.mark.parametrize(
    "work",
    [
        WORK,
        replace(WORK, products_awaited=True),
        replace(WORK, read=WarpStep(issued=600, covered=2000, constants=100, ffma=1.3, code=4096)),
        replace(WORK, blocks=1),
        replace(WORK, blocks=133),
        replace(WORK, steps=0),
    ],
)
@pytest.mark.parametrize("dram_bytes", [0.0, 1e9, 1e12])
def test_the_largest_bound_and_what_is_exposed_make_up_the_whole(work: Work, dram_bytes: float) -> None:
    found = predicted(work, dram_bytes=dram_bytes)
    assert sum(one.seconds for one in found.stacked) == pytest.approx(found.seconds)
    assert all(one.seconds >= 0 for one in found.terms)
    assert found.low_s < found.seconds < found.high_s and found.tflops_low < found.tflops < found.tflops_high


def test_one_block_more_than_a_wave_costs_a_step_of_its_own() -> None:
    full, over = (predicted(replace(WORK, blocks=2 * H200.sm_count + more)) for more in (0, 1))
    assert term("waves and tail", full) < 1e-9
    assert over.seconds > 1.3 * full.seconds


def test_the_clock_is_that_of_the_units_in_use_or_as_told() -> None:
    assert predicted().clock_hz == 1e6 * H200.boost_clock_mhz
    tensor = replace(WORK, inputs="f16", step=replace(WORK.step, matrix_flops=1e6, matrix_instructions=100))
    assert predicted(tensor).clock_hz == 1e6 * H200.tensor_clock_mhz
    slow = predict_time(WORK, H200, blocks_per_sm=2, dram_bytes=0, clock_mhz=990)
    assert term("issue slots", slow) == pytest.approx(2 * term("issue slots", predicted()))


def test_only_wgmma_reaches_the_full_rate_on_hopper() -> None:
    threads = replace(WORK, inputs="f16")
    assert tensor_rate(threads, H200) == MMA_SYNC_SHARE * tensor_rate(replace(threads, warpgroups=True), H200)
    assert tensor_rate(threads, A100) == A100.tensor.f16_f32
    assert tensor_rate(WORK, H200) == 0


def test_rounding_to_tf32_takes_more_than_an_instruction() -> None:
    rounded = Phase(matrix_instructions=64, conversions=64, other=64)
    as_tf32, as_bf16 = (demand_of(rounded, replace(WORK, inputs=name), H200).issue for name in ("tf32", "bf16"))
    assert as_tf32 - as_bf16 == pytest.approx((TF32_ROUNDING - 1) * 64 / 4)


def test_half_the_load_store_unit_takes_two_clocks_a_request() -> None:
    narrow = Access("A", "load", "shared", 4, requests=32, wavefronts=32, ideal=32)
    assert access_clocks(narrow, H200, 1.0) == 32 and access_clocks(narrow, RTX_3090) == 64


def test_a_wavefront_takes_as_long_as_was_measured() -> None:
    """The mean over instructions of what 32 warps take for a wavefront, in the record."""
    record = json.loads((recorded_folder() / "shared_memory_h200.json").read_text(encoding="utf-8"))
    each = {"16": 1, "32": 1, "64": 2, "128": 4, "x1": 1, "x2": 2, "x4": 4, "trans": 4}
    found = [
        clocks["32"] / each[name.rpartition("_")[2]]
        for name, clocks in record["clocks"]["rates"].items()
        if name.startswith(("shared_", "load_matrix", "store_matrix"))
    ]
    assert len(found) == 13 and 1.05 < min(found) < max(found) < 1.12
    assert np.mean(found) == pytest.approx(WAVEFRONT_CLOCKS, abs=0.005)
    access = Access("A", "load", "shared", 16, requests=32, wavefronts=256, ideal=128)
    assert access_clocks(access, H200) == WAVEFRONT_CLOCKS * 256 and access_clocks(access, H200, smooth=True) == 128


def test_where_a_scheduler_has_16_lanes_an_ffma_takes_two_clocks_in_whatever_order() -> None:
    phase = Phase(fp32=4096)
    found = predicted(replace(WORK, step=phase, load_groups=0), spec=A100)
    assert found.binding.name == "FP32 pipe" and "Snake" not in found.relief and "tensor cores" in found.relief
    assert found.binding.what == "FFMA, each 2 clocks, as a scheduler has 16 lanes"
    assert demand_of(phase, WORK, A100).fp32 == 2 * 4096 / 4


def test_a_scattered_request_takes_a_clock_a_line() -> None:
    scattered = Access("A", "load", "global", 4, requests=1, lines=32, sectors=32)
    assert access_clocks(scattered, H200) == 32 and access_clocks(scattered, H200, smooth=True) == 1


def test_the_shared_side_of_a_cp_async_copy_is_no_instruction() -> None:
    side = Access("A_tile", "store", "shared", 16, requests=8, wavefronts=32, ideal=32, copies=True)
    with_side, without = (demand_of(Phase(fp32=64, accesses=some), WORK, H200) for some in ((side,), ()))
    assert with_side.accesses == WAVEFRONT_CLOCKS * 32
    assert with_side.issue - without.issue == pytest.approx(8 * 1.5 / 4)  # its address only


def test_units_of_their_own_overlap_better_than_warps() -> None:
    phase = Phase(fp32=400, accesses=(Access("A", "load", "shared", 16, 25, 100, 100),))
    by_warps = overlapped(demand_of(phase, WORK, H200), WORK)
    by_units = overlapped(demand_of(phase, WORK, H200), replace(WORK, warpgroups=True))
    assert by_units < by_warps


def test_a_queue_is_never_faster_than_its_server_or_its_customer() -> None:
    assert shared_clocks(100, 0, 3) == 300
    assert shared_clocks(100, 900, 1) == 1000
    assert 1000 < shared_clocks(100, 900, 2) < 1100


@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
def test_a_step_takes_no_less_than_its_copies_by_cp_async_take_to_arrive(ahead: int) -> None:
    """The latency of memory, the bytes of the tile at the rate of bursts, and a meeting of all warps, over the steps by
    which they run ahead."""
    short = replace(WORK, step=Phase(fp32=64, barriers=16), load_groups=0, steps_ahead=ahead, awaited_ahead=ahead)
    sm = Sm.of(short, H200)
    least = (H200.dram_latency_clk + 8192 / H200.l2_bytes_per_clk_per_sm / 0.4 + 2 * 60) / max(1, ahead)
    assert sm.arrival == pytest.approx(least if ahead else 0)
    assert sm.step_clocks(1) == max(sm.arrival, sm.busy + 2 * 60, 8192 / 48)
    long = replace(short, step=Phase(fp32=64000, barriers=16))
    assert Sm.of(long, H200).step_clocks(1) > 10_000 > sm.arrival
