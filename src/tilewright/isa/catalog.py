"""Every matrix instruction, and the lookup by what a schedule and a problem say."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dtypes import DType
from tilewright.errors import ScheduleError, UnknownName
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.mma_sync import MMA_BF16_F32, MMA_F16_F16, MMA_F16_F32, MMA_FP8, MMA_TF32_F32, MMA_TF32_PAIRED
from tilewright.isa.wgmma import WGMMA, WIDTHS
from tilewright.isa.wmma import WMMA_BF16_F32, WMMA_F16_F16, WMMA_F16_F32, WMMA_TF32_F32

INSTRUCTIONS: tuple[MatrixInstruction, ...] = (
    WMMA_F16_F32,
    WMMA_F16_F16,
    WMMA_BF16_F32,
    WMMA_TF32_F32,
    MMA_F16_F32,
    MMA_F16_F16,
    MMA_BF16_F32,
    MMA_TF32_F32,
    MMA_TF32_PAIRED,
    *MMA_FP8,
    *WGMMA,
)


def instruction(family: str, product: DType, accumulate: DType, product_b: DType | None = None) -> MatrixInstruction:
    """The instruction of a family ("mma.m16n8k16") for these formats. product_b: of B, where it is another. Raises
    ScheduleError where there is none."""
    families = list(dict.fromkeys(known.family for known in INSTRUCTIONS))
    if family not in families:
        raise UnknownName("matrix instruction", family, families, shown=_shown(families))
    unit = product.names.ptx
    second = None if product_b is product else product_b
    for known in INSTRUCTIONS:
        asked = known.family, known.product.ptx, known.accumulate, known.product_b
        if asked == (family, unit, accumulate, second):
            return known
    formats = [f"{k.product} into {k.accumulate}" for k in INSTRUCTIONS if k.family == family and k.product_b is None]
    others = _shown(
        [k.family for k in INSTRUCTIONS if (k.product.ptx, k.accumulate, k.product_b) == (unit, accumulate, second)]
    )
    raise ScheduleError(
        f"{family} does not multiply {product} into {accumulate}.",
        note=f"it multiplies {', '.join(formats)}.",
        hint=f"use {' or '.join(others)}."
        if others
        else "tensor cores do not multiply f32: Gemm(..., product=TF32) rounds it to tf32 first.",
    )


def _shown(families: Sequence[str]) -> list[str]:
    """Families as a message lists them: the many widths of wgmma as first and last."""
    of_wgmma = [family for family in families if family.startswith("wgmma")]
    others = [family for family in families if family not in of_wgmma]
    depths = dict.fromkeys(family.rpartition("k")[2] for family in of_wgmma)
    return [*others, *(f"wgmma.m64n{WIDTHS[0]}k{depth} to n{WIDTHS[-1]}k{depth}" for depth in depths)]
