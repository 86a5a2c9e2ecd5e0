"""`Winner`: the fastest plan found for a problem on a device, with its figures and where they come from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import dtype as format_called
from tilewright.errors import TilewrightError
from tilewright.files import parse_json
from tilewright.winners.keys import Key
from tilewright.winners.old_lines import LAST_OLD_FORMAT, RetiredKernel, converted
from tilewright.winners.plan_config import PlanConfig

FORMAT = 3
"""Of a line of JSON. A line with a higher one was written by a newer version, and is refused. 1 and 2 named kernels by
rungs of ladders (`old_lines`); 1 had single kernels only."""


class NewerFormat(TilewrightError):
    """A line that a newer version wrote."""


@dataclass(frozen=True, slots=True)
class Winner:
    """order: `ReductionOrder.name`; of each order, one winner is kept. kernel: `kernel_version` of what was measured.
    median_us: of the whole plan: copies before, the product, and the sum of its parts.

    sources: `sources_version` at that time. share_of_cublas: of the same run, None where it had no cuBLAS. tried:
    candidates that the search measured. date: UTC, as in records.
    """

    key: Key
    config: PlanConfig
    order: str
    kernel: str
    sources: str
    median_us: float
    tflops: float
    share_of_cublas: float | None
    tried: int
    command: str
    commit: str
    date: str

    def to_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "format": FORMAT,
                **self.key.as_data(),
                **self.config.as_data(),
                **{name: getattr(self, name) for name in _PLAIN},
            }
        )

    @classmethod
    def from_json(cls, line: str) -> Winner:
        """What `to_json` wrote, also in older versions. Raises RetiredKernel for a kernel that is of no family any
        more, and TilewrightError on anything else."""
        try:
            data = parse_json(line)
        except ValueError as error:
            raise TilewrightError(f"it is not JSON: {error}") from None
        if not isinstance(data, dict) or not isinstance(data.get("format"), int):
            raise TilewrightError("it is not a winner: it has no format")
        if data["format"] > FORMAT:
            raise NewerFormat(f"it has format {data['format']}, from a newer tilewright; this one reads {FORMAT}")
        try:
            key = Key.from_data(data)
            plain = {name: _checked(name, kind, data[name]) for name, kind in _PLAIN.items()}
            config = _config_of(data, key)
        except (KeyError, TypeError, ValueError) as error:
            raise TilewrightError(f"it is not a winner: {error}") from None
        return cls(key, config, **plain)


def _config_of(data: Mapping[str, Any], key: Key) -> PlanConfig:
    if data["format"] > LAST_OLD_FORMAT:
        return PlanConfig.from_data(data)
    return converted(data, format_called(key.problem.dtype).bytes)


_PLAIN: Mapping[str, tuple[type, ...]] = {
    "order": (str,),
    "kernel": (str,),
    "sources": (str,),
    "median_us": (int, float),
    "tflops": (int, float),
    "share_of_cublas": (int, float, type(None)),
    "tried": (int,),
    "command": (str,),
    "commit": (str,),
    "date": (str,),
}


def _checked(name: str, kinds: tuple[type, ...], value: Any) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{name} is {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    if name == "median_us" and not value > 0:
        raise ValueError(f"{name} is {value}")
    return value


def read_lines(lines: Iterable[str], name: str) -> Iterator[Winner]:
    """The winners of a file of JSON lines, without those whose kernels are of no family any more.

    Raises TilewrightError that names the first line that is none.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield Winner.from_json(line)
        except RetiredKernel:
            continue
        except TilewrightError as error:
            raise TilewrightError(
                f"Line {number} of {name} cannot be imported: {error.headline}.",
                hint="nothing was imported; `tilewright database export` writes such files.",
            ) from None


_PASSWORD = re.compile(r"(://[^:/@\s]+):[^@\s]+@")


def without_password(text: str) -> str:
    """
    >>> without_password("tilewright tune --storage postgresql://me:secret@host/db")
    'tilewright tune --storage postgresql://me:***@host/db'
    """
    return _PASSWORD.sub(r"\1:***@", text)
