"""`tilewright bench` with a bench that measures nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import write_page
from command_runs import Cli
from suite_fakes import FakeBench

from tilewright.bench import records
from tilewright.cli.bench_drawn import default_place
from tilewright.suite.problems import Problem

ONE = ("bench", "--size", "64x32x16", "--dtype", "bf16", "--order", "nn")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    bench = FakeBench()
    monkeypatch.setattr("tilewright.cli.bench._bench", lambda: bench)
    monkeypatch.setattr("tilewright.cli.bench._compile_ahead", lambda turns, progress: None)
    monkeypatch.setattr("tilewright.bench.records.commit", lambda: "abc1234")
    return bench


def test_rows_are_printed_and_recorded(cli: Cli, fake: FakeBench, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    ran = cli(*ONE, "--peers", "cublas,cublaslt", "--record", path)
    assert ran.code == 0
    assert "64x32x16 bf16 NN" in ran.out and "2.000 x cuBLAS  2.000 x cuBLASLt  hopper/best" in ran.out
    assert "geometric mean 2.000 x cuBLAS, least 2.000, over 1 measurements" in ran.out
    assert len(records.read(path)) == 1


def test_what_is_recorded_is_not_measured_again(cli: Cli, fake: FakeBench, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    cli(*ONE, "--peers", "cublas", "--record", path)
    ran = cli(*ONE, "--peers", "cublas", "--record", path)
    assert ran.code == 0 and "--again measures it again" in ran.out
    assert len(fake.measured) == 1
    assert cli(*ONE, "--peers", "cublas", "--record", path, "--again").code == 0
    assert len(fake.measured) == 2


def test_a_wrong_result_is_exit_code_1(cli: Cli, fake: FakeBench, tmp_path: Path) -> None:
    fake.wrong = [Problem(64, 32, 16, "bf16")]
    ran = cli(*ONE, "--peers", "cublas", "--record", tmp_path / "rows.jsonl")
    assert ran.code == 1 and "is wrong for" in ran.out


def test_a_budget_of_nothing_measures_nothing_and_says_what_is_left(cli: Cli, fake: FakeBench, tmp_path: Path) -> None:
    ran = cli(*ONE, "--budget", "0", "--record", tmp_path / "rows.jsonl")
    assert ran.code == 0 and "2 measurements are left" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--size", "64x64"), "'64x64' is not a shape."),
        (("--size", "0x64x64"), "'0x64x64' is not a shape."),
        (("--dtype", "f64"), "There is no dtype 'f64'."),
        (("--order", "XY"), "There is no order 'XY'."),
        (("--peers", "triton"), "There is no peer 'triton'."),
    ],
)
def test_bad_words_are_explained(cli: Cli, fake: FakeBench, words: tuple[str, ...], said: str) -> None:
    ran = cli("bench", *words)
    assert ran.code == 1 and said in ran.err


def test_without_a_gpu_it_says_so_before_it_asks_for_pytorch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.bench.gpu_problem", lambda: "No NVIDIA driver is installed here.")
    for words in (ONE, ("bench", "--random", "3")):
        ran = cli(*words)
        assert ran.code == 1 and ran.err.startswith("Timing needs a GPU: No NVIDIA driver is installed here.\n  Hint: ")


def test_a_pytorch_that_sees_no_gpu_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr("tilewright.cli.bench.gpu_problem", lambda: None)
    monkeypatch.setattr("tilewright.suite.gpu.extras.require", lambda name, why: blind)
    ran = cli(*ONE)
    assert ran.code == 1 and "torch.cuda.is_available() is False" in ran.err


def test_without_pytorch_the_pip_line_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.bench.gpu_problem", lambda: None)
    pytest.importorskip("tilewright.suite.gpu")
    try:
        import torch  # noqa: F401
    except ImportError:
        ran = cli(*ONE)
        assert ran.code == 1 and "pip install 'tilewright[torch]'" in ran.err


def test_the_page_is_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "library.md"
    assert write_page.main(["library", str(page)]) == 0
    assert write_page.main(["library", str(page), "--check"]) == 0
    page.write_text(page.read_text() + "| 1 | typed by hand |\n")
    assert write_page.main(["library", str(page), "--check"]) == 1
    assert "is not what the records say" in capsys.readouterr().err


def test_records_are_named_after_the_gpu() -> None:
    assert default_place("library", "NVIDIA H200").name == "library_h200.jsonl"
    assert default_place("library", "NVIDIA GeForce RTX 4090").name == "library_rtx_4090.jsonl"
