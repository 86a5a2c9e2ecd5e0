"""The base of listeners that count: a row of numbers for each site."""

from __future__ import annotations

from typing import ClassVar

from tilewright.simulator.events import Listener
from tilewright.simulator.sites import Site


class SiteCounter(Listener):
    """Adds up numbers for each site; `fields` names the columns, which are fields of `counters.LineCounts`."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._rows: dict[Site, list[int]] = {}

    def add(self, site: Site, *amounts: int) -> None:
        row = self._rows.get(site)
        if row is None:
            self._rows[site] = list(amounts)
            return
        for column, amount in enumerate(amounts):
            row[column] += amount

    def counts(self) -> dict[Site, dict[str, int]]:
        """The sums of each site, by name."""
        return {site: dict(zip(self.fields, row, strict=True)) for site, row in self._rows.items()}

    def total(self, field: str) -> int:
        """The sum of one column over all sites."""
        column = self.fields.index(field)
        return sum(row[column] for row in self._rows.values())
