"""What the time model says: seconds, an interval, and the terms they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LOW, HIGH = 0.85, 1.20
"""The interval around a predicted time. Nine of ten measured rows lie in it (docs/predictions.md)."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term. what: in words, with its numbers.

    kind "bound": what this unit alone would take if all the rest were free; the largest is the least that the kernel
    can take. kind "exposed": what comes on top of that. The largest bound and all that is exposed make up the seconds.
    """

    name: str
    seconds: float
    what: str
    kind: Literal["bound", "exposed"] = "bound"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted time: never measured. low_s, high_s: between them the measured one is to be expected.

    clock_hz: the clock of the SMs that is assumed; the GPU at hand may run at another. binding: the term that takes
    most. relief: in words, what would make it smaller.
    """

    seconds: float
    low_s: float
    high_s: float
    tflops: float
    clock_hz: float
    terms: tuple[Term, ...]
    binding: Term
    relief: str
    device: str
    blocks_per_sm: int

    @property
    def bounds(self) -> tuple[Term, ...]:
        """What each unit alone would take."""
        return tuple(term for term in self.terms if term.kind == "bound")

    @property
    def stacked(self) -> tuple[Term, ...]:
        """Terms that add up to the seconds: the largest bound, then what is exposed beside it."""
        most = max(self.bounds, key=lambda term: term.seconds)
        return (most, *(term for term in self.terms if term.kind == "exposed"))

    @property
    def tflops_low(self) -> float:
        return self.tflops * self.seconds / self.high_s

    @property
    def tflops_high(self) -> float:
        return self.tflops * self.seconds / self.low_s
