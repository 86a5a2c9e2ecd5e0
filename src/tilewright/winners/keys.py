"""What a winner is a winner of: a device and a problem, as plain values that every process writes the same way."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.artifacts import CudaSource
from tilewright.device.spec import DeviceSpec
from tilewright.errors import ProblemError
from tilewright.problem.gemm import Gemm

ALIGNMENTS = (16, 8, 4, 2, 1)
"""Bytes that all addresses and rows are multiples of, the most that is told apart first."""


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """A kind of GPU, whatever its driver: its name without the vendor, compute capability, SMs (a slice has fewer)."""

    name: str
    compute_capability: str
    sm_count: int

    @classmethod
    def of(cls, spec: DeviceSpec) -> DeviceKey:
        major, minor = spec.compute_capability
        return cls(short_name(spec.name), f"{major}.{minor}", spec.sm_count)

    def __str__(self) -> str:
        return f"{self.name} ({self.compute_capability}, {self.sm_count} SMs)"


def short_name(name: str) -> str:
    """
    >>> short_name("NVIDIA GeForce RTX 3090"), short_name("H200")
    ('RTX 3090', 'H200')
    """
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


@dataclass(frozen=True, slots=True)
class ProblemKey:
    """What decides which kernel is the fastest. orders: of A, B and C, N for rows and T for columns.

    alignment: bytes that the addresses and rows of all matrices are multiples of, at most 16.
    """

    dtype: str
    product: str
    accumulate: str
    out: str
    orders: str
    alignment: int
    m: int
    n: int
    k: int

    @classmethod
    def of(cls, gemm: Gemm, alignment_bytes: int | None = None) -> ProblemKey:
        """The key of a problem. alignment_bytes: of addresses and rows; None for that of the rows."""
        return cls(
            dtype=gemm.dtype.name,
            product=gemm.multiplied.name,
            accumulate=gemm.accumulate.name,
            out=gemm.out.name,
            orders=gemm.orders + gemm.c.letter,
            alignment=row_alignment(gemm) if alignment_bytes is None else min(alignment_bytes, ALIGNMENTS[0]),
            m=gemm.m,
            n=gemm.n,
            k=gemm.k,
        )

    def __str__(self) -> str:
        formats = self.product if self.out in (self.product, self.dtype) else f"{self.product} into {self.out}"
        sums = "" if self.accumulate == "f32" else f", sums in {self.accumulate}"
        return f"{self.m}x{self.n}x{self.k} {formats} {self.orders}{sums}, {self.alignment} bytes"


def row_alignment(gemm: Gemm) -> int:
    """Bytes, at most 16, that the rows of all three matrices are multiples of.

    >>> row_alignment(Gemm(64, 64, 64)), row_alignment(Gemm(64, 63, 64))
    (16, 4)
    """
    rows = [gemm.leading(operand.name) * operand.dtype.bytes for operand in gemm.operands]
    return next(size for size in ALIGNMENTS if all(row % size == 0 for row in rows))


@dataclass(frozen=True, slots=True)
class Key:
    """A problem on a device."""

    device: DeviceKey
    problem: ProblemKey

    @classmethod
    def of(cls, spec: DeviceSpec, gemm: Gemm, alignment_bytes: int | None = None) -> Key:
        return cls(DeviceKey.of(spec), ProblemKey.of(gemm, alignment_bytes))

    def as_data(self) -> dict[str, Any]:
        return {"device": asdict(self.device), "problem": asdict(self.problem)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Key:
        """Raises ProblemError for data that is not a key."""
        try:
            device, problem = DeviceKey(**data["device"]), ProblemKey(**data["problem"])
        except (TypeError, KeyError) as error:
            raise ProblemError(f"This is not a key of a problem: {error}.") from None
        for part in (device, problem):
            for name, value in asdict(part).items():
                wanted = int if name in _COUNTS else str
                if type(value) is not wanted:
                    raise ProblemError(f"This is not a key of a problem: {name} is {value!r}.")
        return cls(device, problem)

    def __str__(self) -> str:
        return f"{self.problem} on {self.device}"


_COUNTS = frozenset({"sm_count", "alignment", "m", "n", "k"})

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def kernel_version(sources: Iterable[CudaSource]) -> str:
    """The kernels of a plan that was measured, by their CUDA texts without comments and blanks: other texts are other
    kernels."""
    texts = ("".join(_COMMENT.sub("", one.text).split()).replace(one.entry, "kernel") for one in sources)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


_DECIDING = (*("codegen", "ir", "isa", "kernels", "layout", "layout_search", "lowering", "planning", "schedule"),)
"""All that decides which kernels a configuration is, and their text, from families to the printer."""


@cache
def sources_version() -> str:
    """Where it is the same, so is every kernel of every configuration."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in _DECIDING:
        place = package / name
        for path in sorted(place.rglob("*.py")) or [place]:
            if path.is_file():
                digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
