"""Many configurations of one family as NumPy columns, so that thousands are judged by a few array operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Column = Any
"""A number, or a NumPy array with an entry for each configuration. Arithmetic of a configuration takes either."""


class Columns:
    """Columns by name, of equal length. An attribute is a column; an index or a mask selects configurations.

    Truth values are numbers, 0 or 1.

    >>> table = Columns({"m": np.array([64, 128]), "n": np.array([8, 16])})
    >>> len(table), (table.m * table.n).tolist(), table[table.m > 64].n.tolist()
    (2, [512, 2048], [16])
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        self._columns = {name: one.astype(np.int64) if one.dtype == bool else one for name, one in arrays.items()}

    @classmethod
    def of(cls, configurations: Sequence[Any], names: Sequence[str]) -> Columns:
        """The attributes `names` of configurations."""
        return cls({name: np.array([getattr(one, name) for one in configurations]) for name in names})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, chosen: Any) -> Columns:
        found = object.__new__(Columns)
        found._columns = {name: column[chosen] for name, column in self._columns.items()}
        return found

    def with_columns(self, **columns: Any) -> Columns:
        """The same with further columns, or others in their place."""
        return Columns({**self._columns, **columns})

    def row(self, index: int) -> dict[str, Any]:
        """One configuration's values as Python's own."""
        return {name: column[index].item() for name, column in self._columns.items()}
