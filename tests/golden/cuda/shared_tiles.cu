// shared_tiles: C = alpha * A @ B + beta * C, accumulated in f32
//
//     A  f32, M x K, rows lda elements apart
//     B  f32, K x N, rows ldb elements apart
//     C  f32, M x N, rows ldc elements apart; not read when beta is 0
//
//     assumes  offsets below 2^31 elements
//     launch   grid ((N + 31) / 32, (M + 31) / 32, 1), block (1024, 1, 1)
//              8192 bytes of shared memory

extern "C" __global__ void __launch_bounds__(1024)
shared_tiles(
    const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
    int M, int N, int K, int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float A_tile[32][32];  // (m, k)
    __shared__ float B_tile[32][32];  // (k, n)

    const int m_in = threadIdx.x / 32;
    const int n_in = threadIdx.x % 32;
    const int m = blockIdx.y * 32 + m_in;  // of C
    const int n = blockIdx.x * 32 + n_in;  // of C
    float sum = 0.0f;

    for (int k_tile = 0; k_tile < (K + 31) / 32; ++k_tile) {  // tiles of K
        float a = (m < M && k_tile * 32 + n_in < K) ? A[m * lda + (k_tile * 32 + n_in)] : 0.0f;
        A_tile[m_in][n_in] = a;
        float b = (k_tile * 32 + m_in < K && n < N) ? B[(k_tile * 32 + m_in) * ldb + n] : 0.0f;
        B_tile[m_in][n_in] = b;
        __syncthreads();  // A_tile and B_tile are complete

        #pragma unroll
        for (int k_in = 0; k_in < 32; ++k_in) {
            const float a_2 = A_tile[m_in][k_in];
            const float b_2 = B_tile[k_in][n_in];
            sum += a_2 * b_2;
        }

        __syncthreads();  // A_tile and B_tile are free
    }

    float out = alpha * sum;

    if (beta != 0.0f) {
        const float old = (m < M && n < N) ? C[m * ldc + n] : 0.0f;
        out = fmaf(beta, old, alpha * sum);
    }

    if (m < M && n < N) C[m * ldc + n] = out;
}
