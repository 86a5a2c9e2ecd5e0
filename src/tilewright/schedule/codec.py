"""Schedules to JSON and back: for the tuning database, reports and files."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from tilewright.errors import ScheduleError, UnknownName
from tilewright.files import parse_json
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Pattern, RasterOrder, Route
from tilewright.layout.arrangement import Auto, Interleaved, Permuted, SwizzleAtoms, Xor
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step
from tilewright.schedule.steps import STEPS
from tilewright.schedule.steps.loops import Fuse, Reorder, Snake

_ENUMS: dict[str, type[Enum]] = {e.__name__: e for e in (Level, Space, Pattern, RasterOrder, Route)}
_VALUES: dict[str, type[Any]] = {v.__name__: v for v in (Interleaved, Xor, Permuted, Auto, SwizzleAtoms)}
_STEPS: dict[str, type[Step]] = {step.__name__: step for step in STEPS}


def to_json(schedule: Schedule) -> str:
    """The schedule as a JSON list of steps; `from_json` gives it back.

    >>> from tilewright.schedule import Unroll
    >>> to_json(Schedule(Unroll("k")))
    '[{"step": "Unroll", "loop": "k", "blocks": 0}]'
    """
    return json.dumps(to_data(schedule))


def to_data(schedule: Schedule) -> list[dict[str, Any]]:
    """The schedule as plain lists, dicts, strings and numbers."""
    return [
        {"step": type(step).__name__, **{f.name: _encode(getattr(step, f.name)) for f in fields(step)}}
        for step in schedule
    ]


def from_json(text: str) -> Schedule:
    """The schedule that `to_json` wrote. Raises ScheduleError on anything else."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ScheduleError(f"This is not a schedule: {error}.", hint="a schedule is a JSON list of steps.") from None
    return from_data(data)


def from_data(data: Any) -> Schedule:
    """The schedule that `to_data` made. Raises ScheduleError on anything else."""
    if not isinstance(data, list):
        raise ScheduleError("This is not a schedule: it is not a list.", hint="a schedule is a JSON list of steps.")
    return Schedule(*(_step(number, entry) for number, entry in enumerate(data, 1)))


def _step(number: int, entry: Any) -> Step:
    if not isinstance(entry, dict) or "step" not in entry:
        raise ScheduleError(f"Entry {number} is not a step: {entry!r}.", hint='a step is {"step": "Split", ...}.')
    name = str(entry["step"])
    if name not in _STEPS:
        raise UnknownName("step", name, _STEPS)
    kind = _STEPS[name]
    known = [field.name for field in fields(kind)]
    unknown = [str(key) for key in entry if key not in ("step", *known)]
    if unknown:
        raise ScheduleError(
            f"Entry {number} does not fit {name}: it has no {', '.join(unknown)}.", hint=f"it has {', '.join(known)}."
        )
    try:
        given = {field: _decode(value) for field, value in entry.items() if field != "step"}
        if kind is Fuse:
            return Fuse(*_names(given["loops"]), into=given["into"])
        if kind is Reorder or kind is Snake:
            return kind(*_names(given["loops"]))
        return kind(**given)
    except (TypeError, KeyError, ValueError) as error:
        raise ScheduleError(f"Entry {number} does not fit {kind.__name__}: {error}.") from None


def _names(value: Any) -> tuple[Any, ...]:
    """A list of names; a single text would be taken for a list of letters."""
    if not isinstance(value, tuple) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"loops is {value!r}, not a list of names")
    return value


def _encode(value: Any) -> Any:
    if isinstance(value, Enum):
        return {"enum": type(value).__name__, "value": value.value}
    if is_dataclass(value) and not isinstance(value, type):
        return {"value_of": type(value).__name__, **{f.name: _encode(getattr(value, f.name)) for f in fields(value)}}
    return list(value) if isinstance(value, tuple) else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict) and value.get("enum") in _ENUMS:
        return _ENUMS[value["enum"]](value["value"])
    if isinstance(value, dict) and value.get("value_of") in _VALUES:
        return _VALUES[value["value_of"]](**{k: _decode(v) for k, v in value.items() if k != "value_of"})
    return value
