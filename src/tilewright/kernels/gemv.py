"""Skinny products (GEMV where m or n is 1): their time is that of reading the other matrix once.

    C[r, j] = sum_k few[r, k] * long[k, j],   r < rows <= 16;   where n is small, A and B change places

The long matrix is streamed, past the first-level cache, 16 bytes a lane; the loads of the next k steps are in flight
while those that came are multiplied. The skinny operand lies in shared memory in f32, a chunk of k at a time.

K-major (neighbours of k side by side): the lanes of a warp lie along k, and each has several outputs.
MN-major (neighbours of j side by side): a lane has `width` neighbouring outputs, and lanes, warps lie along k.

The sums of lanes are added by shuffles, those of the warps of a block through shared memory in the order of the warps,
and those of blocks that share out k by `kernels.reduce`. No order depends on what runs first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.dtypes import F32
from tilewright.kernels.skinny import few_order, is_k_major, long_of
from tilewright.kernels.statements import WARP_LANES
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div, round_up

MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class GemvConfig:
    """One kernel of the family.

    rows: rows (or columns) of the skinny operand, rounded up to a power of two
    width: elements of the long matrix in one load; its address, lines and their length are multiples of it, but for K
    few_width: elements of the skinny operand in one load (1 or 4); its address and lines are multiples of it, and K or
        `width`
    outputs: outputs of a lane for each of its rows (K-major), vectors of `width` outputs of a lane (MN-major)
    lanes_k, warps_k: lanes of a warp, and warps of a block, that share out k
    warps: of a block
    steps: k steps of a lane whose loads are in flight
    chunk: k of which the skinny operand is in shared memory, a multiple of what a block multiplies in `steps` steps
    split_k: blocks that share the sum over k of a result; partial sums then go to a workspace
    whole_k: K is a multiple of `width` (K-major)
    near: every element offset fits in 31 bits
    """

    rows: int = 1
    width: int = 1
    few_width: int = 1
    outputs: int = 1
    lanes_k: int = 32
    warps_k: int = 1
    warps: int = 8
    steps: int = 8
    chunk: int = 2048
    split_k: int = 1
    whole_k: bool = False
    near: bool = False

    kind: ClassVar[str] = "gemv"

    def with_split_k(self, parts: int) -> GemvConfig:
        return replace(self, split_k=parts)

    @property
    def threads(self) -> int:
        return self.warps * WARP_LANES

    @property
    def lanes_out(self) -> int:
        return WARP_LANES // self.lanes_k

    @property
    def pitch(self) -> int:
        """Floats from k to the next in shared memory (MN-major): lanes of 8 neighbouring k read different banks."""
        return self.rows + (4 if self.rows >= 8 else 0)

    @property
    def warps_out(self) -> int:
        return self.warps // self.warps_k

    def outputs_of_block(self, *, k_major: bool) -> int:
        """Rows or columns of the long matrix that a block multiplies."""
        return self.warps_out * self.lanes_out * self.outputs * (1 if k_major else self.width)

    def step_k(self, *, k_major: bool) -> int:
        """Products of an output in one step of a block."""
        return self.warps_k * self.lanes_k * (self.width if k_major else 1)

    def batch_k(self, *, k_major: bool) -> int:
        """Products of an output whose loads are in flight together."""
        return self.steps * self.step_k(k_major=k_major)

    def part_of_k(self, gemm: Gemm) -> int:
        """Products that one block sums; the last block of an output may have fewer."""
        return max(round_up(ceil_div(gemm.k, self.split_k), self.batch_k(k_major=is_k_major(gemm))), 1)

    def parts(self, gemm: Gemm) -> int:
        """Blocks that share out k: `split_k`, or fewer where K is short."""
        return max(1, ceil_div(gemm.k, self.part_of_k(gemm)))

    def reasons_against(self, gemm: Gemm) -> tuple[str, ...]:
        """Why this kernel cannot compute a problem, in words; empty if it can."""
        found = []
        few = min(gemm.m, gemm.n)
        k_major, long = is_k_major(gemm), long_of(gemm)
        if few > self.rows:
            found.append(f"{few} rows or columns are more than the {self.rows} that a thread keeps sums of")
        if gemm.accumulate is not F32 or gemm.product not in (None, gemm.dtype):
            found.append(f"it multiplies {gemm.dtype} as it lies and sums in f32, not {gemm.multiplied}")
        if gemm.leading(long) % self.width and (max(gemm.m, gemm.n) > 1 if k_major else gemm.k > 1):
            found.append(f"lines of {long} are {gemm.leading(long)} elements apart, no multiple of {self.width}")
        if not k_major and max(gemm.m, gemm.n) % self.width:
            found.append(f"{max(gemm.m, gemm.n)} outputs are not a multiple of {self.width}")
        if k_major and self.whole_k and gemm.k % self.width:
            found.append(f"K = {gemm.k} is not a multiple of {self.width}")
        if k_major and not self.whole_k and self.lanes_k < self.width:
            found.append(f"{self.lanes_k} lanes along k cannot take the last {self.width - 1} products")
        whole_k = gemm.k % self.few_width == 0 or (k_major and self.width % self.few_width == 0)
        if self.few_width > 1 and (few_order(gemm) != "k" or not whole_k):
            found.append(f"the skinny operand is not read {self.few_width} neighbours of k at a time")
        if self.chunk % self.batch_k(k_major=k_major) or self.chunk * self.rows % (self.threads * self.few_width):
            found.append(f"a chunk of {self.chunk} is not a multiple of {self.batch_k(k_major=k_major)}")
        return tuple(found)
