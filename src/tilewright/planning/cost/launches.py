"""What surrounds a kernel: the problem as it finds it, and the launches before and behind it, which move bytes.

All times are seconds unless a name says microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels.columns import Column
from tilewright.model.time import DRAM_SHARE, EARLY_SECONDS, LAUNCH_SECONDS
from tilewright.planning.cost.correction import FITTED_FOR
from tilewright.planning.cost.exchange import streams_k
from tilewright.planning.packing import TMA_BYTES, Packing
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div, round_up

MORE_LAUNCHES_SECONDS = 1e-6
"""What each further launch costs beside its time on the GPU. The host takes 5 us for it (measured on the H200's host
with cuda.core), and is mostly ahead of the GPU; in a graph it costs nothing."""

_PACKING_LAUNCH_SECONDS = 2.5e-6
"""And a launch that packs operands, or makes pieces or codes of them: the kernel behind it waits for all of it."""

_PACKED_EARLY_SECONDS = 0.6e-6
"""What less than other launches one takes that packs operands, measured in graphs on an H200: 48 problems of 1 to 30 us
took 1.4 us beside the kernel and the bytes that move, where others take 2 (benchmarks/choice_sweep.py)."""


class Sizes(NamedTuple):
    """m, n, k of a problem as each kernel finds it: padded to multiples of its tile, or as it is."""

    m: Column
    n: Column
    k: Column

    @classmethod
    def of(cls, gemm: Gemm, c: Any, packing: Packing) -> Sizes:
        if not packing.tile_multiples:
            return cls(gemm.m, gemm.n, gemm.k)
        return cls(round_up(gemm.m, c.m), round_up(gemm.n, c.n), round_up(gemm.k, c.k))

    def at(self, rows: Any) -> tuple[Column, Column, Column]:
        """m, n and k of some kernels."""
        m, n, k = (np.asarray(one) for one in (self.m, self.n, self.k))
        return (m[rows], n[rows], k[rows]) if m.ndim else (self.m, self.n, self.k)

    def tiles(self, c: Any) -> Column:
        """Tiles of C."""
        return ceil_div(self.m, c.m) * ceil_div(self.n, c.n)

    def compulsory_bytes(self, gemm: Gemm) -> Column:
        """Each operand read once and the result written once; read as well where beta is not 0."""
        result = self.m * self.n * gemm.out.bytes * (1 if gemm.beta == 0 else 2)
        return (self.m * self.k + self.k * self.n) * gemm.dtype.bytes + result


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds a kernel: the packing before it, alignments in bytes of A, B and C, problems of a batch."""

    packing: Packing
    a_bytes: int
    b_bytes: int
    c_bytes: int
    count: int

    def row_bytes(self, name: str) -> int:
        """What the kernel may assume of the rows of A, or of B."""
        lies = self.a_bytes if name == "A" else self.b_bytes
        return TMA_BYTES if name in self.packing.packed else min(lies, TMA_BYTES)

    @property
    def loads_bytes(self) -> int:
        """What the kernel may assume of the rows of A and B."""
        return min(self.row_bytes("A"), self.row_bytes("B"))

    @property
    def stores_bytes(self) -> tuple[int, int]:
        """What the kernel may assume of the rows that it writes: of C's, and of those of partial sums in f32."""
        return self.c_bytes, TMA_BYTES


def packing_seconds(kind: str, c: Any, gemm: Gemm, spec: DeviceSpec, packing: Packing, count: int = 1) -> Any:
    """Of the launch that packs operands, of each of `count` problems."""
    sizes = Sizes.of(gemm, c, packing)
    elements: Any = 0
    length = {"m": sizes.m, "n": sizes.n, "k": sizes.k}
    for name in packing.packed:
        operand = gemm.operand(name)
        elements = elements + length[operand.strided] * length[operand.contiguous]
    size_bytes = 2 * count * elements * gemm.dtype.bytes
    more = -_PACKED_EARLY_SECONDS if spec.compute_capability == FITTED_FOR else _PACKING_LAUNCH_SECONDS
    return moving(size_bytes, spec, bool(packing.packed)) + bool(packing.packed) * more


def finishing_seconds(c: Any, sizes: Any, gemm: Gemm, spec: DeviceSpec) -> Column:
    """Of the launch that adds up the parts of split-K, or of the one that clears the flags of stream-K."""
    split = c.split_k > 1
    found = np.where(split, reduction_seconds(sizes, gemm, spec, c.split_k), 0.0) if split.any() else np.zeros(len(c))
    streamed = streams_k(c)
    return found if streamed is False else found + streamed * launch_seconds(spec)


def reduction_seconds(sizes: Any, gemm: Gemm, spec: DeviceSpec, parts: Column) -> Any:
    """Of the launch that adds up the parts of split-K."""
    return moving((parts * F32.bytes + gemm.out.bytes) * sizes.m * sizes.n, spec, 1)


def launch_seconds(spec: DeviceSpec) -> float:
    """Of a kernel with dependent launch, where the device has it."""
    return LAUNCH_SECONDS - (EARLY_SECONDS if spec.compute_capability >= SINCE[Feature.DEPENDENT_LAUNCH] else 0.0)


def around_us(size_bytes: int, spec: DeviceSpec, *, packs: bool = False, starts: int = 1) -> float:
    """Microseconds of one launch around a product, with what a further launch costs. packs: it copies operands.
    starts: 0 where it starts under the kernel before."""
    more = _PACKING_LAUNCH_SECONDS if packs else MORE_LAUNCHES_SECONDS
    return 1e6 * (float(moving(size_bytes, spec, starts)) + more)


def moving(size_bytes: Any, spec: DeviceSpec, launches: int = 1) -> Any:
    """Of launches that only move bytes; what lies in L2 is no faster than memory for so simple a kernel."""
    return launches * launch_seconds(spec) + size_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)
