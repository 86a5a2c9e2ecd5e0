"""What the page says of rungs on a GPU is worked out by other processes, and is the same as in this one."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.device.catalog import H200
from tilewright.ladders import find_rung
from tilewright.report.page import on_gpu
from tilewright.report.page.on_gpu import begun, caller

NAMES = ("worklog/1", "worklog/2")


def test_other_processes_say_what_this_one_says(kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(kernel_cache))
    rungs = [find_rung(name) for name in NAMES]
    given = rungs[1], H200, {}, kernel_cache
    with caller(rungs, workers=2) as call:
        result = begun(call, on_gpu.on_gpu, *given)
        assert result() == on_gpu.on_gpu(*given)


def test_what_a_killed_process_was_at_is_done_here() -> None:
    def call(work: Any, *given: object) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool("killed"))
        return future

    assert begun(call, divmod, 7, 3)() == (2, 1)


@pytest.mark.parametrize(("known", "workers"), [(True, 1), (False, 2)])
def test_one_core_and_schedules_of_a_file_need_no_process(
    known: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rungs = [find_rung(name) if known else replace(find_rung(name), ladder="mine") for name in NAMES]
    monkeypatch.setattr(on_gpu, "Processes", lambda *given: pytest.fail("a process was started"))
    with caller(rungs, workers) as call:
        assert begun(call, threading.get_ident)() != threading.get_ident()


def test_an_interrupt_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    with pytest.raises(KeyboardInterrupt), caller([find_rung("worklog/1")], 2) as call:
        first = call(asked.append, 1)
        first.result()
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError, match="after shutdown"):
        call(asked.append, 2)
    assert asked == [1]
