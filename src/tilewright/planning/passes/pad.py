"""A copy of a matrix to rows that begin at multiples of 16 bytes, which is what the copy engine takes.

Rows may begin anywhere, so words are read at multiples of 4 bytes and shifted into place; eight or four elements are
written at once. The copy may be longer and have more rows than its source: what is missing there is zero, so that a
kernel may read whole vectors, or whole tiles. What lies between its rows is not written: nobody reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import I32, I64, DType
from tilewright.layout.banks import LINE_BYTES
from tilewright.planning.passes.texts import prelude, source
from tilewright.units import ceil_div, round_up

THREADS = 256
CHUNK_BYTES = 16


_LONG_BYTES = 1024
"""From this length on, rows of the copy begin at whole lines of the L2: at most an eighth more memory. Measured on the
H200: 4095 x 4097 x 4093 in bf16, where rows of B are copied to 8208 bytes apart, 267 us for the product; to whole
lines, 252 (benchmarks/results/plans_h200.json)."""


def padded(length: int, dtype: DType) -> int:
    """Elements from row to row of the copy."""
    each = LINE_BYTES if length * dtype.bytes >= _LONG_BYTES else CHUNK_BYTES
    return round_up(max(length, 1), each // dtype.bytes)


def padded_bytes(lines: int, length: int, dtype: DType) -> int:
    """The size of the copy, rounded up to 256 bytes."""
    return round_up(lines * padded(length, dtype) * dtype.bytes, 256)


LINES = 4
"""Rows that a thread copies a piece of at once: so many loads are under way."""


def pad_grid(sizes: Sequence[tuple[int, int]], dtype: DType) -> tuple[int, int, int]:
    """Blocks for copies of so many lines of some length: rows in pieces along x, rows along y, matrices along z;
    blocks go on to further rows."""
    chunks = max(ceil_div(length * dtype.bytes, CHUNK_BYTES) for _, length in sizes)
    lines = max(lines for lines, _ in sizes)
    return ceil_div(chunks, THREADS), min(ceil_div(lines, LINES), 65535), len(sizes)


MATRIX = (
    *("source", "target", "lines", "length", "target_lines", "target_length"),
    *("leading", "target_leading", "source_step", "target_step"),
)
"""What the kernels that copy are told of a matrix and of its copy, which has as many lines and elements of a line or
more (a line, whole pieces); the steps are from one to the next of a stack."""

KINDS: tuple[DType, ...] = (*(I32,) * 4, *(I64,) * 4)
"""Formats of the numbers in `MATRIX`."""


def whole_pieces(length: int, dtype: DType) -> int:
    """Elements of a line of a copy, filled up to pieces of 16 bytes."""
    return round_up(max(length, 1), CHUNK_BYTES // dtype.bytes)


def pad_source(dtype: DType, matrices: int = 1) -> CudaSource:
    """The kernel for a number format, that copies one matrix or two: `MATRIX` of each. Blocks along z have a matrix
    each, of a stack the first ones of all, then the second ones."""
    kinds = (dtype, dtype, *KINDS)
    parameters = [
        Parameter(f"{name}{number}", kind, is_pointer=place < 2)
        for number in ("", "2")[:matrices]
        for place, (name, kind) in enumerate(zip(MATRIX, kinds, strict=True))
    ]
    elements = CHUNK_BYTES // dtype.bytes
    if dtype.bytes == 4:
        read = f"""\
            #pragma unroll
            for (int j = 0; j < {elements}; ++j) {{
                word[i][j] = there && first + j < length ? __float_as_uint(row[first + j]) : 0u;
            }}
"""
    else:
        read = f"""\
            const {dtype.cuda}* from = row + first;
            const bool odd = ((unsigned long long)from & 2) != 0;
            const unsigned* words = (const unsigned*)((unsigned long long)from & ~3ull);
            const int left = there ? (length - first) * 2 + (odd ? 2 : 0) : 0;  // bytes from `words` to the row's end
            unsigned raw[5];
            #pragma unroll
            for (int j = 0; j < 5; ++j) {{
                raw[j] = 4 * j < left ? words[j] & (left - 4 * j == 2 ? 0xffffu : ~0u) : 0u;
            }}
            #pragma unroll
            for (int j = 0; j < 4; ++j) {{
                word[i][j] = odd ? __funnelshift_r(raw[j], raw[j + 1], 16) : raw[j];
            }}
"""
    body = f"""\
{_SECOND if matrices == 2 else _FIRST}    source += number * source_step;
    target += number * target_step;
    const int first = (int(blockIdx.x) * {THREADS} + int(threadIdx.x)) * {elements};
    if (first >= target_length) {{
        return;
    }}
    for (int line = int(blockIdx.y) * {LINES}; line < target_lines; line += int(gridDim.y) * {LINES}) {{
        unsigned word[{LINES}][4];
        #pragma unroll
        for (int i = 0; i < {LINES}; ++i) {{
            const bool there = line + i < lines;
            const {dtype.cuda}* row = source + (long long)(line + i) * leading;
{read}        }}
        #pragma unroll
        for (int i = 0; i < {LINES}; ++i) {{
            if (line + i < target_lines) {{
                *(uint4*)(target + (long long)(line + i) * target_leading + first) =
                    make_uint4(word[i][0], word[i][1], word[i][2], word[i][3]);
            }}
        }}
    }}
"""
    return source(
        f"pad_{dtype.name}" + ("_both" if matrices == 2 else ""),
        f"Rows of {dtype.name} copied to rows that begin at multiples of {CHUNK_BYTES} bytes.",
        prelude(dtype),
        parameters,
        body,
        THREADS,
        "target",
    )


_FIRST = "    const long long number = blockIdx.z;\n"

_SECOND = f"""\
    const bool second = blockIdx.z >= gridDim.z / 2;
    const long long number = second ? blockIdx.z - gridDim.z / 2 : blockIdx.z;
    if (second) {{
        {" ".join(f"{name} = {name}2;" for name in MATRIX)}
    }}
"""
