"""`mma.sync`: fragments in registers, whose layout is known (sm_80 and later).

Source: PTX ISA 9.0, "Warp Level Matrix Multiply-Accumulate Instructions: mma".
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.device.arch import Feature
from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, TF32, DType
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.fragment import (
    ACCUMULATOR_16X8,
    ACCUMULATOR_PAIRED,
    LEFT_16X8,
    LEFT_16X16,
    LEFT_16X32,
    LEFT_PAIRED,
    RIGHT_8X8,
    RIGHT_16X8,
    RIGHT_32X8,
)

_SOURCE = "PTX ISA 9.0, mma"

MMA_F16_F32 = MatrixInstruction(
    "mma.m16n8k16",
    F16,
    F32,
    16,
    LEFT_16X16,
    RIGHT_16X8,
    ACCUMULATOR_16X8,
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    Feature.MMA_F16_K16,
    _SOURCE,
)
MMA_F16_F16 = MatrixInstruction(
    "mma.m16n8k16",
    F16,
    F16,
    16,
    LEFT_16X16,
    RIGHT_16X8,
    ACCUMULATOR_16X8,
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
    Feature.MMA_F16_K16,
    _SOURCE,
)
MMA_BF16_F32 = MatrixInstruction(
    "mma.m16n8k16",
    BF16,
    F32,
    16,
    LEFT_16X16,
    RIGHT_16X8,
    ACCUMULATOR_16X8,
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    Feature.MMA_BF16,
    _SOURCE,
)
MMA_TF32_F32 = MatrixInstruction(
    "mma.m16n8k8",
    TF32,
    F32,
    8,
    LEFT_16X8,
    RIGHT_8X8,
    ACCUMULATOR_16X8,
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    Feature.MMA_TF32,
    _SOURCE,
)
MMA_TF32_PAIRED = replace(MMA_TF32_F32, family="mma.m16n8k8.paired", a=LEFT_PAIRED, c=ACCUMULATOR_PAIRED)
"""The same instruction, its rows numbered so that the two of a lane are neighbours.

Where rows of the instruction are contiguous in memory, a lane loads two elements of an operand, and stores two of the
result, at once. ldmatrix, which would need no such thing, cannot turn elements of 4 bytes.
"""


def _of_fp8(a: DType, b: DType) -> MatrixInstruction:
    mnemonic = f"mma.sync.aligned.m16n8k32.row.col.f32.{a.names.ptx}.{b.names.ptx}.f32"
    return MatrixInstruction(
        *("mma.m16n8k32", a, F32, 32, LEFT_16X32, RIGHT_32X8, ACCUMULATOR_16X8, mnemonic, Feature.MMA_F8, _SOURCE),
        by_halves=True,
        product_b=None if a is b else b,
    )


MMA_FP8 = tuple(_of_fp8(a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2))
