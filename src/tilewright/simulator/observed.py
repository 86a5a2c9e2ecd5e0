"""Statements that tell an observer when they have been executed. Made only where a run is observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.simulator.context import Observer
from tilewright.simulator.control import Instruction, Operation
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.sites import Site


@dataclass(frozen=True, slots=True)
class ObservedOperation:
    """The operations of one statement, then the news."""

    site: Site
    operations: tuple[Operation, ...]
    observer: Observer

    def __call__(self, convoy: Convoy) -> None:
        for operation in self.operations:
            operation(convoy)
        self.observer.stepped(self.site, convoy)


@dataclass(frozen=True, slots=True)
class ObservedInstruction:
    """A statement at which warps may have to wait, and the news of those that do and of those that go on."""

    site: Site
    inner: Instruction
    observer: Observer

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        before = convoy.pc
        parts = self.inner.step(convoy)
        for part in parts:
            if part.wait is not None:
                self.observer.stalled(self.site, part)
            elif part.pc != before:
                self.observer.stepped(self.site, part)
        return parts


def observed(
    operations: Sequence[Operation], observer: Observer | None, place: Callable[[], Site]
) -> Sequence[Operation]:
    """The operations of a statement as one that tells the observer; as they are where there is none."""
    return operations if observer is None else (ObservedOperation(place(), tuple(operations), observer),)


def observed_step(instruction: Instruction, observer: Observer | None, site: Site) -> Instruction:
    return instruction if observer is None else ObservedInstruction(site, instruction, observer)
