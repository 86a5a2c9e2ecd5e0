"""Number formats: bits, NumPy type, CUDA type, unit round-off.

`bf16` has no NumPy type of its own: on the host it is held as `uint16` bit patterns, and `decode` / `encode`
turn those into float32 and back (round to nearest, ties to even, as `cvt.rn.bf16.f32` does). `tf32` is a float32 of
which tensor cores read 19 bits: memory holds float32, `encode` rounds as `cvt.rna.tf32.f32` does (ties away from zero).
`tf32_truncated` is what a tensor core makes of a float32 that nobody rounded: it drops the lower 13 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import UnknownName

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """A number format.

    name: as users write it. bits: storage size. storage: the NumPy type that holds it on the host.
    cuda: its C++ type in emitted CUDA. unit_roundoff: half the distance from 1 to the next number (0 for integers).
    """

    name: str
    bits: int
    storage: str
    cuda: str
    unit_roundoff: float = 0.0
    is_float: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Formats are compared by identity, in every process."""
        return dtype, (self.name,)

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.storage)

    def decode(self, stored: Array) -> Array:
        """Stored values as the NumPy float (or integer) that holds them exactly; bf16 becomes float32."""
        if self is not BF16:
            return stored
        bits = np.asarray(stored, dtype=np.uint32) << np.uint32(16)
        return bits.view(np.float32)

    def encode(self, values: Array) -> Array:
        """Values rounded to this format (nearest, ties to even), in its storage type.

        >>> F16.encode(np.float32([1.0, 65504.0])).dtype, BF16.encode(np.float32([1.0])).tolist()
        (dtype('float16'), [16256])
        """
        if self is TF32:
            return _nearest_tf32(np.asarray(values, dtype=np.float32))
        if self is TF32_TRUNCATED:
            return truncated_tf32(np.asarray(values, dtype=np.float32))
        if self is not BF16:
            with np.errstate(over="ignore"):
                return np.asarray(values).astype(self.numpy)
        # Round the float32 bits half to even into the upper 16; a NaN must stay a NaN.
        bits = np.asarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        return np.where(is_nan, np.uint32(0x7FFF), rounded).astype(np.uint16)

    def __repr__(self) -> str:
        return self.name


F32 = DType("f32", 32, "float32", "float", 2.0**-24)
F16 = DType("f16", 16, "float16", "half_bits", 2.0**-11)
BF16 = DType("bf16", 16, "uint16", "bf16_bits", 2.0**-8)
TF32 = DType("tf32", 32, "float32", "float", 2.0**-11)
TF32_TRUNCATED = DType("tf32_truncated", 32, "float32", "float", 2.0**-10)
F64 = DType("f64", 64, "float64", "double", 2.0**-53)
I32 = DType("i32", 32, "int32", "int", is_float=False)
I64 = DType("i64", 64, "int64", "long long", is_float=False)
MBARRIER = DType("mbarrier", 64, "uint64", "unsigned long long", is_float=False)
BOOL = DType("bool", 8, "bool", "bool", is_float=False)

ALL = (F32, F16, BF16, TF32, TF32_TRUNCATED, F64, I32, I64, MBARRIER, BOOL)
OPERAND_DTYPES = (F32, F16, BF16)
TF32_FORMATS = (TF32, TF32_TRUNCATED)
"""What f32 operands become on tensor cores: rounded by a conversion, or cut off by the multiplier itself."""
_BY_NAME = {dtype.name: dtype for dtype in ALL}


_TF32_DROPPED = np.uint32((1 << 13) - 1)
"""The bits of a float32 that tf32 lacks."""


def truncated_tf32(values: Array) -> Array:
    """float32 values as a tensor core reads them: the lower 13 bits are ignored.

    Also those of a NaN, which becomes an infinity if it has no others (measured: H200, 0x7f800001).

    >>> float(truncated_tf32(np.float32([1 + 2.0**-10 + 2.0**-11]))[0]) == 1 + 2.0**-10
    True
    """
    return (np.asarray(values, np.float32).view(np.uint32) & ~_TF32_DROPPED).view(np.float32)


def _nearest_tf32(values: Array) -> Array:
    """float32 values rounded to tf32, ties away from zero; infinities and NaN stay."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(1 << 12)) & ~_TF32_DROPPED
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)


def dtype(name: str | DType) -> DType:
    """The number format called `name`.

    >>> dtype("f16").unit_roundoff == 2.0**-11
    True
    """
    if isinstance(name, DType):
        return name
    if name not in _BY_NAME:
        raise UnknownName("dtype", name, [known.name for known in OPERAND_DTYPES])
    return _BY_NAME[name]
