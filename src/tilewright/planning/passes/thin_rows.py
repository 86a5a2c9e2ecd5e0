"""The thin kernel for 8 and 16 rows of f32, whose products take nearly as long as reading the long matrix.

Nothing may stop the loads of the long matrix: a lane has a ring of them in flight, each refilled as soon as it is used,
across all barriers; and the few rows come a chunk of k ahead, by cp.async where there is one. Each 16 bytes of the few
rows that a lane loads from shared memory serve 16 of its products.

*Across* (neighbours of j side by side): the warps of a block take turns at k, and their sums are added in their order.
*Along* (neighbours of k side by side): a warp takes eight columns. Lanes 2 i and 2 i + 1 take the same k of four
columns each, since equal loads of such neighbours merge, and the sums of the lanes are added by shuffles.
"""

from __future__ import annotations

from tilewright.codegen.prelude import prelude_text

BLOCKS_PER_SM = 2
"""Blocks that an SM shall run: the compiler gives a thread no more registers than that."""

COLUMNS_ALONG = 8
"""Columns of a warp where k is side by side, half of them for each of two neighbouring lanes."""

_CHUNK = 256
"""Values of k of which the few rows are in shared memory at once, twice over: one a thread."""

_PAD = 4
"""Floats behind each line of the few rows: lines begin at 16 bytes, neighbouring ones in other banks."""

_FLIGHT_ACROSS, _FLIGHT_ALONG = 8, 2
"""Loads of a lane in flight, along for each of its columns. 512 threads x 8 x 16 bytes are 64 KiB an SM; bandwidth
times latency of an H200 is 22 to 32 KiB."""


def definitions(rows: int, width: int, across: bool) -> str:
    """What stands in front of the kernel: the few rows lie (k, r) for across, (r, k) for along."""
    line = (rows if across else _CHUNK) + _PAD
    constants = {
        "ROWS": rows,
        "WIDTH": width,
        "CHUNK": _CHUNK,
        "COLUMNS": COLUMNS_ALONG // 2,
        "FLIGHT": _FLIGHT_ACROSS if across else _FLIGHT_ALONG,
        "LINE": line,
        "FEW": line * (_CHUNK if across else rows),
    }
    numbers = "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items())
    place = "k_in * LINE + r" if across else "r * LINE + k_in"
    return prelude_text(("copy_async_4", "commit_copies", "wait_copies")) + numbers + _STAGE.replace("@PLACE", place)


_STAGE = """
// Starts the copy of a chunk of the few rows; zeros stand for what lies outside.
__device__ __forceinline__ void stage(float* to, const float* from, long long short_row, long long short_k, int start,
                                      int last, int rows) {
    // Whichever of the two is side by side in memory is read side by side.
    const bool rows_first = short_k != 1;
    constexpr int SPAN = CHUNK / ROWS;
    int r = rows_first ? int(threadIdx.x) % ROWS : 0, k_in = rows_first ? int(threadIdx.x) / ROWS : int(threadIdx.x);
    const float* place = from + r * short_row + (start + k_in) * short_k;
    const long long step = rows_first ? SPAN * short_k : short_row;
    #pragma unroll 2
    for (int i = 0; i < ROWS; ++i) {
        const bool inside = r < rows && start + k_in < last;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
        copy_async_4(to + @PLACE, inside ? place : from, inside ? 4 : 0);
#else
        to[@PLACE] = inside ? *place : 0.0f;
#endif
        r += rows_first ? 0 : 1;
        k_in += rows_first ? SPAN : 0;
        place += step;
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    commit_copies();
#endif
}

// Waits until the chunks that this thread started to copy are there.
__device__ __forceinline__ void wait_for_chunk() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    wait_copies<0>();
#endif
}

"""

_EACH_CHUNK = """\
    int number = 0;
    for (int start = first; start < last; start += CHUNK, ++number) {
        wait_for_chunk();
        __syncthreads();  // this chunk is there, and the other one is used up
        if (start + CHUNK < last)
            stage(few[(number + 1) % 2], short_rows, short_row, short_k, start + CHUNK, last, rows);
        const int count = min(CHUNK, last - start);
"""
"""The loop over k, a chunk of the few rows at a time; what is done with one follows, and closes the loop."""

