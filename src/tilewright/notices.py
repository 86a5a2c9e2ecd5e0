"""What is said to a user beside a result."""

from __future__ import annotations

import warnings

_SAID: set[str] = set()


def say_once(text: str) -> None:
    """A warning that the user sees once a process."""
    if text not in _SAID:
        _SAID.add(text)
        warnings.warn(text, stacklevel=4)
