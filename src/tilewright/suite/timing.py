"""Candidates timed in turn: each as a graph of many calls, replayed round by round.

A graph runs some milliseconds, long against its start, so that a call of 3 us is measured as well as one of 20 ms.
Where calls are long a graph holds few, and there are fewer rounds: they vary less. Before each replay the card rests,
so that none runs hotter than another; who comes first changes from round to round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.errors import TilewrightError

GRAPH_US = 2500.0
MOST_CALLS = 1000
FEWEST_ROUNDS, MOST_ROUNDS = 5, 15
ROUNDS_US = 60_000.0
"""About how long one candidate runs over all its rounds."""

REST_S = 0.005


LONG_US = 1000.0
"""A call that one measurement times well enough to see that it is not a candidate."""

HOPELESS = 1.3
"""So much slower than the fastest, a long call is not measured again."""


class Replay(Protocol):
    """Calls that were captured."""

    def time_us(self) -> float:
        """Run them; microseconds of one call."""
        ...

    def close(self) -> None: ...


class Timer(Protocol):
    """Captures calls on a GPU."""

    def once_us(self, call: Callable[[], object]) -> float:
        """About how long one call takes, after a first one."""
        ...

    def capture(self, call: Callable[[], object], calls: int) -> Replay:
        """So many calls, one after another."""
        ...


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds a call, one for each round."""

    each_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        return statistics.median(self.each_us)

    def share_of(self, peer: Times) -> float:
        """How much faster than a peer: the median over rounds of the ratio in one round, above 1 where faster."""
        return statistics.median(theirs / own for own, theirs in zip(self.each_us, peer.each_us, strict=True))


def calls_for(once_us: float, copies: int = 1) -> int:
    """How many calls a graph holds: some milliseconds of them, and each copy of the operands once where that fits.

    >>> calls_for(3.0), calls_for(300.0), calls_for(30_000.0)
    (833, 8, 2)
    """
    most = min(MOST_CALLS, max(2, int(GRAPH_US / max(once_us, 0.1))))
    return max(most, min(copies, most * 2))


def rounds_for(graph_us: float) -> int:
    """
    >>> rounds_for(2500.0), rounds_for(6000.0), rounds_for(50_000.0)
    (15, 10, 5)
    """
    return min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(ROUNDS_US / max(graph_us, 1.0))))


def interleaved(
    timer: Timer,
    candidates: Mapping[str, Callable[[], object]],
    *,
    copies: int = 1,
    rest: Callable[[float], None] = time.sleep,
) -> dict[str, Times]:
    """The times of every candidate. copies: of operands that its calls take in turn."""
    captured: dict[str, Replay] = {}
    try:
        longest_us = 0.0
        for name, call in candidates.items():
            once_us = timer.once_us(call)
            calls = calls_for(once_us, copies)
            longest_us = max(longest_us, once_us * calls)
            captured[name] = timer.capture(call, calls)
        return _rounds(captured, rounds_for(longest_us), rest)
    finally:
        for replay in captured.values():
            replay.close()


def _rounds(captured: Mapping[str, Replay], rounds: int, rest: Callable[[float], None]) -> dict[str, Times]:
    for replay in captured.values():
        replay.time_us()  # the first replay is not measured: it uploads the graph
    names = list(captured)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            rest(REST_S)
            times[name].append(captured[name].time_us())
    return {name: Times(tuple(found)) for name, found in times.items()}


def fastest(
    timer: Timer,
    candidates: Sequence[Callable[[], object]],
    *,
    keep: int = 1,
    graph_us: float = 600.0,
    replays: int = 3,
) -> list[int]:
    """The numbers of the `keep` fastest of many candidates, by a short measurement; those that fail are left out."""
    found: list[tuple[float, int]] = []
    shortest_us = float("inf")
    for number, call in enumerate(candidates):
        try:
            once_us = timer.once_us(call)
            shortest_us = min(shortest_us, once_us)
            if once_us > max(LONG_US, HOPELESS * shortest_us):
                continue
            replay = timer.capture(call, min(MOST_CALLS, max(1, int(graph_us / max(once_us, 0.1)))))
        except (RuntimeError, TilewrightError):
            continue
        try:
            found.append((min(replay.time_us() for _ in range(replays)), number))
        finally:
            replay.close()
    return [number for _, number in sorted(found)[:keep]]
