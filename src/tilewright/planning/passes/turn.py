"""A copy of a matrix the other way round: what lay side by side is rows apart, in rows that begin at multiples of 16
bytes, and go on to there with zeros. wgmma reads elements of 4 bytes only where k is side by side.

Tiles of 32 x 32 go through shared memory, so that reads and writes both run along rows; a column more in each row of a
tile keeps the 32 elements of its columns in 32 banks.
"""

from __future__ import annotations

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import I32, I64, DType
from tilewright.ir.kernel import MOST_ALONG_Z
from tilewright.planning.passes.pad import CHUNK_BYTES
from tilewright.planning.passes.texts import prelude, source
from tilewright.units import ceil_div

THREADS = 256
TILE = 32


def turn_grid(lines: int, length: int) -> tuple[int, int, int]:
    """Blocks for a matrix: tiles of each row along x, rows of tiles along y; blocks go on to further rows."""
    return ceil_div(length, TILE), min(ceil_div(lines, TILE), MOST_ALONG_Z), 1


def turn_source(dtype: DType) -> CudaSource:
    """The kernel for a number format; arguments as of `pad_source`. lines, length: of the source."""
    parameters = [
        Parameter("source", dtype, is_pointer=True),
        Parameter("target", dtype, is_pointer=True),
        Parameter("lines", I32),
        Parameter("length", I32),
        *(Parameter(name, I64) for name in ("leading", "target_leading", "source_step", "target_step")),
    ]
    rows, pieces = THREADS // TILE, CHUNK_BYTES // dtype.bytes
    body = f"""\
    __shared__ {dtype.cuda} tile[{TILE}][{TILE + 1}];  // (line, column)
    source += blockIdx.z * source_step;
    target += blockIdx.z * target_step;
    const int x = int(threadIdx.x) % {TILE}, y = int(threadIdx.x) / {TILE};
    const int column = int(blockIdx.x) * {TILE};
    const int whole = (lines + {pieces - 1}) / {pieces} * {pieces};  // rows of the copy end with zeros
    for (int line = int(blockIdx.y) * {TILE}; line < lines; line += int(gridDim.y) * {TILE}) {{
        __syncthreads();  // the tile before is written
        #pragma unroll
        for (int i = y; i < {TILE}; i += {rows}) {{
            if (column + x < length) {{
                tile[i][x] = line + i < lines ? source[(line + i) * leading + column + x] : {dtype.cuda}(0);
            }}
        }}
        __syncthreads();
        #pragma unroll
        for (int i = y; i < {TILE}; i += {rows}) {{
            if (line + x < whole && column + i < length) {{
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
