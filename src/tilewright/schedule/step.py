"""`Step`: one frozen value, one rewrite of a program, one law."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar, NoReturn

from tilewright.errors import ScheduleError, UnknownName
from tilewright.ir.program import Loop, Program, Staged


@dataclass(frozen=True)
class Step(ABC):
    """A rewrite that keeps the meaning of a program, or refuses with a `ScheduleError`."""

    positional: ClassVar[int] = 1
    """How many fields are written without their name."""

    @abstractmethod
    def apply(self, program: Program) -> Program:
        """The program after this step. Raises `ScheduleError` when the step does not fit."""

    def names(self) -> tuple[str, ...]:
        """The loops and tiles this step speaks of; counts with such an origin are laid at its door."""
        return ()

    def __repr__(self) -> str:
        parts = []
        for index, field in enumerate(fields(self)):
            value = getattr(self, field.name)
            if index < self.positional:
                parts.append(repr(value))
            elif field.default is MISSING or value != field.default:
                parts.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


def refuse(headline: str, *, note: str = "", hint: str = "") -> NoReturn:
    """Give up on a step. `Schedule.apply` adds which step it was."""
    raise ScheduleError(headline, note=note, hint=hint)


def find_loop(program: Program, name: str) -> Loop:
    """The loop called `name`; refuses with the nearest name."""
    if name not in program.loop_names:
        raise UnknownName("loop", name, program.loop_names)
    return program.loop(name)


def find_tile(program: Program, name: str, doing: str) -> Staged:
    """The staged tile called `name`; refuses with what there is."""
    names = [staged.name for staged in program.staged]
    if name in names:
        return program.tile(name)
    if not names:
        refuse(
            f"Cannot {doing} {name!r}: nothing is staged yet.",
            hint=f"put Stage(..., name={name!r}) before this step.",
        )
    raise UnknownName("staged tile", name, names)


def check_new_names(program: Program, names: tuple[str, ...], replacing: tuple[str, ...] = ()) -> None:
    """Refuse loop or tile names that are taken, repeated, or no identifiers."""
    taken = (set(program.loop_names) - set(replacing)) | {staged.name for staged in program.staged}
    taken |= {axis.name for loop in program.loops if loop.name not in replacing for axis in loop.axes}
    for name in names:
        if not name.isidentifier():
            refuse(f"{name!r} is no name.", hint="use letters, digits and underscores: it appears in the CUDA text.")
        if name in taken or name in RESERVED:
            refuse(f"The name {name!r} is taken.", hint="every loop and tile has a name of its own.")
    if len(set(names)) != len(names):
        refuse(f"The names {', '.join(names)} are not distinct.", hint="every loop has a name of its own.")


RESERVED = frozenset({"A", "B", "C", "M", "N", "K", "lda", "ldb", "ldc", "alpha", "beta"})
"""Names of the kernel's arguments."""


def check_unused(program: Program, name: str, doing: str) -> None:
    """Refuse to take apart a loop that a tile or the sum already refers to."""
    users = program.users_of(name)
    if users:
        refuse(
            f"Cannot {doing} loop {name!r}: {' and '.join(users)} {'is' if len(users) == 1 else 'are'} placed by it.",
            note="a tile is copied under a loop, and a sum kept over one; both must still exist afterwards.",
            hint="put this step before the ones that place them.",
        )
