"""`tilewright gate`: worse fails, better is told, the rest passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_runs import Cli

from gate.kernels import CONFLICTING, PADDED

FILE = Path("kernels.py")
SNAPSHOT = Path("tilewright.gate.json")


@pytest.fixture
def recorded(gate: Cli) -> Cli:
    """A folder with a schedule and its snapshot."""
    FILE.write_text(PADDED)
    ran = gate(FILE, "--update", "--arch", "sm_80")
    assert (ran.code, ran.err) == (0, "1 schedule written to tilewright.gate.json.\n")
    return gate


def test_an_unchanged_schedule_passes(recorded: Cli) -> None:
    ran = recorded(FILE)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "kernels.py::tiled  64 x 64 x 32, f32  as it was\n1 as before.\n"


def test_a_pad_taken_away_fails_and_says_which_accesses_conflict(recorded: Cli) -> None:
    FILE.write_text(CONFLICTING)
    ran = recorded(FILE)
    assert ran.code == 1
    assert "worse    bank conflicts of shared stores          0     448" in ran.out
    assert "better   shared memory, bytes a block         4,224   4,096" in ran.out
    assert "A_tile: 2 stores of 4 bytes a thread to shared memory" in ran.out
    assert "8 wavefronts each where 1 would do" in ran.out.replace("\n    ", " ")
    assert "1 schedule failed." in ran.out
    assert ran.err == "If this is meant: tilewright gate kernels.py --update\n"


def test_conflicts_that_went_are_told_as_better(gate: Cli) -> None:
    FILE.write_text(PADDED.replace("pad=4", "pad=8"))
    gate(FILE, "--update", "--arch", "sm_80")
    FILE.write_text(PADDED)
    ran = gate(FILE)
    assert ran.code == 0
    assert "better   bank conflicts of shared stores" in ran.out and ran.out.endswith("1 got better.\n")


def test_a_wider_request_is_better_though_it_has_more_sectors(gate: Cli) -> None:
    FILE.write_text(PADDED)
    gate(FILE, "--update", "--arch", "sm_80")
    FILE.write_text(PADDED.replace('tw.Distribute("B_tile")', 'tw.Distribute("B_tile", vector=2)'))
    ran = gate(FILE, "--json")
    changes = {change["what"]: change["verdict"] for change in json.loads(ran.out)[0]["changes"] if not change["arch"]}
    assert changes["global_load_requests"] == "better" and "global_load_sectors" not in changes


def test_another_problem_is_not_compared(recorded: Cli) -> None:
    FILE.write_text(PADDED.replace("64, 64, 32", "64, 64, 64"))
    ran = recorded(FILE)
    assert ran.code == 1
    assert "The snapshot is of another problem: 64 x 64 x 32, f32; now 64 x 64 x 64, f32." in ran.out


def test_a_new_schedule_fails_until_it_is_recorded(recorded: Cli) -> None:
    FILE.write_text(PADDED + "\n\ndef small(gemm: tw.Gemm) -> tw.Schedule:\n    return tiled\n")
    ran = recorded(FILE)
    assert ran.code == 1 and "kernels.py::small" in ran.out and "It is not in the snapshot." in ran.out
    assert recorded(FILE, "--update").code == 0
    assert recorded(FILE).code == 0


def test_a_schedule_that_went_is_told_and_forgotten(recorded: Cli) -> None:
    FILE.write_text(PADDED.replace("tiled", "padded"))
    assert "kernels.py::tiled is in the snapshot and no longer in the file." in recorded(FILE).out
    recorded(FILE, "--update")
    assert list(json.loads(SNAPSHOT.read_text())["schedules"]) == ["kernels.py::padded"]


def test_an_architecture_that_lacks_an_instruction_is_recorded_as_such(gate: Cli) -> None:
    FILE.write_text("from tilewright import find_rung\n\nwgmma = find_rung('hopper/1')\n")
    assert gate(FILE, "--update", "--arch", "sm_80", "--arch", "sm_90a").code == 0
    targets = json.loads(SNAPSHOT.read_text())["schedules"]["kernels.py::wgmma"]["targets"]
    assert "lacks" in targets["sm_80"]["cannot"] and targets["sm_90a"]["registers"] > 0
    assert gate(FILE).code == 0


def test_registers_of_another_compiler_are_not_compared(recorded: Cli) -> None:
    data = json.loads(SNAPSHOT.read_text())
    data["schedules"]["kernels.py::tiled"]["targets"]["sm_80"] |= {"compiler": "NVRTC 1.0", "registers": 1}
    SNAPSHOT.write_text(json.dumps(data))
    ran = recorded(FILE)
    assert ran.code == 0
    assert "registers, spills and the predicted time are not compared: the snapshot is of NVRTC 1.0" in ran.out


def test_a_predicted_time_may_rise_by_the_tolerance(recorded: Cli) -> None:
    data = json.loads(SNAPSHOT.read_text())
    data["schedules"]["kernels.py::tiled"]["targets"]["sm_80"]["predicted_us"] *= 0.9
    SNAPSHOT.write_text(json.dumps(data))
    ran = recorded(FILE)
    assert ran.code == 1 and "predicted time, us, sm_80" in ran.out
    assert recorded(FILE, "--time-tolerance", 12).code == 0


def test_times_of_another_model_are_not_compared(recorded: Cli) -> None:
    data = json.loads(SNAPSHOT.read_text())
    data["schedules"]["kernels.py::tiled"]["targets"]["sm_80"] |= {"model": "tilewright 0.0", "predicted_us": 1e-3}
    SNAPSHOT.write_text(json.dumps(data))
    ran = recorded(FILE)
    assert ran.code == 0 and "the predicted time is not compared: the snapshot is of tilewright 0.0" in ran.out


def test_more_registers_fail(recorded: Cli) -> None:
    data = json.loads(SNAPSHOT.read_text())
    data["schedules"]["kernels.py::tiled"]["targets"]["sm_80"]["registers"] -= 1
    SNAPSHOT.write_text(json.dumps(data))
    ran = recorded(FILE)
    assert ran.code == 1 and "registers a thread, sm_80" in ran.out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "There is no snapshot 'tilewright.gate.json'.\n  Hint: write one with --update"),
        ("<<<<<<< HEAD\n", "'tilewright.gate.json' is not a snapshot: "),
        ("[" * 100_000, "'tilewright.gate.json' is not a snapshot: it is nested more than 100 deep."),
        (
            '{"version": 1, "schedules": {"a": {"counts": {"b": 1e999}}}}',
            "is not a snapshot: 1e999 is not a finite number.",
        ),
        ("[]", "'tilewright.gate.json' is not a snapshot: its version is None, not 1."),
        ('{"version": 2}', "was written by a newer tilewright: its version is 2, and this one reads 1."),
        ('{"version": 1, "schedules": {"a": 3}}', "'tilewright.gate.json' is not a snapshot: "),
    ],
)
def test_a_bad_snapshot_is_refused_shortly(gate: Cli, text: str | None, says: str) -> None:
    FILE.write_text(PADDED)
    if text is not None:
        SNAPSHOT.write_text(text)
    ran = gate(FILE)
    assert (ran.code, ran.out) == (1, "")
    assert says in ran.err and len(ran.err.splitlines()) <= 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'.\n  line 1: "),
        ("x = 1\ny = x.z\n", "AttributeError: 'int' object has no attribute 'z'.\n  line 2: y = x.z"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3."),
        (
            "x = 1\n",
            "'kernels.py' names no schedule.\n  Hint: give one a name at the top level: tiled = tw.Schedule(...)",
        ),
        ("def own(gemm):\n    return None\n", "or def own(gemm: tw.Gemm) -> tw.Schedule: ..., with both annotations."),
        (
            "import tilewright as tw\na = tw.Gemm(8, 8, 8)\nb = tw.Gemm(8, 8, 16)\n",
            "'kernels.py' has 2 problems: a, b.",
        ),
        ("import tilewright as tw\ntw.Gemm(-1, 8, 8)\n", "'kernels.py' does not run: m = -1 is not a matrix size."),
    ],
)
def test_a_file_that_cannot_be_used_says_why_shortly(gate: Cli, text: str, says: str) -> None:
    FILE.write_text(text)
    ran = gate(FILE, "--update")
    assert (ran.code, ran.out) == (1, "")
    assert says in ran.err and len(ran.err.splitlines()) <= 3 and "Traceback" not in ran.err
    assert not SNAPSHOT.exists()


def test_a_schedule_that_does_not_apply_fails_with_its_step(recorded: Cli) -> None:
    FILE.write_text(PADDED.replace('tw.Split("k", 8', 'tw.Split("q", 8'))
    ran = recorded(FILE)
    assert ran.code == 1
    assert "There is no loop 'q'" in ran.out and "step 5 of 17" in ran.out


def test_an_unknown_architecture_is_refused(recorded: Cli) -> None:
    ran = recorded(FILE, "--arch", "sm_99")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("There is no architecture 'sm_99'.\n  Hint: did you mean 'sm_90'?")


@pytest.mark.parametrize("more", [(), ("--update",)])
def test_a_missing_file_is_told(gate: Cli, more: tuple[str, ...]) -> None:
    """Before a missing snapshot is."""
    ran = gate("nowhere.py", *more)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "There is no file 'nowhere.py'.\n  Hint: `tilewright new NAME` writes one to start from.\n"
