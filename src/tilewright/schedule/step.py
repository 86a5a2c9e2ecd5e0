"""`Step`: one frozen value, one rewrite of a program, one law."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from typing import ClassVar, NoReturn, get_args

from tilewright.errors import ScheduleError, UnknownName
from tilewright.ir.program import Loop, Program, Staged
from tilewright.problem.epilogue import READY_MADE
from tilewright.problem.gemm import LEADING, OperandName
from tilewright.units import with_article

ARGUMENTS = frozenset({*get_args(OperandName), *READY_MADE, "M", "N", "K", *LEADING, "alpha", "beta", "K_part"})
"""Names of the kernel's arguments."""

_WORDS = """
    A_value B_value C_value element element_of_part thread_in_block lane_in_warp thread_in_warpgroup rank_in_cluster
    tile_iteration warpgroup_iteration round warpgroup part chunk atom slot
    block_number fragment
    group panel band square first_row first_column rows_in_group rows_in_band columns_in_panel columns_in_square
    block_in_group block_in_panel block_in_band block_in_square row_in_panel
    right_0 right_1 right_2 down_0 down_1 down_2
    hilbert_x_0 hilbert_x_1 hilbert_x_2 hilbert_y_0 hilbert_y_1 hilbert_y_2
"""
"""Fixed names of what lowering adds: parts of vectors, numbers of threads and blocks, raster orders."""

RESERVED = frozenset((*ARGUMENTS, *_WORDS.split()))
"""Names that no loop or tile may have: the kernel makes them for itself. Lowering names what it adds after the loop or
the tile that it belongs to (`A_tile_step`, `k_tile_stage`), or by a fixed word (`element`). A property test holds these
lists against what lowered kernels declare."""

_ENDINGS = (
    *(
        "s",
        "_vec",
        "_forward",
        "_stage",
        "_fill",
        "_pair",
        "_next",
        "_full",
        "_empty",
        "_number",
        "_parity",
    ),  # of a loop or one of its digits
    "_group",  # of the sum, where it is promoted
    *("_m", "_n", "_k", "_step", "_value", "_next_m", "_next_n", "_next_k", "_next_step"),  # of a tile
)


@cache
def derived(name: str) -> frozenset[str]:
    """What the kernel may call the things it adds for a loop or a tile of this name.

    >>> "k_tile_stage" in derived("k_tile"), "A_tile_step" in derived("A_tile")
    (True, True)
    """
    return frozenset(name + ending for ending in _ENDINGS)


@dataclass(frozen=True)
class Step(ABC):
    """A rewrite that keeps the meaning of a program, or refuses with a `ScheduleError`."""

    positional: ClassVar[int] = 1
    """How many fields are written without their name."""

    @abstractmethod
    def apply(self, program: Program) -> Program:
        """The program after this step. Raises `ScheduleError` when the step does not fit."""

    speaks_of: ClassVar[tuple[str, ...]] = ()
    """The fields that name loops and tiles which this step speaks of."""

    def names(self) -> tuple[str, ...]:
        """The loops and tiles this step speaks of; counts with such an origin are laid at its door."""
        named = (getattr(self, field) for field in self.speaks_of)
        return tuple(name for one in named for name in ((one,) if isinstance(one, str) else one))

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


def check_member(value: object, kind: type[Enum]) -> None:
    """Refuse anything that is not a member of a closed set, such as its name as a string."""
    if not isinstance(value, kind):
        members = ", ".join(repr(member) for member in kind)
        refuse(f"{value!r} is not {with_article(kind.__name__)}.", hint=f"use {members}.")


def check_count(value: object, least: int, doing: str, what: str) -> None:
    """Refuse anything that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        refuse(f"{doing}: {what} is {value!r}.", hint=f"use a whole number of at least {least}.")


def check_flag(value: object, doing: str, what: str) -> None:
    """Refuse anything that is neither True nor False: a text such as "no" would count as true."""
    if not isinstance(value, bool):
        refuse(f"{doing}: {what} is {value!r}.", hint="use True or False.")


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


def check_new_names(program: Program, names: tuple[str, ...], gone: tuple[str, ...] = ()) -> None:
    """Refuse names that are taken, repeated, no identifiers, or the kernel's own; those in `gone` are free again."""
    taken = {*program.loop_names, *(axis.name for loop in program.loops for axis in loop.axes)} - set(gone)
    taken |= {staged.name for staged in program.staged}
    if program.accumulation is not None:
        taken.add(program.accumulation.name)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():  # type: ignore[redundant-expr]
            refuse(f"{name!r} is not a name.", hint="use letters, digits and underscores: it appears in the CUDA text.")
    for name in names:
        if name in taken:
            refuse(f"The name {name!r} is taken.", hint="every loop and tile has a name of its own.")
        if name in RESERVED:
            refuse(f"The name {name!r} is the kernel's own.", hint=f"use another, such as {name + '_'!r}.")
        for other in sorted((taken | set(names)) - {name}):
            if name in derived(other) or other in derived(name):
                short, made = sorted((name, other), key=len)
                refuse(
                    f"The name {name!r} is too close to {other!r}.",
                    note=f"the kernel makes {made!r} of {short!r} for something of its own.",
                    hint=f"use another, such as {name + '_'!r}.",
                )
    if len(set(names)) != len(names):
        refuse(f"The names {', '.join(names)} are not distinct.", hint="every loop has a name of its own.")


def check_unused(program: Program, name: str, doing: str) -> None:
    """Refuse to take apart a loop that a tile or the sum already refers to."""
    users = program.users_of(name)
    if users:
        refuse(
            f"Cannot {doing} loop {name!r}: {' and '.join(users)} {'is' if len(users) == 1 else 'are'} placed by it.",
            note="a tile is copied under a loop, and a sum kept over one; both must still exist afterwards.",
            hint="put this step before the ones that place them.",
        )
