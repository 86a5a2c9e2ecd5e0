"""Commands run in this process, as if piped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from command_runs import Cli, Ran

from tilewright.cli import main
from tilewright.prediction.advice import advise


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kernel_cache: Path) -> Cli:
    """`cli("show", "worklog/6")`, as if piped, with a kernel cache of the session's own."""
    for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(kernel_cache))
    monkeypatch.setattr(
        "tilewright.report.outlook.advise", partial(advise, seconds=0)
    )  # tests that ask for edits have their own
    monkeypatch.setattr("tilewright.cli.output.SECONDS_BETWEEN_WORDS", 1e6)  # nor more lines on a slow machine

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no driver, wherever the tests run."""
    for module in ("cli.ladder", "cli.run", "cli.devices", "cli.doctor", "runtime.driver"):
        monkeypatch.setattr(f"tilewright.{module}.gpu_problem", lambda: "No NVIDIA driver is installed here.")
    monkeypatch.setattr("tilewright.cli.devices.gpu_count", lambda: 0)
