// How rows of C that begin at any element leave a tile of 128 rows: microseconds of the stores alone, by pattern.
//
//     nvcc -O3 -arch=sm_90a -o rows_of_c benchmarks/probes/rows_of_c.cu && ./rows_of_c
//
// benchmarks/results/rows_of_c_h200.json keeps some of what these patterns took on an H100, under other names and
// before this text was put in order (docs/decisions/0109).
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

enum Pattern {
    PIECES,          // 128 bytes of each row of the tile, then the next 128
    LINES,           // a row at a time, by lines of memory
    SECTORS,         // the same, and each sector by one tile alone
    ROWS,            // a row at a time, from where it begins
    PIECES_BY_LINES, // as the first, cut where lines of memory begin
    SINGLE,          // as the first, an element a lane
    ACCUMULATORS,    // what a thread has of a fragment: two elements of each of eight rows
    LINES_OF_SECTORS // as the second, from the sector in which the row begins
};

template <typename T, int PATTERN>
__global__ void __launch_bounds__(256) store(T *C, int m, int n, int width, int rows, int columns, int raster) {
    constexpr int each = 4 / sizeof(T), at_once = 32 * each;  // elements of a lane, of a warp
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
        const int group = tile / (raster * columns), first = group * raster, high = min(raster, rows - first);
        const int inside = tile - group * raster * columns;
        const int row0 = (first + inside % high) * 128, tile_column = inside / high, column0 = tile_column * width;
        if (PATTERN == ACCUMULATORS) {
            for (int c = 0; c < width; c += 8)
                for (int half = 0; half < 2; half++) {
                    const int r = row0 + warp * 16 + half * 8 + lane / 4, column = column0 + c + lane % 4 * 2;
                    if (r < m && column < n) C[size_t(r) * n + column] = tile;
                    if (r < m && column + 1 < n) C[size_t(r) * n + column + 1] = tile;
                }
            continue;
        }
        const bool cut = PATTERN == PIECES || PATTERN == PIECES_BY_LINES || PATTERN == SINGLE;
        const int pieces = cut ? (width + at_once - 1) / at_once : 1;
        for (int piece = 0; piece < pieces; piece++) {
            const int begin = column0 + piece * at_once, last = column0 + width;
            const int end = cut ? min(begin + at_once, last) : last;
            for (int i = 0; i < 16; i++) {
                const int r = row0 + i * 8 + warp;
                if (r >= m) continue;
                const size_t row = size_t(r) * n;
                int low = begin, high_column = min(end, n);
                if (PATTERN == SINGLE) {
                    for (int c = low + lane; c < high_column; c += 32) C[row + c] = tile;
                    continue;
                }
                if (PATTERN == PIECES || PATTERN == ROWS) {
                    const int start = low + (each == 2 ? int((row + low) & 1) : 0);
                    if (each == 2 && lane == 0 && start > low && low < high_column) C[row + low] = tile;
                    if (each == 2 && lane == 1 && ((high_column - start) & 1) && high_column > start)
                        C[row + high_column - 1] = tile;
                    for (int c = start + lane * each; c + each <= high_column; c += at_once)
                        if (each == 2) *(uint32_t *)(C + row + c) = tile;
                        else C[row + c] = tile;
                    continue;
                }
                if (PATTERN == SECTORS) {
                    constexpr int sector = 32 / sizeof(T);
                    if (tile_column) low += (sector - int((row + low) % sector)) % sector;
                    high_column = min(end + (sector - int((row + end) % sector)) % sector, n);
                }
                const int apart = PATTERN == LINES_OF_SECTORS ? 32 / sizeof(T) : at_once;
                for (int c = low - int((row + low) % apart) + lane * each; c < high_column; c += at_once) {
                    if (each == 2 && c >= low && c + 1 < high_column) {
                        *(uint32_t *)(C + row + c) = tile;
                        continue;
                    }
                    if (c >= low && c < high_column) C[row + c] = tile;
                    if (each == 2 && c + 1 >= low && c + 1 < high_column) C[row + c + 1] = tile;
                }
            }
        }
    }
}

template <typename T, int PATTERN>
void timed(const char *name, T *C, size_t bytes, int m, int n, int width, int blocks) {
    const int rows = (m + 127) / 128, columns = (n + width - 1) / width;
    const size_t step = (size_t(m) * n * sizeof(T) + 255) / 256 * 256, copies = std::clamp<size_t>(bytes / step, 1, 4);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> us;
    for (int run = 0; run < 9; run++) {
        cudaEventRecord(begin);
        for (int i = 0; i < 4; i++) {
            T *at = C + (run * 4 + i) % copies * step / sizeof(T);
            store<T, PATTERN><<<blocks, 256>>>(at, m, n, width, rows, columns, 16);
        }
        cudaEventRecord(end);
        cudaEventSynchronize(end);
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        us.push_back(ms * 250);
    }
    std::sort(us.begin(), us.end());
    printf(" | %s %.1f", name, us[us.size() / 2]);
}

template <typename T>
void all(void *C, size_t bytes, int m, int n) {
    for (int width : {64, 128, 192, 256})
        for (int blocks : {264, 1056}) {
            printf("%zu bytes, %dx%d, tiles of %d columns, %d blocks, us", sizeof(T), m, n, width, blocks);
            timed<T, PIECES>("pieces", (T *)C, bytes, m, n, width, blocks);
            timed<T, LINES>("lines", (T *)C, bytes, m, n, width, blocks);
            timed<T, SECTORS>("sectors", (T *)C, bytes, m, n, width, blocks);
            timed<T, ROWS>("rows", (T *)C, bytes, m, n, width, blocks);
            timed<T, PIECES_BY_LINES>("pieces by lines", (T *)C, bytes, m, n, width, blocks);
            timed<T, SINGLE>("single", (T *)C, bytes, m, n, width, blocks);
            timed<T, ACCUMULATORS>("accumulators", (T *)C, bytes, m, n, width, blocks);
            timed<T, LINES_OF_SECTORS>("lines from sectors", (T *)C, bytes, m, n, width, blocks);
            printf("\n");
        }
}

int main() {
    const size_t bytes = size_t(3) << 30;
    void *C;
    if (cudaMalloc(&C, bytes + 4096) != cudaSuccess) return 1;
    cudaMemset(C, 0, bytes);
    all<uint16_t>(C, bytes, 5824, 6075);
    all<uint32_t>(C, bytes, 5824, 6075);
    all<uint16_t>(C, bytes, 2048, 50257);
    return cudaGetLastError() != cudaSuccess;
}
