"""Many configurations of one family as NumPy columns, so that thousands are judged by a few array operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.problem.gemm import Gemm

Column = Any
"""A number, or a NumPy array with an entry for each configuration. Arithmetic of a configuration takes either."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A column that is made of the others when it is asked for, of the configurations that are left by then."""

    compute: Callable[[Columns], Any]


class Columns:
    """Columns by name, of equal length. An attribute is a column; an index or a mask selects configurations.

    Truth values are numbers, 0 or 1.

    >>> table = Columns({"m": np.array([64, 128]), "n": np.array([8, 16])})
    >>> len(table), (table.m * table.n).tolist(), table[table.m > 64].n.tolist()
    (2, [512, 2048], [16])
    """

    __slots__ = ("_columns", "_facts", "given", "rows", "table")

    given: frozenset[str]
    """Columns that `with_columns` gave since the rows were selected from `table`."""

    rows: Any
    """Which rows of `table` these are; None: all."""

    table: Columns | None
    """The table that is kept of which these are rows; None where there is none."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns: dict[str, Any] = {name: _numbers(column) for name, column in columns.items()}
        self._facts: dict[Hashable, Any] = {}
        self.rows = self.table = None
        self.given = frozenset()

    @classmethod
    def of(cls, configurations: Sequence[Any], names: Sequence[str]) -> Columns:
        """The attributes `names` of configurations."""
        return cls({name: np.array([getattr(one, name) for one in configurations]) for name in names})

    def __getattr__(self, name: str) -> Any:
        try:
            found = self._columns[name]
        except KeyError:
            raise AttributeError(name) from None
        if type(found) is tuple:
            source, rows = found
            found = self._columns[name] = source.take(rows)
        elif type(found) is Deferred:
            found = self._columns[name] = found.compute(self)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def __len__(self) -> int:
        first = next(iter(self._columns.values()))
        return len(first[1] if type(first) is tuple else first)

    def __getitem__(self, chosen: Any) -> Columns:
        """Some configurations. A column of them is made when it is first asked for: most never are."""
        rows = np.arange(len(self))[chosen] if isinstance(chosen, slice) else np.asarray(chosen)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        found = object.__new__(Columns)
        columns: dict[str, Any] = {}
        found._columns = columns
        # Most columns were selected by the same rows before, those of `table`.
        before = self.rows
        mine = composed = rows if before is None else before.take(rows)
        for name, column in self._columns.items():
            if type(column) is tuple:
                if column[1] is not before:
                    before, composed = column[1], column[1].take(rows)
                columns[name] = (column[0], composed)
            else:
                columns[name] = column if type(column) is Deferred else (column, rows)
        found._facts, found.table, found.given = {}, self.table, self.given
        found.rows = None if self.table is None else mine
        return found

    def row(self, at: int, names: Iterable[str]) -> dict[str, Any]:
        """The values of one configuration, by the names of some columns."""
        found: dict[str, Any] = {}
        before: Any = None
        for name in names:
            column = self._columns[name]
            if type(column) is Deferred:
                found[name] = np.asarray(column.compute(self[[at]]))[0].item()
            elif type(column) is tuple:
                if column[1] is not before:  # most columns were selected by the same rows
                    before, place = column[1], int(column[1][at])
                found[name] = column[0].item(place)
            else:
                found[name] = column.item(at)
        return found

    def with_columns(self, **columns: Any) -> Columns:
        """The same with further columns, or others in their place."""
        found = object.__new__(Columns)
        found._columns = {**self._columns, **{name: _numbers(column) for name, column in columns.items()}}
        found._facts, found.table, found.rows = {}, self.table, self.rows
        found.given = self.given.union(columns)
        return found

    def in_table(self, key: Hashable, change: Callable[[Columns], Columns]) -> Columns:
        """The same configurations as `change` makes them of the whole of a table that is kept, once; with the columns
        that were given since."""
        if self.table is None:
            return change(self)
        whole = self.table.known(key, lambda kept: change(kept).kept())
        found: Columns = whole if self.rows is None else whole[self.rows]
        return found.with_columns(**{name: self._deferred_or_known(name) for name in self.given})

    def _deferred_or_known(self, name: str) -> Any:
        found = self._columns[name]
        return found if type(found) is Deferred else getattr(self, name)

    def beside(self, other: Columns) -> Columns:
        """These configurations, then others; where both are of tables that are kept, of one that is kept as well."""
        if self.table is None or other.table is None:
            names = [name for name in self.names if name in other.names]
            return Columns({name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names})
        first, second = self.table, other.table

        def both(kept: Columns) -> tuple[Columns, Columns]:
            names = [name for name in kept.names if name in second.names]
            columns = ((getattr(kept, name), getattr(second, name)) for name in names)
            joint = Columns({name: np.concatenate(of) for name, of in zip(names, columns, strict=True)})
            return second, joint.kept()  # the second is kept as well, so that no other has its id

        def given(name: str) -> Any:
            mine, others = self._deferred_or_known(name), other._deferred_or_known(name)
            if type(mine) is Deferred and mine is others:
                return mine
            return np.concatenate([getattr(self, name), getattr(other, name)])

        rows = [np.arange(len(one)) if one.rows is None else one.rows for one in (self, other)]
        _, joint = first.known(("beside", id(second)), both)
        found: Columns = joint[np.concatenate([rows[0], rows[1] + len(first)])]
        return found.with_columns(**{name: given(name) for name in self.given | other.given})

    def kept(self) -> Columns:
        """The same as a table that is kept: `fact` computes once for all that is ever selected of it."""
        found = Columns({name: getattr(self, name) for name in self.names})
        found.table = found
        return found

    def fact(self, key: Hashable, compute: Callable[[Columns], Any]) -> Any:
        """What `compute` finds for these configurations, an array whose first axis runs along them; of a table that is
        kept for all of its rows, once. It must not ask for columns that `with_columns` gave since."""
        if self.table is None:
            return compute(self)
        found = self.table.known(key, compute)
        return found if self.rows is None else found.take(self.rows, axis=0)

    def with_facts(self, key: Hashable, compute: Callable[[Columns], Mapping[str, Any]]) -> Columns:
        """The same with further columns, which `compute` finds of a table that is kept once, as `fact`."""
        if self.table is None:
            return self.with_columns(**compute(self))
        found = self.with_columns()
        told, rows = self.table.known(key, compute), self.rows
        found._columns |= told if rows is None else {name: (column, rows) for name, column in told.items()}
        return found

    def known(self, key: Hashable, compute: Callable[[Columns], Any]) -> Any:
        """What `compute` finds for a table that is kept, found once."""
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = compute(self)
        return found


def _numbers(column: Any) -> Any:
    if type(column) is Deferred:
        return column
    array = np.asarray(column)
    return array.astype(np.int64) if array.dtype == bool else array


@dataclass(frozen=True, slots=True)
class Law:
    """broken: of columns and a problem, where the law is not met. reason: of one configuration, with its values."""

    broken: Callable[[Any, Gemm], Any]
    reason: Callable[[Any, Gemm], str]


def legal(laws: Sequence[Law], columns: Columns, gemm: Gemm) -> Any:
    """Whether each configuration meets all laws: a column of truth values."""
    found = np.ones(len(columns), dtype=bool)
    for law in laws:
        found &= ~np.asarray(law.broken(columns, gemm), dtype=bool)
    return found


def reasons_against(laws: Sequence[Law], configuration: Any, names: Sequence[str], gemm: Gemm) -> tuple[str, ...]:
    """Why a configuration cannot compute a problem, in words; empty if it can."""
    one = Columns.of([configuration], names)
    return tuple(law.reason(configuration, gemm) for law in laws if np.any(law.broken(one, gemm)))
