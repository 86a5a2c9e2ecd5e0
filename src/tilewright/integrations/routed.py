"""How many products a block of `route_torch` routed, and why it did not route others."""

from __future__ import annotations

from collections import Counter
from threading import get_ident


class Routed:
    """Counts of one block; of each thread that works for it apart, so that none is lost."""

    def __init__(self) -> None:
        # Plain dictionaries: torch.compile of PyTorch 2.11 makes no defaultdict of counters.
        self._calls: dict[int, int] = {}
        self._declined: dict[int, dict[str, int]] = {}

    @property
    def calls(self) -> int:
        """Products that were routed."""
        return sum(self._calls.values())

    @property
    def declined(self) -> dict[str, int]:
        """Products that PyTorch computed, by the reason."""
        return dict(sum(map(Counter, self._declined.values()), Counter[str]()))

    def count(self) -> None:
        thread = get_ident()
        self._calls[thread] = self._calls.get(thread, 0) + 1

    def decline(self, why: str) -> None:
        declined = self._declined.setdefault(get_ident(), {})
        declined[why] = declined.get(why, 0) + 1

    def __str__(self) -> str:
        """
        >>> routed = Routed()
        >>> routed.count(), routed.decline("float64"), print(routed)
        1 product routed; 1 not: float64 (1)
        (None, None, None)
        """
        declined = sorted(self.declined.items(), key=lambda entry: (-entry[1], entry[0]))
        told = f"{self.calls} product{'' if self.calls == 1 else 's'} routed"
        if declined:
            reasons = ", ".join(f"{why} ({count})" for why, count in declined)
            told += f"; {sum(count for _, count in declined)} not: {reasons}"
        return told
