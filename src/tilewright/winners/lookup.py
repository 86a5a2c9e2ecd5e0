"""What dispatch asks: the plan that won for a problem, if there is one.

An exact winner comes first. Else that of a neighbour: the same device, formats, orders and alignment; m and n within a
sixteenth, as are its rows and columns of tiles, which fill no more waves of SMs (17 rows are two tiles of 16); k within
a factor of two, since a tile's speed hardly depends on it. Of several the nearest is taken, by the sum of |log| of the
ratios.

A winner whose kernels have other texts today is passed over: nobody has measured what would run. That is known without
building where nothing changed of all that decides the texts, else they are printed anew, once a process.

All is read once, at the first question; a process that should see newer winners makes a new `Lookup`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from math import inf, log, prod
from typing import Any

from tilewright.dtypes import dtype as format_called
from tilewright.errors import TilewrightError
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div
from tilewright.winners.database import Database, ShippedWinners, shipped_winners
from tilewright.winners.keys import Key, ProblemKey, short_name, sources_version
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner

NEAR_TILES = 1 + 1 / 16
NEAR_DEPTH = 2.0

_ANSWERS_KEPT = 4096
"""A program whose shapes never come back must not fill the memory with them."""

_Class = tuple[str, ProblemKey]

VersionOf = Callable[[Key, PlanConfig], str]
"""`kernel_version` of what a configuration is today for a problem; raises TilewrightError where it is nothing."""


class Lookup:
    """Winners of a database, for many questions.

    version_of: how the library makes launches of a configuration, which stands above this package. say: told once of
    a file that cannot be used.
    """

    def __init__(
        self,
        version_of: VersionOf,
        database: Database | ShippedWinners | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.version_of = version_of
        self.database: Database | ShippedWinners = Database() if database is None else database
        self.say = say
        self._known: dict[Any, Winner | None] = {}

    def winner(self, device: str, gemm: Gemm, alignment_bytes: int, order: str | None = None) -> Winner | None:
        """What won on a device, by the name that its driver gives; None if nobody tuned it.

        alignment_bytes: of addresses and rows. order: only kernels of this reduction order, by its name.
        """
        asked = (device, gemm, alignment_bytes, order)
        if asked not in self._known:
            if len(self._known) >= _ANSWERS_KEPT:
                self._known.clear()
            self._known[asked] = self._found(device, ProblemKey.of(gemm, alignment_bytes), order)
        return self._known[asked]

    def _found(self, device: str, problem: ProblemKey, order: str | None) -> Winner | None:
        near = [
            (distance(winner.key.problem, problem), winner.median_us, winner)
            for winner in self._classes.get(_class(device, problem), ())
            if order in (None, winner.order)
        ]
        for away, _, winner in sorted(near, key=lambda entry: entry[:2]):
            if away < inf and _fills_as_many_waves(winner, problem) and is_current(winner, self.version_of):
                return winner
        return None

    @cached_property
    def _classes(self) -> Mapping[_Class, list[Winner]]:
        try:
            winners = self.database.winners()
        except TilewrightError as failure:
            self.say(str(failure))
            winners = list(shipped_winners())
        for complaint in self.database.complaints:
            self.say(complaint)
        found: dict[_Class, list[Winner]] = {}
        for winner in winners:
            found.setdefault(_class(winner.key.device.name, winner.key.problem), []).append(winner)
        return found


def _class(device: str, problem: ProblemKey) -> _Class:
    return short_name(device), replace(problem, m=0, n=0, k=0)


def _fills_as_many_waves(winner: Winner, problem: ProblemKey) -> bool:
    """Whether the tiles of what won cover a neighbour about as well as the problem that was measured."""
    kernel, measured = winner.config.kernel, winner.key.problem
    tile: tuple[int, ...] | None = getattr(kernel, "tile", None)
    if tile is None:
        return True
    here, there = (
        [ceil_div(size, step) for size, step in zip((one.m, one.n), tile, strict=False)] for one in (problem, measured)
    )
    waves, waves_there = (ceil_div(prod(tiles) * kernel.split_k, winner.key.device.sm_count) for tiles in (here, there))
    return all(mine <= NEAR_TILES * theirs for mine, theirs in zip(here, there, strict=True)) and waves <= waves_there


def distance(one: ProblemKey, other: ProblemKey) -> float:
    """How far two shapes of one class are from each other; infinite for those that are not neighbours.

    >>> from tilewright.problem.gemm import Gemm
    >>> here, there = (ProblemKey.of(Gemm(4096, 4096, k)) for k in (4096, 8192))
    >>> round(distance(here, there), 2), distance(here, ProblemKey.of(Gemm(2048, 4096, 4096)))
    (0.69, inf)
    """
    total = 0.0
    for mine, theirs, most in (
        (one.m, other.m, NEAR_TILES),
        (one.n, other.n, NEAR_TILES),
        (one.k, other.k, NEAR_DEPTH),
    ):
        if mine == theirs:
            continue
        if not mine or not theirs or not 1 / most <= mine / theirs <= most:
            return inf
        total += abs(log(mine / theirs))
    return total


@cache
def is_current(winner: Winner, version_of: VersionOf) -> bool:
    """Whether the kernels that won are, letter for letter, what their configuration gives today."""
    if winner.sources == sources_version():
        return True
    try:
        return version_of(winner.key, winner.config) == winner.kernel
    except (TilewrightError, AssertionError, KeyError, TypeError, ValueError):  # a family or a parameter is gone
        return False


def gemm_of(key: Key) -> Gemm:
    """The problem of a key, with tight rows."""
    problem = key.problem
    product = format_called(problem.product)
    a, b, c = (Order.ROW if letter == "N" else Order.COL for letter in problem.orders)
    dtype, accumulate, out = (format_called(name) for name in (problem.dtype, problem.accumulate, problem.out))
    return Gemm(
        *(problem.m, problem.n, problem.k, dtype, accumulate, out, a, b, c),
        product=None if product is dtype else product,
    )


@cache
def default_lookup(version_of: VersionOf, say: Callable[[str], None]) -> Lookup:
    """The user's winners over the shipped ones, read at the first question: what `matmul` uses."""
    return Lookup(version_of, say=say)
