"""Numbers as FP8 codes with scales: `codes * scale` is near to what they were.

A scale is the largest finite magnitude of its group over the largest number of the format, at least 2**-126. NaN stays
NaN; what is too large, also infinity, becomes the largest number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.dtypes import F32, Array, DType
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, check_apart, elements_of
from tilewright.problem.storages import Storages, lines_of
from tilewright.units import ceil_div

BLOCK = 128
"""Elements of a line that share a scale, where a line has several."""

LEAST_SCALE = 2.0**-126

Groups = Literal["line", "block", "all", "largest"]
"""What shares a scale: a line, each `BLOCK` of a line, or all lines, whose largest magnitude is known. "largest" makes
no codes: it finds the largest finite magnitude of each line."""


@dataclass(frozen=True, slots=True)
class Quantization(PlainProblem):
    """dtype: of the source; out: of the codes.

    lines, length, leading: of the source: its lines, elements of a line, elements from line to line. to_leading: of the
    codes. scale_step, scale_step_k: from scale to scale, from line to line and along a line.
    """

    lines: int
    length: int
    leading: int
    to_leading: int
    dtype: DType
    out: DType
    groups: Groups
    scale_step: int = 1
    scale_step_k: int = 1

    def __post_init__(self) -> None:
        check_apart((self.length, self.leading), (self.length, self.to_leading))

    @property
    def largest(self) -> float:
        """The largest number of the codes' format."""
        return self.out.largest

    @property
    def counts(self) -> tuple[int, int]:
        """Scales: lines of them, and how many of a line."""
        if self.groups == "all":
            return 1, 1
        return self.lines, ceil_div(self.length, BLOCK) if self.groups == "block" else 1

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        elements = elements_of(self.lines, self.length, self.leading)
        lies = f"{self.dtype}, lines x length, lines leading elements apart"
        source = NamedMatrix("source", self.dtype, elements, lies)
        if self.groups == "largest":
            return source, NamedMatrix("largest", F32, self.lines, "f32, one for each line", written=True)
        codes = elements_of(self.lines, self.length, self.to_leading)
        lies = f"{self.out}, lines x length, lines to_leading elements apart"
        lines, count = self.counts
        scales = (lines - 1) * self.scale_step + (count - 1) * self.scale_step_k + 1 if lines and count else 0
        lie = "f32, of lines scale_step elements apart, along a line scale_step_k"
        known = (NamedMatrix("largest", F32, 1, "f32, one number"),) if self.groups == "all" else ()
        return (
            source,
            NamedMatrix("codes", self.out, codes, lies, written=True),
            NamedMatrix("scales", F32, scales, lie, written=True),
            *known,
        )

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        names = ("leading", "to_leading", "scale_step", "scale_step_k")
        return *self.sizes("lines", "length"), *self.offsets(*names)

    @property
    def formats(self) -> tuple[DType, DType, str]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.out, self.groups

    @property
    def compulsory_bytes(self) -> int:
        """The source read once, codes and scales written once."""
        lines, count = self.counts
        codes = 0 if self.groups == "largest" else self.out.bytes
        return self.lines * self.length * (self.dtype.bytes + codes) + lines * count * F32.bytes

    @property
    def title(self) -> str:
        if self.groups == "largest":
            return "the largest finite magnitude of each line"
        what = {"line": "each line", "block": f"each {BLOCK} of a line", "all": "all lines"}
        return f"{self.out} codes, a scale for {what[self.groups]}"


def scales_of_blocks(values: Array, codes: DType) -> Array:
    """The scale of each `BLOCK` of the last axis of numbers, in their format."""
    found = np.where(np.isfinite(values), np.abs(values), 0)
    length = values.shape[-1]
    pad = [(0, 0)] * (values.ndim - 1) + [(0, -length % BLOCK)]
    largest = np.pad(found, pad).reshape(*values.shape[:-1], -1, BLOCK).max(axis=-1)
    scales: Array = np.maximum(largest * found.dtype.type(1 / codes.largest), found.dtype.type(LEAST_SCALE))
    return scales


def spread_over_blocks(scales: Array, length: int) -> Array:
    """The scale of each of `length` numbers of a line."""
    return np.repeat(scales, BLOCK, axis=-1)[..., :length]


def quantized(storages: Storages) -> dict[str, Array]:
    """The storage of each result after the launch, exactly; gaps as they were."""
    problem = storages.problem
    assert isinstance(problem, Quantization)
    found = {name: storages.storage(name).copy() for name in problem.results}
    source = lines_of(storages.storage("source"), 0, problem.lines, problem.length, problem.leading)
    values = problem.dtype.decode(source).astype(np.float32)
    lines, count = problem.counts
    width = BLOCK if problem.groups == "block" else max(problem.length, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        if problem.groups == "all":
            largest = storages.storage("largest").reshape(1, 1)
        else:
            padded = np.zeros((lines, count * width), np.float32)
            padded[:, : problem.length] = np.where(np.isfinite(values), np.abs(values), 0)
            largest = padded.reshape(lines, count, width).max(axis=2)
        if problem.groups == "largest":
            found["largest"][:] = largest[:, 0]
        else:
            scales = np.maximum(largest * np.float32(1 / problem.largest), np.float32(LEAST_SCALE))
            steps = (problem.scale_step * 4, problem.scale_step_k * 4)
            np.lib.stride_tricks.as_strided(found["scales"], (lines, count), steps)[...] = scales
            inverse = (np.float32(1) / scales).astype(np.float32)
            spread = np.repeat(inverse, width, axis=1)[:, : problem.length]
            target = lines_of(found["codes"], 0, problem.lines, problem.length, problem.to_leading)
            target[...] = problem.out.encode(values * spread)
    return found
