"""`tilewright predict`, and the predictions of `tilewright ladder`."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
from command_runs import Cli

from tilewright.device.catalog import DEVICES
from tilewright.prediction.advice import advise
from tilewright.toolchain import Build


def test_it_says_that_it_predicts_at_which_clock_and_what_binds(cli: Cli) -> None:
    ran = cli("predict", "worklog/6", "--device", "RTX 3090")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "worklog/6 vectorised on RTX 3090, f32, 4096 x 4096 x 4096: predicted, not measured"
    assert "at an assumed 1695 MHz, 2 blocks an SM." in lines[2] and " to " in lines[2]
    assert "Bound by shared memory. 8 wavefronts a load of B_frag, 4 of them bank conflicts: pad, swizzle" in ran.out
    assert "\x1b" not in ran.out and max(map(len, lines)) <= 100


def test_json_has_every_term(cli: Cli) -> None:
    data = cli("predict", "worklog/6", "--device", "a100", "--size", "1024x512x256", "--clock", "1200", "--json").json
    assert (data["figure"], data["device"], data["clock_hz"]) == ("predicted", "A100 SXM 80 GB", 1.2e9)
    assert (data["m"], data["n"], data["k"], data["dtype"]) == (1024, 512, 256, "f32")
    assert data["low_s"] < data["seconds"] < data["high_s"]
    exposed = sum(term["seconds"] for term in data["terms"] if term["kind"] == "exposed")
    most = max(term["seconds"] for term in data["terms"] if term["kind"] == "bound")
    assert exposed + most == pytest.approx(data["seconds"])


def test_a_precision_is_predicted_with_all_its_launches(cli: Cli) -> None:
    ran = cli("predict", "bf16x6", "--size", "512x256x1024")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "matmul(precision='bf16x6') on H200, f32, 512 x 256 x 1024: predicted, not measured"
    assert "split A into 3 pieces of bf16" in ran.out and "Sustained: " in ran.out and max(map(len, lines)) <= 100
    data = cli("predict", "bf16x6", "--size", "512x256x1024", "--json").json
    assert (data["figure"], data["precision"], data["m"], data["dtype"]) == ("predicted", "bf16x6", 512, "f32")
    swept = cli("predict", "f32_emulated", "--sweep", "256,1024", "--json").json
    assert [one["size"] for one in swept] == [256, 1024] and swept[1]["tflops"] > swept[0]["tflops"]


def test_a_precision_on_every_gpu_or_why_not(cli: Cli) -> None:
    found = cli("predict", "bf16x3", "--size", "256", "--all-devices", "--json").json
    able = [one["device"] for one in found if "tflops" in one]
    assert able and all("wgmma" in one["problem"] for one in found if one["device"] not in able)
    assert {one["device"] for one in found} == {spec.name for spec in DEVICES}


def test_an_unknown_gpu_is_answered_with_the_nearest(cli: Cli) -> None:
    ran = cli("predict", "worklog/6", "--device", "RTX 3091")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("There is no device 'RTX 3091'.\n  Hint: did you mean 'RTX 3090'? Known: T4, ")


def test_a_rung_that_cannot_run_there_says_why(cli: Cli) -> None:
    ran = cli("predict", "hopper/best", "--device", "a100")
    assert ran.code == 1 and "cannot run on A100 SXM 80 GB" in ran.err and "Traceback" not in ran.err


def test_a_ladder_marks_what_it_predicts(cli: Cli) -> None:
    ran = cli("ladder", "worklog", "--rungs", "5,6", "--size", "128", "--device", "rtx3090", "--brief")
    assert ran.code == 0
    assert ran.out.count(" ~") == 2
    assert "~TFLOP/s: predicted for RTX 3090 at 4096 x 4096 x 4096, not measured" in ran.out
    rows = cli("ladder", "worklog", "--rungs", "6", "--size", "128", "--device", "rtx3090", "--json").json
    assert (rows[0]["figure"], rows[0]["figure_device"], rows[0]["share_of_cublas"]) == ("predicted", "RTX 3090", None)


def test_what_was_recorded_is_not_predicted(cli: Cli) -> None:
    rows = cli("ladder", "worklog", "--rungs", "6", "--size", "128", "--device", "h200", "--json").json
    assert rows[0]["figure"] == "recorded"


def test_explain_ends_in_edits_that_were_tried(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {}

    def advised(built: Build, *asked: Any, **options: Any) -> Any:
        """Of one kernel, tried once for both commands."""
        if not known:
            known[built.name] = advise(built, *asked, **options, seconds=inf)
        return known[built.name]

    monkeypatch.setattr("tilewright.report.outlook.advise", advised)
    out = cli("explain", "worklog/8", "--size", "128").out
    assert "Predicted on H200 at 4096 x 4096 x 4096: " in out and "bound by shared memory" in out
    assert "- pad the B tile by 4: stores to shared memory of B_tile / 4, predicted " in " ".join(out.split())
    data = cli("explain", "worklog/8", "--size", "128", "--json").json["what_to_do"]
    assert data["device"] == "H200" and all(
        edit["predicted_tflops"] > data["predicted_tflops"] for edit in data["edits"]
    )


def test_a_lower_power_limit_leaves_a_lower_clock(cli: Cli) -> None:
    free, limited = (
        cli("predict", "worklog/6", "--device", "a100", "--power", watts, "--json").json for watts in ("1000", "200")
    )
    assert free["sustained_hz"] == free["clock_hz"] == limited["clock_hz"] > 1.1 * limited["sustained_hz"]
    assert limited["sustained_tflops"] < 0.95 * limited["tflops"] == 0.95 * free["tflops"]
    out = " ".join(cli("predict", "worklog/6", "--device", "a100", "--power", "200").out.split())
    assert "Sustained: " in out and "MHz that 200 W allow." in out


def test_a_sweep_is_a_table_with_bars_and_a_page(cli: Cli, tmp_path: Path) -> None:
    ran = cli("predict", "worklog/2", "--sweep", "64-256", "--output", tmp_path / "sweep.html")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "worklog/2 coalesced on H200, f32: predicted, not measured"
    assert [line.split()[0] for line in lines[4:]] == ["64", "128", "256"]
    assert "█" in lines[-1] and max(map(len, lines)) <= 100
    text = (tmp_path / "sweep.html").read_text("utf-8")
    assert "<h1>worklog/2 coalesced on H200, f32: predicted, not measured</h1>" in text
    assert '"x":[64,128,256]' in text and "<script src=" not in text


def test_a_sweep_as_json_is_what_each_size_alone_gives(cli: Cli) -> None:
    swept = cli("predict", "worklog/2", "--sweep", "64,128", "--json").json
    alone = cli("predict", "worklog/2", "--size", "128", "--json").json
    assert [one["size"] for one in swept] == [64, 128]
    assert swept[1]["seconds"] == alone["seconds"] and swept[1]["binding"] == alone["binding"]["name"]


def test_every_gpu_is_told_or_why_not(cli: Cli) -> None:
    found = cli("predict", "ampere/1", "--size", "256", "--all-devices", "--json").json
    assert {one["device"] for one in found} == {spec.name for spec in DEVICES}
    rates = [one["tflops"] for one in found if "tflops" in one]
    assert rates == sorted(rates, reverse=True)
    out = cli("predict", "ampere/1", "--size", "256", "--all-devices").out
    assert "Not on T4, RTX 2080 Ti: mma.sync.m16n8k16 (f16) needs sm_80 and later" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sweep", "64-128", "--all-devices"), "--sweep and --all-devices exclude each other."),
        (("--sweep", "64-128", "--size", "64"), "--sweep has sizes of its own: leave out --size."),
        (("--all-devices", "--device", "a100"), "--device is of one GPU: leave out --all-devices, or the device."),
        (("--all-devices", "--clock", "1000"), "--clock is of one GPU"),
        (("--all-devices", "--power", "250"), "--power is of one GPU"),
        (("--output", "x.html"), "--output is for --sweep."),
        (("--sweep", "128-64"), "'128-64' is not a list of 1 to 200 sizes"),
        (("--sweep", "64-128:0"), "'64-128:0' is not a list of 1 to 200 sizes"),
        (("--sweep", "0,64"), "'0,64' is not a list of 1 to 200 sizes"),
    ],
)
def test_options_of_predict_that_contradict_each_other(cli: Cli, options: tuple[str, ...], said: str) -> None:
    ran = cli("predict", "worklog/2", *options)
    assert (ran.code, ran.out) == (2, "") and said in ran.err
