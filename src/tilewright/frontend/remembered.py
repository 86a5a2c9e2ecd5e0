"""Calls that were made before, by what those that look alike have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

MOST = 4096
"""Calls that are remembered; a program whose shapes never come back must not fill the memory with them."""

Call = TypeVar("Call")


class Remembered(dict[Any, Call]):
    """What is settled of calls, by their keys; no call has the key None."""

    def keep(self, key: Any, call: Call) -> None:
        """Remember a call. key: None for one that is not."""
        if key is not None:
            if len(self) >= MOST:
                self.clear()
            self[key] = call


def remembered() -> Remembered[Any]:
    """What a child process begins anew, as CUDA does not work there."""
    calls: Remembered[Any] = Remembered()
    os.register_at_fork(after_in_child=calls.clear)
    return calls


def key_of(library: Any, arrays: Iterable[Any], *asked: Any) -> Any:
    """What calls that look alike have in common; None where they are not remembered: arrays of another library, or
    without memory."""
    sign = getattr(library, "sign", None)
    try:
        return None if sign is None else (*asked, *(None if array is None else sign(array) for array in arrays))
    except (AttributeError, RuntimeError):
        return None
