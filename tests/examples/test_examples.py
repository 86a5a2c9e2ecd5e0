"""The examples run and say what they should."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.ir.text import kernel_text
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, Order
from tilewright.toolchain import build

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["my_schedule.py", "first_kernel.py"])
def test_an_example_runs(name: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "C[m, n] = alpha * sum_k" in done.stdout and "__global__" in done.stdout
    assert "of its bound" in done.stdout


def test_the_schedule_by_hand_is_the_rung() -> None:
    steps = runpy.run_path(str(EXAMPLES / "my_schedule.py"))["STEPS"]
    gemm = Gemm(256, 256, 64, a=Order.COL)
    rung = build(gemm, find_rung("te/4"))
    mine = build(gemm, steps)
    assert mine.schedule == rung.schedule and mine.text == rung.text
    assert kernel_text(mine.kernel) == kernel_text(replace(rung, name="gemm").kernel)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("route_a_model.py", "ms a step"),
        ("conjugate_gradients.py", "f16x3"),
        ("train_in_f32.py", "f32_emulated"),
        ("mixture_of_experts.py", "the same bits again: True"),
    ],
)
def test_an_example_that_needs_more_says_what(name: str, says: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True)
    if done.returncode == 0:
        assert says in done.stdout
        return
    assert "Traceback" not in done.stderr
    assert "pip install 'tilewright[torch]'" in done.stderr or "there is none to use: " in done.stderr
