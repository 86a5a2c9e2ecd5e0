"""The fixture `gemm_gate`, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gate.kernels import CONFLICTING, PADDED

TEST = "\n\ndef test_my_gemm(gemm_gate):\n    gemm_gate(tiled, gemm, archs=('sm_80',))\n"


def run_pytest(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tilewright.pytest_plugin", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder with a test and its snapshot."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_kernels.py").write_text(PADDED + TEST)
    code, said = run_pytest(tmp_path, "--gate-update")
    assert code == 0, said
    return tmp_path


def test_an_unchanged_schedule_passes(recorded: Path) -> None:
    assert run_pytest(recorded)[0] == 0


def test_a_worse_schedule_fails_with_what_got_worse_and_no_traceback(recorded: Path) -> None:
    (recorded / "test_kernels.py").write_text(CONFLICTING + TEST)
    code, said = run_pytest(recorded)
    assert code == 1
    assert "worse   bank conflicts of shared stores: 0 -> 448" in said
    assert "If this is meant: pytest --gate-update" in said
    assert "Traceback" not in said and "pytest_plugin.py" not in said


def test_a_missing_snapshot_says_how_to_write_one(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_kernels.py").write_text(PADDED + TEST)
    code, said = run_pytest(tmp_path)
    assert code == 1
    assert "There is no snapshot" in said and "pytest --gate-update" in said


@pytest.mark.slow
def test_two_schedules_in_one_test_need_names(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    twice = "    gemm_gate(tiled, gemm, archs=('sm_80',))\n"
    (tmp_path / "test_kernels.py").write_text(PADDED + TEST + twice)
    code, said = run_pytest(tmp_path, "--gate-update")
    assert code == 1 and "give each a name" in said
    (tmp_path / "test_kernels.py").write_text(PADDED + TEST + twice.replace("gemm,", "gemm, name='again',"))
    assert run_pytest(tmp_path, "--gate-update")[0] == 0


def test_the_plugin_imports_neither_numpy_nor_the_compiler() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tilewright.pytest_plugin; print(sorted({'numpy', 'cuda'} & {*sys.modules}))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "[]\n"
