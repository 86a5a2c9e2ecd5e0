"""Few rows times a long matrix: as fast as the long matrix can be read.

    out[r, j] = alpha * sum_k short[r, k] * long[k, j] + beta * out[r, j],   r < rows <= 16

The long matrix is read once, 16 bytes a lane, several loads in flight; the few rows lie in shared memory as f32. Here
are the texts for up to four rows, in `thin_rows` those for more.

*Across* (neighbours of j side by side): a warp takes 32 vectors of one k, the eight warps of a block take turns at k
and add their sums up in a fixed order. *Along* (neighbours of k side by side): a warp takes four columns, its lanes
neighbouring k, and their sums are added by shuffles. Blocks along y share out k; their sums go to parts that a later
kernel adds in order. No order depends on what runs first. Blocks along z have a product of a stack each.
"""

from __future__ import annotations

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import BF16, F32, I32, I64, DType
from tilewright.planning.passes import thin_rows
from tilewright.planning.passes.texts import from_float, prelude, source, to_float

THREADS = 256
WARPS = 8

MANY_ROWS = 8
"""From so many rows on the kernel is that of `thin_rows`, which is for f32."""

_COLUMNS_ALONG = 4

CHUNK_FLOATS = 4096
"""Floats of the few rows in shared memory at once: 16 KiB."""


def columns_along(rows: int) -> int:
    """Columns of a warp where k is side by side."""
    return thin_rows.COLUMNS_ALONG if rows >= MANY_ROWS else _COLUMNS_ALONG


