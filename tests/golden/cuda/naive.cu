// naive: C = alpha * A @ B + beta * C, accumulated in f32
//
//     A  f32, M x K, columns lda elements apart
//     B  f32, K x N, rows ldb elements apart
//     C  f32, M x N, rows ldc elements apart; not read when beta is 0
//
//     assumes  nothing: any size, any alignment
//     launch   grid ((N + 15) / 16, (M + 15) / 16, 1), block (256, 1, 1)
//              no shared memory

extern "C" __global__ void __launch_bounds__(256)
naive(
    const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
    int M, int N, int K, long long lda, long long ldb, long long ldc, float alpha, float beta)
{
    const int m = blockIdx.y * 16 + threadIdx.x / 16;
    const int n = blockIdx.x * 16 + threadIdx.x % 16;
    float sum = 0.0f;  // of C[m, n]

    for (int k = 0; k < K; ++k) {
        const float a = m < M ? A[m + k * lda] : 0.0f;
        const float b = n < N ? B[k * ldb + n] : 0.0f;
        sum += a * b;
    }

    float out = alpha * sum;

    if (beta != 0.0f) {
        const float old = (m < M && n < N) ? C[(long long)m * ldc + n] : 0.0f;
        out = fmaf(beta, old, alpha * sum);
    }

    if (m < M && n < N) C[(long long)m * ldc + n] = out;
}
