"""Functions that make numbers of words of codes, as they are printed in front of a kernel that uses them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import BF16, F16, DType
from tilewright.problem.weight_codes import E4M3_CODES, INT4, Codes, unpacked_exponent


def unpack_name(codes: Codes, dtype: DType) -> str:
    """The function that unpacks eight codes.

    >>> unpack_name(INT4, BF16)
    'unpack_int4_to_bf16'
    """
    return f"unpack_{codes}_to_{dtype}"


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A format of numbers, two in a word: its name in PTX, and numbers of it as the bits of both halves. lowest, next:
    what the lowest nibble of a half, as a subnormal number, and the one above are multiplied by; minus: the 8 of a
    stored code after that. dropped: the bits by which the exponent of an e4m3 stands lower than in this format; rebias:
    what its numbers are then multiplied by."""

    ptx: str
    lowest: int
    next: int
    minus: int
    dropped: int
    rebias: int


_PAIRS: dict[DType, _Pairs] = {
    # 2**127, 2**123, -8 * 2**-6; 2**120
    BF16: _Pairs("bf16x2", 0x7F007F00, 0x7D007D00, 0xBE00BE00, 4, 0x7B807B80),
    # 2**15, 2**11, -8 * 2**-9; 2**8
    F16: _Pairs("f16x2", 0x78007800, 0x68006800, 0xA400A400, 1, 0x5C005C00),
}


def _head(codes: Codes, dtype: DType, words: int) -> str:
    return (
        f"__device__ __forceinline__ void {unpack_name(codes, dtype)}(void* numbers, const int* words) {{\n"
        f"    const unsigned bits[{words}] = {{{', '.join(f'(unsigned)words[{i}]' for i in range(words))}}};\n"
        "    unsigned pairs[4];\n"
        "#pragma unroll\n"
    )


def _fma(pairs: _Pairs, factor: str, addend: int) -> str:
    return (
        f'        asm("fma.rn.{pairs.ptx} %0, %1, %2, %3;"\n'
        f'            : "=r"(pairs[i]) : "r"(pair), "r"({factor}), "r"({addend:#x}u));\n'
        "    }\n    memcpy(numbers, pairs, 16);\n}"
    )


def _unpack_int4(dtype: DType) -> str:
    pairs = _PAIRS[dtype]
    return (
        f"// Eight 4-bit codes, stored plus 8, times two to the power {unpacked_exponent(INT4, dtype)}: a nibble is a "
        "subnormal number.\n"
        + _head(INT4, dtype, 1)
        + "    for (int i = 0; i < 4; ++i) {\n"
        + "        const unsigned pair = bits[0] >> 8 * (i / 2) & (i % 2 ? 0x00f000f0u : 0x000f000fu);\n"
        + _fma(pairs, f"i % 2 ? {pairs.next:#x}u : {pairs.lowest:#x}u", pairs.minus)
    )


def _unpack_e4m3(dtype: DType) -> str:
    pairs = _PAIRS[dtype]
    return (
        "// Eight e4m3 codes: moved under the exponent of the wider format, times the ratio of the biases.\n"
        + _head(E4M3_CODES, dtype, 2)
        + "    for (int i = 0; i < 4; ++i) {\n"
        + "        const unsigned two = i % 2 ? bits[i / 2] : bits[i / 2] << 8;\n"
        + f"        const unsigned pair = (two & 0x80008000u) | (two & 0x7f007f00u) >> {pairs.dropped};\n"
        + _fma(pairs, f"{pairs.rebias:#x}u", 0x80008000)
    )


def unpack_prelude() -> tuple[str, ...]:
    """Every snippet."""
    return tuple(text(dtype) for text in (_unpack_int4, _unpack_e4m3) for dtype in _PAIRS)
