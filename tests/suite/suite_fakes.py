"""A bench without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.bench.records import Origin
from tilewright.errors import TilewrightError
from tilewright.suite.problems import Problem
from tilewright.suite.running import OURS, Measured
from tilewright.suite.timing import Times

ORIGIN = Origin("NVIDIA H200", "580.1", "13.0", "torch 2.11", "abc1234", "tilewright bench", "2026-11-21T10:00:00Z")


class FakeBench:
    """Every peer takes twice our time; problems in `wrong` give a wrong result; `stop` is pulled after so many."""

    device = ORIGIN.device

    def __init__(self, *, wrong: Sequence[Problem] = (), stop_after: int = 10**6) -> None:
        self.wrong, self.stop_after = wrong, stop_after
        self.measured: list[tuple[Problem, tuple[str, ...]]] = []

    def measure(self, problem: Problem, peers: Sequence[str]) -> Measured:
        if problem in self.wrong:
            raise TilewrightError(f"tilewright is wrong for {problem}")
        if len(self.measured) >= self.stop_after:
            raise KeyboardInterrupt
        self.measured.append((problem, tuple(peers)))
        own = float(len(self.measured))
        times = {OURS: Times((own, own, own)), **{peer: Times((2 * own, 2 * own, 2 * own)) for peer in peers}}
        return Measured(times, 1e-7, "hopper/best", ORIGIN)
