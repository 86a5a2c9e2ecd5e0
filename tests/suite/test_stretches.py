"""Stretches of a sustained measurement, with a timer that only counts."""

from __future__ import annotations

from itertools import groupby

import pytest
import stretches

from tests.suite.test_timing import FakeTimer
from tilewright.suite.timing import Times


def test_stretches_are_interleaved_behind_a_warm_up_and_their_later_halves_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = FakeTimer({"ours": 100.0, "other": 200.0, "peer": 400.0})
    ticks = iter(range(10_000))
    monkeypatch.setattr(stretches.time, "monotonic", lambda: next(ticks) / 20)
    calls = {"ours": lambda: "ours", "other": lambda: "other", "peer": lambda: "peer"}
    times = {name: Times((us,)) for name, us in timer.speeds.items()}
    found = stretches.stretches_of(timer, calls, times, "peer", "GPU-0", rounds=3)
    assert timer.captured == {"ours": 500, "other": 250, "peer": 125}  # 50 ms each
    warm, each = 19, 4  # replays of the warm-up and of a stretch: the clock is read twice for each, and once before
    runs = [name for name, run in groupby(timer.log[warm:], lambda name: name) for _ in range(len(list(run)) // each)]
    assert set(timer.log[:warm]) == {"peer"} and len(timer.log) == warm + 9 * each
    assert [sorted(runs[first : first + 3]) for first in (0, 3, 6)] == 3 * [["other", "ours", "peer"]]
    assert len({tuple(runs[first : first + 3]) for first in (0, 3, 6)}) > 1  # another order in each round
    later = sorted(
        100 * (1 + 0.1 * (warm + 4 * at + nth)) for at, name in enumerate(runs) if name == "ours" for nth in (3, 4)
    )
    assert found["ours"].us == pytest.approx((later[2] + later[3]) / 2)
    assert sorted(timer.closed) == ["other", "ours", "peer"]
