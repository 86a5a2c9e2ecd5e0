/* hopper_best_bf16_nn: C = alpha * A @ B + beta * C, accumulated in f32
 *
 *     A  bf16, M x K, rows lda elements apart
 *     B  bf16, K x N, rows ldb elements apart
 *     C  bf16, M x N, rows ldc elements apart; not read when beta is 0
 *
 * From hopper/best, for sm_90a. Written by tilewright 0.2.0: see README.md. */
#ifndef HOPPER_BEST_BF16_NN_H
#define HOPPER_BEST_BF16_NN_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call answers. */
enum {
    HOPPER_BEST_BF16_NN_OK = 0,
    /* A size is negative, or larger than the kernels count. */
    HOPPER_BEST_BF16_NN_BAD_SIZE = 1,
    /* A leading dimension is shorter than its row or column. */
    HOPPER_BEST_BF16_NN_BAD_LEADING_DIMENSION = 2,
    /* A matrix has no address. */
    HOPPER_BEST_BF16_NN_NULL_POINTER = 3,
    /* Addresses and rows of A, B and C are to be multiples of 16 bytes, and N of 8. */
    HOPPER_BEST_BF16_NN_MISALIGNED = 4,
    /* This plus the cudaError_t of what failed. */
    HOPPER_BEST_BF16_NN_CUDA_ERROR = 1000
};

/* Starts the multiplication on `stream` and returns at once. Sizes and leading dimensions are in elements.
 * May be called from several threads, and while a stream is captured into a CUDA graph. */
int hopper_best_bf16_nn(cudaStream_t stream,
    const void* A, const void* B, void* C,
    int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc,
    float alpha, float beta);

/* What an answer means, in words that live as long as the program. */
const char* hopper_best_bf16_nn_error(int answer);

#ifdef __cplusplus
}
#endif

#endif
