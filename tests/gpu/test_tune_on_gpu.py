"""Tuning on a real GPU: what is measured is right, timed, kept, and what matmul then uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.dtypes import F16, F32
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.planning.on_paper import version_of
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import gpu_problem, open_gpu
from tilewright.runtime.probe import probe
from tilewright.tuner.compiling import prepare
from tilewright.tuner.measure import GpuMeasurer
from tilewright.tuner.space import Space
from tilewright.winners.database import Database
from tilewright.winners.lookup import Lookup
from tilewright.winners.plan_config import PlanConfig

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_problem() is None
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(tmp_path / "winners.sqlite"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cubins"))


SMALL = SimtConfig((64, 64, 16), (32, 32), unroll=8)
PLANS = [
    (Gemm(1000, 1000, 1000), PlanConfig(SMALL)),
    (Gemm(512, 512, 16384), PlanConfig(SMALL.with_split_k(4))),
    (Gemm(500, 500, 501, F16, out=F16), PlanConfig(MmaConfig((128, 128, 32)), frozenset("A"))),
    (Gemm(4, 8192, 8192), PlanConfig(GemvConfig(split_k=4))),
]


@pytest.mark.parametrize(("gemm", "config"), PLANS, ids=str)
def test_a_plan_is_checked_on_the_operands_it_is_timed_with(gemm: Gemm, config: PlanConfig) -> None:
    gpu = open_gpu()
    space = Space(gemm, probe(gpu), [])
    measurer = GpuMeasurer(gpu, gemm)
    prepared = prepare(space, config, gpu.arch, CubinCache())
    measured = measurer.measure(prepared)
    times = measurer.side_by_side({"it": prepared})
    measurer.close()
    assert 0 < measured.relative_error < (1e-5 if gemm.out is F32 else 1e-2)
    assert 0.5 < times["it"].median_us / measured.median_us < 2


def test_the_suite_is_tuned_within_its_budget_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export, storage = tmp_path / "winners.jsonl", f"sqlite:///{tmp_path / 'study.sqlite'}"
    words = ["tune", "--suite", "--dtype", "bf16", "--order", "NN", "--budget", "45", "--json"]
    words += ["--storage", storage, "--export", str(export)]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert len(first["here"]) == 15 and all(row["failure"] == "" for row in first["here"])
    assert first["winners"] == len(export.read_text().splitlines()) == 15
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["here"] == []


def test_tuning_stores_a_winner_that_dispatch_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = f"sqlite:///{tmp_path / 'study.sqlite'}"
    words = ["tune", "768", "768", "768", "--family", "simt", "--budget", "25", "--storage", storage, "--json"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["elapsed_s"] < 26
    assert data["measured"] > 5
    gpu = open_gpu()
    found = Lookup(version_of, Database()).winner(gpu.name, Gemm(768, 768, 768), 16)
    assert data["stored"] and found is not None
    config = found.config.as_data()
    assert config == {name: data[name] for name in config}


def test_the_same_command_measures_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = f"sqlite:///{tmp_path / 'study.sqlite'}"
    words = ["tune", "512", "512", "512", "--family", "simt", "--budget", "40", "--storage", storage, "--json"]
    main(words)
    first = json.loads(capsys.readouterr().out)
    main(words)
    second = json.loads(capsys.readouterr().out)
    assert second["measured"] == first["measured"] + second["measured_here"]
