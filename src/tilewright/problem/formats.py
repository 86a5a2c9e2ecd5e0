"""Number formats of a whole problem by one word, as commands and records name them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, TF32, TF32_TRUNCATED, DType
from tilewright.errors import ProblemError, UnknownName
from tilewright.problem.emulation import EMULATIONS
from tilewright.problem.gemm import Gemm

FormatOptions = Mapping[str, Any]
"""The options of `Gemm` that say formats: dtype, accumulate, out, product."""


def _format(
    dtype: DType, accumulate: DType = F32, product: DType | None = None, out: DType | None = None
) -> FormatOptions:
    return MappingProxyType({"dtype": dtype, "accumulate": accumulate, "out": out or dtype, "product": product})


FORMATS: Mapping[str, FormatOptions] = MappingProxyType(
    {
        "f32": _format(F32),
        "f16": _format(F16),
        "f16_sums": _format(F16, accumulate=F16),
        "bf16": _format(BF16),
        "tf32": _format(F32, product=TF32),
        "tf32_truncated": _format(F32, product=TF32_TRUNCATED),
    }
)
"""f16_sums: f16 operands whose sums are kept in f16 too. tf32: f32 operands, rounded to tf32 for tensor cores.
tf32_truncated: f32 operands of which tensor cores drop the bits that tf32 lacks."""

FP8: Mapping[str, FormatOptions] = MappingProxyType({"e4m3": _format(E4M3, out=BF16), "e5m2": _format(E5M2, out=BF16)})
"""FP8 operands, which wgmma multiplies K-major; results in bf16."""

_KNOWN: Mapping[str, FormatOptions] = MappingProxyType({**FORMATS, **FP8})


def format_options(name: str) -> FormatOptions:
    """The options of `Gemm` for a word.

    >>> format_options("tf32")["product"]
    tf32
    """
    if name in EMULATIONS:
        raise ProblemError(
            f"{name} is a precision of matmul, and rungs do not multiply pieces of f32 operands.",
            hint=f"`tilewright predict {name}`, or `tilewright plan 4096 --precision {name}`.",
        )
    if name not in _KNOWN:
        raise UnknownName("dtype", name, _KNOWN)
    return _KNOWN[name]


def format_name(gemm: Gemm) -> str:
    """The word for a problem's formats; where there is none, that of the products.

    >>> format_name(Gemm(8, 8, 8, F16, accumulate=F16, out=F16))
    'f16_sums'
    """
    for name, options in _KNOWN.items():
        if all(getattr(gemm, key) == value for key, value in options.items() if key != "out"):
            return name
    return gemm.multiplied.name
