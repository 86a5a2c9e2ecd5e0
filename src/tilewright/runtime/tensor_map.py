"""Tensor maps: what TMA is told of a matrix, encoded by the driver for each address and size.

Source: CUDA driver API, cuTensorMapEncodeTiled: the address and the strides are multiples of 16 bytes, each extent of
a box is at most 256, its inner extent a multiple of 16 bytes. That a store is clipped in whole pieces of 16 bytes is
written nowhere there: measured on the H200 (2026, the check of an exported project: 7 elements of bf16 behind every row
of 193), and on the H100 in triton-lang/triton issue 11583.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.artifacts import TensorBox
from tilewright.dtypes import Array
from tilewright.errors import LaunchError
from tilewright.runtime.driver import driver_answer

L2_PROMOTION = "L2_128B"
"""What a miss of the L2 brings: the line that was asked for, not its neighbour as well. Measured on the H200 in f16,
256 bytes and 128: 1000^3 7.91 and 7.47 us, 1 x 8192 x 8192 34.4 and 32.1; large sizes take as long with either
(benchmarks/results/plans_h200.json)."""

MAP_BYTES = 128
ALIGNMENT_BYTES = 16
MOST_IN_BATCH = (1 << 31) - 1
RAGGED_LINES, RAGGED_MOST = 1 << 30, 0x7FFF0000
"""Extents of the map of a ragged matrix. Source: triton.tools.ragged_tma."""

Sizes = tuple[int, int, int, int]
"""What a map must know beside the address: elements along the contiguous and the strided dimension, from line to line,
and from matrix to matrix of a batch (0 of one matrix)."""


def sizes_of(box: TensorBox, arguments: Mapping[str, Any]) -> Sizes:
    """The sizes of a launch's matrix."""
    inner, outer = box.extents
    step = int(arguments[box.step]) if box.step else 0
    return inner.of(arguments), outer.of(arguments), box.leading.of(arguments), step


def encode(box: TensorBox, pointer: int, inner: int, outer: int, leading: int, step: int = 0) -> Array:
    """A tensor map as 16 words. Sizes as in `Sizes`."""
    from cuda.bindings import driver

    stride_bytes, step_bytes = leading * box.dtype.bytes, step * box.dtype.bytes
    if box.step and (step_bytes < 0 or step_bytes % ALIGNMENT_BYTES or (box.stored and not step)):
        raise LaunchError(
            f"TMA cannot copy several matrices of {box.pointer} that are {step_bytes} bytes apart.",
            note=f"they follow each other, multiples of {ALIGNMENT_BYTES} bytes apart (0: one that is only read).",
            hint="use a kernel that copies through cp.async.",
        )
    if pointer % ALIGNMENT_BYTES or stride_bytes % ALIGNMENT_BYTES:
        raise LaunchError(
            f"TMA cannot read {box.pointer}: it begins at byte {pointer % ALIGNMENT_BYTES} of "
            f"{ALIGNMENT_BYTES}, and its rows are {stride_bytes} bytes apart.",
            note=f"both must be multiples of {ALIGNMENT_BYTES} bytes.",
            hint=f"pad {box.leading} to a multiple of {ALIGNMENT_BYTES // box.dtype.bytes} elements, or use a kernel "
            "that copies through cp.async.",
        )
    if box.stored and inner * box.dtype.bytes % ALIGNMENT_BYTES:
        raise LaunchError(
            f"TMA cannot store {box.pointer}: its rows are {inner * box.dtype.bytes} bytes long.",
            note=f"TMA writes whole pieces of {ALIGNMENT_BYTES} bytes, and would overwrite what lies behind the row.",
            hint=f"let {box.extents[0]} be a multiple of {ALIGNMENT_BYTES // box.dtype.bytes}, or use a kernel that "
            "stores from registers.",
        )
    kind = driver.CUtensorMapDataType
    words = driver.cuuint64_t
    counts = driver.cuuint32_t
    extents, strides, boxed = [inner, outer], [stride_bytes], [*box.box]
    if box.ragged:  # 2^30 lines of (2^34 - pitch) bytes come back to the first one in 64 bits
        extents, boxed = [inner, RAGGED_LINES, RAGGED_MOST, RAGGED_MOST], [*boxed, 1, 1]
        strides = [stride_bytes, stride_bytes, (1 << 34) - stride_bytes]
    elif box.step:  # as many as there may be problems: none is beyond; a matrix that all share is number 0
        extents, boxed = [*extents, MOST_IN_BATCH if step else 1], [*boxed, 1]
        strides = [*strides, step_bytes or stride_bytes]
    answer = driver.cuTensorMapEncodeTiled(
        getattr(kind, f"CU_TENSOR_MAP_DATA_TYPE_{box.dtype.tensor_map}"),
        len(extents),
        pointer,
        [words(max(extent, 1)) for extent in extents],  # an empty matrix is never read, but must have a size
        [words(stride) for stride in strides],
        [counts(extent) for extent in boxed],
        [counts(1) for _ in boxed],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, box.swizzle),
        getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{L2_PROMOTION}"),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    made = driver_answer(answer, f"describing {box.pointer} to TMA")
    return np.array([int(word) for word in made.opaque], np.uint64)
