"""`tilewright ladder`: every rung right, counted, and honest about where its figure comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_runs import Cli

from tilewright.bench.records import Origin, Record, read
from tilewright.device.catalog import H200
from tilewright.errors import SimulationError
from tilewright.ladders import LADDERS
from tilewright.ladders.rung import Claim
from tilewright.problem.tolerance import Verdict
from tilewright.report import collect

SMALL = ("--no-gpu", "--size", "64")


def record(rung: str, tflops: float, device: str = "NVIDIA H200", date: str = "2026-01-02T03:04:05Z") -> Record:
    origin = Origin(device, "580.1", "NVRTC 13.5", "torch", "abc", "tilewright ladder worklog", date)
    size = {"m": 4096, "n": 4096, "k": 4096, "dtype": "f32", "orders": "NN"}
    times = {"median_us": 1.0, "fastest_us": 1.0, "slowest_us": 1.0, "relative_error": 1e-7, "cublas_us": 0.5}
    return Record(rung=rung, tflops=tflops, share_of_cublas=0.5, origin=origin, **size, **times)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The shipped records, oldest first."""
    kept = [record("worklog/1", 0.4, date="2025-01-01T00:00:00Z"), record("worklog/1", 0.5)]
    monkeypatch.setattr("tilewright.report.figures.recorded", lambda ladder: tuple(kept))
    return kept


