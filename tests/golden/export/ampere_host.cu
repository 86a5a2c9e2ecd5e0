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
    Matrix a, b, c, bias_line, residual_matrix;
    int64_t M, N, K;
    float alpha, beta;
};

// Starts one of the kernels; all are started alike, each with its own shared memory.
template <typename... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), int shared_bytes, const Call& call) {
    const int64_t M = call.M;
    const int64_t N = call.N;
    const int64_t grid[3] = {(M + 127) / 128 * ((N + 255) / 256), 1, 1};
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
        static_cast<const bf16_bits*>(call.a.data),
        static_cast<const bf16_bits*>(call.b.data),
        static_cast<bf16_bits*>(const_cast<void*>(call.c.data)),
        static_cast<const bf16_bits*>(call.bias_line.data),
        static_cast<const bf16_bits*>(call.residual_matrix.data),
        call.M, call.N, call.K, call.a.leading, call.b.leading, call.c.leading,
        call.alpha, call.beta, call.residual_matrix.leading);
    return error;
}

int answer_of(cudaError_t error) {
    return error == cudaSuccess ? AMPERE_FULL_BF16_NT_OK : AMPERE_FULL_BF16_NT_CUDA_ERROR + int(error);
}

}  // namespace

extern "C" int ampere_full_bf16_nt(cudaStream_t stream,
    const void* A, const void* B, void* C, const void* bias, const void* residual,
    int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, int64_t ld_residual,
    float alpha, float beta)
{
    if (!is_size(M) || !is_size(N) || !is_size(K)) {
        return AMPERE_FULL_BF16_NT_BAD_SIZE;
    }
    const Matrix a = {A, K, M, lda, 2};
    const Matrix b = {B, K, N, ldb, 2};
    const Matrix c = {C, N, M, ldc, 2};
    const Matrix bias_line = {bias, N, 1, 0, 2};
    const Matrix residual_matrix = {residual, N, M, beta != 0 ? ld_residual : 0, 2};
    if (!has_room(a) || !has_room(b) || !has_room(c) || (beta != 0 && !has_room(residual_matrix))) {
        return AMPERE_FULL_BF16_NT_BAD_LEADING_DIMENSION;
    }
    if (M == 0 || N == 0) {
        return AMPERE_FULL_BF16_NT_OK;
    }
    if (A == nullptr || B == nullptr || C == nullptr || bias == nullptr || (beta != 0 && residual == nullptr)) {
        return AMPERE_FULL_BF16_NT_NULL_POINTER;
    }
    const Call call = {stream, a, b, c, bias_line, residual_matrix, M, N, K, alpha, beta};
    if (M % 128 == 0 && N % 256 == 0 && K % 64 == 0
        && is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16)
        && is_aligned(bias_line, 16) && is_aligned(residual_matrix, 16)
        && is_near(a, 64, 128) && is_near(b, 64, 256) && is_near(c, 256, 128)
        && is_near(bias_line, 256, 128) && is_near(residual_matrix, 256, 128)) {
        return answer_of(launch(ampere_full_bf16_nt_exact, 147456, call));
    }
    if (is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16)
        && is_aligned(bias_line, 16) && is_aligned(residual_matrix, 16)
        && is_near(a, 64, 128) && is_near(b, 64, 256) && is_near(c, 256, 128)
        && is_near(bias_line, 256, 128) && is_near(residual_matrix, 256, 128)) {
        return answer_of(launch(ampere_full_bf16_nt_edges, 147456, call));
    }
    if (is_aligned(a, 2) && is_aligned(b, 2) && is_aligned(c, 2)
        && is_aligned(bias_line, 2) && is_aligned(residual_matrix, 2)) {
        return answer_of(launch(ampere_full_bf16_nt_any, 147456, call));
    }
    return AMPERE_FULL_BF16_NT_MISALIGNED;
}

extern "C" const char* ampere_full_bf16_nt_error(int answer) {
    switch (answer) {
        case AMPERE_FULL_BF16_NT_OK:
            return "no error";
        case AMPERE_FULL_BF16_NT_BAD_SIZE:
            return "a size is negative, or larger than the kernels count";
        case AMPERE_FULL_BF16_NT_BAD_LEADING_DIMENSION:
            return "a leading dimension is shorter than its row or column";
        case AMPERE_FULL_BF16_NT_NULL_POINTER:
            return "a matrix has no address";
        case AMPERE_FULL_BF16_NT_MISALIGNED:
            return "an address is not a multiple of the bytes of an element";
        default:
            break;
    }
    if (answer <= AMPERE_FULL_BF16_NT_CUDA_ERROR) {
        return "not an answer of ampere_full_bf16_nt";
    }
    return cudaGetErrorString(cudaError_t(answer - AMPERE_FULL_BF16_NT_CUDA_ERROR));
}
