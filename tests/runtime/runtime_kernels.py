"""Small CUDA kernels that the tests of the runtime compile and launch."""

from __future__ import annotations

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import F32, I32, I64

THREADS = 256


def pointer(name: str) -> Parameter:
    return Parameter(name, F32, is_pointer=True)


SCALE = CudaSource(
    text="""\
extern "C" __global__ void __launch_bounds__(256)
scale(float* __restrict__ y, const float* __restrict__ x, float alpha, int n, long long offset) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = alpha * x[i] + (float)offset;
}
""",
    entry="scale",
    parameters=(
        pointer("y"),
        pointer("x"),
        Parameter("alpha", F32),
        Parameter("n", I32),
        Parameter("offset", I64),
    ),
    threads_per_block=THREADS,
)

REVERSE = CudaSource(
    text="""\
extern "C" __global__ void __launch_bounds__(256) reverse(float* x, int n) {
  __shared__ float s[300];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[255 - threadIdx.x] * n;
}
""",
    entry="reverse",
    parameters=(pointer("x"), Parameter("n", I32)),
    threads_per_block=THREADS,
)

SPILLING = CudaSource(
    text="""\
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* x, int n) {
  float a[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = x[i * 1024 + threadIdx.x];
  for (int j = 0; j < n; ++j) {
    #pragma unroll
    for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + 7) % 64] + x[j];
  }
  #pragma unroll
  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = a[i];
}
""",
    entry="spilling",
    parameters=(pointer("x"), Parameter("n", I32)),
    threads_per_block=1024,
)

BARRIERS = CudaSource(
    text="""\
extern "C" __global__ void barriers(float* x) {
  asm volatile("bar.sync 3, 64;");
  asm volatile("bar.sync 5, 64;");
  x[threadIdx.x] = 1;
}
""",
    entry="barriers",
    parameters=(pointer("x"),),
    threads_per_block=64,
)


def rotate(dynamic_shared_bytes: int) -> CudaSource:
    """x[i] := x[i + 1 mod n] through dynamic shared memory of n floats, one block."""
    return CudaSource(
        text="""\
extern "C" __global__ void __launch_bounds__(256) rotate(float* x, int n) {
  extern __shared__ float s[];
  for (int i = threadIdx.x; i < n; i += 256) s[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 256) x[i] = s[i + 1 == n ? 0 : i + 1];
}
""",
        entry="rotate",
        parameters=(pointer("x"), Parameter("n", I32)),
        threads_per_block=THREADS,
        dynamic_shared_bytes=dynamic_shared_bytes,
    )


def broken(text: str, entry: str = "k") -> CudaSource:
    return CudaSource(text=text, entry=entry, parameters=(), threads_per_block=32)
