"""`PlanConfig`: what computes a problem, as data. Planning makes launches of it, the tuner searches over them, the
database keeps those that won."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.kernels.configuration import KernelConfig, described, from_data, to_data
from tilewright.problem.gemm import OperandName

_COPYABLE: frozenset[OperandName] = frozenset(("A", "B"))


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """A kernel for a problem, and what surrounds it.

    packed: operands that are pre-packed: copied to rows that TMA takes, and transposed where the kernel reads them so
    transposed: those of `packed` that are transposed in the pre-pass though the kernel could read them as they lie
    tile_multiples: copies of A and B are padded to tile multiples with zeros, so that no load has a guard
    """

    kernel: KernelConfig
    packed: frozenset[OperandName] = frozenset()
    transposed: frozenset[OperandName] = frozenset()
    tile_multiples: bool = False

    @property
    def split_k(self) -> int:
        """Blocks that share the sum over k of a tile."""
        return self.kernel.split_k

    @property
    def stream_k(self) -> bool:
        """Whether blocks share out the k of all tiles, and add up in the kernel."""
        return getattr(self.kernel, "stream_k", False)

    @property
    def shares_k(self) -> bool:
        """Whether blocks that share the sum over k of a tile leave parts of it in a workspace."""
        return self.split_k > 1 or self.stream_k

    def with_split_k(self, parts: int) -> PlanConfig:
        return replace(self, kernel=self.kernel.with_split_k(parts))

    @property
    def key(self) -> str:
        """The same text for the same configuration, in every process."""
        return json.dumps(self.as_data(), sort_keys=True)

    def as_data(self) -> dict[str, Any]:
        """Plain values, as they are stored."""
        return {
            "config": to_data(self.kernel),
            **({"packed": sorted(self.packed)} if self.packed else {}),
            **({"transposed": sorted(self.transposed)} if self.transposed else {}),
            **({"tile_multiples": True} if self.tile_multiples else {}),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> PlanConfig:
        """What `as_data` gave; other entries are left alone. Raises ValueError or KeyError on anything else."""
        packed, transposed = data.get("packed", []), data.get("transposed", [])
        if not isinstance(packed, list) or not set(packed) <= _COPYABLE:
            raise ValueError(f"packed is {packed!r}")
        if not isinstance(transposed, list) or not set(transposed) <= set(packed):
            raise ValueError(f"transposed is {transposed!r}, and packed is {packed!r}")
        whole = data.get("tile_multiples", False)
        if type(whole) is not bool or (whole and set(packed) != _COPYABLE):
            raise ValueError(f"tile_multiples is {whole!r}, and packed is {packed!r}")
        return cls(from_data(data["config"]), frozenset(packed), frozenset(transposed), whole)

    def __str__(self) -> str:
        ways = ((self.packed - self.transposed, "packed"), (self.transposed, "transposed"))
        copies = "".join(f", {' and '.join(sorted(names))} {way}" for names, way in ways if names)
        return f"{described(self.kernel)}{copies}{', padded to tile multiples' if self.tile_multiples else ''}"
