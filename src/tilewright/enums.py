"""Enumerations whose members appear in the text of schedules and programs."""

from __future__ import annotations

from enum import Enum


class Spelled(Enum):
    """Members show themselves as the text that names them.

    >>> Spelled("Color", "RED").RED
    Color.RED
    """

    __hash__ = object.__hash__  # members are equal where they are the same: no call of Python for each of a key

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"
