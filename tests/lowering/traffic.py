"""What a kernel reads and writes in global memory, element by element, put down as it runs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.async_stmt import TmaStore
from tilewright.ir.buffer import Space
from tilewright.ir.clusters import neighbours
from tilewright.problem import Gemm
from tilewright.problem.gemm import OperandName
from tilewright.problem.reference import Operands, view
from tilewright.simulator.findings import Access, Listener, TmaCopy
from tilewright.toolchain import Build
from tilewright.units import ceil_div


class Traffic(Listener):
    """reads, writes: of each matrix, how often each element of its storage was. empty: boxes of TMA with no element."""

    def __init__(self, operands: Operands) -> None:
        elements = {name: len(operands.storage(name)) for name in "ABC"}
        self.reads: dict[str, Array] = {name: np.zeros(count, np.int64) for name, count in elements.items()}
        self.writes: dict[str, Array] = {name: np.zeros(count, np.int64) for name, count in elements.items()}
        self.empty: dict[str, int] = defaultdict(int)

    def _table(self, store: bool) -> dict[str, Array]:
        return self.writes if store else self.reads

    def accessed(self, access: Access) -> None:
        if access.space is not Space.GLOBAL or access.buffer.name not in self.reads:
            return
        first = (access.pattern.rows + access.offset).reshape(-1)
        active = access.pattern.active_rows
        first = first if active is None else first[active.reshape(-1)]
        for element in range(access.width):
            inside = first + element
            table = self._table(access.store)[access.buffer.name]
            np.add.at(table, inside[inside < len(table)], 1)

    def bulk_copied(self, copy: TmaCopy) -> None:
        stmt: Any = copy.site.stmt
        name = stmt.map.operand
        if name not in self.reads:
            return
        table = self._table(isinstance(stmt, TmaStore))[name]
        for places, inside in zip(copy.places, copy.inside, strict=True):
            np.add.at(table, places[inside], 1)
            self.empty[name] += not inside.any()


def times_read(built: Build, gemm: Gemm, name: OperandName) -> int:
    """How often a kernel that stages whole tiles loads each element of A or B: once for each cluster that reads it."""
    across = "n" if name == "A" else "m"
    return ceil_div(ceil_div(gemm.size(across), built.kernel.tile[across]), neighbours(built.program, across))


def times_added(gemm: Gemm) -> int:
    """How often each element of C is read."""
    return int(gemm.beta != 0 and gemm.epilogue.addend == "C")


def check_table(table: Array, gemm: Gemm, name: OperandName, times: int) -> None:
    """Each element of a matrix was touched so often, and nothing that lies between its rows."""
    inside = view(gemm, name, table)
    assert (inside == times).all(), f"{name}: {times} times asked, {np.unique(inside)} found"
    assert table.sum() == inside.sum(), f"{name}: between the rows"


def check_product(traffic: Traffic, built: Build) -> None:
    """Each element of A and B is loaded once for each cluster that multiplies it, each of C stored once, and read where
    it is added to."""
    gemm = built.gemm
    for name in ("A", "B"):
        check_table(traffic.reads[name], gemm, name, times_read(built, gemm, name))
        assert not traffic.writes[name].any()
    check_table(traffic.reads["C"], gemm, "C", times_added(gemm))
    check_table(traffic.writes["C"], gemm, "C", 1)
