"""The steps of all ranks, run in drawn orders: results are right, no step reads too early or overwrites what is read,
and no rank waits for ever."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tilewright.distributed.timeline import (
    CHANNELS,
    DATA,
    MOST_PIECES,
    Add,
    Await,
    Buffer,
    Copy,
    Exchange,
    Lane,
    Multiply,
    Rows,
    Signal,
    Step,
    all_gather_steps,
    exchanged_all_gather_steps,
    exchanged_reduce_scatter_steps,
    pieces_of,
    reduce_scatter_steps,
    shared_reduce_scatter_steps,
    slot_of,
    starts_of,
)

Steps = Callable[[int, tuple[int, ...]], tuple[Step, ...]]
GATHERS: dict[str, Steps] = {
    "shards": all_gather_steps,
    "arriving": partial(all_gather_steps, arriving=True),
    "exchanged": exchanged_all_gather_steps,
}
SCATTERS: dict[str, Steps] = {
    "one piece": reduce_scatter_steps,
    "three pieces": partial(reduce_scatter_steps, pieces=3),
    "added": partial(reduce_scatter_steps, adds=True),
    "shared": shared_reduce_scatter_steps,
    "exchanged": exchanged_reduce_scatter_steps,
}
ROWS = [(2, 2), (3, 1), (0, 5), (300, 130), (2, 1, 2), (1, 0, 2, 3)]
CALLS = 3


class Stuck(Exception):
    """All ranks wait."""


class Machine:
    """All ranks. A step takes time: it reads when it begins and writes when it ends, and steps of other lanes run in
    between. What is written has no values in the meantime."""

    def __init__(self, rows: tuple[int, ...], steps: Steps, a: list[Any], b: list[Any], height: int, seed: int) -> None:
        ranks = len(rows)
        self.rows = rows
        self.a, self.b, self.random = a, b, np.random.default_rng(seed)
        total, width = sum(rows), b[0].shape[1]
        self.flags = dict.fromkeys(itertools.product(range(ranks), range(ranks), range(CHANNELS)), 0)
        self.memory: list[dict[Buffer, Any]] = [
            {
                Buffer.GATHERED: np.full((total, a[0][0].shape[1]), np.nan),
                Buffer.PARTIAL: np.full((total, width), np.nan),
                Buffer.RECEIVED: np.full((max((ranks - 1) * max(rows), 1), width), np.nan),
            }
            for _ in range(ranks)
        ]
        self.results = [[np.full((height or rows[rank], width), np.nan) for rank in range(ranks)] for _ in range(CALLS)]
        self.met: dict[tuple[int, str], set[int]] = {}
        self.steps = [steps(rank, rows) for rank in range(ranks)]
        self.ended: list[list[set[int]]] = [[set() for _ in range(ranks)] for _ in range(CALLS)]
        self.lanes = {(rank, lane): self.program(rank, lane) for rank in range(ranks) for lane in Lane}

    def program(self, rank: int, lane: Lane) -> Any:
        """The steps of a lane, call after call. Yields True where it went on."""
        for call in range(CALLS):
            while call and len(self.ended[call - 1][rank]) < len(self.steps[rank]):
                yield False  # a call begins when the one before has ended on its rank
            for number, step in enumerate(self.steps[rank]):
                if step.lane is not lane:
                    continue
                while not self.ended[call][rank].issuperset(step.after):
                    yield False
                while isinstance(step, Await) and not self.flags[rank, step.peer, step.channel]:
                    yield False
                yield from self.run(call, rank, step)
                self.ended[call][rank].add(number)
                yield True

    def run(self, call: int, rank: int, step: Step) -> Any:
        match step:
            case Await():
                self.flags[rank, step.peer, step.channel] = 0
                return
            case Signal():
                self.set(step.peer, rank, step.channel)
                return
            case Exchange():
                yield from self.exchange(call, rank, step)
                return
            case Multiply(shared=(_, *_)):
                yield from self.multiply_shared(call, rank, step)
                return
            case Multiply(arrivals=(_, *_)):
                yield from self.multiply_arriving(call, rank, step)
                return
            case Multiply():
                value = self.at(call, rank, step.source) @ self.b[rank]
                for rows in step.added:
                    value = value + self.at(call, rank, rows)
            case Add():
                value = sum(self.at(call, rank, rows) for rows in step.added)
            case Copy():
                value = self.at(call, rank, step.source).copy()
        peer = step.peer if isinstance(step, Copy) else None
        target = self.at(call, rank if peer is None else peer, step.target)
        assert target.shape == value.shape
        target[...] = np.nan
        yield True
        target[...] = value

    def set(self, owner: int, source: int, channel: int) -> None:
        flag = (owner, source, channel)
        assert self.flags[flag] == 0, f"flag {flag} is set twice"
        self.flags[flag] = 1

    def meet(self, call: int, which: str, rank: int) -> Any:
        self.met.setdefault((call, which), set()).add(rank)
        while len(self.met[call, which]) < len(self.rows):
            yield False

    def exchange(self, call: int, rank: int, step: Exchange) -> Any:
        """Ranks meet, write to each other, and meet again."""
        source, starts, ranks = self.at(call, rank, step.source), starts_of(self.rows), range(len(self.rows))
        yield from self.meet(call, "ready", rank)
        for peer in ranks:
            kept = slice(starts[peer], starts[peer] + self.rows[peer])
            if not step.summed:
                whole = self.memory[peer][Buffer.GATHERED]
                here, value = whole[starts[rank] : starts[rank] + self.rows[rank]], source
            elif peer != rank:
                here, value = self.received(peer, rank), source[kept]
            else:
                continue
            here[...] = np.nan
            yield True
            here[...] = value
        yield from self.meet(call, "data", rank)
        if step.summed:
            own = source[starts[rank] : starts[rank] + self.rows[rank]]
            self.at(call, rank, step.target)[...] = sum(
                own if peer == rank else self.received(rank, peer) for peer in ranks
            )

    def multiply_arriving(self, call: int, rank: int, step: Multiply) -> Any:
        """The rows of a rank are read when its flag is found; results are there when all are."""
        source, target = self.at(call, rank, step.source), self.at(call, rank, step.target)
        starts, target[...] = starts_of(self.rows), np.nan
        for peer in (rank, *step.arrivals):
            while peer != rank and not self.flags[rank, peer, DATA]:
                yield False
            here = slice(starts[peer], starts[peer] + self.rows[peer])
            yield True
            target[here] = source[here] @ self.b[rank]

    def multiply_shared(self, call: int, rank: int, step: Multiply) -> Any:
        """Kernels have begun on all ranks before parts travel; own rows take those of the peers when all are there."""
        product, starts = self.at(call, rank, step.source) @ self.b[rank], starts_of(self.rows)
        yield from self.meet(call, "begun", rank)
        for peer in step.shared:
            here = self.received(peer, rank)
            here[...] = np.nan
            yield True
            here[...] = product[starts[peer] : starts[peer] + self.rows[peer]]
        yield from self.meet(call, "data", rank)
        own = product[starts[rank] : starts[rank] + self.rows[rank]]
        self.at(call, rank, step.target)[...] = own + sum(self.received(rank, peer) for peer in step.shared)

    def received(self, owner: int, source: int) -> Any:
        first = slot_of(source, owner, self.rows)
        return self.memory[owner][Buffer.RECEIVED][first : first + self.rows[owner]]

    def at(self, call: int, rank: int, rows: Rows) -> Any:
        buffer = {**self.memory[rank], Buffer.A: self.a[call][rank], Buffer.RESULT: self.results[call][rank]}[
            rows.buffer
        ]
        assert rows.first + rows.count <= len(buffer)
        return buffer[rows.first : rows.first + rows.count]

    def finish(self) -> None:
        waiting = 0
        alive = list(self.lanes)
        while alive:
            lane = alive[self.random.integers(len(alive))]
            went_on = next(self.lanes[lane], None)
            if went_on is None:
                alive.remove(lane)
            waiting = 0 if went_on or went_on is None else waiting + 1
            if waiting > 5000:
                raise Stuck


def gathered(rows: tuple[int, ...], steps: Steps, seed: int = 0) -> None:
    random, ranks = np.random.default_rng(seed), len(rows)
    a = [[random.integers(-9, 10, (count, 2)).astype(float) for count in rows] for _ in range(CALLS)]
    b = [random.integers(-9, 10, (2, 3)).astype(float) for _ in range(ranks)]
    machine = Machine(rows, steps, a, b, sum(rows), seed)
    machine.finish()
    for call, rank in itertools.product(range(CALLS), range(ranks)):
        assert np.array_equal(machine.results[call][rank], np.concatenate(a[call]) @ b[rank])


def scattered(rows: tuple[int, ...], steps: Steps, seed: int = 0) -> None:
    random, ranks = np.random.default_rng(seed), len(rows)
    a = [[random.integers(-9, 10, (sum(rows), 2)).astype(float) for _ in rows] for _ in range(CALLS)]
    b = [random.integers(-9, 10, (2, 3)).astype(float) for _ in range(ranks)]
    machine = Machine(rows, steps, a, b, 0, seed)
    machine.finish()
    for call in range(CALLS):
        whole = sum(a[call][rank] @ b[rank] for rank in range(ranks))
        assert np.array_equal(np.concatenate(machine.results[call]), whole)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("kind", GATHERS)
def test_gathered_rows_are_multiplied(kind: str, rows: tuple[int, ...]) -> None:
    for seed in range(8):
        gathered(rows, GATHERS[kind], seed)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("kind", SCATTERS)
def test_products_are_summed_and_scattered(kind: str, rows: tuple[int, ...]) -> None:
    for seed in range(8):
        scattered(rows, SCATTERS[kind], seed)


def without(steps: Steps, number: int) -> Steps:
    """The same, but rank 0 leaves out a wait."""

    def fewer(rank: int, rows: tuple[int, ...]) -> tuple[Step, ...]:
        given = steps(rank, rows)
        if rank:
            return given
        waits = [i for i, step in enumerate(given) if isinstance(step, Await)]
        return tuple(
            replace(step, channel=CHANNELS - 1, peer=0) if i == waits[number] else step for i, step in enumerate(given)
        )

    return fewer


@pytest.mark.parametrize("gathers, kind", [*((True, kind) for kind in GATHERS), *((False, kind) for kind in SCATTERS)])
def test_a_missing_wait_is_found(gathers: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, steps = (gathered, GATHERS[kind]) if gathers else (scattered, SCATTERS[kind])
    begin = Machine.__init__

    def begun(machine: Machine, *given: Any) -> None:
        begin(machine, *given)
        machine.flags[0, 0, CHANNELS - 1] = 1

    monkeypatch.setattr(Machine, "__init__", begun)
    run = Machine.run

    def run_once(machine: Machine, call: int, rank: int, step: Step) -> Any:
        if isinstance(step, Await) and step.channel == CHANNELS - 1:
            return iter(())  # passes, and takes no flag
        return run(machine, call, rank, step)

    monkeypatch.setattr(Machine, "run", run_once)
    rows = (2, 2)
    for number in range(sum(isinstance(step, Await) for step in steps(0, rows))):
        with pytest.raises((AssertionError, Stuck)):
            for seed in range(40):
                check(rows, without(steps, number), seed)


def test_pieces_cover_all_rows() -> None:
    for rows, pieces in itertools.product((0, 1, 127, 128, 129, 1000, 4096), range(1, MOST_PIECES + 1)):
        found = pieces_of(rows, pieces)
        assert len(found) <= pieces and sum(count for _, count in found) == rows
        assert all(first % 128 == 0 and count for first, count in found)


def test_rows_that_a_kernel_does_not_wait_for_are_found() -> None:
    def careless(rank: int, rows: tuple[int, ...]) -> tuple[Step, ...]:
        steps = all_gather_steps(rank, rows, arriving=True)
        if rank:
            return steps
        return tuple(replace(step, arrivals=()) if isinstance(step, Multiply) else step for step in steps)

    with pytest.raises((AssertionError, Stuck)):
        for seed in range(40):
            gathered((2, 2), careless, seed)
