"""Loads of shared memory as the compiler issues them: neighbours of an unrolled loop become one wide load.

A kernel that says `for m_reg in 8 unrolled: A_frag[m_reg] <- A_tile[.. + m_reg]` is compiled to two loads of 16 bytes:
ptxas knows how shared memory is aligned. It does not know that of global memory, and leaves those loads as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const, Expr, Var
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Body, For, Let, Move
from tilewright.ir.visit import Path, bodies, simplify, substitute
from tilewright.layout.banks import BANK_BYTES, ideal_wavefronts, wavefronts
from tilewright.simulator.findings import Access
from tilewright.simulator.listeners import SiteCounter

_WIDEST_BYTES = 16
_STEP = Const(1)


class JoinedLoads(SiteCounter):
    """joined_requests, joined_wavefronts, joined_ideal: of those loads that are joined, as they are issued."""

    fields = ("joined_requests", "joined_wavefronts", "joined_ideal")

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._most = _most_joined(kernel.body)
        self._taken: dict[Path, set[tuple[int, int]]] = {path: set() for path in self._most}
        """What earlier loads of a line have brought along: the pattern of the lanes and its offset."""

    def accessed(self, access: Access) -> None:
        most = self._most.get(access.site.path)
        if most is None or not access.pattern.requests:
            return
        taken = self._taken[access.site.path]
        here = (id(access.pattern), access.offset)
        if here in taken:
            taken.discard(here)
            return
        count = most
        while count > 1 and not access.known(f"starts {count}", _WIDEST_BYTES, lambda a, n=count: _starts(a, n)):  # type: ignore[misc]
            count //= 2
        for step in range(1, count):
            taken.add((id(access.pattern), access.offset + step * access.width))
        wide = replace(access, width=access.width * count)
        self.add(access.site, access.pattern.requests, *wide.known("joined", BANK_BYTES, _wavefronts))


def _starts(access: Access, count: int) -> bool:
    """Whether every lane stands where a load of `count` neighbours may begin."""
    addresses, active = access.addresses(), access.pattern.active_rows
    aligned = addresses % (access.width_bytes * count) == 0
    return bool(aligned.all() if active is None else aligned[active].all())


def _wavefronts(access: Access) -> tuple[int, int]:
    """As they are, and without bank conflicts."""
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    taken = wavefronts(addresses, width, active, store=False)
    ideal = ideal_wavefronts(addresses, width, active, store=False)
    return int(taken.sum()), int(ideal.sum())


def _most_joined(body: Body) -> dict[Path, int]:
    """For each load of shared memory that an unrolled loop takes along neighbours: how many one instruction holds."""
    found: dict[Path, int] = {}
    _visit(body, {}, {}, (), found)
    return found


def _visit(
    body: Body, names: Mapping[str, Expr], unrolled: Mapping[str, int], path: Path, found: dict[Path, int]
) -> None:
    names = dict(names)
    for index, stmt in enumerate(body):
        here, inside = (*path, index), unrolled
        match stmt:
            case Let():
                names[stmt.name] = substitute(stmt.value, names)
            case Move(asynchronous=False) if stmt.src.buffer.space is Space.SHARED and stmt.guard is None:
                most = _joinable(stmt, names, unrolled)
                if most > 1:
                    found[here] = most
            case For() if stmt.unroll and isinstance(stmt.extent, Const):
                inside = {**unrolled, stmt.var: int(stmt.extent.value)}
            case _:
                pass
        for inner, nested in bodies(stmt):
            _visit(nested, names, inside, (*here, *inner), found)


def _joinable(stmt: Move, names: Mapping[str, Expr], unrolled: Mapping[str, int]) -> int:
    flat = simplify(substitute(stmt.src.flat, names))
    room = _WIDEST_BYTES // (stmt.width * stmt.src.buffer.dtype.bytes)
    for name, extent in unrolled.items():
        moved = simplify(substitute(flat, {name: Var(name) + _STEP}) - flat)
        if moved == Const(stmt.width) and extent > 1:
            return gcd(room, extent)
    return 1
