"""The fixture `gemm_gate`, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gate.kernels import CONFLICTING, PADDED

TEST = "\n\ndef test_my_gemm(gemm_gate):\n    gemm_gate(tiled, gemm, archs=('sm_80',))\n"


def run_pytest(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and the output; no other plugin is loaded, which would take most of the time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tilewright.pytest_plugin", *words]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TILEWRIGHT_CACHE": str(folder / "cubins")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_a_snapshot_is_asked_for_then_written_then_held_to(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_kernels.py").write_text(PADDED + TEST)
    code, said = run_pytest(tmp_path)
    assert code == 1
    assert "There is no snapshot" in said and "pytest --gate-update" in said

    code, said = run_pytest(tmp_path, "--gate-update")
    assert code == 0, said
    assert run_pytest(tmp_path)[0] == 0, "an unchanged schedule passes"

    (tmp_path / "test_kernels.py").write_text(CONFLICTING + TEST)
    code, said = run_pytest(tmp_path)
    assert code == 1
    assert "worse   bank conflicts of shared stores: 0 -> 448" in said
    assert "If this is meant: pytest --gate-update" in said
    assert "Traceback" not in said and "pytest_plugin.py" not in said


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
