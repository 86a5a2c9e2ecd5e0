"""`Schedule`: a tuple of steps, as a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import overload

from tilewright.errors import ScheduleError, TilewrightError
from tilewright.html_text import code
from tilewright.ir.program import Program, naive_program
from tilewright.problem.gemm import Gemm
from tilewright.schedule.step import Step
from tilewright.units import counted, type_name


class Schedule:
    """Steps in the order in which they are applied. Immutable, comparable, hashable.

    >>> from tilewright.schedule import Accumulate, Split
    >>> schedule = Schedule(Split("k", 8, into=("k_tile", "k_in")), Accumulate(over="k_tile"))
    >>> len(schedule), schedule[0]
    (2, Split('k', 8, into=('k_tile', 'k_in')))
    """

    __slots__ = ("steps",)

    def __init__(self, *steps: Step) -> None:
        for step in steps:
            if not isinstance(step, Step):
                raise _not_a_step(step)
        self.steps = tuple(steps)

    def programs(self, gemm: Gemm) -> Iterator[Program]:
        """The naive program of `gemm`, then the program after each step.

        Raises ScheduleError that names the step which does not fit ("step 3 of 9").
        """
        program = naive_program(gemm)
        yield program
        for number, step in enumerate(self.steps, 1):
            try:
                program = step.apply(program)
            except TilewrightError as error:
                place = f"step {number} of {len(self.steps)}: {step!r}"
                raise ScheduleError(error.headline, place=place, note=error.note, hint=error.hint) from None
            yield program

    def apply(self, gemm: Gemm) -> Program:
        """The scheduled program of `gemm`."""
        *_, last = self.programs(gemm)
        return last

    def replace(self, step: Step, *by: Step) -> Schedule:
        """This schedule with `by` in the place of a step; without the step where `by` is empty.

        Raises ScheduleError unless the step is there once.

        >>> from tilewright.schedule import Split
        >>> wide = Split("k", 16, into=("k_tile", "k_in"))
        >>> Schedule(Split("k", 8, into=("k_tile", "k_in"))).replace(Split("k", 8, into=("k_tile", "k_in")), wide)[0]
        Split('k', 16, into=('k_tile', 'k_in'))
        """
        found = self.steps.count(step)
        if found != 1:
            raise ScheduleError(
                f"A schedule of {len(self)} steps has {step!r} {found} times, not once.",
                hint="name a step as it stands there: print(schedule).",
            )
        at = self.steps.index(step)
        return Schedule(*self.steps[:at], *by, *self.steps[at + 1 :])

    def insert(self, *steps: Step, after: Step) -> Schedule:
        """This schedule with more steps behind one. Raises ScheduleError unless that one is there once."""
        return self.replace(after, after, *steps)

    @property
    def text(self) -> str:
        """The schedule as Python, a step a line."""
        return "\n".join(["Schedule(", *(f"    {step!r}," for step in self.steps), ")"])

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Schedule: ...
    def __getitem__(self, index: int | slice) -> Step | Schedule:
        return Schedule(*self.steps[index]) if isinstance(index, slice) else self.steps[index]

    def __add__(self, other: Schedule | Step) -> Schedule:
        if not isinstance(other, Schedule | Step):
            return NotImplemented
        return Schedule(*self.steps, *((other,) if isinstance(other, Step) else other))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return code(f"Schedule, {len(self)} steps", self.text)


def _not_a_step(found: object) -> ScheduleError:
    """What to say of something else in the place of a step."""
    if isinstance(found, type):
        return ScheduleError(
            f"A schedule holds steps, and {found.__name__} is a class.",
            hint=f"give it arguments: {found.__name__}(...).",
        )
    if isinstance(found, list | tuple | Schedule):
        what = f"{type_name(found)} of {counted(len(found), 'entry', 'entries')}"
        return ScheduleError(f"A schedule holds steps, and this is {what}.", hint="write Schedule(*steps).")
    return ScheduleError(
        f"A schedule holds steps, and {found!r} is {type_name(found)}.", hint="write Schedule(Split(...), Bind(...))."
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """Steps that only the newer schedule has, and steps that only the older one had."""

    added: tuple[Step, ...]
    removed: tuple[Step, ...]

    @property
    def text(self) -> str:
        """A step a line, `+` for new ones and `-` for those that went."""
        return "\n".join([*(f"- {step!r}" for step in self.removed), *(f"+ {step!r}" for step in self.added)])


def diff(old: Schedule, new: Schedule) -> Difference:
    """The steps that changed from `old` to `new`.

    >>> from tilewright.schedule import Accumulate, Unroll
    >>> print(diff(Schedule(Accumulate("k")), Schedule(Accumulate("k"), Unroll("k"))).text)
    + Unroll('k')
    """
    for one in (old, new):
        if not isinstance(one, Schedule):
            raise ScheduleError(f"Schedules are compared, and this is {type_name(one)}.", hint="built.schedule is one.")
    added: list[Step] = []
    removed: list[Step] = []
    for change, i1, i2, j1, j2 in SequenceMatcher(None, old.steps, new.steps, autojunk=False).get_opcodes():
        if change != "equal":
            removed += old.steps[i1:i2]
            added += new.steps[j1:j2]
    return Difference(tuple(added), tuple(removed))
