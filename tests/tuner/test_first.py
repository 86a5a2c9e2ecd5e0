"""What is chosen and built before a search is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.device.catalog import device
from tilewright.errors import LaunchError, TilewrightError
from tilewright.planning.on_paper import version_of
from tilewright.problem.gemm import Gemm, Order
from tilewright.tuner.first import begun
from tilewright.tuner.processes import Processes
from tilewright.tuner.space import likely_plans, todays_plan
from tilewright.winners.lookup import Lookup

H200 = device("H200")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database and compiled kernels of this test's own."""
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(tmp_path / "winners.sqlite"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cubins"))
    monkeypatch.setattr("tilewright.runtime.probe.probe", lambda gpu: H200)
    monkeypatch.setattr("tilewright.tuner.first.gpu_problem", lambda: None)
    monkeypatch.setattr("tilewright.tuner.first.GpuFacts", lambda index: SimpleNamespace(arch="sm_90a"))


def test_what_matmul_runs_today_is_built_by_another_process() -> None:
    gemm = Gemm(96, 48, 64, b=Order.COL)
    with Processes(1) as processes:
        first = begun(processes, (96, 48, 64, "f32", None, "NT"))
        assert first.plan == todays_plan(gemm, H200, Lookup(version_of))
        assert first.built is not None
        prepared = first.built.result(120)
        assert first.others is not None
        others = first.others.result(120)
    assert prepared.candidate == first.plan and prepared.registers > 0
    assert others == likely_plans(gemm, H200, 12) and len(set(others)) == 12


def test_what_is_no_problem_is_refused() -> None:
    with Processes(1) as processes, pytest.raises(TilewrightError, match="f33"):
        begun(processes, (8, 8, 8, "f33", None, "NN"))


def test_where_there_is_no_gpu_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.tuner.first.gpu_problem", lambda: "No NVIDIA driver is installed here.")
    with Processes(1) as processes, pytest.raises(LaunchError, match="No NVIDIA driver"):
        begun(processes, (8, 8, 8, "f32", None, "NN"))


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("tilewright.cli.tune", ("numpy", "rich", "tilewright.planning", "tilewright.tuner.compiling")),
        ("tilewright.tuner.compiling", ("tilewright.simulator", "optuna", "cuda.core")),
    ],
)
def test_what_a_command_waits_for_imports_no_more_than_it_needs(module: str, without: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print([one for one in {without!r} if one in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert told.stdout.strip() == "[]"
