"""The libraries whose arrays we take: where an array lies, how to make another, which stream its work runs on.

Nothing optional is imported here: a library is met when one of its arrays is. Each is a small class with the same
methods (`Library`); `library_of(array)` finds it by the type of the array and remembers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import ProblemError
from tilewright.frontend.libraries.cupy import CupyArrays
from tilewright.frontend.libraries.host import HostArrays
from tilewright.frontend.libraries.ours import AnyArrays, DeviceArrays, JaxArrays
from tilewright.frontend.libraries.pytorch import TorchArrays
from tilewright.frontend.libraries.views import DTypeError, Library, NoMemory, Shape, View, WorkspaceError
from tilewright.runtime.memory import DeviceArray
from tilewright.units import type_name

_KNOWN: dict[type, Any] = {}
"""The library of each type of array met so far."""

_OF_MODULE: dict[str, type] = {"torch": TorchArrays, "cupy": CupyArrays, "jax": JaxArrays, "jaxlib": JaxArrays}
_MADE: dict[type, Any] = {}


def library_of(array: Any) -> Any:
    """The library of an array. Raises ProblemError for what is none."""
    kind = type(array)
    found = _KNOWN.get(kind)
    if found is None:
        made = _library_of(array)
        if made not in _MADE:
            _MADE[made] = made()
        found = _KNOWN[kind] = _MADE[made]
    return found


def _library_of(array: Any) -> type:
    if isinstance(array, np.ndarray):
        return HostArrays
    if isinstance(array, DeviceArray):
        return DeviceArrays
    for parent in type(array).__mro__:
        found = _OF_MODULE.get(parent.__module__.partition(".")[0])
        if found is not None and hasattr(array, "shape"):
            return found
    if hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack_device__"):
        return AnyArrays
    raise ProblemError(f"Cannot multiply {type_name(array)}.", hint="pass arrays of PyTorch, CuPy, JAX or NumPy.")


__all__ = [
    "AnyArrays",
    "CupyArrays",
    "DTypeError",
    "DeviceArrays",
    "HostArrays",
    "JaxArrays",
    "Library",
    "NoMemory",
    "Shape",
    "TorchArrays",
    "View",
    "WorkspaceError",
    "library_of",
]
