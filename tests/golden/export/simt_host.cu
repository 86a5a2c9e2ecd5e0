// A matrix as the caller gave it: `lines` rows or columns of `length` contiguous elements, `leading` elements apart.
struct Matrix {
    const void* data;
    int64_t length, lines, leading, element_bytes;
};

const int64_t MOST = 2147418111;  // of a size: kernels count whole tiles in 31 bits

bool is_size(int64_t size) {
    return 0 <= size && size <= MOST;
}

// Rows may follow each other with gaps, but not overlap.
bool has_room(const Matrix& matrix) {
    return matrix.length <= matrix.leading && matrix.leading <= INT_MAX;
}

bool is_aligned(const Matrix& matrix, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(matrix.data) % bytes == 0 && matrix.leading * matrix.element_bytes % bytes == 0;
}

int64_t round_up(int64_t size, int64_t tile) {
    return (size + tile - 1) / tile * tile;
}

// Whether 31 bits hold every offset that a kernel computes, those of whole tiles at the edges too.
bool is_near(const Matrix& matrix, int64_t length_tile, int64_t lines_tile) {
    return round_up(matrix.lines, lines_tile) * matrix.leading + round_up(matrix.length, length_tile) <= INT_MAX;
}

struct Call {
    cudaStream_t stream;
    Matrix a, b, c;
    int64_t M, N, K;
    float alpha, beta;
};

// Starts one of the kernels; all are started alike, each with its own shared memory.
template <typename... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), int shared_bytes, const Call& call) {
    const int64_t M = call.M;
    const int64_t N = call.N;
    const int64_t grid[3] = {(N + 255) / 256, (M + 127) / 128, 1};
    if (grid[0] > INT_MAX || grid[1] > 65535 || grid[2] > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    cudaError_t error = cudaSuccess;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) {
        return error;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2]));
    config.blockDim = dim3(256, 1, 1);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = call.stream;
    error = cudaLaunchKernelEx(&config, kernel,
        static_cast<const float*>(call.a.data),
        static_cast<const float*>(call.b.data),
        static_cast<float*>(const_cast<void*>(call.c.data)),
        call.M, call.N, call.K, call.a.leading, call.b.leading, call.c.leading,
        call.alpha, call.beta);
    return error;
}

int answer_of(cudaError_t error) {
    return error == cudaSuccess ? WORKLOG_BEST_F32_NN_OK : WORKLOG_BEST_F32_NN_CUDA_ERROR + int(error);
}

}  // namespace

extern "C" int worklog_best_f32_nn(cudaStream_t stream,
    const float* A, const float* B, float* C,
    int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc,
    float alpha, float beta)
{
    if (!is_size(M) || !is_size(N) || !is_size(K)) {
        return WORKLOG_BEST_F32_NN_BAD_SIZE;
    }
    const Matrix a = {A, K, M, lda, 4};
    const Matrix b = {B, N, K, ldb, 4};
    const Matrix c = {C, N, M, ldc, 4};
    if (!has_room(a) || !has_room(b) || !has_room(c)) {
        return WORKLOG_BEST_F32_NN_BAD_LEADING_DIMENSION;
    }
    if (M == 0 || N == 0) {
        return WORKLOG_BEST_F32_NN_OK;
    }
    if (A == nullptr || B == nullptr || C == nullptr) {
        return WORKLOG_BEST_F32_NN_NULL_POINTER;
    }
    const Call call = {stream, a, b, c, M, N, K, alpha, beta};
    if (M % 128 == 0 && N % 256 == 0 && K % 16 == 0
        && is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16)
        && is_near(a, 16, 128) && is_near(b, 256, 16) && is_near(c, 256, 128)) {
        return answer_of(launch(worklog_best_f32_nn_exact, 49664, call));
    }
    if (is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16)
        && is_near(a, 16, 128) && is_near(b, 256, 16) && is_near(c, 256, 128)) {
        return answer_of(launch(worklog_best_f32_nn_edges, 49664, call));
    }
    if (is_aligned(a, 4) && is_aligned(b, 4) && is_aligned(c, 4)) {
        return answer_of(launch(worklog_best_f32_nn_any, 49664, call));
    }
    return WORKLOG_BEST_F32_NN_MISALIGNED;
}

extern "C" const char* worklog_best_f32_nn_error(int answer) {
    switch (answer) {
        case WORKLOG_BEST_F32_NN_OK:
            return "no error";
        case WORKLOG_BEST_F32_NN_BAD_SIZE:
            return "a size is negative, or larger than the kernels count";
        case WORKLOG_BEST_F32_NN_BAD_LEADING_DIMENSION:
            return "a leading dimension is shorter than its row or column";
        case WORKLOG_BEST_F32_NN_NULL_POINTER:
            return "a matrix has no address";
        case WORKLOG_BEST_F32_NN_MISALIGNED:
            return "an address is not a multiple of the bytes of an element";
        default:
            break;
    }
    if (answer <= WORKLOG_BEST_F32_NN_CUDA_ERROR) {
        return "not an answer of worklog_best_f32_nn";
    }
    return cudaGetErrorString(cudaError_t(answer - WORKLOG_BEST_F32_NN_CUDA_ERROR));
}
