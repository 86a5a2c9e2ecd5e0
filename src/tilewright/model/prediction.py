"""What the time model says: seconds, an interval, and the terms they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.html_text import table
from tilewright.units import format_seconds

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

    All of that is of a burst. power_w: what the board would draw if the kernel ran on and on at that clock.
    sustained_hz: the clock that the board's limit, limit_w, leaves it then; sustained_s: the time at that clock.
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
    power_w: float
    limit_w: float
    sustained_hz: float
    sustained_s: float

    @property
    def sustained_tflops(self) -> float:
        """At the clock that the board's power limit leaves."""
        return self.tflops * self.seconds / self.sustained_s

    @property
    def sustained(self) -> str:
        """In words, what the board's power limit leaves of the speed."""
        if self.sustained_hz >= self.clock_hz:
            return f"Sustained: the same, the board draws {self.power_w:.0f} of its {self.limit_w:.0f} W."
        return (
            f"Sustained: {format_seconds(self.sustained_s)}, {self.sustained_tflops:.3g} TFLOP/s, at the "
            f"{self.sustained_hz / 1e6:.0f} MHz that {self.limit_w:.0f} W allow."
        )

    @property
    def bounds(self) -> tuple[Term, ...]:
        """What each unit alone would take."""
        return tuple(term for term in self.terms if term.kind == "bound")

    @property
    def stacked(self) -> tuple[Term, ...]:
        """Terms that add up to the seconds: the largest bound, then what is exposed beside it."""
        most = max(self.bounds, key=lambda term: term.seconds)
        return (most, *(term for term in self.terms if term.kind == "exposed"))

    def _repr_html_(self) -> str:
        rows = [
            (term.name, format_seconds(term.seconds), f"{term.seconds / self.seconds:.0%}", term.what)
            for term in self.terms
        ]
        title = (
            f"{self.device}: {format_seconds(self.seconds)} "
            f"({format_seconds(self.low_s)} to {format_seconds(self.high_s)}), "
            f"{self.tflops:.3g} TFLOP/s, predicted for {self.clock_hz / 1e6:.0f} MHz"
        )
        below = f"{self.sustained} Bound by {self.binding.name}. {self.relief}"
        return table(title, ("term", "time", "share", "what"), rows, below=below)

    @property
    def tflops_low(self) -> float:
        return self.tflops * self.seconds / self.high_s

    @property
    def tflops_high(self) -> float:
        return self.tflops * self.seconds / self.low_s
