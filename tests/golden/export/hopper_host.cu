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

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, asked for at run time so that nothing has to be linked with libcuda.
Encode find_encode() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    const bool is_there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return is_there ? reinterpret_cast<Encode>(found) : nullptr;
}

// Tells TMA of a matrix, and how large the boxes are that it copies.
cudaError_t describe(TensorMap* map, const Matrix& matrix, CUtensorMapDataType type, unsigned box_length,
    unsigned box_lines, CUtensorMapSwizzle swizzle)
{
    static const Encode encode = find_encode();
    if (encode == nullptr) {
        return cudaErrorNotSupported;
    }
    // An empty matrix is never read, but must have sizes.
    const bool is_empty = matrix.length == 0 || matrix.lines == 0;
    const cuuint64_t sizes[2] = {is_empty ? 1 : cuuint64_t(matrix.length), is_empty ? 1 : cuuint64_t(matrix.lines)};
    const cuuint64_t strides_bytes[1] = {is_empty ? 16 : cuuint64_t(matrix.leading * matrix.element_bytes)};
    const cuuint32_t box[2] = {box_length, box_lines};
    const cuuint32_t steps[2] = {1, 1};
    CUtensorMap made;
    const CUresult answer = encode(&made, type, 2, const_cast<void*>(matrix.data), sizes, strides_bytes, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    static_assert(sizeof(TensorMap) == sizeof(CUtensorMap), "the kernel's own type stands for the driver's");
    std::memcpy(map, &made, sizeof(made));
    return answer == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// How many blocks run at once, in whole clusters: one to each multiprocessor.
cudaError_t count_resident(int64_t* blocks, int cluster) {
    int device = 0, multiprocessors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    }
    *blocks = multiprocessors / cluster * cluster;
    return error;
}

struct Call {
    cudaStream_t stream;
    Matrix a, b, c;
    int64_t M, N, K;
    float alpha, beta;
};

// Starts one of the kernels; all are started alike, each with its own shared memory.
// persistent: with no more blocks than run at once, each of which computes several tiles.
template <typename... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), int shared_bytes, bool stays, const Call& call) {
    const int64_t M = call.M;
    const int64_t N = call.N;
    int64_t grid[3] = {(M + 127) / 128 * ((N + 191) / 192), 1, 1};
    if (grid[0] > INT_MAX || grid[1] > 65535 || grid[2] > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    cudaError_t error = cudaSuccess;
    int64_t resident = grid[0];
    if (stays && (error = count_resident(&resident, 1)) != cudaSuccess) {
        return error;
    }
    if (grid[0] > resident) {  // tiles take equally long: no more blocks than finish in as few rounds
        const int64_t cluster = 1, rounds = (grid[0] + resident - 1) / resident;
        grid[0] = (grid[0] + rounds * cluster - 1) / (rounds * cluster) * cluster;
    }
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) {
        return error;
    }
    TensorMap A_map, B_map, C_map;
    error = describe(&A_map, call.a, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 64, 128, CU_TENSOR_MAP_SWIZZLE_128B);
    if (error != cudaSuccess) {
        return error;
    }
    error = describe(&B_map, call.b, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 64, 64, CU_TENSOR_MAP_SWIZZLE_128B);
    if (error != cudaSuccess) {
        return error;
    }
    error = describe(&C_map, call.c, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 64, 128, CU_TENSOR_MAP_SWIZZLE_128B);
    if (error != cudaSuccess) {
        return error;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2]));
    config.blockDim = dim3(384, 1, 1);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = call.stream;
    cudaLaunchAttribute dependent = {};  // it may start before the kernel before it has ended, and waits for it itself
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &dependent;
    config.numAttrs = 1;
    error = cudaLaunchKernelEx(&config, kernel,
        static_cast<const bf16_bits*>(call.a.data),
        static_cast<const bf16_bits*>(call.b.data),
        static_cast<bf16_bits*>(const_cast<void*>(call.c.data)),
        call.M, call.N, call.K, call.a.leading, call.b.leading, call.c.leading,
        call.alpha, call.beta,
        A_map, B_map, C_map);
    return error;
}

int answer_of(cudaError_t error) {
    return error == cudaSuccess ? HOPPER_BEST_BF16_NN_OK : HOPPER_BEST_BF16_NN_CUDA_ERROR + int(error);
}

}  // namespace

extern "C" int hopper_best_bf16_nn(cudaStream_t stream,
    const void* A, const void* B, void* C,
    int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc,
    float alpha, float beta)
{
    if (!is_size(M) || !is_size(N) || !is_size(K)) {
        return HOPPER_BEST_BF16_NN_BAD_SIZE;
    }
    const Matrix a = {A, K, M, lda, 2};
    const Matrix b = {B, N, K, ldb, 2};
    const Matrix c = {C, N, M, ldc, 2};
    if (!has_room(a) || !has_room(b) || !has_room(c)) {
        return HOPPER_BEST_BF16_NN_BAD_LEADING_DIMENSION;
    }
    if (M == 0 || N == 0) {
        return HOPPER_BEST_BF16_NN_OK;
    }
    if (A == nullptr || B == nullptr || C == nullptr) {
        return HOPPER_BEST_BF16_NN_NULL_POINTER;
    }
    const Call call = {stream, a, b, c, M, N, K, alpha, beta};
    if (M % 128 == 0 && N % 192 == 0 && K % 64 == 0
        && is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16)
        && is_near(a, 64, 128) && is_near(b, 192, 64) && is_near(c, 192, 128)) {
        return answer_of(launch(hopper_best_bf16_nn_exact, 229456, true, call));
    }
    if (N % 8 == 0
        && is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16)
        && is_near(a, 64, 128) && is_near(b, 192, 64) && is_near(c, 192, 128)) {
        return answer_of(launch(hopper_best_bf16_nn_edges, 229456, true, call));
    }
    if (N % 8 == 0
        && is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16)) {
        return answer_of(launch(hopper_best_bf16_nn_any, 229456, true, call));
    }
    return HOPPER_BEST_BF16_NN_MISALIGNED;
}

extern "C" const char* hopper_best_bf16_nn_error(int answer) {
    switch (answer) {
        case HOPPER_BEST_BF16_NN_OK:
            return "no error";
        case HOPPER_BEST_BF16_NN_BAD_SIZE:
            return "a size is negative, or larger than the kernels count";
        case HOPPER_BEST_BF16_NN_BAD_LEADING_DIMENSION:
            return "a leading dimension is shorter than its row or column";
        case HOPPER_BEST_BF16_NN_NULL_POINTER:
            return "a matrix has no address";
        case HOPPER_BEST_BF16_NN_MISALIGNED:
            return "addresses and rows of A, B and C are to be multiples of 16 bytes, and N of 8";
        default:
            break;
    }
    if (answer <= HOPPER_BEST_BF16_NN_CUDA_ERROR) {
        return "not an answer of hopper_best_bf16_nn";
    }
    return cudaGetErrorString(cudaError_t(answer - HOPPER_BEST_BF16_NN_CUDA_ERROR));
}
