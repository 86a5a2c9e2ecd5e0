"""`tilewright predict`, and the predictions of `tilewright ladder`."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest
from command_runs import Cli

from tilewright.prediction.advice import advise


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
    monkeypatch.setattr("tilewright.report.outlook.advise", partial(advise, seconds=inf))
    out = cli("explain", "worklog/8", "--size", "128").out
    assert "Predicted on H200 at 4096 x 4096 x 4096: " in out and "bound by shared memory" in out
    assert "- pad the B tile by 4: stores to shared memory of B_tile / 4, predicted " in " ".join(out.split())
    data = cli("explain", "worklog/8", "--size", "128", "--json").json["what_to_do"]
    assert data["device"] == "H200" and all(
        edit["predicted_tflops"] > data["predicted_tflops"] for edit in data["edits"]
    )