ACROSS = (
    """\
@OWN    __shared__ __align__(16) float few[2][FEW];  // (k, r) of two chunks, later the sums of the warps
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int column = (int(blockIdx.x) * 32 + lane) * WIDTH;
    const int first = int(blockIdx.y) * part_of_k, last = min(first + part_of_k, K);
    stage(few[0], short_rows, short_row, short_k, first, last, rows);
    float sum[ROWS][WIDTH];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum[r][j] = 0.0f;
    }
    // The ring: the next values of k of this warp, zeros outside.
    const int end = column < columns ? last : first;
    int k_load = first + warp;
    const float* from = long_matrix + k_load * leading + column;
    @BITS ring[FLIGHT];
    #pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
        ring[i] = k_load < end ? __ldcs((const @BITS*)from) : @BITS{};
        k_load += 8;
        from += 8 * leading;
    }
"""
    + _EACH_CHUNK
    + """\
        const float* factors = few[number % 2] + warp * LINE;
        #pragma unroll 1
        for (int k_in = 0; k_in < count; k_in += 8 * FLIGHT) {
            #pragma unroll
            for (int i = 0; i < FLIGHT; ++i) {
                const @BITS bits = ring[i];
                float value[WIDTH];
                @UNPACK
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const float factor = factors[8 * i * LINE + r];
                    #pragma unroll
                    for (int j = 0; j < WIDTH; ++j) sum[r][j] = fmaf(factor, value[j], sum[r][j]);
                }
                ring[i] = k_load < end ? __ldcs((const @BITS*)from) : @BITS{};
                k_load += 8;
                from += 8 * leading;
                if (i % 2 == 1) __syncwarp();  // else the compiler puts off all loads to the end of a turn
            }
            factors += 8 * FLIGHT * LINE;
        }
    }
    // The warps' sums, four rows at a time, added in the order of the warps.
    constexpr int SPAN = 32 * WIDTH;
    float* sums = few[0];
    #pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[(warp * 4 + i) * SPAN + lane * WIDTH + j] = sum[r + i][j];
        }
        __syncthreads();
        #pragma unroll 1
        for (int i = int(threadIdx.x); i < 4 * SPAN; i += 256) {
            const int row = r + i / SPAN, at = int(blockIdx.x) * SPAN + i % SPAN;
            if (row < rows && at < columns) {
                float total = 0.0f;
                #pragma unroll
                for (int w = 0; w < 8; ++w) total += sums[w * 4 * SPAN + i];
                auto* place = out + blockIdx.y * out_part + row * out_row + at * out_column;
                float value = alpha * total;
                if (beta != 0.0f) value = fmaf(beta, @OLD, value);
                *place = @NEW;
            }
        }
    }
"""
)

ALONG = (
    """\
@OWN    __shared__ __align__(16) float few[2][FEW];  // (r, k) of two chunks
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int column = ((int(blockIdx.x) * 8 + warp) * 2 + lane % 2) * COLUMNS;
    const int first = int(blockIdx.y) * part_of_k, last = min(first + part_of_k, K);
    stage(few[0], short_rows, short_row, short_k, first, last, rows);
    float sum[ROWS][COLUMNS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (int j = 0; j < COLUMNS; ++j) sum[r][j] = 0.0f;
    }
    // The ring: the next values of k of this lane, zeros outside. Columns further the last one are that one again.
    int k_load = first + lane / 2 * WIDTH;
    const int further = max(columns - 1 - column, 0);
    const float* from = long_matrix + min(column, columns - 1) * leading + k_load;
    @BITS ring[FLIGHT][COLUMNS];
    #pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
        #pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            ring[i][j] = k_load < last ? __ldcs((const @BITS*)(from + min(j, further) * leading)) : @BITS{};
        k_load += 16 * WIDTH;
        from += 16 * WIDTH;
    }
"""
    + _EACH_CHUNK
    + """\
        const float* factors = few[number % 2] + lane / 2 * WIDTH;
        #pragma unroll 1
        for (int k_in = 0; k_in < count; k_in += 16 * WIDTH * FLIGHT) {
            #pragma unroll
            for (int i = 0; i < FLIGHT; ++i) {
                float values[COLUMNS][WIDTH];
                #pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const @BITS bits = ring[i][j];
                    float(&value)[WIDTH] = values[j];
                    @UNPACK
                }
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    #pragma unroll
                    for (int k = 0; k < WIDTH; ++k) {
                        const float factor = factors[r * LINE + 16 * WIDTH * i + k];
                        #pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) sum[r][j] = fmaf(factor, values[j][k], sum[r][j]);
                    }
                }
                #pragma unroll
                for (int j = 0; j < COLUMNS; ++j)
                    ring[i][j] = k_load < last ? __ldcs((const @BITS*)(from + min(j, further) * leading)) : @BITS{};
                k_load += 16 * WIDTH;
                from += 16 * WIDTH;
                __syncwarp();  // else the compiler puts off all loads to the end of a turn
            }
            factors += 16 * WIDTH * FLIGHT;
        }
    }
    // The lanes' sums, and then the columns of the block side by side.
    constexpr int SPAN = 8 * 2 * COLUMNS;
    float* sums = few[0];
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        #pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            float total = sum[r][j];
            #pragma unroll
            for (int apart = 16; apart > 1; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
            if (lane < 2) sums[r * SPAN + (warp * 2 + lane) * COLUMNS + j] = total;
        }
    }
    __syncthreads();
    #pragma unroll 1
    for (int i = int(threadIdx.x); i < rows * SPAN; i += 256) {
        const int at = int(blockIdx.x) * SPAN + i % SPAN;
        if (at < columns) {
            auto* place = out + blockIdx.y * out_part + i / SPAN * out_row + at * out_column;
            float value = alpha * sums[i];
            if (beta != 0.0f) value = fmaf(beta, @OLD, value);
            *place = @NEW;
        }
    }
"""
)
