"""Compiling CUDA text and running it: NVRTC, the cubin cache, the driver, launches, memory, timing, SASS.

Nothing here is imported by `import tilewright` that touches a GPU: `cuda.bindings` and `cuda.core` are
imported inside the functions that need them, on first use.
"""
