"""The launch path with no GPU: under_fake_driver.py, in a process that finds a stand-in libcuda.so.1 first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in driver is built with gcc")
def test_the_launch_path_under_a_stand_in_driver(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    build = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wno-unused", "-o", str(library)]
    subprocess.run([*build, str(HERE / "fake_libcuda.c")], check=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "FAKE_CUDA_LOG": str(tmp_path / "calls.jsonl"),
    }
    pytest_again = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(
        [*pytest_again, str(HERE / "under_fake_driver.py")],
        env=environment,
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "passed" in ran.stdout and "skipped" not in ran.stdout
