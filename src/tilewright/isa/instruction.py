"""`MatrixInstruction`: what a matrix multiply-accumulate of the tensor cores is, stated once.

The schedule proves that a tile equals its meaning, lowering places its operands, the printer fills its PTX, the
simulator runs its meaning on the fragments, the model prices it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.device.arch import Feature
from tilewright.dtypes import Array, DType
from tilewright.isa.summation import F32_FRACTION_BITS, BlockSum, SumByHalves
from tilewright.layout.banks import WAVEFRONT_BYTES
from tilewright.layout.fragment import Fragment


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """`D[m, n] = sum_k A[m, k] * B[k, n] + C[m, n]` for one tile, by the lanes of a warp or a warpgroup together.

    family: as a schedule names it, with its shape ("mma.m16n8k16"). product: the format of A and B; product_b: that of
    B, where it is another; accumulate: that of the sum. k: the depth of the tile. a, b, c: who holds which element; a
    and b are None where the instruction reads its operands from shared memory; left: who holds which element of A where
    it may also take that from registers. mnemonic: the PTX instruction, where
    "{a}" and "{b}" stand for the orders of opaque operands. feature: what it needs of the architecture. source: where
    all this is written. summed: products that the hardware adds at once; 0: all k. by_halves: it adds them as
    `summation.SumByHalves` says.
    """

    family: str
    product: DType
    accumulate: DType
    k: int
    a: Fragment | None
    b: Fragment | None
    c: Fragment
    mnemonic: str
    feature: Feature
    source: str
    summed: int = 0
    by_halves: bool = False
    product_b: DType | None = None
    left: Fragment | None = None

    @property
    def m(self) -> int:
        return self.c.rows

    @property
    def n(self) -> int:
        return self.c.columns

    @property
    def name(self) -> str:
        """
        >>> from tilewright.isa.catalog import MMA_F16_F32
        >>> MMA_F16_F32.name
        'mma.m16n8k16.f32.f16'
        """
        other = "" if self.product_b is None else f".{self.product_b}"
        return f"{self.family}.{self.accumulate}.{self.product}{other}"

    @property
    def formats(self) -> tuple[DType, DType]:
        """Those of A and of B."""
        return self.product, self.product_b or self.product

    @property
    def is_opaque(self) -> bool:
        """Whether only its own loads and stores know where an element of a fragment is."""
        return self.c.opaque

    @property
    def reads_shared(self) -> bool:
        """Whether A and B are read from shared memory (wgmma), not from registers."""
        return self.a is None

    @property
    def opcode(self) -> str:
        """The machine instruction that it becomes, one or several: HMMA, HGMMA."""
        return f"{self.product.sass}{'GMMA' if self.reads_shared else 'MMA'}"

    @property
    def multiply_adds(self) -> int:
        return self.m * self.n * self.k

    def operand_wavefronts(self, *, a_in_registers: bool = False) -> int:
        """Wavefronts in which A and B are read from shared memory; 0 where they come from registers.

        Each operand whole, without a conflict, as Nsight Compute's source page counts on an H200
        (`benchmarks/results/calibration_hopper_te_h200_512.json`).

        >>> from tilewright.isa.catalog import instruction
        >>> from tilewright.dtypes import BF16, F32
        >>> instruction("wgmma.m64n128k16", BF16, F32).operand_wavefronts()  # 64 x 16 and 128 x 16 of 2 bytes
        48
        """
        row_bytes = self.k * self.product.bytes
        rows = self.n if a_in_registers else self.m + self.n
        return rows * row_bytes // WAVEFRONT_BYTES if self.reads_shared else 0

    def meaning(self, a: Array, b: Array, c: Array) -> Array:
        """D for matrices of shape (..., m, k), (..., k, n) and (..., m, n) in float32; D has the accumulator's format.

        As compute capability 9.0 computes it: `isa.summation` tells the rule.
        """
        bits = self.product.sum_in(self.accumulate).fraction_bits
        block = BlockSum(self.summed or self.k, bits, min(bits, F32_FRACTION_BITS))
        rule = SumByHalves() if self.by_halves else block
        return rule.of(a, b, c, self.product, self.accumulate, self.product_b)

    def rounded(self, a: Array, b: Array, c: Array) -> Array:
        """`meaning` within the same error bound, and faster: products are added in float32, and rounded once."""
        total = np.matmul(a, b, dtype=np.float32) + c
        held = self.accumulate.decode(self.accumulate.encode(total))
        return held.astype(np.float32, copy=False)
