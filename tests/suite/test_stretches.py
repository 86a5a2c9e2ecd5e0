"""Stretches of a sustained measurement, with a timer that only counts."""

from __future__ import annotations

from statistics import median

import pytest
import stretches

from tests.suite.test_timing import FakeTimer
from tilewright.suite.timing import Times


def test_the_first_call_warms_the_card_up_and_the_later_half_of_a_stretch_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = FakeTimer({"ours": 100.0, "peer": 400.0})
    ticks = iter(range(1000))
    monkeypatch.setattr(stretches.time, "monotonic", lambda: next(ticks) / 10)
    calls = {"ours": lambda: "ours", "peer": lambda: "peer"}
    times = {name: Times((us,)) for name, us in timer.speeds.items()}
    found = stretches.stretches_of(timer, calls, times, "peer", "GPU-0")
    assert timer.captured == {"ours": 200, "peer": 50}  # 20 ms each
    warm, own = timer.log.index("ours"), timer.log.count("ours")
    assert set(timer.log[:warm]) == {"peer"} and warm > own > 1 and timer.log.count("peer") == warm + own
    later = [100 * (1 + 0.1 * (warm + number)) for number in range(1, own + 1)][own // 2 :]
    assert found["ours"].us == pytest.approx(median(later))
    assert sorted(timer.closed) == ["ours", "peer"]
