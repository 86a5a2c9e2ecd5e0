// vectorized: C = alpha * A @ B + beta * C, accumulated in f32
//
//     A  f16, M x K, rows lda elements apart
//     B  f16, K x N, rows ldb elements apart
//     C  f16, M x N, rows ldc elements apart; not read when beta is 0
//
//     Split("m", 64, into=("m_block", "m_in"))
//     Stage("A", Space.SHARED, under="k_tile")
//
//     assumes  N, K multiples of 64, 8
//              pointers and leading dimensions multiples of 16 bytes
//              offsets below 2^31 elements
//     launch   grid (N / 64, (M + 63) / 64, 1), block (128, 1, 1)
//              2112 bytes of shared memory

typedef unsigned short half_bits;  // the bits of an f16: arithmetic is done in float

__device__ __forceinline__ float float_from_half(half_bits bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// The nearest f16, ties to even.
__device__ __forceinline__ half_bits half_from_float(float value) {
    half_bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// 4 consecutive f16 from `first` on, as one 8-byte access.
__device__ __forceinline__ uint2& as_half4(half_bits& first) {
    return reinterpret_cast<uint2&>(first);
}
__device__ __forceinline__ const uint2& as_half4(const half_bits& first) {
    return reinterpret_cast<const uint2&>(first);
}

// 8 consecutive f16 from `first` on, as one 16-byte access.
__device__ __forceinline__ uint4& as_half8(half_bits& first) {
    return reinterpret_cast<uint4&>(first);
}
__device__ __forceinline__ const uint4& as_half8(const half_bits& first) {
    return reinterpret_cast<const uint4&>(first);
}

extern "C" __global__ void __launch_bounds__(128)
vectorized(
    const half_bits* __restrict__ A, const half_bits* __restrict__ B, half_bits* __restrict__ C,
    int M, int N, int K, int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ __align__(8) half_bits A_tile[8][68];   // (k, m): transposed, rows padded by 4
    __shared__ __align__(16) half_bits B_tile[8][64];  // (k, n)

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
        if (thread < 64) {
            const int a_m = thread;
            const int a_k = 0;
            __align__(16) half_bits A_in[8];  // (k): on its way to A_tile
            as_half8(A_in[0]) = m_block + a_m < M
                ? as_half8(A[(m_block + a_m) * lda + (k_tile * 8 + a_k)]) : uint4{};

            #pragma unroll
            for (int k = 0; k < 8; ++k) {
                A_tile[a_k + k][a_m] = A_in[k];
            }
        }

        if (thread < 64) {
            const int b_k = thread / 8;
            const int b_n = thread % 8 * 8;
            __align__(16) half_bits B_in[8];  // (n): on its way to B_tile
            as_half8(B_in[0]) = as_half8(B[(k_tile * 8 + b_k) * ldb + (n_block + b_n)]);
            as_half8(B_tile[b_k][b_n]) = as_half8(B_in[0]);
        }

        __syncthreads();  // A_tile and B_tile are complete

        #pragma unroll
        for (int k = 0; k < 8; ++k) {
            __align__(8) half_bits A_frag[8];  // (m)
            __align__(8) half_bits B_frag[4];  // (n)

            #pragma unroll
            for (int part = 0; part < 2; ++part) {
                as_half4(A_frag[part * 4]) = as_half4(A_tile[k][m_thread * 8 + part * 4]);
            }

            as_half4(B_frag[0]) = as_half4(B_tile[k][n_thread * 4]);

            #pragma unroll
            for (int m = 0; m < 8; ++m) {
                #pragma unroll
                for (int n = 0; n < 4; ++n) {
                    sum[m][n] += float_from_half(A_frag[m]) * float_from_half(B_frag[n]);
                }
            }
        }

        __syncthreads();  // A_tile and B_tile are free
    }

    const int col = n_block + n_thread * 4;

    #pragma unroll
    for (int m = 0; m < 8; ++m) {
        const int row = m_block + m_thread * 8 + m;
        __align__(8) half_bits out[4];  // (n)

        #pragma unroll
        for (int n = 0; n < 4; ++n) {
            const half_bits old = (beta != 0.0f && row < M) ? C[row * ldc + (col + n)] : 0;
            out[n] = half_from_float(fmaf(beta, float_from_half(old), alpha * sum[m][n]));
        }

        if (row < M) as_half4(C[row * ldc + col]) = as_half4(out[0]);
    }
}
