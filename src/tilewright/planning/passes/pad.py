"""A copy of a matrix to rows that begin at multiples of 16 bytes, which is what the copy engine takes.

Rows may begin anywhere, so words are read at multiples of 4 bytes and shifted into place; eight or four elements are
written at once. What lies between the rows of the copy is not written: nobody reads it.
"""

from __future__ import annotations

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import I32, I64, DType
from tilewright.planning.passes.texts import prelude, source
from tilewright.units import ceil_div, round_up

THREADS = 256
CHUNK_BYTES = 16


def padded(length: int, dtype: DType) -> int:
    """Elements from row to row of the copy."""
    return round_up(max(length, 1), CHUNK_BYTES // dtype.bytes)


def padded_bytes(lines: int, length: int, dtype: DType) -> int:
    """The size of the copy, rounded up to 256 bytes."""
    return round_up(lines * padded(length, dtype) * dtype.bytes, 256)


def pad_grid(lines: int, length: int, dtype: DType) -> tuple[int, int, int]:
    """Blocks for a matrix: each row in pieces along x, rows along y; blocks go on to further rows."""
    chunks = ceil_div(length * dtype.bytes, CHUNK_BYTES)
    return ceil_div(chunks, THREADS), min(lines, 65535), 1


def pad_source(dtype: DType) -> CudaSource:
    """The kernel for a number format: arguments source, target, lines, length, leading, target_leading; and the steps
    from matrix to matrix of a stack, one for each block along z."""
    parameters = [
        Parameter("source", dtype, is_pointer=True),
        Parameter("target", dtype, is_pointer=True),
        Parameter("lines", I32),
        Parameter("length", I32),
        Parameter("leading", I64),
        Parameter("target_leading", I64),
        Parameter("source_step", I64),
        Parameter("target_step", I64),
    ]
    elements = CHUNK_BYTES // dtype.bytes
    if dtype.bytes == 4:
        read = f"""\
        #pragma unroll
        for (int i = 0; i < {elements}; ++i) {{
            word[i] = first + i < length ? __float_as_uint(row[first + i]) : 0u;
        }}
"""
    else:
        read = f"""\
        const {dtype.cuda}* from = row + first;
        const bool odd = ((unsigned long long)from & 2) != 0;
        const unsigned* words = (const unsigned*)((unsigned long long)from & ~3ull);
        const int left = (length - first) * 2 + (odd ? 2 : 0);  // bytes from `words` to the end of the row
        unsigned raw[5];
        #pragma unroll
        for (int i = 0; i < 5; ++i) {{
            raw[i] = 4 * i < left ? __ldg(words + i) : 0u;
        }}
        #pragma unroll
        for (int i = 0; i < 4; ++i) {{
            word[i] = odd ? __funnelshift_r(raw[i], raw[i + 1], 16) : raw[i];
        }}
"""
    body = f"""\
    source += blockIdx.z * source_step;
    target += blockIdx.z * target_step;
    const int first = (int(blockIdx.x) * {THREADS} + int(threadIdx.x)) * {elements};
    if (first >= length) {{
        return;
    }}
    for (int line = int(blockIdx.y); line < lines; line += int(gridDim.y)) {{
        const {dtype.cuda}* row = source + (long long)line * leading;
        unsigned word[4];
{read}        *(uint4*)(target + (long long)line * target_leading + first) =
            make_uint4(word[0], word[1], word[2], word[3]);
    }}
"""
    return source(
        f"pad_{dtype.name}",
        f"Rows of {dtype.name} copied to rows that begin at multiples of {CHUNK_BYTES} bytes.",
        prelude(dtype),
        parameters,
        body,
        THREADS,
        "target",
    )
