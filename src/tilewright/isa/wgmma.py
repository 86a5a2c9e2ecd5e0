"""`wgmma`: four warps multiply tiles of shared memory while they go on (sm_90a).

Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.device.arch import Feature
from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, TF32, DType
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.fragment import (
    LEFT_16X8,
    LEFT_16X16,
    WARPGROUP_LEFT_PAIRED,
    warpgroup_accumulator,
    warpgroup_accumulator_paired,
    warpgroup_left,
)

K_BYTES = 32
"""Bytes of k that one instruction multiplies, in every format."""

WIDTHS = tuple(range(8, 257, 8))
"""The widths n of a tile."""

_FORMATS: tuple[tuple[DType, DType], ...] = ((F16, F32), (F16, F16), (BF16, F32), (TF32, F32), (E4M3, F32), (E5M2, F32))

_MIXED = ((E4M3, E5M2), (E5M2, E4M3))
"""The formats of A and of B, whose sums are in f32."""


def transposes(product: DType) -> bool:
    """Whether wgmma reads tiles in which m or n is contiguous, not k: of elements of 2 bytes only.

    Source: PTX ISA 9.0, wgmma.mma_async, imm-trans-a and imm-trans-b.
    """
    return product.bytes == 2


def _instruction(n: int, product: DType, accumulate: DType, product_b: DType | None = None) -> MatrixInstruction:
    k = K_BYTES // product.bytes
    shape = f"m64n{n}k{k}"
    return MatrixInstruction(
        f"wgmma.{shape}",
        product,
        accumulate,
        k,
        None,
        None,
        warpgroup_accumulator(n),
        f"wgmma.mma_async.sync.aligned.{shape}.{accumulate.ptx}.{product.ptx}.{(product_b or product).ptx}",
        Feature.WGMMA,
        "PTX ISA 9.0, wgmma.mma_async",
        product_b=product_b,
        left=_LEFT.get(product.bytes),
    )


_LEFT = {2: warpgroup_left(LEFT_16X16), 4: warpgroup_left(LEFT_16X8)}
"""Who holds which element of A in registers, by the bytes of an element."""

_PAIRED = ".paired"


def _with_paired_rows(plain: MatrixInstruction) -> MatrixInstruction:
    """The same instruction, its rows in another order: that of A in registers is free, if the sum's is the same."""
    family = f"{plain.family}{_PAIRED}"
    return replace(plain, family=family, c=warpgroup_accumulator_paired(plain.n), left=WARPGROUP_LEFT_PAIRED)


def numbered_by_ptx(instruction: MatrixInstruction) -> MatrixInstruction:
    """The same instruction with the rows as PTX numbers them, whatever a kernel takes them for."""
    if not instruction.family.endswith(_PAIRED):
        return instruction
    family, left = instruction.family.removesuffix(_PAIRED), _LEFT[instruction.product.bytes]
    return replace(instruction, family=family, c=warpgroup_accumulator(instruction.n), left=left)


def widened(instruction: MatrixInstruction, times: int) -> MatrixInstruction | None:
    """The same instruction with so many times the columns; None where there is none.

    >>> narrow = _instruction(96, BF16, F32)
    >>> widened(narrow, 2).name, widened(narrow, 3)
    ('wgmma.m64n192k16.f32.bf16', None)
    """
    columns = instruction.n * times
    if columns not in WIDTHS or instruction.family.endswith(_PAIRED):
        return None
    return _instruction(columns, instruction.product, instruction.accumulate, instruction.product_b)


_PLAIN = (
    *(_instruction(n, product, accumulate) for product, accumulate in _FORMATS for n in WIDTHS),
    *(_instruction(n, a, F32, b) for a, b in _MIXED for n in WIDTHS),
)

WGMMA = (*_PLAIN, *(_with_paired_rows(one) for one in _PLAIN if one.product is TF32))