def broken(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Rung 1 of worklog, changed."""
    first, *others = LADDERS["worklog"]
    monkeypatch.setitem(LADDERS, "worklog", (replace(first, **changes), *others))


def test_json_is_a_list_with_one_object_a_rung(cli: Cli, records: list[Record]) -> None:
    ran = cli("ladder", "worklog", "--rungs", "1,3", "--json", *SMALL)
    assert (ran.code, ran.err) == (0, "")
    first, third = ran.json
    assert (first["rung"], third["rung"]) == ("worklog/1", "worklog/3")
    assert first["verified"] is True and first["verified_on"] == "the simulator"
    assert 0 < first["error"] < 1e-6
    assert first["counters"]["global_loads"]["sectors_per_request"] == 16.5
    assert third["counters"]["shared_loads"]["excess_wavefronts"] == 0
    assert third["counters"]["barriers_per_k_step"] == 2
    assert third["resources"]["shared_bytes"] == 8192
    assert third["resources"]["arch"] == "sm_90a" and third["resources"]["registers"] > 0
    assert third["resources"]["occupancy"] == 1.0 and "warps" in third["resources"]["limited_by"]
    assert (first["tflops"], first["share_of_cublas"], first["figure"]) == (0.5, 0.5, "recorded")
    assert first["figure_device"] == "NVIDIA H200"
    assert third["tflops"] > 0 and (third["share_of_cublas"], third["figure"]) == (None, "predicted")
    assert all(claim["holds"] is True for claim in first["claims"])
    assert "+ Stage('A', Space.SHARED, under='k_tile')" in third["new"]


def test_a_recorded_figure_says_so_and_where_and_when(cli: Cli, records: list[Record]) -> None:
    ran = cli("ladder", "worklog", "--rungs", "1", "--brief", *SMALL)
    assert "TFLOP/s: recorded on NVIDIA H200 at 4096 x 4096 x 4096, 2026-01-02." in ran.out
    assert "measured" not in ran.out


def test_a_named_device_shows_only_its_own_records(cli: Cli, records: list[Record]) -> None:
    (row,) = cli("ladder", "worklog", "--rungs", "1", "--device", "a100", "--json", "--size", "32").json
    assert (row["figure"], row["figure_device"]) == ("predicted", "A100 SXM 80 GB")
    assert row["resources"]["arch"] == "sm_80"
    assert row["resources"]["occupancy_device"] == "A100 SXM 80 GB"
    (row,) = cli("ladder", "worklog", "--rungs", "1", "--device", "H200", "--json", "--size", "32").json
    assert row["tflops"] == 0.5


def test_text_shows_what_is_new_and_ends_with_the_table(cli: Cli, records: list[Record]) -> None:
    ran = cli("ladder", "worklog", "--rungs", "1-3", *SMALL)
    assert ran.code == 0
    assert "\x1b" not in ran.out + ran.err
    lines = ran.out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) <= 100
    assert (
        "2 coalesced: neighbouring threads stand in neighbouring columns, so a warp reads one row segment of" in lines
    )
    assert "  - Bind('m_thread', Level.BLOCK_X)" in lines
    assert "  + Fuse('m_thread', 'n_thread', into='thread')" in lines
    assert ran.out.index("3 shared: ") < ran.out.index("worklog: f32, 64 x 64 x 64, checked against float64 on the")


def test_brief_is_the_table_only(cli: Cli) -> None:
    ran = cli("ladder", "worklog", "--rungs", "1", "--brief", *SMALL)
    assert "Split" not in ran.out and ran.out.startswith("worklog: f32, 64 x 64 x 64")


def test_a_broken_claim_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, claims=(Claim("it is free", lambda counts, gemm: False),))
    ran = cli("ladder", "worklog", "--rungs", "1", *SMALL)
    assert ran.code == 1
    assert "  BROKEN: it is free" in ran.out
    (row,) = cli("ladder", "worklog", "--rungs", "1", "--json", *SMALL).json
    assert row["verified"] is True and row["ok"] is False


def test_claims_are_not_asked_where_they_do_not_speak(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, claims=(Claim("it is free", lambda counts, gemm: False),))
    ran = cli("ladder", "worklog", "--rungs", "1", "--no-gpu", "--size", "33x31x7")
    assert ran.code == 0
    assert "  not asked here: it is free" in ran.out


def test_claims_are_not_asked_of_elements_of_another_width(cli: Cli) -> None:
    ran = cli("ladder", "worklog", "--size", 64, "--rungs", "2", "--dtype", "bf16")
    assert ran.code == 0 and "BROKEN" not in ran.out
    assert "  not asked here: a warp reads one element of A" in ran.out
    assert "~TFLOP/s: predicted" in ran.out and "TFLOP/s: not known" not in ran.out


def test_the_legend_speaks_of_columns_that_are_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, shown in ((60, False), (200, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = cli("ladder", "worklog", "--size", 64, "--rungs", "3", "--brief").out
        assert ("bar.: barriers" in out) is ("bar./" in out) is shown


def test_a_wrong_result_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = collect.run_on_simulator

    def wrong(*arguments: Any, **options: Any) -> Any:
        c, run = real(*arguments, **options)
        return np.where(c == c.max(), c + 1, c), run

    monkeypatch.setattr(collect, "run_on_simulator", wrong)
    ran = cli("ladder", "worklog", "--rungs", "1", *SMALL)
    assert ran.code == 1
    assert "  WRONG: 1 of 4096 elements are wrong; the worst is C[" in ran.out
    (row,) = cli("ladder", "worklog", "--rungs", "1", "--json", *SMALL).json
    assert row["verified"] is False


def test_a_rung_that_cannot_run_has_a_row_and_the_others_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = collect.run_on_simulator

    def stuck(built: Any, *arguments: Any, **options: Any) -> Any:
        if built.name == "worklog_coalesced":
            raise SimulationError("The warps wait for each other.", hint="add a barrier.")
        return real(built, *arguments, **options)

    monkeypatch.setattr(collect, "run_on_simulator", stuck)
    ran = cli("ladder", "worklog", "--rungs", "1-3", "--json", *SMALL)
    assert ran.code == 1
    assert [row["ok"] for row in ran.json] == [True, False, True]
    assert ran.json[1]["problem"] == "The warps wait for each other.\n  Hint: add a barrier."
    assert ran.json[1]["counters"] is None and ran.json[1]["resources"]["registers"] > 0
    text = cli("ladder", "worklog", "--rungs", "1-3", "--brief", *SMALL).out
    assert "2 coalesced FAILS" in text and "The warps wait for each other." in text


@pytest.mark.cross_section("size", every=2, at=1)
@pytest.mark.parametrize("size", ["1", "33x65x7", "64x64x0", "0x5x5"])
def test_awkward_sizes_are_right(cli: Cli, size: str) -> None:
    ran = cli("ladder", "worklog", "--rungs", "1-6", "--size", size, "--no-gpu", "--json")
    assert ran.code == 0
    assert all(row["verified"] for row in ran.json)


def test_another_number_format(cli: Cli) -> None:
    (row,) = cli("ladder", "worklog", "--rungs", "3", "--dtype", "f16", "--json", *SMALL).json
    assert (row["dtype"], row["verified"], row["figure"]) == ("f16", True, "predicted")


USERS_MISTAKES = {
    ("worklag",): "There is no ladder 'worklag'.\n  Hint: did you mean 'worklog'? Known: ",
    ("worklog", "--rungs", "99"): "There is no worklog rung '99'.\n",
    ("worklog", "--device", "H2000"): "There is no device 'H2000'.\n  Hint: did you mean 'H200'? ",
    ("worklog", "--arch", "sm_91"): "There is no architecture 'sm_91'.\n  Hint: did you mean 'sm_90'? ",
    ("worklog", "--dtype", "f31"): (
        "There is no dtype 'f31'.\n  Hint: did you mean 'f32'? Known: f32, f16, f16_sums, bf16, tf32, tf32_truncated, "
        "e4m3, e5m2.\n"
    ),
    ("worklog", "--device", "A100", "--arch", "sm_90a"): (
        "Machine code for sm_90a does not run on A100 SXM 80 GB.\n  Hint: use sm_80.\n"
    ),
    ("worklog", "--gpu"): "No NVIDIA driver is installed here.\n",
    ("worklog", "--record", "x.jsonl"): (
        "Without a GPU nothing is measured, so there is nothing to record.\n"
        "  Hint: run this on a machine with a GPU, or leave out --record.\n"
    ),
}


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("arguments", USERS_MISTAKES, ids=" ".join)
def test_mistakes_are_explained(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli("ladder", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(USERS_MISTAKES[arguments])
    assert not Path("x.jsonl").exists()


USAGE = {
    (
        "--size",
        "4x",
    ): "Invalid value for '--size': '4x' is not a size: write 256 for 256 x 256 x 256, or 512x256x64 for M",
    ("--size", "-4"): "Invalid value for '--size': '-4' is not a size:",
    ("--gpu", "--arch", "sm_80"): "Invalid value: --gpu measures the GPU at hand: leave out --device and --arch.\n",
    ("--rungs", "3-1"): "Invalid value for '--rungs': '3-1' runs downwards: write 1-3.\n",
}


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_what_cannot_be_understood_is_a_usage_error(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli("ladder", "worklog", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(USAGE[arguments])


def test_an_unwritable_cache_is_a_note_and_no_failure(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file"))
    ran = cli("ladder", "worklog", "--rungs", "1", "--brief", *SMALL)
    assert ran.code == 0
    assert "cannot be used (Not a directory)" in ran.err


@pytest.fixture
def pretended_h200(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A GPU that finds everything right and does 30 TFLOP/s; the sizes at which it was timed."""
    timed: list[tuple[int, ...]] = []

    def measure(gpu: Any, rungs: Any, *size: int, **_: Any) -> list[SimpleNamespace]:
        timed.append(size)
        return [SimpleNamespace(rung=rung, record=record(rung.name, 30.0)) for rung in rungs]

    right = Verdict(True, 1e-7, 0.1, (0, 0), "right")
    gpu = SimpleNamespace(arch="sm_90a", name="NVIDIA H200")
    monkeypatch.setattr("tilewright.cli.ladder.gpu_problem", lambda: None)
    monkeypatch.setattr("tilewright.cli.ladder.open_gpu", lambda: gpu)
    monkeypatch.setattr(collect, "probe", lambda gpu: H200)
    monkeypatch.setattr(collect, "verify_on_gpu", lambda *_: right)
    monkeypatch.setattr(collect, "measure_ladder", measure)
    return timed


def test_a_gpu_is_used_where_there_is_one(cli: Cli, pretended_h200: list[tuple[int, ...]], tmp_path: Path) -> None:
    file = tmp_path / "new" / "ladder.jsonl"
    options = ("--rungs", "1,6", "--timed-size", "2048x1024x512", "--record", file, "--json")
    first, sixth = cli("ladder", "worklog", *options, "--size", "64").json
    assert (first["figure"], first["tflops"], first["verified_on"]) == ("measured", 30.0, "NVIDIA H200")
    assert pretended_h200 == [(2048, 1024, 512)]
    assert [one.rung for one in read(file)] == ["worklog/1", "worklog/6"]
    text = cli("ladder", "worklog", "--rungs", "1", "--size", "64").out
    assert "64 x 64 x 64, checked against float64 on NVIDIA H200" in text
    assert "TFLOP/s: measured on NVIDIA H200 at 4096 x 4096 x 4096, in this run." in text
    assert sixth["resources"]["occupancy_device"] == "H200"


def test_a_large_problem_is_counted_from_a_sample(cli: Cli, pretended_h200: list[tuple[int, ...]]) -> None:
    (row,) = cli("ladder", "worklog", "--rungs", "6", "--size", "1024x1024x256", "--json").json
    assert row["counters"]["blocks"] == row["counters"]["grid_blocks"] == 64
    assert row["counters"]["is_estimate"] is False
    assert all(claim["holds"] for claim in row["claims"])


def test_naming_another_target_leaves_the_gpu_alone(cli: Cli, pretended_h200: list[tuple[int, ...]]) -> None:
    (row,) = cli("ladder", "worklog", "--rungs", "1", "--size", "32", "--arch", "sm_80", "--json").json
    assert (row["resources"]["arch"], row["verified_on"], pretended_h200) == ("sm_80", "the simulator", [])


def test_a_record_that_cannot_be_written_is_said_before_anything_is_measured(
    cli: Cli, pretended_h200: list[tuple[int, ...]], tmp_path: Path
) -> None:
    ran = cli("ladder", "worklog", "--record", tmp_path)
    assert (ran.code, ran.err) == (1, f"Cannot write {str(tmp_path)!r}: it is a folder.\n")
    assert pretended_h200 == []


def test_a_result_that_is_wrong_at_the_timed_size_fails(
    cli: Cli, pretended_h200: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(record("worklog/1", 30.0), extra={"verified": False})
    monkeypatch.setattr(
        collect, "measure_ladder", lambda gpu, rungs, *_, **__: [SimpleNamespace(rung=rungs[0], record=wrong)]
    )
    ran = cli("ladder", "worklog", "--rungs", "1", "--size", "64")
    assert ran.code == 1
    assert "  WRONG at 4096 x 4096 x 4096, where it was timed" in ran.out


def test_a_record_of_a_wrong_result_is_not_shown(cli: Cli, records: list[Record]) -> None:
    records.append(replace(record("worklog/1", 99.0, date="2027-01-01T00:00:00Z"), extra={"verified": False}))
    (row,) = cli("ladder", "worklog", "--rungs", "1", "--json", *SMALL).json
    assert row["tflops"] == 0.5


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
def test_a_real_gpu_measures_what_it_verified(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "ladder.jsonl"
    options = ("--gpu", "--rungs", "1-6", "--size", "257x129x65", "--timed-size", "512", "--record", file, "--json")
    rows = cli("ladder", "worklog", *options).json
    assert all(row["ok"] and row["figure"] == "measured" and row["tflops"] > 0 for row in rows)
    assert len(read(file)) == 6


@pytest.mark.parametrize(("size", "holds"), [("64", None), ("128", True)])
def test_claims_about_a_tile_are_not_asked_of_smaller_problems(cli: Cli, size: str, holds: bool | None) -> None:
    """At 64 x 64 x 64 rung 6 has smaller tiles, of which fewer results share a load."""
    ran = cli("ladder", "worklog", "--no-gpu", "--rungs", "6", "--size", size, "--json")
    assert ran.code == 0
    assert {claim["holds"] for claim in ran.json[0]["claims"]} == {holds}


def test_the_legend_is_of_the_columns_that_are_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli("ladder", "worklog", "--rungs", "1", "--brief", "--size", "64").out
    monkeypatch.setenv("COLUMNS", "140")
    wide = cli("ladder", "worklog", "--rungs", "1", "--brief", "--size", "64").out
    assert "wavefronts:" in wide and "/FMA:" in wide and "bytes used:" in narrow
    assert "wavefronts:" not in narrow and "/FMA:" not in narrow
