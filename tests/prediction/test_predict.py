"""`predict`: from a schedule to a time, for GPUs that are not there."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.device.catalog import DEVICES, device
from tilewright.errors import LaunchError, ProblemError, UnknownName
from tilewright.ladders import find_rung
from tilewright.ladders.rung import Rung
from tilewright.model.time import predict_time
from tilewright.prediction import predict, predict_rung
from tilewright.prediction.counting import work_of
from tilewright.prediction.predict import dram_bytes
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.toolchain import build

VECTORISED = find_rung("worklog/6")


def tflops(rung: Rung, gpu: str, size: int = 4096) -> float:
    return predict_rung(rung, rung.gemm(size, size, size), gpu, cache=CubinCache()).tflops


@pytest.mark.parametrize("spec", DEVICES, ids=lambda spec: spec.name)
def test_every_gpu_of_the_catalogue_gets_a_time_below_its_peak(spec: object) -> None:
    found = predict_rung(VECTORISED, VECTORISED.gemm(4096, 4096, 4096), spec, cache=CubinCache())  # type: ignore[arg-type]
    assert 0.3 * spec.peak_fp32_tflops < found.tflops < spec.peak_fp32_tflops  # type: ignore[attr-defined]
    assert found.device == spec.name  # type: ignore[attr-defined]


def test_a_schedule_and_a_rung_are_the_same_to_it() -> None:
    gemm = VECTORISED.gemm(1024, 1024, 1024)
    from_schedule = predict((gemm, VECTORISED.schedule(gemm)), "h200", cache=CubinCache())
    assert from_schedule == predict_rung(VECTORISED, gemm, "h200", cache=CubinCache())


def test_known_counts_need_not_be_counted_again() -> None:
    built = build(VECTORISED.gemm(1024, 1024, 1024), VECTORISED)
    work = work_of(built)
    assert predict(built, "a100", work=work, cache=CubinCache()) == predict(built, "a100", cache=CubinCache())


def test_large_matrices_are_used_better_than_small_ones() -> None:
    assert tflops(VECTORISED, "h200", 4096) > 1.5 * tflops(VECTORISED, "h200", 512)


@pytest.mark.parametrize("name", ["worklog/2", "worklog/6", "worklog/12", "te/4", "hopper/best"])
@pytest.mark.parametrize("first", [960, 1000])
def test_a_larger_problem_takes_longer(name: str, first: int) -> None:
    """Where rows begin at the same bytes of a line. Other rows may touch fewer lines, sectors or banks: worklog/12 is
    predicted slower at 1000^3 than at 1023^3."""
    rung, found = find_rung(name), []
    for size in (first, first + 64, first + 128):
        gemm = rung.gemm(size, size, size)
        work = work_of(build(gemm, rung))
        bytes_moved = float(gemm.compulsory_bytes)
        found.append(predict_time(work, device("H200"), blocks_per_sm=1, dram_bytes=bytes_moved).seconds)
    assert found == sorted(found)


def test_the_largest_result_is_predicted_from_its_first_blocks() -> None:
    """2**40 elements of 67 million tiles; of 16 times as many elements along n they move 16 times the bytes of C."""
    built = [build(VECTORISED.gemm(1 << 18, n, 64), VECTORISED) for n in (1 << 18, 1 << 22)]
    less, more = (dram_bytes(one, device("H200"), 2) for one in built)
    assert 15 * less < more < 17 * less


@pytest.mark.parametrize("clock", [float("nan"), float("inf"), 0, -5, "1410"])
def test_a_clock_is_a_number_of_mhz(clock: Any) -> None:
    gemm = VECTORISED.gemm(64, 64, 64)
    with pytest.raises(ProblemError, match="is not a clock"):
        predict((gemm, VECTORISED.schedule(gemm)), "h200", clock_mhz=clock)


def test_names_that_are_no_texts_are_unknown() -> None:
    with pytest.raises(UnknownName, match="There is no device 'None'"):
        device(None)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="There is no rung 'None'"):
        find_rung(None)  # type: ignore[arg-type]


def test_a_size_that_fits_no_tile_has_a_time() -> None:
    assert predict_rung(VECTORISED, VECTORISED.gemm(1000, 999, 17), "h200", cache=CubinCache()).seconds > 0


def test_a_kernel_that_cannot_run_there_says_why() -> None:
    rung = find_rung("hopper/best")
    with pytest.raises(LaunchError, match=r"cannot run on A100 SXM 80 GB: .* needs sm_90"):
        predict_rung(rung, rung.gemm(256, 256, 256), "a100")


def test_a_rung_stands_where_it_fits_into_the_shared_memory_of_a_gpu() -> None:
    assert 0.5 * 71 < tflops(find_rung("ampere/6"), "RTX 3090") < 71


def test_an_unknown_gpu_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="There is no device 'RTX 3091'") as refused:
        predict_rung(VECTORISED, VECTORISED.gemm(256, 256, 256), "RTX 3091")
    assert "did you mean 'RTX 3090'?" in str(refused.value)
