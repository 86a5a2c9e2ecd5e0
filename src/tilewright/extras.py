"""Optional packages: the only place that imports them. A missing one raises `MissingExtra` with the pip line."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from tilewright.errors import MissingExtra

_EXTRA_OF = {
    "torch": "torch",
    "cupy": "cupy",
    "jax": "jax",
    "plotly": "report",
    "pygments": "report",
    "optuna": "tune",
    "psycopg": "tune-postgresql",
    "cuda": "cuda",
    "pynvml": "clocks",
}


def available(package: str) -> bool:
    """Whether `package` is installed (it is not imported here)."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # an import hook that hides it
        return False


def require(package: str, why: str) -> ModuleType:
    """The optional package, imported. `why` begins the sentence of the error: "Timing cuBLAS"."""
    if not available(package):
        raise MissingExtra(package, _EXTRA_OF.get(package, package), why)
    return importlib.import_module(package)
