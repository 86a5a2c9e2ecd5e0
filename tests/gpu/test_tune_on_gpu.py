"""Tuning on a real GPU: what is measured is right, timed, kept, and what matmul then uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.problem.gemm import Gemm
from tilewright.runtime.driver import gpu_problem, open_gpu
from tilewright.runtime.probe import probe
from tilewright.tuner.compiling import prepare
from tilewright.winners.database import Database
from tilewright.winners.lookup import Lookup
from tilewright.tuner.measure import GpuMeasurer
from tilewright.tuner.space import make_space

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_problem() is None
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(tmp_path / "winners.sqlite"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cubins"))


def test_a_kernel_is_checked_on_the_operands_it_is_timed_with() -> None:
    gpu = open_gpu()
    space = make_space(Gemm(1000, 1000, 1000), probe(gpu), rung="worklog/9")
    measurer = GpuMeasurer(gpu, space.gemm)
    from tilewright.runtime.cubin_cache import CubinCache

    prepared = prepare(space, space.candidates[0], gpu.arch, CubinCache())
    measured = measurer.measure(prepared)
    times = measurer.side_by_side({"it": prepared})
    measurer.close()
    assert 0 < measured.relative_error < 1e-5
    assert 0.5 < times["it"].median_us / measured.median_us < 2


def test_tuning_stores_a_winner_that_dispatch_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = f"sqlite:///{tmp_path / 'study.sqlite'}"
    words = ["tune", "768", "768", "768", "--rung", "worklog/9", "--budget", "25", "--storage", storage, "--json"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["elapsed_s"] < 26
    assert data["measured"] > 5
    gpu = open_gpu()
    found = Lookup(Database()).best_choice(gpu.name, Gemm(768, 768, 768), 16)
    assert data["stored"] == (found is not None)
    assert found is None or found == (data["rung"], data["point"])


def test_the_same_command_measures_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = f"sqlite:///{tmp_path / 'study.sqlite'}"
    words = ["tune", "512", "512", "512", "--rung", "worklog/9", "--budget", "40", "--storage", storage, "--json"]
    main(words)
    first = json.loads(capsys.readouterr().out)
    main(words)
    second = json.loads(capsys.readouterr().out)
    assert second["measured"] == first["measured"] + second["measured_here"]
