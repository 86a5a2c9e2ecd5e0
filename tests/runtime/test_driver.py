"""A machine with no driver is told so in one sentence, and no object of cuda.core is made on it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tilewright.errors import LaunchError
from tilewright.runtime import driver
from tilewright.runtime.driver import Gpu, driver_answer, gpu_count, gpu_problem, launch_error, open_gpu


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda import pathfinder

    def missing(name: str) -> None:
        raise RuntimeError(f'"{name}" is an NVIDIA driver library and can only be found via system search')

    def refuse(*_: object) -> None:
        raise AssertionError("a Gpu was made without a driver")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    monkeypatch.setattr(Gpu, "__init__", refuse)
    monkeypatch.setattr(driver, "gpu_problem", gpu_problem.__wrapped__)


def test_no_driver_is_one_sentence_with_the_way_out(no_driver: None) -> None:
    told = (
        "No NVIDIA driver is installed, so no kernel can run on a GPU here (all else works); "
        "to run one, install driver 580 or newer."
    )
    assert driver.gpu_problem() == told
    assert gpu_count() == 0
    with pytest.raises(LaunchError) as refusal:
        open_gpu()
    assert str(refusal.value) == told


def test_missing_bindings_are_told_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    told = gpu_problem.__wrapped__()
    assert told is not None and "python -m pip install 'tilewright[cuda]'" in told


class Status(int):
    name = "CUDA_ERROR_OUT_OF_MEMORY"


def test_an_answer_of_the_driver_is_its_value_or_an_error() -> None:
    assert driver_answer((Status(0), 42), "asking") == 42
    assert driver_answer((Status(0),), "asking") is None
    with pytest.raises(LaunchError) as refusal:
        driver_answer((Status(2),), "allocating 3.0 GiB")
    assert str(refusal.value) == (
        "The driver reported CUDA_ERROR_OUT_OF_MEMORY while allocating 3.0 GiB.\n"
        "  Note: the GPU has no such piece of memory free.\n"
        "  Hint: free arrays, or use a smaller problem."
    )


def test_only_failures_of_the_driver_become_launch_errors() -> None:
    told: Any = launch_error(Exception("CUDA_ERROR_INVALID_VALUE: one of the parameters"), "launching")
    assert str(told) == "The driver reported CUDA_ERROR_INVALID_VALUE while launching."
    with pytest.raises(KeyError):
        launch_error(KeyError("a bug of ours"), "launching")
