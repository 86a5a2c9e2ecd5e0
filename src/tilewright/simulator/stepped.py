"""A machine whose steps are chosen from outside: one warp, up to where others can notice, or one copy that lands.

A step of a warp is one instruction that orders warps (`control.Ordering`) and all that follows up to the next one. What
lies between concerns no other warp, or it is a race, which the detectors find in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tilewright.ir.buffer import Buffer
from tilewright.simulator.asynchronous.flights import Flight
from tilewright.simulator.asynchronous.meeting_ops import MeetingStep
from tilewright.simulator.asynchronous.meetings import CLUSTER
from tilewright.simulator.asynchronous.phases import MBARRIERS
from tilewright.simulator.context import Context
from tilewright.simulator.control import BarrierStep, Ordering
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.journal import Effect, Journal, Role
from tilewright.simulator.machine import Machine
from tilewright.simulator.translate import Program
from tilewright.simulator.warps import Batch, Warps

Actor = tuple[int, ...]
"""A warp, by its number in the batch; or a copy: its warp, which of the warp's copies, which of its boxes."""


class Chooser(Protocol):
    """Says which step comes next, and is told what it did."""

    name: str
    """Of the order, as findings tell it."""

    def choose(self, actors: Sequence[Actor], ready: Callable[[Actor], bool]) -> Actor | None:
        """One of the actors that is ready; None if none is. Warps come first, then copies as they were started."""

    def took(self, actor: Actor, effects: tuple[Effect, ...], started: Sequence[Actor]) -> None:
        """A step is over. started: copies that it has started."""


class SteppedMachine(Machine):
    """Runs one batch of blocks after the other, each warp on its own."""

    def __init__(self, program: Program, context: Context, shared: tuple[Buffer, ...], chooser: Chooser) -> None:
        super().__init__(program, context, shared, "warps", 0)
        assert context.journal is not None
        self._journal: Journal = context.journal
        self._chooser = chooser
        self._warps: dict[Actor, Convoy] = {}
        self._copies: dict[Actor, Flight] = {}
        self._copies_of: dict[Actor, int] = {}

    def _drive(self, batch: Batch) -> None:
        count = batch.warps_per_block
        self._warps = {
            (slot * count + number,): self._program.convoy(Warps(batch, np.array([slot]), np.array([number])))
            for slot in range(batch.blocks)
            for number in range(count)
        }
        self._copies, self._copies_of = {}, {}
        self._begun: set[Actor] = set()
        while self._warps or self._copies:
            actor = self._chooser.choose([*self._warps, *self._copies], self._is_ready)
            if actor is None:
                self._deadlock(batch, self._stuck())
                return
            if actor in self._copies:
                self._land_copy(actor)
            else:
                self._step(actor)

    def _is_ready(self, actor: Actor) -> bool:
        convoy = self._warps.get(actor)
        if convoy is None:
            return actor in self._copies
        if convoy.wait is not None:
            return bool(convoy.wait.ready().all())
        if actor not in self._begun or convoy.pc == len(self._program.code):
            return True
        instruction: object = self._program.code[convoy.pc]
        return instruction.ready(convoy) if isinstance(instruction, Ordering) else True

    def _step(self, actor: Actor) -> None:
        """One instruction that orders warps, or the end of a wait for others, and what follows."""
        convoy, code = self._warps[actor], self._program.code
        at_once, met = actor in self._begun and convoy.wait is None, False
        self._begun.add(actor)
        convoy.wait = None
        # What follows a meeting comes after all who meet, whoever is the last: it is a step of its own.
        while convoy.pc < len(code) and not met:
            instruction = code[convoy.pc]
            if not at_once and isinstance(instruction, Ordering):
                break
            at_once = False
            (convoy,) = instruction.step(convoy)
            met = isinstance(instruction, (BarrierStep, MeetingStep))
        self._warps[actor] = convoy
        if convoy.pc == len(code) and not met:
            del self._warps[actor]
            self._leave(convoy)
        self._chooser.took(actor, self._journal.taken(), self._started(actor))

    def _leave(self, convoy: Convoy) -> None:
        units = self._context.units
        if units is not None:
            keys = units.clocks.leader[convoy.warps.slots]
            self._journal.note(Role.ARRIVES, CLUSTER, keys, units.clusters.rounds[keys])
        self._ended(convoy)

    def _started(self, actor: Actor) -> list[Actor]:
        """The boxes that a step has put under way, each as an actor of its own."""
        units = self._context.units
        if units is None:
            return []
        known = {id(flight) for flight in self._copies.values()}
        fresh = [flight for flight in units.flights if id(flight) not in known]
        started: list[Actor] = []
        for flight in fresh:
            number = self._copies_of[actor] = self._copies_of.get(actor, -1) + 1
            for box in range(len(flight.key)):
                part: Actor = (*actor, number, box)
                self._copies[part] = flight.part(np.arange(len(flight.key)) == box)
                started.append(part)
        if fresh:
            units.flights = list(self._copies.values())
        return started

    def _land_copy(self, actor: Actor) -> None:
        units = self._context.units
        assert units is not None
        flight = self._copies.pop(actor)
        self._journal.note(Role.ARRIVES, MBARRIERS, flight.key, units.phases.phase[flight.key])
        units.land_one(flight)
        self._chooser.took(actor, self._journal.taken(), ())

    def _stuck(self) -> list[Convoy]:
        """The warps that are left, each with what it waits for."""
        code = self._program.code
        for convoy in self._warps.values():
            if convoy.wait is None:
                code[convoy.pc].step(convoy)
        return list(self._warps.values())
