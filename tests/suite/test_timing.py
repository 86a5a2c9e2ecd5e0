"""How candidates are timed, with a timer that only counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.errors import LaunchError
from tilewright.suite.timing import Times, fastest, interleaved


class FakeReplay:
    def __init__(self, timer: FakeTimer, name: str, calls: int) -> None:
        self.timer, self.name, self.calls = timer, name, calls

    def time_us(self) -> float:
        self.timer.log.append(self.name)
        drift = 1 + 0.1 * len(self.timer.log)  # the card grows slower, for all alike
        return self.timer.speeds[self.name] * drift

    def close(self) -> None:
        self.timer.closed.append(self.name)


class FakeTimer:
    """A call says its name; its speed is told."""

    def __init__(self, speeds: dict[str, float]) -> None:
        self.speeds = speeds
        self.log: list[str] = []
        self.closed: list[str] = []
        self.captured: dict[str, int] = {}

    def once_us(self, call: Callable[[], object]) -> float:
        if self.speeds[str(call())] <= 0:
            raise RuntimeError("not supported")
        return self.speeds[str(call())]

    def capture(self, call: Callable[[], object], calls: int) -> FakeReplay:
        name = str(call())
        self.captured[name] = calls
        return FakeReplay(self, name, calls)


def calls(*names: str) -> dict[str, Callable[[], object]]:
    return {name: (lambda name=name: name) for name in names}


def test_every_round_runs_everybody_once_and_another_one_first() -> None:
    timer = FakeTimer({"a": 100.0, "b": 200.0})
    times = interleaved(timer, calls("a", "b"), rest=lambda seconds: None)
    rounds = timer.log[2:]  # after a first replay each
    assert rounds[:4] == ["a", "b", "b", "a"]
    assert len(times["a"].each_us) == len(times["b"].each_us) == len(rounds) / 2


def test_each_replay_follows_a_rest() -> None:
    rests: list[float] = []
    timer = FakeTimer({"a": 3.0})
    interleaved(timer, calls("a"), rest=rests.append)
    assert len(rests) == len(timer.log) - 1


def test_short_calls_fill_a_graph_and_long_ones_have_fewer_rounds() -> None:
    short, long = FakeTimer({"a": 3.0}), FakeTimer({"a": 30_000.0})
    many, few = (interleaved(t, calls("a"), rest=lambda seconds: None)["a"] for t in (short, long))
    assert (short.captured["a"], long.captured["a"]) == (833, 2)
    assert (len(many.each_us), len(few.each_us)) == (15, 5)


def test_a_share_is_taken_within_rounds_so_that_drift_cancels() -> None:
    ours, theirs = Times((1.0, 2.0, 4.0)), Times((1.5, 3.0, 6.0))
    assert ours.share_of(theirs) == 1.5


def test_graphs_are_freed_when_a_candidate_fails() -> None:
    timer = FakeTimer({"a": 100.0, "broken": 0.0})
    with pytest.raises(RuntimeError):
        interleaved(timer, calls("a", "broken"), rest=lambda seconds: None)
    assert timer.closed == ["a"]


def test_the_fastest_of_many_is_found_and_what_fails_is_left_out() -> None:
    timer = FakeTimer({"slow": 50.0, "broken": 0.0, "quick": 5.0, "middling": 20.0})
    names = ("slow", "broken", "quick", "middling")
    assert fastest(timer, list(calls(*names).values()), keep=2) == [2, 3]


def test_a_long_call_that_is_much_slower_is_not_measured_again() -> None:
    timer = FakeTimer({"long": 20_000.0, "longer": 30_000.0, "alike": 21_000.0})
    assert fastest(timer, list(calls("long", "longer", "alike").values()), keep=3) == [0, 2]
    assert "longer" not in timer.captured


def test_an_algorithm_that_refuses_is_left_out() -> None:
    class Refusing(FakeTimer):
        def once_us(self, call: Callable[[], object]) -> float:
            if call() == "refused":
                raise LaunchError("cublasLtMatmul gave status 15.")
            return super().once_us(call)

    timer = Refusing({"refused": 1.0, "fine": 2.0})
    assert fastest(timer, list(calls("refused", "fine").values())) == [1]
