"""What can go wrong, as values.

Every error that a user can cause is a `TilewrightError`. It carries four parts, and `str()` renders them:
the headline (what was asked, why it cannot be, with the numbers), the smallest place it points at, a note
(why this is a rule) and a hint (the way out).

    TilewrightError
      ScheduleError       a step that does not fit the program it is applied to
      ProblemError        shapes, dtypes or arrays that do not make a matrix multiplication
        FormatError       a number format that a reader does not know
      LoweringError       a scheduled program that cannot become a kernel
      CompileError        NVRTC refused the CUDA text
      LaunchError         the kernel cannot run on this device, or the driver failed
      SimulationError     the simulated kernel broke a rule (race, out of bounds, deadlock, unwritten read)
      CompilerMissing     NVRTC is not installed (a CompileError)
      MissingExtra        an optional package is not installed
      UnknownName         a rung, device, architecture or loop that does not exist (suggests the nearest)
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class TilewrightError(Exception):
    """The root of every error a user can cause. `str(error)` is the whole message."""

    def __init__(self, headline: str, *, place: str = "", note: str = "", hint: str = "") -> None:
        super().__init__(headline)
        self.headline = headline
        self.place = place
        self.note = note
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, whatever its __init__ asks for: a process pool sends errors from its workers."""
        return _remade, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        lines = [self.headline]
        lines += [f"  {line}" for line in self.place.splitlines()]
        if self.note:
            lines.append(f"  Note: {self.note}")
        if self.hint:
            lines.append(f"  Hint: {self.hint}")
        return "\n".join(lines)


def _remade(kind: type[TilewrightError], args: tuple[Any, ...]) -> TilewrightError:
    return kind.__new__(kind, *args)


class ScheduleError(TilewrightError):
    """A step does not fit the program it is applied to."""


class ProblemError(TilewrightError):
    """Shapes, dtypes or arrays that do not make a matrix multiplication."""


class FormatError(ProblemError):
    """A number format that is asked for something it does not have: a rounding, a name, an instruction."""


class LoweringError(TilewrightError):
    """A scheduled program cannot become a kernel."""


class CompileError(TilewrightError):
    """NVRTC refused the CUDA text, or does not know the architecture."""


class RegistersExceeded(CompileError):
    """A kernel that must not spill needs more registers than a thread has."""


class CompilerMissing(CompileError):
    """NVRTC is not installed or does not load: nothing can be compiled here, and everything else works."""


class LaunchError(TilewrightError):
    """The kernel cannot run on this device, or the driver reported a failure."""


class SimulationError(TilewrightError):
    """The simulated kernel broke a rule: a race, an access out of bounds, a deadlock, an unwritten read."""


class MissingExtra(TilewrightError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, why: str) -> None:
        super().__init__(
            f"{why} needs the package {package!r}, which is not installed.",
            hint=f"python -m pip install 'tilewright[{extra}]'",
        )
        self.package = package
        self.extra = extra


class UnknownName(TilewrightError):
    """A name that is not in a closed list; the message suggests the nearest one.

    shown: what to print for a long list of known names.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, shown: Iterable[str] | None = None) -> None:
        known = list(known)
        near = get_close_matches(str(name), known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(
            f"There is no {kind} {name!r}.",
            hint=f"{hint}Known: {', '.join(known if shown is None else shown)}.",
        )
        self.kind = kind
        self.name = name
        self.known = tuple(known)
