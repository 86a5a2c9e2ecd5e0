"""A copy of a matrix the other way round: what lay side by side is rows apart, in rows that begin at multiples of 16
bytes; longer and more of them where the copy is larger, with zeros. wgmma reads elements of 4 bytes only where k is
side by side.

Tiles of 64 x 64 go through shared memory, so that reads and writes both run along rows; a column more in each row of a
tile keeps the elements of its columns in different banks. A thread has 16 loads under way.
"""

from __future__ import annotations

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import DType
from tilewright.ir.kernel import MOST_ALONG_Z
from tilewright.planning.passes.pad import KINDS, MATRIX
from tilewright.planning.passes.texts import prelude, source
from tilewright.units import ceil_div

THREADS = 256
TILE = 64


def turn_grid(lines: int, length: int) -> tuple[int, int, int]:
    """Blocks for a copy of so many lines of some length: its lines in tiles along x, their pieces along y; blocks go on
    to further pieces."""
    return ceil_div(lines, TILE), min(ceil_div(length, TILE), MOST_ALONG_Z), 1


def turn_source(dtype: DType) -> CudaSource:
    """The kernel for a number format; arguments as of `pad_source`. lines, length: of the source."""
    kinds = (dtype, dtype, *KINDS)
    parameters = [
        Parameter(name, kind, is_pointer=place < 2)
        for place, (name, kind) in enumerate(zip(MATRIX, kinds, strict=True))
    ]
    rows = THREADS // TILE
    body = f"""\
    __shared__ {dtype.cuda} tile[{TILE}][{TILE + 1}];  // (line, column)
    source += blockIdx.z * source_step;
    target += blockIdx.z * target_step;
    const int x = int(threadIdx.x) % {TILE}, y = int(threadIdx.x) / {TILE};
    const int column = int(blockIdx.x) * {TILE};
    for (int line = int(blockIdx.y) * {TILE}; line < target_length; line += int(gridDim.y) * {TILE}) {{
        __syncthreads();  // the tile before is written
        #pragma unroll
        for (int i = y; i < {TILE}; i += {rows}) {{
            const bool there = line + i < lines && column + x < length;
            tile[i][x] = there ? source[(line + i) * leading + column + x] : {dtype.cuda}(0);
        }}
        __syncthreads();
        #pragma unroll
        for (int i = y; i < {TILE}; i += {rows}) {{
            if (line + x < target_length && column + i < target_lines) {{
                target[(column + i) * target_leading + line + x] = tile[x][i];
            }}
        }}
    }}
"""
    return source(
        f"turn_{dtype.name}",
        f"A matrix of {dtype.name} copied the other way round.",
        prelude(dtype),
        parameters,
        body,
        THREADS,
        "target",
    )
