"""How emitted CUDA holds each number format: its literals, its conversions, its vectors, its arithmetic.

One entry a format. A format without an entry, or an entry without what is asked for, raises `FormatError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.dtypes import BF16, BOOL, E4M3, E5M2, F16, F32, F64, I32, I64, MBARRIER, TF32, TF32_TRUNCATED, DType
from tilewright.errors import FormatError, LoweringError

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFormat:
    """A format in emitted text.

    literal: a number as a C++ expression. in_c: C++ itself converts and computes. fma: the function of a multiply-add.
    to_float, from_float: the functions of the prelude around a format that is held as bits, or that a float is rounded
    to. round_pair: the function that rounds two elements of a fragment.
    vectors: for each number of elements of one access, the function that views the first as the whole, and the type of
    that view. register: the constraint of inline PTX for a 32-bit register of sums ("f"), and how many elements it
    holds. snippets: the definitions of its type and its functions.
    """

    literal: Callable[[float], str]
    in_c: bool = False
    fma: str = ""
    to_float: str = ""
    from_float: str = ""
    round_pair: str = ""
    vectors: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    register: tuple[str, int] | None = None
    snippets: tuple[str, ...] = ()


def _bits_of(dtype: DType) -> Callable[[float], str]:
    def literal(value: float) -> str:
        bits = int.from_bytes(dtype.encode(np.array([value], np.float32)).tobytes(), "little")
        return f"{dtype.cuda}({bits:#0{2 + 2 * dtype.bytes}x})" if bits else "0"

    return literal


def _float(value: float) -> str:
    """The shortest decimal that reads back as the same number."""
    return _special(value) or f"{float(str(np.float32(value)))!r}f"


def _double(value: float) -> str:
    return _special(value) or repr(float(value))


def _special(value: float) -> str:
    if math.isfinite(value):
        return ""
    text = "__int_as_float(0x7fc00000)" if math.isnan(value) else "__int_as_float(0x7f800000)"
    return f"-{text}" if value < 0 else text


def _int(value: float) -> str:
    return f"{value}LL" if abs(value) > _INT_MAX else str(value)


_HALF_BITS = "typedef unsigned short half_bits;  // the bits of an f16: arithmetic is done in float"

_FMA_HALF = """\
// a * b + c in half precision, rounded once.
__device__ __forceinline__ half_bits fma_half(half_bits a, half_bits b, half_bits c) {
    half_bits d;
    asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(d) : "h"(a), "h"(b), "h"(c));
    return d;
}"""

_BF16_BITS = "typedef unsigned short bf16_bits;  // the bits of a bf16: arithmetic is done in float"

_FLOAT_FROM_HALF = """\
__device__ __forceinline__ float float_from_half(half_bits bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}"""

_HALF_FROM_FLOAT = """\
// The nearest f16, ties to even.
__device__ __forceinline__ half_bits half_from_float(float value) {
    half_bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}"""

_FLOAT_FROM_BF16 = """\
// A bf16 is the upper half of a float.
__device__ __forceinline__ float float_from_bf16(bf16_bits bits) {
    return __uint_as_float((unsigned)bits << 16);
}"""

_BF16_FROM_FLOAT = """\
// The nearest bf16, ties to even; every NaN becomes 0x7fff.
__device__ __forceinline__ bf16_bits bf16_from_float(float value) {
#if __CUDA_ARCH__ >= 800
    bf16_bits bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else  // no such instruction before sm_80
    const unsigned bits = __float_as_uint(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? 0x7fff : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
#endif
}"""

_E4M3_BITS = "typedef unsigned char e4m3_bits;  // the bits of an e4m3: arithmetic is done in float"

_FLOAT_FROM_E4M3 = """\
__device__ __forceinline__ float float_from_e4m3(e4m3_bits bits) {
    const unsigned magnitude = bits & 0x7fu, sign = (unsigned)(bits & 0x80u) << 24;
    if (magnitude == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
    return __uint_as_float(sign | magnitude << 20) * 0x1p120f;  // the biases of the exponents are 120 apart
}"""

_E4M3_FROM_FLOAT = """\
// The nearest e4m3, ties to even; at most 448 in magnitude. Every NaN becomes 0x7f.
__device__ __forceinline__ e4m3_bits e4m3_from_float(float value) {
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return (e4m3_bits)pair;
#else  // no such instruction before sm_89
    if (value != value) return 0x7f;
    const float size = fminf(fabsf(value), 448.0f);
    const unsigned bits = __float_as_uint(size), sign = __float_as_uint(value) >> 24 & 0x80u;
    if (size < 0x1p-6f) return sign | (unsigned)__float2int_rn(size * 512.0f);  // multiples of 2**-9
    return sign | ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
#endif
}"""

_E5M2_BITS = "typedef unsigned char e5m2_bits;  // the bits of an e5m2: arithmetic is done in float"

_FLOAT_FROM_E5M2 = """\
// An e5m2 is the upper half of an f16.
__device__ __forceinline__ float float_from_e5m2(e5m2_bits bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)(bits << 8)));
    return value;
}"""

_E5M2_FROM_FLOAT = """\
// The nearest e5m2, ties to even; at most 57344 in magnitude. Every NaN becomes 0x7f.
__device__ __forceinline__ e5m2_bits e5m2_from_float(float value) {
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return (e5m2_bits)pair;
#else  // no such instruction before sm_89
    if (value != value) return 0x7f;
    const float size = fminf(fabsf(value), 57344.0f);
    const unsigned bits = __float_as_uint(size), sign = __float_as_uint(value) >> 24 & 0x80u;
    if (size < 0x1p-14f) return sign | (unsigned)__float2int_rn(size * 65536.0f);  // multiples of 2**-16
    return sign | ((bits + 0xfffffu + (bits >> 21 & 1u)) >> 21) - (112u << 2);
#endif
}"""

_FLOAT_VECTORS = {2: ("as_float2", "float2"), 4: ("as_float4", "float4")}


def _held_as_bits(dtype: DType, name: str, times: str, snippets: tuple[str, ...]) -> CudaFormat:
    """times: what stands in the names of its vectors between its own and their width."""
    views = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
    widths = ((size_bytes // dtype.bytes, view) for size_bytes, view in views.items())
    return CudaFormat(
        literal=_bits_of(dtype),
        to_float=f"float_from_{name}",
        from_float=f"{name}_from_float",
        snippets=snippets,
        vectors={width: (f"as_{name}{times}{width}", view) for width, view in widths if width > 1},
    )


_FORMATS: dict[DType, CudaFormat] = {
    F32: CudaFormat(literal=_float, in_c=True, fma="fmaf", vectors=_FLOAT_VECTORS, register=("f", 1)),
    F64: CudaFormat(literal=_double, in_c=True, fma="fma"),
    F16: replace(
        _held_as_bits(F16, "half", "", (_HALF_BITS, _FMA_HALF, _FLOAT_FROM_HALF, _HALF_FROM_FLOAT)),
        fma="fma_half",
        register=("r", 2),
    ),
    BF16: _held_as_bits(BF16, "bf16", "x", (_BF16_BITS, _FLOAT_FROM_BF16, _BF16_FROM_FLOAT)),
    E4M3: _held_as_bits(E4M3, "e4m3", "x", (_E4M3_BITS, _FLOAT_FROM_E4M3, _E4M3_FROM_FLOAT)),
    E5M2: _held_as_bits(E5M2, "e5m2", "x", (_E5M2_BITS, _FLOAT_FROM_E5M2, _E5M2_FROM_FLOAT)),
    TF32: CudaFormat(literal=_float, from_float="tf32_from_float", round_pair="round_pair_to_tf32"),
    TF32_TRUNCATED: CudaFormat(literal=_float),
    I32: CudaFormat(literal=_int, in_c=True, vectors={4: ("as_int4", "int4")}),
    I64: CudaFormat(literal=lambda value: f"{value}LL", in_c=True),
    BOOL: CudaFormat(literal=lambda value: "true" if value else "false", in_c=True),
    MBARRIER: CudaFormat(literal=_int),
}

VECTORS = {(dtype, width): view for dtype, one in _FORMATS.items() for width, view in one.vectors.items()}


def cuda_format(dtype: DType) -> CudaFormat:
    """How emitted text holds a format. Raises FormatError."""
    if dtype not in _FORMATS:
        raise FormatError(
            f"Emitted CUDA does not hold {dtype}.", hint=f"formats that it holds are {', '.join(map(str, _FORMATS))}."
        )
    return _FORMATS[dtype]


def is_storage(dtype: DType) -> bool:
    """Whether registers of a format hold bits, of which a conversion makes a number."""
    return bool(cuda_format(dtype).to_float)


def conversion(source: DType, target: DType) -> str:
    """The function of the prelude that converts one number to another format; empty where a C++ cast does.

    One of the two is computed with in C++. Raises FormatError.
    """
    before, after = cuda_format(source), cuda_format(target)
    if before.to_float and target is F32:
        return before.to_float
    if source.cuda == target.cuda and target is F32:  # tf32 is held as a float
        return ""
    if after.from_float and before.in_c:
        return after.from_float
    if not (before.in_c and after.in_c):
        raise FormatError(f"Emitted CUDA does not convert {source} to {target}.", hint="cast to f32 first.")
    return ""


_STORAGE_TYPES = {8: "unsigned char", 16: "unsigned short"}
"""The C++ type behind that of a format that is held as bits, by the number of bits."""


def access_type(dtype: DType, width: int) -> str:
    """The C++ type of a whole access to `width` elements. Raises FormatError, or LoweringError for the width."""
    if width > 1:
        return vector(dtype, width)[1]
    if cuda_format(dtype).in_c:
        return dtype.cuda
    if dtype.bits not in _STORAGE_TYPES:
        raise FormatError(f"Emitted CUDA has no access to one element of {dtype}.", hint="use wider accesses.")
    return _STORAGE_TYPES[dtype.bits]


def vector(dtype: DType, width: int) -> tuple[str, str]:
    """The function and the type of an access to `width` consecutive elements."""
    known = cuda_format(dtype).vectors
    if width not in known:
        others = ", ".join(f"{w} x {d}" for d, w in VECTORS)
        raise LoweringError(f"There is no {width} x {dtype} memory access.", hint=f"accesses are {others}.")
    return known[width]


def sum_register(dtype: DType) -> tuple[str, int]:
    """How inline PTX takes sums: the constraint of a 32-bit register, and the elements in it. Raises FormatError."""
    found = cuda_format(dtype).register
    if found is None:
        raise FormatError(f"No matrix instruction in emitted CUDA keeps sums in {dtype}.")
    return found


def _as_vector(dtype: DType, width: int) -> str:
    name, view = cuda_format(dtype).vectors[width]
    element = dtype.cuda
    return (
        f"// {width} consecutive {dtype} from `first` on, as one {width * dtype.bytes}-byte access.\n"
        f"__device__ __forceinline__ {view}& {name}({element}& first) {{\n"
        f"    return reinterpret_cast<{view}&>(first);\n"
        "}\n"
        f"__device__ __forceinline__ const {view}& {name}(const {element}& first) {{\n"
        f"    return reinterpret_cast<const {view}&>(first);\n"
        "}"
    )


def format_prelude() -> tuple[str, ...]:
    """Every snippet of every format, in the order of printing."""
    defined = (text for one in _FORMATS.values() for text in one.snippets)
    return (*defined, *(_as_vector(dtype, width) for dtype, width in VECTORS))
