"""`wmma`: fragments whose layout is the hardware's own affair, loaded and stored as whole tiles.

Source: PTX ISA 9.0, "Warp Level Matrix Multiply-Accumulate Instructions: wmma.load, wmma.store, wmma.mma". A pointer is
a multiple of 32 bytes and a leading dimension of 16 bytes.
"""

from __future__ import annotations

from tilewright.device.arch import Feature
from tilewright.dtypes import BF16, F16, F32, TF32, DType
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.fragment import opaque

_SOURCE = "PTX ISA 9.0, wmma.mma"

WMMA_POINTER_BYTES = 32
"""A tile in memory begins at a multiple of this."""

WMMA_ROW_BYTES = 16
"""Rows of a tile in memory are a multiple of this apart."""


def _of_16_bits(product: DType, accumulate: DType, registers: int, kinds: str, feature: Feature) -> MatrixInstruction:
    """16 x 16 x 16. registers: of a lane for A, and for B. kinds: of the sums and factors in the mnemonic."""
    operand = opaque(16, 16, registers)
    mnemonic = f"wmma.mma.sync.aligned.{{a}}.{{b}}.m16n16k16.{kinds}"
    c = opaque(16, 16, 8)
    return MatrixInstruction("wmma.m16n16k16", product, accumulate, 16, operand, operand, c, mnemonic, feature, _SOURCE)


WMMA_F16_F32 = _of_16_bits(F16, F32, 16, "f32.f32", Feature.WMMA_F16)
WMMA_F16_F16 = _of_16_bits(F16, F16, 16, "f16.f16", Feature.WMMA_F16)
WMMA_BF16_F32 = _of_16_bits(BF16, F32, 8, "f32.bf16.bf16.f32", Feature.WMMA_BF16_TF32)
WMMA_TF32_F32 = MatrixInstruction(
    "wmma.m16n16k8",
    TF32,
    F32,
    8,
    opaque(16, 8, 4),
    opaque(8, 16, 4),
    opaque(16, 16, 8),
    "wmma.mma.sync.aligned.{a}.{b}.m16n16k8.f32.tf32.tf32.f32",
    Feature.WMMA_BF16_TF32,
    _SOURCE,
    summed=4,  # the machine instruction is HMMA.1684
)
