"""Many configurations of one family as NumPy columns, so that thousands are judged by a few array operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.problem.gemm import Gemm

Column = Any
"""A number, or a NumPy array with an entry for each configuration. Arithmetic of a configuration takes either."""

_FEW = 512
"""Configurations up to which facts of a table are taken of all columns at once: one by one each takes longer to ask
for than to compute with."""


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

    # Columns that are made are attributes. `_late`: what others are made of, an array and rows of it; `_kept`: columns
    # of `table`, of which `rows` are taken.
    __slots__ = ("__dict__", "_facts", "_kept", "_late", "given", "rows", "table")

    given: frozenset[str]
    """Columns that `with_columns` gave since the rows were selected from `table`."""

    rows: Any
    """Which rows of `table` these are; None: all."""

    table: Columns | None
    """The table that is kept of which these are rows; None where there is none."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._late: dict[str, Any] = {name: one for name, one in columns.items() if type(one) is Deferred}
        self.__dict__.update({name: _numbers(one) for name, one in columns.items() if name not in self._late})
        self._facts: dict[Hashable, Any] = {}
        self._kept: Mapping[str, Any] = {}
        self.rows = self.table = None
        self.given = frozenset()

    @classmethod
    def of(cls, configurations: Sequence[Any], names: Sequence[str]) -> Columns:
        """The attributes `names` of configurations."""
        return cls({name: np.array([getattr(one, name) for one in configurations]) for name in names})

    def __getattr__(self, name: str) -> Any:
        late, made = self._late.get(name), self.__dict__
        if late is not None:
            found = made[name] = late.compute(self) if type(late) is Deferred else late[0].take(late[1])
            return found
        column = self._kept.get(name)
        if column is None:
            raise AttributeError(name)
        found = made[name] = column.take(self.rows)
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__ or name in self._kept or name in self._late

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._kept, *self.__dict__, *self._late)))

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        first = next(iter(self.__dict__.values()), None)
        return len(next(iter(self._late.values()))[1] if first is None else first)

    def __getitem__(self, chosen: Any) -> Columns:
        """Some configurations. A column of them is made when it is first asked for: most never are."""
        rows = np.arange(len(self))[chosen] if isinstance(chosen, slice) else np.asarray(chosen)
        if rows.dtype == bool:
            (rows,) = rows.nonzero()
        found = self._of_table()
        if self.table is not None:
            found.rows = rows if self.rows is None else self.rows.take(rows)
        before = composed = None
        for name in self.names if self.table is None else self.given:
            late = (self.__dict__[name], None) if name in self.__dict__ else self._late[name]
            if type(late) is not Deferred:
                column, selected = late
                if selected is not None and selected is not before:  # most columns were selected by the same rows
                    before, composed = selected, selected.take(rows)
                late = column, rows if selected is None else composed
            found._late[name] = late
        return found

    def values(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """Some columns of one configuration, as numbers and words of Python."""
        made, late, kept = self.__dict__, self._late, self._kept
        at = row if self.rows is None else self.rows.item(row)
        found: dict[str, Any] = {}
        for name in names:
            if name in made:
                found[name] = made[name].item(row)
            elif name not in late:
                found[name] = kept[name].item(at)
            elif type(late[name]) is Deferred:
                found[name] = getattr(self[np.array([row])], name).item()
            else:
                column, rows = late[name]
                found[name] = column.item(rows.item(row))
        return found

    def _of_table(self) -> Columns:
        """Rows of the same table, none of them yet."""
        found = object.__new__(Columns)
        found._facts, found._kept, found._late = {}, self._kept, {}
        found.table, found.rows, found.given = self.table, self.rows, self.given
        return found

    def with_columns(self, **columns: Any) -> Columns:
        """The same with further columns, or others in their place."""
        found = self._of_table()
        made, late = found.__dict__, found._late
        made.update(self.__dict__)
        late.update(self._late)
        for name, column in columns.items():
            if type(column) is Deferred:
                made.pop(name, None)
                late[name] = column
            else:
                made[name] = _numbers(column)
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
        late = None if name in self.__dict__ else self._late.get(name)
        return late if type(late) is Deferred else getattr(self, name)

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
        found._kept = dict(found.__dict__)
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

        def more(kept: Columns) -> tuple[Mapping[str, Any], Any]:
            ones = np.ones(len(kept))
            facts = {name: one * ones for name, one in compute(kept).items()}
            return facts, np.stack(list(facts.values()), axis=1)

        facts, beside = self.table.known(key, more)
        found = self.with_columns()
        if self.rows is None:
            found.__dict__.update(facts)
        elif len(self.rows) <= _FEW:
            found.__dict__.update(zip(facts, beside.take(self.rows, axis=0).T, strict=True))
        else:
            found._kept = {**self._kept, **facts}
        return found

    def known(self, key: Hashable, compute: Callable[[Columns], Any]) -> Any:
        """What `compute` finds for a table that is kept, found once."""
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = compute(self)
        return found


def distinct(column: Any) -> Any:
    """The values of a column, ascending, each once. `np.unique` would import `numpy.ma` for the first choice of
    a process.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    return np.array(sorted(set(column.tolist())), dtype=column.dtype)


def has_column(c: Any, name: str) -> bool:
    """Whether configurations, or one, have a column."""
    return name in c if type(c) is Columns else hasattr(c, name)


def _numbers(column: Any) -> Any:
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
