"""Kernels compiled ahead by several processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewright.suite import ahead
from tilewright.suite.ahead import compile_ahead, shared_out
from tilewright.suite.problems import problems


def test_every_problem_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for prepared in (False, True):
        called: list[object] = []
        told: set[bool] = set()
        monkeypatch.setattr(ahead, "call_each", lambda part, how, c=called, t=told: c.extend(part) or t.add(how) or 0)
        compile_ahead(problems(), count=5, executor=ThreadPoolExecutor, prepared=prepared)
        assert len(called) == len(set(called)) == len(problems()) and told == {prepared}


def test_a_process_that_dies_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(part: object, prepared: bool) -> int:
        raise MemoryError

    monkeypatch.setattr(ahead, "call_each", dies)
    compile_ahead(problems(), count=2, executor=ThreadPoolExecutor)


@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_work_is_shared_out_evenly(count: int) -> None:
    parts = shared_out(problems(), count)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == len(problems()) and max(sizes) - min(sizes) <= 15
