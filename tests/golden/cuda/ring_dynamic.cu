// ring: C = alpha * A @ B + beta * C, accumulated in f32
//
//     A  f32, M x K, rows lda elements apart
//     B  f32, K x N, rows ldb elements apart
//     C  f32, M x N, rows ldc elements apart; not read when beta is 0
//
//     assumes  pointers and leading dimensions multiples of 16 bytes
//              offsets below 2^31 elements
//     launch   grid ((N + 31) / 32, (M + 31) / 32, 1), block (1024, 1, 1)
//              57344 bytes of dynamic shared memory

// Starts a copy of 4 bytes to shared memory: all of them, or `read` bytes and then zeros.
__device__ __forceinline__ void cp_async_4(void* to_shared, const void* from_global) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(to_shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from_global) : "memory");
}
__device__ __forceinline__ void cp_async_4(void* to_shared, const void* from_global, int read) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(to_shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from_global), "r"(read) : "memory");
}

// Starts a copy of 16 bytes to shared memory: all of them, or `read` bytes and then zeros.
__device__ __forceinline__ void cp_async_16(void* to_shared, const void* from_global) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(to_shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from_global) : "memory");
}
__device__ __forceinline__ void cp_async_16(void* to_shared, const void* from_global, int read) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(to_shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from_global), "r"(read) : "memory");
}

// The cp.async copies that this thread has started become a group.
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's latest groups of copies are in flight.
template <int pending>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

extern "C" __global__ void __launch_bounds__(1024)
ring(
    const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
    int M, int N, int K, int lda, int ldb, int ldc, float alpha, float beta)
{
    extern __shared__ __align__(128) unsigned char shared_memory[];
    float (&A_tile)[7][32][32] = *reinterpret_cast<float (*)[7][32][32]>(shared_memory);  // (stage, m, k)
    // (stage, k, n)
    float (&B_tile)[7][32][32] = *reinterpret_cast<float (*)[7][32][32]>(shared_memory + 28672);

    const int thread = threadIdx.x;
    const int m_in = thread / 32;
    const int n_in = thread % 32;
    float sum = 0.0f;

    #pragma unroll
    for (int early = 0; early < 6; ++early) {
        if (thread < 256) {
            cp_async_16(&A_tile[early][thread / 8][thread % 8 * 4],
                    &A[(int(blockIdx.y) * 32 + thread / 8) * lda + (early * 32 + thread % 8 * 4)],
                    int(blockIdx.y) * 32 + thread / 8 < M
                    ? max(0, min(4, K - (early * 32 + thread % 8 * 4))) * 4 : 0);
        }

        cp_async_4(&B_tile[early][thread / 32][thread % 32],
                &B[(early * 32 + thread / 32) * ldb + (int(blockIdx.x) * 32 + thread % 32)],
                (early * 32 + thread / 32 < K && int(blockIdx.x) * 32 + thread % 32 < N) ? 4 : 0);
        cp_async_commit_group();
    }

    int slot = 0;
    int fill = 6;
    for (int k_tile = 0; k_tile < (K + 31) / 32; ++k_tile) {
        cp_async_wait_group<5>();
        __syncthreads();  // the tiles of this step have arrived, those of the last are read

        if (thread < 256) {
            cp_async_16(&A_tile[fill][thread / 8][thread % 8 * 4],
                    &A[(int(blockIdx.y) * 32 + thread / 8) * lda + ((k_tile + 6) * 32 + thread % 8 * 4)],
                    int(blockIdx.y) * 32 + thread / 8 < M
                    ? max(0, min(4, K - ((k_tile + 6) * 32 + thread % 8 * 4))) * 4 : 0);
        }

        cp_async_4(&B_tile[fill][thread / 32][thread % 32],
                &B[((k_tile + 6) * 32 + thread / 32) * ldb + (int(blockIdx.x) * 32 + thread % 32)],
                ((k_tile + 6) * 32 + thread / 32 < K && int(blockIdx.x) * 32 + thread % 32 < N) ? 4 : 0);
        cp_async_commit_group();

        #pragma unroll
        for (int k_in = 0; k_in < 32; ++k_in) {
            const float a = A_tile[slot][m_in][k_in];
            const float b = B_tile[slot][k_in][n_in];
            sum += a * b;
        }

        slot = slot == 6 ? 0 : slot + 1;
        fill = fill == 6 ? 0 : fill + 1;
    }

    const int m = blockIdx.y * 32 + m_in;
    const int n = blockIdx.x * 32 + n_in;
    float out = alpha * sum;

    if (beta != 0.0f) {
        const float old = (m < M && n < N) ? C[m * ldc + n] : 0.0f;
        out = fmaf(beta, old, alpha * sum);
    }

    if (m < M && n < N) C[m * ldc + n] = out;
}
