"""Number formats as users name them."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, DType

_NAMES = {
    "f32": F32, "float32": F32, "f16": F16, "float16": F16, "half": F16, "bf16": BF16, "bfloat16": BF16,
    "e4m3": E4M3, "float8_e4m3fn": E4M3, "e5m2": E5M2, "float8_e5m2": E5M2,
}  # fmt: skip


def format_of(given: Any) -> DType | None:
    """A format by our name, or by another library's object for it: `"f32"`, `torch.float32`, `np.float32`; None for one
    that is not known."""
    if isinstance(given, DType):
        return given
    name = given if isinstance(given, str) else getattr(given, "__name__", "") or str(given)
    return _NAMES.get(name.rpartition(".")[2])
