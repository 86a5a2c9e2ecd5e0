/* worklog_best_f32_nn: C = alpha * A @ B + beta * C, accumulated in f32
 *
 *     A  f32, M x K, rows lda elements apart
 *     B  f32, K x N, rows ldb elements apart
 *     C  f32, M x N, rows ldc elements apart; not read when beta is 0
 *
 * From worklog/best, for sm_80. Written by tilewright 0.2.0: see README.md. */
#ifndef WORKLOG_BEST_F32_NN_H
#define WORKLOG_BEST_F32_NN_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call answers. */
enum {
    WORKLOG_BEST_F32_NN_OK = 0,
    /* A size is negative, or larger than the kernels count. */
    WORKLOG_BEST_F32_NN_BAD_SIZE = 1,
    /* A leading dimension is shorter than its row or column. */
    WORKLOG_BEST_F32_NN_BAD_LEADING_DIMENSION = 2,
    /* A matrix has no address. */
    WORKLOG_BEST_F32_NN_NULL_POINTER = 3,
    /* An address is not a multiple of the bytes of an element. */
    WORKLOG_BEST_F32_NN_MISALIGNED = 4,
    /* This plus the cudaError_t of what failed. */
    WORKLOG_BEST_F32_NN_CUDA_ERROR = 1000
};

/* Starts the multiplication on `stream` and returns at once. Sizes and leading dimensions are in elements.
 * May be called from several threads, and while a stream is captured into a CUDA graph. */
int worklog_best_f32_nn(cudaStream_t stream,
    const float* A, const float* B, float* C,
    int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc,
    float alpha, float beta);

/* What an answer means, in words that live as long as the program. */
const char* worklog_best_f32_nn_error(int answer);

#ifdef __cplusplus
}
#endif

#endif
