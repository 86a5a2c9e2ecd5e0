"""Schedules, the simulator, the model and the report work where no CUDA package is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

HIDES = """
import sys

class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cuda", "nvidia", "optuna", "psycopg", "pynvml", "torch", "jax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hider())
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the CUDA packages cannot be imported."""
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "sitecustomize.py").write_text(HIDES)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(SRC)))}


def run(hidden: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *words]
    return subprocess.run(command, env=hidden, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.cross_section("words", every=3)
@pytest.mark.parametrize(
    "words",
    [
        ("ladder", "worklog", "--size", "32", "--rungs", "1-3"),
        ("show", "worklog/6", "--cuda"),
        ("explain", "worklog/3", "--size", "64"),
        ("simulate", "ampere/1", "--size", "64"),
        ("report", "worklog", "--size", "32", "--rungs", "3"),
        ("plan", "64"),
        ("devices",),
        ("doctor",),
    ],
    ids=lambda words: words[0],
)
def test_a_command_works(hidden: dict[str, str], tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(hidden, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.cross_section("words", every=3)
@pytest.mark.parametrize(
    "words",
    [
        ("predict", "worklog/6", "--device", "H200", "--size", "256"),
        ("show", "worklog/3", "--sass"),
        ("export", "worklog/3", "-o", "exported"),
    ],
    ids=lambda words: words[0],
)
def test_what_compiles_says_what_to_install(hidden: dict[str, str], tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(hidden, tmp_path, *words)
    assert done.returncode == 1
    assert "python -m pip install 'tilewright[cuda]'" in done.stderr
    assert "Traceback" not in done.stderr and "bug in tilewright" not in done.stderr


def test_the_package_imports_and_simulates(hidden: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import tilewright as tw; from tilewright.ladders import find_rung\n"
        "rung = find_rung('worklog/3'); built = tw.build(rung.gemm(33, 31, 17), rung)\n"
        "print(built.simulate(tw.make_operands(built.gemm)).counters.global_loads.sectors_per_request)\n"
        "assert 'cuda' not in __import__('sys').modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=hidden, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0
