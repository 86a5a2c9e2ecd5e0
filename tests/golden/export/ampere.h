/* ampere_full_bf16_nt: C = gelu(alpha * A @ B + beta * residual + bias), accumulated in f32
 *
 *     A  bf16, M x K, rows lda elements apart
 *     B  bf16, K x N, columns ldb elements apart
 *     C  bf16, M x N, rows ldc elements apart
 *     bias  bf16, one for each column
 *     residual  bf16, M x N, rows ld_residual elements apart; not read when beta is 0
 *
 * From ampere/full, for sm_80. Written by tilewright 0.2.0: see README.md. */
#ifndef AMPERE_FULL_BF16_NT_H
#define AMPERE_FULL_BF16_NT_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call answers. */
enum {
    AMPERE_FULL_BF16_NT_OK = 0,
    /* A size is negative, or larger than the kernels count. */
    AMPERE_FULL_BF16_NT_BAD_SIZE = 1,
    /* A leading dimension is shorter than its row or column. */
    AMPERE_FULL_BF16_NT_BAD_LEADING_DIMENSION = 2,
    /* A matrix has no address. */
    AMPERE_FULL_BF16_NT_NULL_POINTER = 3,
    /* An address is not a multiple of the bytes of an element. */
    AMPERE_FULL_BF16_NT_MISALIGNED = 4,
    /* This plus the cudaError_t of what failed. */
    AMPERE_FULL_BF16_NT_CUDA_ERROR = 1000
};

/* Starts the multiplication on `stream` and returns at once. Sizes and leading dimensions are in elements.
 * May be called from several threads, and while a stream is captured into a CUDA graph. */
int ampere_full_bf16_nt(cudaStream_t stream,
    const void* A, const void* B, void* C, const void* bias, const void* residual,
    int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, int64_t ld_residual,
    float alpha, float beta);

/* What an answer means, in words that live as long as the program. */
const char* ampere_full_bf16_nt_error(int answer);

#ifdef __cplusplus
}
#endif

#endif
