"""`Choice`: what computes a problem, as data. The library makes a plan of it, the tuner searches over them, the
database keeps those that won."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.problem.gemm import OperandName

THIN = "thin"
"""In the place of a rung: the GEMV kernel, `kernels.gemv`."""

_COPYABLE: frozenset[OperandName] = frozenset(("A", "B"))


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel for a problem: a rung, a point of its choices, and what surrounds it.

    splits: blocks that share the sum over k of one tile. pads: operands copied first, to rows the copy engine takes,
    and the other way round where the kernel reads them so. turned: those of `pads` whose copy lies the other way round
    though the kernel could read them as they lie. filled: the copies, of A and of B, are filled up with zeros to whole
    tiles of the kernel, which writes whole tiles as well, from where another launch takes what C has of them.
    """

    rung: str
    point: Mapping[str, Any] = field(default_factory=dict)
    splits: int = 1
    pads: frozenset[OperandName] = frozenset()
    turned: frozenset[OperandName] = frozenset()
    filled: bool = False

    @property
    def key(self) -> str:
        """The same text for the same choice, in every process."""
        return json.dumps(self.as_data(), sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def as_data(self) -> dict[str, Any]:
        """Plain values, as they are stored."""
        return {
            "rung": self.rung,
            "point": dict(self.point),
            "splits": self.splits,
            "pads": sorted(self.pads),
            **({"turned": sorted(self.turned)} if self.turned else {}),
            **({"filled": True} if self.filled else {}),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Choice:
        """What `as_data` gave, and what older versions wrote, which knew single kernels only.

        Raises KeyError, TypeError or ValueError on anything else.
        """
        rung, point, splits, pads = data["rung"], data["point"], data.get("splits", 1), data.get("pads", [])
        if not isinstance(rung, str) or not isinstance(point, dict) or type(splits) is not int or splits < 1:
            raise TypeError(f"{rung!r}, {point!r}, {splits!r} are no choice")
        if not isinstance(pads, list) or not set(pads) <= _COPYABLE:
            raise ValueError(f"pads is {pads!r}")
        turned = data.get("turned", [])
        if not isinstance(turned, list) or not set(turned) <= set(pads):
            raise ValueError(f"turned is {turned!r}, and copied are {pads!r}")
        filled = data.get("filled", False)
        if type(filled) is not bool or (filled and set(pads) != _COPYABLE):
            raise ValueError(f"filled is {filled!r}, and copied are {pads!r}")
        return cls(rung, point, splits, frozenset(pads), frozenset(turned), filled)

    def __str__(self) -> str:
        point = f"@{','.join(f'{k}={v}' for k, v in self.point.items())}" if self.point else ""
        splits = f", k in {self.splits} parts" if self.splits > 1 else ""
        ways = ((self.pads - self.turned, "copied"), (self.turned, "turned"))
        copies = "".join(f", {' and '.join(sorted(names))} {way} first" for names, way in ways if names)
        return f"{self.rung}{point}{splits}{copies}{', whole tiles' if self.filled else ''}"
