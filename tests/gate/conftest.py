"""The command line in this process, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import Cli, Ran

from tilewright.cli import main


@pytest.fixture
def gate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kernel_cache: Path, tmp_path: Path
) -> Cli:
    """`gate("kernels.py", "--update")`: the command, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(kernel_cache))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main(["gate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run
