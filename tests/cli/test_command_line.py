"""What every command has: help with examples, exit codes, quiet failures, a quick start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from command_runs import Cli

from tilewright import __version__
from tilewright.cli.app import COMMANDS
from tilewright.cli.output import progress

PROGRAM = [sys.executable, "-m", "tilewright"]


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"tilewright {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_ends_with_examples(cli: Cli, command: str) -> None:
    ran = cli(command, "--help")
    assert ran.code == 0
    _, examples = ran.out.split("Examples")
    assert f"tilewright {command}" in examples


@pytest.mark.parametrize("columns", ["60", "100"])
def test_help_is_wrapped_to_the_terminal_not_to_the_source(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    prose = cli("tune", "--help").out.split("Arguments")[0].split("Candidates are")[1]
    lines = [line.strip() for line in prose.splitlines()[:-1] if line.strip()]
    for line, following in pairwise(lines[1:]):  # the first one is cut off in front
        assert len(line) + 1 + len(following.split()[0]) > int(columns) - 16, line


@pytest.mark.parametrize("asked", [("plan", "--help"), ("plan", "64")])
def test_a_terminal_of_no_known_width_gets_lines_all_the_same(asked: tuple[str, ...]) -> None:
    running = start(*asked, COLUMNS="0")
    out, err = running.communicate()
    assert (running.returncode, err) == (0, "")
    assert len(out.splitlines()) > 5


def test_a_warning_is_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database\n")
    running = start("plan", "64", TILEWRIGHT_DATABASE=str(tmp_path / "notes.txt"))
    _, err = running.communicate()
    assert running.returncode == 0
    assert err.startswith(f"Warning: '{tmp_path}/notes.txt' is not a database of winners")
    assert err.count("\n") == 2 and ".py" not in err


def test_output_that_the_shell_has_closed_is_no_bug() -> None:
    command = ["/bin/sh", "-c", '"$@" >&-', "sh", *PROGRAM, "devices"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_lists_every_command_in_teaching_order(cli: Cli) -> None:
    out = cli("--help").out
    places = [out.index(f"│ {command} ") for command in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_help_and_version_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom tilewright.cli import main\n"
        f"main({list(arguments)!r})\n"
        "heavy = {'numpy', 'cuda', 'tilewright.toolchain', 'rich.progress'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_command_shows_the_help_and_is_no_success(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 2
    assert "Kernels, step by step" in ran.out


def test_a_misspelt_command_is_answered_with_the_nearest(cli: Cli) -> None:
    ran = cli("laddr", "worklog")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "No such command 'laddr'. Did you mean 'ladder'?\n  Hint: tilewright --help\n"


def test_an_unknown_option_is_a_usage_error(cli: Cli) -> None:
    ran = cli("show", "worklog/6", "--colour")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("  Hint: tilewright show --help\n")


def test_a_bug_is_one_line_and_says_how_to_see_more(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.show.chosen_problem", lambda *_, **__: 1 // 0)
    monkeypatch.delenv("TILEWRIGHT_TRACEBACK", raising=False)
    ran = cli("show", "worklog/6")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "This is a bug in tilewright: ZeroDivisionError: integer division or modulo by zero\n"
        "  Hint: run it again with TILEWRIGHT_TRACEBACK=1 to see where, and report that text.\n"
    )
    monkeypatch.setenv("TILEWRIGHT_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in cli("show", "worklog/6").err


def test_too_little_memory_is_said_plainly(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tilewright.cli.show.chosen_problem", too_much)
    assert cli("show", "x").err == "There is not enough memory for this size.\n  Hint: use a smaller one.\n"


AT_WORK = """
import os, pathlib, sys
import tilewright.cli.simulate as command
from tilewright.cli import main

real = command.run_on_simulator

def endless(*asked, **options):
    pathlib.Path(os.environ["AT_WORK"]).touch()
    while True:
        real(*asked, **options)

command.run_on_simulator = endless
sys.exit(main())
"""


def test_ctrl_c_ends_quietly_with_130(tmp_path: Path) -> None:
    """Also where the tests run in the background of a shell, which lets its children ignore the signal."""
    told = tmp_path / "at work"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        running = subprocess.Popen(
            [sys.executable, "-c", AT_WORK, "simulate", "worklog/1", "--size", "128"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "AT_WORK": str(told)},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    while not told.exists() and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out, err) == (130, "", "")


AT_WORK_WITH_A_SEMAPHORE = AT_WORK.replace(
    "sys.exit", "import multiprocessing\nlock = multiprocessing.Lock()\nsys.exit"
)


def test_sigterm_ends_quietly_with_143_and_leaves_no_semaphore(tmp_path: Path) -> None:
    told = tmp_path / "at work"
    running = subprocess.Popen(
        [sys.executable, "-c", AT_WORK_WITH_A_SEMAPHORE, "simulate", "worklog/1", "--size", "64"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "AT_WORK": str(told)},
    )
    while not told.exists() and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate()
    assert (running.returncode, out, err) == (143, "", "")


IN_A_FINALISER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have told to be ignored

class Last:
    def __del__(self):
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        sum(range(1000))  # the signal is handled here, where Python drops what its handler raises

def endless(*asked, **options):
    Last()
    while True:
        pass

command.run_on_simulator = endless
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_signal_that_arrives_in_a_finaliser_ends_the_command(number: int, code: int) -> None:
    program = AT_WORK.replace("sys.exit", IN_A_FINALISER + "sys.exit")
    ran = subprocess.run(
        [sys.executable, "-c", program, "simulate", "worklog/1", "--size", "64"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "SIGNAL": str(int(number))},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")


def test_where_no_bar_can_be_drawn_lines_tell_of_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.cli.output.SECONDS_BETWEEN_WORDS", 0.01)
    with progress("counting sheep") as step:
        step("", 1, 4)
        said = ""
        while "25%" not in said:  # the thread may have spoken before the step
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert re.search(r"^counting sheep, 25% \(\d+ s\)$", said, re.MULTILINE)


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    running = start("show", "worklog/6", "--sass")
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    running.wait()
    assert err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_said_plainly() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PROGRAM, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Cannot write the output: No space left on device.\n"


def test_a_stream_that_knows_only_ascii_gets_question_marks_and_no_crash() -> None:
    running = start("devices", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    _, err = running.communicate()
    assert (running.returncode, err) == (0, "")


def test_a_narrow_terminal_loses_columns_and_not_letters(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = cli("ladder", "worklog", "--no-gpu", "--rungs", "1,2", "--size", "32", "--brief").out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli("ladder", "worklog", "--no-gpu", "--rungs", "1,2", "--size", "32", "--brief").out
    assert max(map(len, wide.splitlines())) <= 100
    assert max(map(len, narrow.splitlines())) <= 60
    assert "…" not in wide + narrow
    assert "occupancy" in wide and "TFLOP/s" in narrow
