"""CuPy arrays. Memory comes from CuPy's pool of the current stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import extras
from tilewright.dtypes import BF16, Array, DType
from tilewright.frontend.libraries.views import Shape, Signed, View, format_named, no_room


class CupyArrays(Signed):
    """The library of `cupy.ndarray`."""

    name = "CuPy"
    writes_in_place = True

    def __init__(self) -> None:
        self.cupy: Any = extras.require("cupy", "Multiplying arrays of CuPy")
        self.launches_alone = self.cupy.cuda.runtime.getDeviceCount() <= 1

    def view(self, array: Any) -> View:
        dtype = format_named(array.dtype.name, array)
        step = array.itemsize
        return View(array.data.ptr, array.shape, tuple(s // step for s in array.strides), dtype, array.device.id)

    def sign(self, array: Any) -> Any:
        return array.dtype, array.shape, array.strides, array.device.id, array.data.ptr & 15

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def maker(self, shape: Shape, dtype: DType, like: Any) -> Callable[[], Any]:
        device, kind, empty = like.device, _kind(dtype, like), self.cupy.empty

        def make() -> Any:
            with device:
                return empty(shape, kind)

        return make

    def tight(self, array: Any) -> Any:
        return self.cupy.ascontiguousarray(array)

    def spread(self, array: Any, shape: Shape) -> Any:
        return self.cupy.array(self.cupy.broadcast_to(array, shape), order="C")

    def convert(self, array: Any, dtype: DType) -> Any:
        return array.astype(_kind(dtype, array))

    def assign(self, target: Any, value: Any) -> None:
        target[...] = value

    def elsewhere(self, device: int) -> bool:
        return int(self.cupy.cuda.runtime.getDevice()) != device

    def stream(self, device: int) -> int:
        return int(self.cupy.cuda.get_current_stream(device).ptr)

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        try:
            with like.device:
                memory = self.cupy.empty(size_bytes, np.uint8)
        except self.cupy.cuda.memory.OutOfMemoryError as full:
            raise no_room(size_bytes) from full
        return memory.data.ptr, memory

    def upload(self, words: Array, like: Any) -> tuple[int, Any]:
        with like.device:
            memory = self.cupy.asarray(words)
        return memory.data.ptr, memory

    def capturing(self) -> bool:
        return bool(self.cupy.cuda.get_current_stream().is_capturing())

    def deterministic(self) -> bool:
        return False

    def finished(self, device: int) -> None:
        pass


def _kind(dtype: DType, like: Any) -> Any:
    """The NumPy type of a format; that of bf16 comes from whoever made the array, NumPy has none."""
    return like.dtype if dtype is BF16 and like.dtype.name == "bfloat16" else dtype.numpy