def thin_source(dtype: DType, out: DType, *, rows: int, width: int, across: bool) -> CudaSource:
    """The kernel for so many rows (1, 2, 4, 8 or 16); width: elements of the long matrix that a lane loads at once."""
    parameters = [
        Parameter("short_rows", dtype, is_pointer=True),
        Parameter("long_matrix", dtype, is_pointer=True),
        Parameter("out", out, is_pointer=True),
        *(Parameter(name, I32) for name in ("rows", "columns", "K", "part_of_k")),
        *(Parameter(name, I64) for name in ("short_row", "short_k", "leading", "out_row", "out_column", "out_part")),
        *(Parameter(name, I64) for name in ("short_step", "long_step", "out_step")),
        Parameter("alpha", F32),
        Parameter("beta", F32),
    ]
    kind = "across" if across else "along"
    many = rows >= MANY_ROWS
    assert dtype is F32 or not many
    if many:
        text = thin_rows.ACROSS if across else thin_rows.ALONG
        definitions = thin_rows.definitions(rows, width, across)
    else:
        text = _ACROSS if across else _ALONG
        constants = {"ROWS": rows, "WIDTH": width, "CHUNK": CHUNK_FLOATS // rows, "COLUMNS": _COLUMNS_ALONG}
        definitions = "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items())
    bits = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short"}[width * dtype.bytes]
    body = (
        text.replace("@OWN", _OWN)
        .replace("@ELEMENT", dtype.cuda)
        .replace("@BITS", bits)
        .replace("@FROM_SHORT", to_float(dtype, "short_rows[r * short_row + k * short_k]"))
        .replace("@UNPACK", _unpack(dtype, width))
        .replace("@TURNS", str(max(1, 4 // rows)))
        .replace("@OLD", to_float(out, "*place"))
        .replace("@NEW", from_float(out, "value"))
    )
    return source(
        f"thin_{kind}_{dtype.name}_{out.name}_{rows}_{width}",
        f"Up to {rows} rows of {dtype.name} times a long matrix, whose neighbours along {'j' if across else 'k'} lie "
        "side by side.",
        prelude(dtype, out) + definitions + "\n",
        parameters,
        body,
        THREADS,
        "out",
        blocks_per_sm=thin_rows.BLOCKS_PER_SM if many else 0,
        early=False,
    )


def _unpack(dtype: DType, width: int) -> str:
    """Statements that turn `bits` into `value[WIDTH]`."""
    words = ["bits"] if width * dtype.bytes <= 4 else [f"bits.{axis}" for axis in "xyzw"][: width * dtype.bytes // 4]
    lines = []
    for number, word in enumerate(words):
        if dtype is F32:
            lines.append(f"value[{number}] = __uint_as_float({word});")
        elif width == 1:
            lines.append(f"value[0] = {to_float(dtype, word)};")
        elif dtype is BF16:
            lines.append(f"value[{2 * number}] = __uint_as_float({word} << 16);")
            lines.append(f"value[{2 * number + 1}] = __uint_as_float({word} & 0xffff0000u);")
        else:
            lines.append(f"value[{2 * number}] = {to_float(dtype, f'half_bits({word} & 0xffffu)')};")
            lines.append(f"value[{2 * number + 1}] = {to_float(dtype, f'half_bits({word} >> 16)')};")
    return " ".join(lines)


_OWN = """\
    // Each block along z has a product of its own.
    short_rows += blockIdx.z * short_step;
    long_matrix += blockIdx.z * long_step;
    out += blockIdx.z * out_step;
"""

_ACROSS = """\
@OWN    __shared__ __align__(16) float few[CHUNK * ROWS];  // (k, r), later the sums of the warps
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int column = (int(blockIdx.x) * 32 + lane) * WIDTH;
    const bool inside = column < columns;
    const int first = int(blockIdx.y) * part_of_k, last = min(first + part_of_k, K);
    float sum[ROWS][WIDTH];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[r][i] = 0.0f;
    }
    constexpr int AHEAD = 8;  // loads in flight
    for (int start = first; start < last; start += CHUNK) {
        const int count = min(CHUNK, last - start);
        __syncthreads();
        for (int i = int(threadIdx.x); i < CHUNK * ROWS; i += 256) {
            // Whichever of the two is side by side in memory is read side by side.
            const int r = short_k == 1 ? i / CHUNK : i % ROWS, k_in = short_k == 1 ? i % CHUNK : i / ROWS;
            const long long k = start + k_in;
            few[k_in * ROWS + r] = r < rows && k_in < count ? @FROM_SHORT : 0.0f;
        }
        __syncthreads();
        if (!inside) continue;
        const @ELEMENT* from = long_matrix + (long long)start * leading + column;
        int k_in = warp;
        for (; k_in + 8 * (AHEAD - 1) < count; k_in += 8 * AHEAD) {
            @BITS loaded[AHEAD];
            #pragma unroll
            for (int i = 0; i < AHEAD; ++i) loaded[i] = __ldcs((const @BITS*)(from + (k_in + 8 * i) * leading));
            #pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const @BITS bits = loaded[i];
                float value[WIDTH];
                @UNPACK
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const float factor = few[(k_in + 8 * i) * ROWS + r];
                    #pragma unroll
                    for (int j = 0; j < WIDTH; ++j) sum[r][j] = fmaf(factor, value[j], sum[r][j]);
                }
            }
        }
        for (; k_in < count; k_in += 8) {
            const @BITS bits = __ldcs((const @BITS*)(from + k_in * leading));
            float value[WIDTH];
            @UNPACK
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                #pragma unroll
                for (int j = 0; j < WIDTH; ++j) sum[r][j] = fmaf(few[k_in * ROWS + r], value[j], sum[r][j]);
            }
        }
    }
    // The warps' sums, one row at a time, added in the order of the warps.
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) few[(warp * WIDTH + j) * 32 + lane] = sum[r][j];
        __syncthreads();
        for (int i = int(threadIdx.x); i < 32 * WIDTH; i += 256) {
            const int at = (int(blockIdx.x) * 32 + i % 32) * WIDTH + i / 32;
            if (r < rows && at < columns) {
                float total = 0.0f;
                #pragma unroll
                for (int w = 0; w < 8; ++w) total += few[(w * WIDTH + i / 32) * 32 + i % 32];
                auto* place = out + blockIdx.y * out_part + r * out_row + at * out_column;
                float value = alpha * total;
                if (beta != 0.0f) value = fmaf(beta, @OLD, value);
                *place = @NEW;
            }
        }
    }
"""

_ALONG = """\
@OWN    __shared__ __align__(16) float few[CHUNK * ROWS];  // (r, k)
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int column = (int(blockIdx.x) * 8 + warp) * COLUMNS;
    const int first = int(blockIdx.y) * part_of_k, last = min(first + part_of_k, K);
    float sum[ROWS][COLUMNS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (int j = 0; j < COLUMNS; ++j) sum[r][j] = 0.0f;
    }
    for (int start = first; start < last; start += CHUNK) {
        const int count = min(CHUNK, last - start);
        __syncthreads();
        for (int i = int(threadIdx.x); i < CHUNK * ROWS; i += 256) {
            const int r = short_k == 1 ? i / CHUNK : i % ROWS, k_in = short_k == 1 ? i % CHUNK : i / ROWS;
            const long long k = start + k_in;
            few[r * CHUNK + k_in] = r < rows && k_in < count ? @FROM_SHORT : 0.0f;
        }
        __syncthreads();
        #pragma unroll @TURNS
        for (int k_in = lane * WIDTH; k_in < count; k_in += 32 * WIDTH) {
            @BITS loaded[COLUMNS];
            #pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const long long at = min(column + j, columns - 1);
                loaded[j] = __ldcs((const @BITS*)(long_matrix + at * leading + start + k_in));
            }
            float factor[ROWS][WIDTH];
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                #pragma unroll
                for (int i = 0; i < WIDTH; ++i) factor[r][i] = few[r * CHUNK + k_in + i];
            }
            #pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const @BITS bits = loaded[j];
                float value[WIDTH];
                @UNPACK
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    #pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sum[r][j] = fmaf(factor[r][i], value[i], sum[r][j]);
                }
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            float total = sum[r][j];
            #pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
            if (lane == 0 && r < rows && column + j < columns) {
                auto* place = out + blockIdx.y * out_part + r * out_row + (column + j) * out_column;
                float value = alpha * total;
                if (beta != 0.0f) value = fmaf(beta, @OLD, value);
                *place = @NEW;
            }
        }
    }
"""
