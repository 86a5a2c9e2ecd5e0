"""Arrays of libraries that give us no stream: our own stream and memory, and a wait at the end. JAX, and whatever else
shows its memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tilewright import extras
from tilewright.dtypes import BF16, Array, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.libraries.views import NAMES, Shape, View, format_named, no_room
from tilewright.runtime.driver import driver_answer, open_gpu
from tilewright.runtime.memory import BorrowedArray, DeviceArray, borrow, c_strides
from tilewright.units import format_bytes

_KEPT: dict[int, DeviceArray] = {}
"""A workspace for each GPU, the largest so far: our stream does one thing after another, so that calls can share it."""


class _Ours(ABC):
    """What such libraries share."""

    launches_alone = False

    @abstractmethod
    def view(self, array: Any) -> View:
        """Where an array lies that has been computed."""

    def elsewhere(self, device: int) -> bool:
        return True

    def stream(self, device: int) -> int:
        return int(open_gpu(device).stream.handle)

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        device = self.view(like).device or 0
        kept = _KEPT.get(device)
        if kept is None or kept.nbytes < size_bytes:
            if kept is not None:
                _KEPT.pop(device).close()
            try:
                kept = _KEPT[device] = DeviceArray(open_gpu(device), (size_bytes,))
            except LaunchError as full:
                raise no_room(size_bytes) from full
        return kept.pointer, kept

    def upload(self, words: Array, like: Any) -> tuple[int, Any]:
        memory = DeviceArray.of(open_gpu(self.view(like).device or 0), words)
        return memory.pointer, memory

    def key(self, options: Any, a: Any, b: Any, c: Any, bias: Any, out: Any, operands: tuple[Any, ...] = ()) -> Any:
        return None

    def address(self, array: Any) -> int:
        return self.view(array).pointer

    def capturing(self) -> bool:
        return False

    def deterministic(self) -> bool:
        return False

    def finished(self, device: int) -> None:
        from cuda.bindings import driver

        gpu = open_gpu(device)
        driver_answer(driver.cuStreamSynchronize(gpu.stream.handle), f"waiting for {gpu.name}")


class JaxArrays(_Ours):
    """JAX arrays. JAX shows no streams and its arrays do not change: inputs are waited for, and so is the result."""

    name = "JAX"
    writes_in_place = False

    def __init__(self) -> None:
        self.jax: Any = extras.require("jax", "Multiplying arrays of JAX")
        self.numpy: Any = self.jax.numpy

    def view(self, array: Any) -> View:
        if isinstance(array, self.jax.core.Tracer):
            raise ProblemError(
                "JAX is tracing this call, and an array that is traced has no memory.",
                hint="call tilewright outside of jax.jit, jax.grad and jax.vmap.",
            )
        dtype = format_named(array.dtype.name, array)
        devices = array.devices()
        if len(devices) != 1:
            raise ProblemError(f"The array is spread over {len(devices)} devices, and a kernel runs on one.")
        if next(iter(devices)).platform not in ("gpu", "cuda"):
            return View(0, array.shape, c_strides(array.shape), dtype, None)
        borrowed = self.borrowed(array)
        return View(borrowed.pointer, borrowed.shape, borrowed.strides, dtype, borrowed.device_index or 0)

    def borrowed(self, array: Any) -> BorrowedArray:
        """The memory of an array that has been computed."""
        return borrow(array.block_until_ready())

    def maker(self, shape: Shape, dtype: DType, like: Any) -> Callable[[], Any]:
        (device,) = like.devices()
        # A result of a computation has memory of its own, which nobody else has seen yet.
        return lambda: self.numpy.zeros(shape, NAMES[dtype], device=device).block_until_ready()

    def tight(self, array: Any) -> Any:
        return array.copy()

    def spread(self, array: Any, shape: Shape) -> Any:
        return self.numpy.broadcast_to(array, shape).copy()

    def convert(self, array: Any, dtype: DType) -> Any:
        return array.astype(NAMES[dtype])

    def assign(self, target: Any, value: Any) -> None:
        raise ProblemError("Arrays of JAX do not change, so nothing can be assigned to them.")


class AnyArrays(_Ours):
    """Whatever shows `__cuda_array_interface__` or DLPack on a GPU; results are `DeviceArray`s of ours."""

    name = "an array on a GPU"
    writes_in_place = True

    def view(self, array: Any) -> View:
        told = self.borrowed(array)
        dtype = told.dtype if told.dtype is BF16 else format_named(told.dtype.storage, array)
        return View(told.pointer, told.shape, told.strides, dtype, told.device_index or 0)

    def borrowed(self, array: Any) -> BorrowedArray:
        """The memory of an array that has been written."""
        told = borrow(array)
        _wait_for(array, told.device_index or 0)
        return told

    def maker(self, shape: Shape, dtype: DType, like: Any) -> Callable[[], Any]:
        gpu = open_gpu(self.view(like).device or 0)
        return lambda: DeviceArray(gpu, shape, dtype.storage)

    def tight(self, array: Any) -> Any:
        raise ProblemError(
            f"The {type(array).__name__} has contiguous rows in neither direction.", hint="copy it in C order first."
        )

    def spread(self, array: Any, shape: Shape) -> Any:
        raise ProblemError(
            f"The {type(array).__name__} does not lie as the result of shape {shape} does.", hint="copy it first."
        )

    def convert(self, array: Any, dtype: DType) -> Any:
        raise ProblemError(f"The {type(array).__name__} cannot be converted to {dtype} here.", hint="convert it first.")

    def assign(self, target: Any, value: Any) -> None:
        raise ProblemError(
            f"The {type(target).__name__} cannot be assigned to here.",
            hint="give `out` in C order, apart from the rest.",
        )


class DeviceArrays(_Ours):
    """Our own `DeviceArray`s, which are always in C order; 16-bit integers hold bf16."""

    name = "tilewright"
    writes_in_place = True

    def view(self, array: Any) -> View:
        dtype = BF16 if array.dtype.name == BF16.storage else format_named(array.dtype.name, array)
        return View(array.pointer, array.shape, c_strides(array.shape), dtype, array.gpu.index)

    def maker(self, shape: Shape, dtype: DType, like: Any) -> Callable[[], Any]:
        gpu = like.gpu
        return lambda: DeviceArray(gpu, shape, dtype.storage)

    def convert(self, array: Any, dtype: DType) -> Any:
        raise ProblemError(
            f"A DeviceArray of {array.dtype} is not converted to {dtype}.", hint="convert it on the host."
        )

    def spread(self, array: Any, shape: Shape) -> Any:
        raise ProblemError(
            f"A DeviceArray of shape {array.shape} is not broadcast to {shape}.", hint="do it on the host."
        )

    def assign(self, target: Any, value: Any) -> None:
        from cuda.bindings import driver

        gpu = target.gpu
        copy = driver.cuMemcpyDtoDAsync(target.pointer, value.pointer, target.nbytes, gpu.stream.handle)
        driver_answer(copy, f"copying {format_bytes(target.nbytes)} on {gpu.name}")
        self.finished(gpu.index)


def _wait_for(array: Any, device: int) -> None:
    """Waits until what was written to an array is there.

    Source: CUDA Array Interface, version 3, Synchronization: `stream` None asks for no wait, a number is a stream; who
    does not say must be waited for altogether.
    """
    interface = getattr(array, "__cuda_array_interface__", None) or {}
    if interface.get("stream", 0) is None:
        return
    open_gpu(device).synchronize()
