// vectorized: C = alpha * A @ B + beta * C, accumulated in f32
//
//     A  f32, M x K, rows lda elements apart
//     B  f32, K x N, rows ldb elements apart
//     C  f32, M x N, rows ldc elements apart; not read when beta is 0
//
//     Split("m", 64, into=("m_block", "m_in"))
//     Stage("A", Space.SHARED, under="k_tile")
//
//     assumes  N, K multiples of 64, 8
//              pointers and leading dimensions multiples of 16 bytes
//              offsets below 2^31 elements
//     launch   grid (N / 64, (M + 63) / 64, 1), block (128, 1, 1)
//              4224 bytes of shared memory

// 4 consecutive f32 from `first` on, as one 16-byte access.
__device__ __forceinline__ float4& as_float4(float& first) {
    return reinterpret_cast<float4&>(first);
}
__device__ __forceinline__ const float4& as_float4(const float& first) {
    return reinterpret_cast<const float4&>(first);
}

extern "C" __global__ void __launch_bounds__(128)
vectorized(
    const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
    int M, int N, int K, int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ __align__(16) float A_tile[8][68];  // (k, m): transposed, rows padded by 4
    __shared__ __align__(16) float B_tile[8][64];  // (k, n)

    const int thread = threadIdx.x;
    const int m_thread = thread / 16;  // of 8
    const int n_thread = thread % 16;  // of 16
    const int m_block = blockIdx.y * 64;
    const int n_block = blockIdx.x * 64;
    float sum[8][4];  // (m, n)

    #pragma unroll
    for (int m = 0; m < 8; ++m) {
        #pragma unroll
        for (int n = 0; n < 4; ++n) {
            sum[m][n] = 0.0f;
        }
    }

    for (int k_tile = 0; k_tile < K / 8; ++k_tile) {  // K / 8 tiles
        if (thread < 128) {
            const int a_m = thread / 2;
            const int a_k = thread % 2 * 4;
            __align__(16) float A_in[4];  // (k): on its way to A_tile
            as_float4(A_in[0]) = m_block + a_m < M
                ? as_float4(A[(m_block + a_m) * lda + (k_tile * 8 + a_k)]) : float4{};

            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                A_tile[a_k + k][a_m] = A_in[k];
            }
        }

        if (thread < 128) {
            const int b_k = thread / 16;
            const int b_n = thread % 16 * 4;
            __align__(16) float B_in[4];  // (n): on its way to B_tile
            as_float4(B_in[0]) = as_float4(B[(k_tile * 8 + b_k) * ldb + (n_block + b_n)]);
            as_float4(B_tile[b_k][b_n]) = as_float4(B_in[0]);
        }

        __syncthreads();  // A_tile and B_tile are complete

        #pragma unroll
        for (int k = 0; k < 8; ++k) {
            __align__(16) float A_frag[8];  // (m)
            __align__(16) float B_frag[4];  // (n)

            #pragma unroll
            for (int part = 0; part < 2; ++part) {
                as_float4(A_frag[part * 4]) = as_float4(A_tile[k][m_thread * 8 + part * 4]);
            }

            as_float4(B_frag[0]) = as_float4(B_tile[k][n_thread * 4]);

            #pragma unroll
            for (int m = 0; m < 8; ++m) {
                #pragma unroll
                for (int n = 0; n < 4; ++n) {
                    sum[m][n] += A_frag[m] * B_frag[n];
                }
            }
        }

        __syncthreads();  // A_tile and B_tile are free
    }

    const int col = n_block + n_thread * 4;

    #pragma unroll
    for (int m = 0; m < 8; ++m) {
        const int row = m_block + m_thread * 8 + m;
        __align__(16) float out[4];  // (n)

        #pragma unroll
        for (int n = 0; n < 4; ++n) {
            const float old = (beta != 0.0f && row < M) ? C[row * ldc + (col + n)] : 0.0f;
            out[n] = fmaf(beta, old, alpha * sum[m][n]);
        }

        if (row < M) as_float4(C[row * ldc + col]) = as_float4(out[0]);
    }
}
