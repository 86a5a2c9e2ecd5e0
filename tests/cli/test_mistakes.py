"""Small mistakes at the command line, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import Cli

import tilewright as tw


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("show", "6"),
            1,
            "Rungs of 3 ladders are called '6'.\n  Hint: say worklog/6 or ampere/6 or hopper/6.\n",
        ),
        (
            ("explain", "worklog"),
            1,
            "'worklog' is a ladder, not a rung.\n  Hint: name one of worklog/1 to worklog/best.\n",
        ),
        (
            ("show", "worklog/6", "--ptx", "--arch", "sm_61"),
            1,
            "No kernel can be compiled for sm_61: sm_75 is the oldest architecture that NVRTC 13 knows.\n"
            "  Hint: name sm_75 or a later one.\n",
        ),
        (
            ("predict", "worklog/6", "--size", "0"),
            1,
            "A product of 0 x 0 results takes no time: nothing is launched.\n  Hint: use a larger --size.\n",
        ),
        (
            ("predict", "worklog/6", "--clock", "9999999"),
            2,
            "Invalid value for '--clock': 9999999 is greater than 5000",
        ),
        (
            ("simulate", "worklog/6", "--seed", "x"),
            2,
            "Invalid value for '--seed': 'x' is not a whole number.\n  Hint: tilewright simulate --help\n",
        ),
        (("simulate", "worklog/6", "--alpha", "x"), 2, "Invalid value for '--alpha': 'x' is not a number."),
        (
            ("compare", "worklog/5"),
            2,
            "Hint: for example tilewright compare worklog/5 worklog/6; more: tilewright compare --help\n",
        ),
        (("explain", "hopper/best", "--device", "A100"), 1, "hopper_best cannot be compiled for sm_80: it needs "),
        (("explain", "worklog/6", "--device", "H20x"), 1, "There is no device 'H20x'.\n  Hint: did you mean 'H200'?"),
        (
            ("predict", "4096x64x128"),
            1,
            "'4096x64x128' is the size of a problem, and predict takes a rung, a file or a precision.\n"
            "  Hint: `tilewright plan 4096x64x128` says what matmul runs for it, and estimates its time.\n",
        ),
        (
            ("predict", "hopper/best", "--dtype", "bf16x6"),
            1,
            "bf16x6 is a precision, of matmul of f32 operands, and hopper/best does not have it.\n"
            "  Hint: `tilewright predict bf16x6 --size 4096` predicts what matmul runs.\n",
        ),
        (
            ("report", "worklog", "--dtype", "f16x3"),
            1,
            "f16x3 is a precision of matmul, and rungs do not multiply pieces of f32 operands.\n"
            "  Hint: `tilewright predict f16x3`, or `tilewright plan 4096 --precision f16x3`.\n",
        ),
        (
            ("predict", "bf16x6", "--dtype", "bf16"),
            1,
            "bf16x6 multiplies operands of f32, not bf16.\n  Hint: leave out --dtype.\n",
        ),
        (
            ("tune", "-1", "5", "5"),
            2,
            "-1 is a negative number, and no argument here may be one.\n  Hint: tilewright tune --help\n",
        ),
        (("tune", "64", "64", "64", "--dtype", "fp8"), 1, "There is no dtype 'fp8'."),
        (("new", "nowhere/mine"), 1, "Cannot write 'nowhere/mine.py': there is no folder 'nowhere'."),
        (
            ("compare", "worklog/1", "worklog/2", "--page", "nowhere/x.html"),
            1,
            "Cannot write 'nowhere/x.html': there is no folder 'nowhere'.",
        ),
        (
            ("predict", "bf16x8"),
            1,
            "There is no precision 'bf16x8'.\n"
            "  Hint: did you mean 'bf16x9'? Known: bf16x9, bf16x6, bf16x3, tf32x3, f16x3, f32_emulated.\n",
        ),
        (
            ("show", "hopper/3", "--ptx", "--arch", "sm_80"),
            1,
            "hopper_producer cannot be compiled for sm_80: it needs mbarrier.expect_tx and try_wait, "
            "cp.async.bulk.tensor, wgmma.mma_async, setmaxnreg.\n  Hint: choose another --arch, or another rung.\n",
        ),
        (("explain", "hopper/best", "--arch", "sm_80"), 1, "hopper_best cannot be compiled for sm_80: it needs "),
        (("new", "for"), 1, "'for' is not a name for a Python module."),
        (("new", "numpy"), 1, "numpy.py would hide the Python module 'numpy' from all that runs in this folder."),
        (
            ("search", "worklog/9", "--show", "--file", "nowhere.jsonl"),
            1,
            "There is no file 'nowhere.jsonl'.\n  Hint: a search writes it; --file names another.\n",
        ),
        (("export", "--output", "x", "--size", "0"), 1, "A result of 0 x 0 needs no kernel."),
        (("tune", "64x64", "64", "64"), 2, "'64x64x64x64' is not a size: write 256 for 256 x 256 x 256"),
        (("tune", "64", "64"), 2, "two numbers are no size: write M N K, one N, or MxNxK"),
        (("plan", "64", "64"), 2, "two numbers are no size: write M N K, one N, or MxNxK"),
        (("tune", "0"), 2, "M, N and K are numbers from 1 on"),
        (("export", "4096", "-o", "x"), 1, "There is no rung '4096'.\n  Hint: a size goes behind --size: --size 4096."),
        (
            ("export", "worklog/6", "-o", "/dev/null/x"),
            1,
            "Cannot write a project to '/dev/null/x': '/dev/null' takes no files.\n"
            "  Hint: name a folder elsewhere with --output.\n",
        ),
    ],
)
def test_a_mistake_is_told_as_what_it_is(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("predict", "worklog/6", "--device", ""), "There is no device ''."),
        (("report", "worklog", "--device", ""), "There is no device ''."),
        (("tune", "64", "--list", "--device", ""), "There is no device ''."),
        (("tune", "64", "--list", "--order", ""), "There is no order of A and B ''."),
        (("ladder", "worklog", "--arch", ""), "There is no architecture ''."),
        (("simulate", "worklog/6", "--size", ""), "'' is not a size"),
        (("export", "--size", "", "--output", "folder"), "'' is not a size"),
    ],
    ids=str,
)
def test_an_option_of_a_variable_that_is_empty_is_not_left_out(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli(*command)
    assert ran.code in (1, 2) and said in ran.err and not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("watch", "worklog/3", "--size", "32"), ("report", "te")])
def test_no_folder_is_created_for_a_page(
    cli: Cli, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli(*command, "--output", "missing/page.html")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "Cannot write 'missing/page.html': there is no folder 'missing'.\n  Hint: name a file elsewhere.\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("-h",), ("predict", "-h")])
def test_the_short_help_is_the_help(cli: Cli, arguments: tuple[str, ...]) -> None:
    short, long = cli(*arguments), cli(*arguments[:-1], "--help")
    assert (short.code, short.out) == (0, long.out)


def test_a_rung_of_a_catalogued_gpu_can_be_asked_at_its_own_clock() -> None:
    from tilewright.cli.predict import MOST_MHZ
    from tilewright.device.catalog import DEVICES

    assert all(device.boost_clock_mhz * 1.5 < MOST_MHZ for device in DEVICES)


def test_dir_lists_what_is_public() -> None:
    assert {name for name in dir(tw) if not name.startswith("__")} == set(tw.__all__)
