"""A weight as codes of 4 or 8 bits with scales, as `coded_product` lays them out: `code * scale` is near to the weight.

A scale is the largest magnitude of its group over the largest number of the codes (7, 448), in bf16 rounded up, or f32
where a column has one; 1 where the group is zeros. A group that holds NaN or infinity has the scale NaN, so that every
result with a part of it is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import BF16, E4M3, I32, Array, DType
from tilewright.problem.coded_product import CodedWeight
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, ScalarKind
from tilewright.problem.storages import Storages

LEAST_SCALE = 2.0**-100
"""Of a group that is not zeros: its inverse, and codes times it, are normal numbers of f32."""


@dataclass(frozen=True, slots=True)
class WeightCoding(PlainProblem):
    """weight: what is made. dtype: of the source, whose element (k, n) lies at k * step_k + n * step_n."""

    weight: CodedWeight
    dtype: DType
    step_k: int
    step_n: int

    @property
    def codes_dtype(self) -> DType:
        """In which a thread stores codes: whole words, or single bytes of them."""
        return I32 if self.weight.codes.bits == 4 else E4M3

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        weight, codes, scales = self.weight, self.codes_dtype, self.weight.scale_dtype
        source = (weight.k - 1) * self.step_k + (weight.n - 1) * self.step_n + 1
        words = weight.words * I32.bytes // codes.bytes
        lie = f"{weight.codes}, of tiles of 16 columns, in words as lanes unpack them"
        read = f"{scales}, as the product reads them"
        return (
            NamedMatrix("source", self.dtype, source, f"{self.dtype}, K x N, elements step_k and step_n apart"),
            NamedMatrix("codes", codes, words, lie, written=True),
            NamedMatrix("scales", scales, weight.scale_elements, read, written=True),
        )

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        sizes = (Scalar(name.upper(), getattr(self.weight, name), ScalarKind.SIZE) for name in ("n", "k"))
        return *sizes, *self.offsets("step_k", "step_n")

    @property
    def formats(self) -> tuple[DType, str, int]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.weight.codes.name, self.weight.group

    @property
    def compulsory_bytes(self) -> int:
        """The source read once, codes and scales written once."""
        return self.weight.n * self.weight.k * self.dtype.bytes + self.weight.bytes

    @property
    def title(self) -> str:
        shared = f"{self.weight.group} of k" if self.weight.group else "a column"
        return f"{self.weight.codes} codes of a weight, a scale for {shared}"


def _source(problem: WeightCoding, storage: Array) -> Array:
    steps = problem.step_k * storage.itemsize, problem.step_n * storage.itemsize
    return np.lib.stride_tricks.as_strided(storage, (problem.weight.k, problem.weight.n), steps)


def coded(storages: Storages) -> dict[str, Array]:
    """The storage of each result after the launch, exactly."""
    problem = storages.problem
    assert isinstance(problem, WeightCoding)
    weight = problem.weight
    source = problem.dtype.decode(_source(problem, storages.storage("source"))).astype(np.float32).T
    numbers = source.reshape(weight.n, weight.groups, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.abs(numbers).max(axis=2)
        scales = scales_of(largest, weight)
        inverse = (np.float32(1) / scales).astype(np.float32)
        made = (numbers * inverse[:, :, None]).astype(np.float32).reshape(weight.n, weight.k)
        made = np.where(np.isnan(made), np.float32(0), made)
    words = weight.pack(np.clip(made, -weight.codes.largest, weight.codes.largest))
    return {"codes": words.view(problem.codes_dtype.numpy), "scales": weight.lay_scales(scales)}


ROUNDED_UP = np.float32(1 + 2.0**-8)
"""Times a number, which is then rounded to bf16, at least the number."""


def scales_of(largest: Array, weight: CodedWeight) -> Array:
    """The scales of groups by their largest magnitudes, f32, as they are stored."""
    raw = (largest * np.float32(1 / weight.codes.largest)).astype(np.float32)
    found = np.maximum(raw, np.float32(LEAST_SCALE))
    if weight.scale_dtype is BF16:
        found = BF16.decode(BF16.encode((found * ROUNDED_UP).astype(np.float32)))
    found = np.where(largest == 0, np.float32(1), found)
    return np.where(np.isfinite(largest), found, np.float32(np.nan)).astype(np.float32)
