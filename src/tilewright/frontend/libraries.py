"""The libraries whose arrays we take: where an array lies, how to make another, which stream its work runs on.

Nothing optional is imported here: a library is met when one of its arrays is. Each is a small class with the same
methods (`Library`); `library_of(array)` finds it by the type of the array and remembers.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright import extras
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.runtime.driver import driver_answer, gpu_problem, open_gpu
from tilewright.runtime.memory import DeviceArray, borrow
from tilewright.units import format_bytes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Where an array lies. pointer: of its first element. strides: in elements. device: the GPU; None is the host."""

    pointer: int
    shape: Shape
    strides: Shape
    dtype: DType
    device: int | None


class Library(Protocol):
    """What the front end asks of a library of arrays."""

    name: str
    writes_in_place: bool
    """Whether its arrays may be given as `out`."""

    def view(self, array: Any) -> View: ...
    def empty(self, shape: Shape, dtype: DType, like: Any) -> Any:
        """A new array on the device of `like`, its elements anything."""
        ...

    def tight(self, array: Any) -> Any:
        """A copy in C order."""
        ...

    def convert(self, array: Any, dtype: DType) -> Any:
        """A copy in another number format."""
        ...

    def assign(self, target: Any, value: Any) -> None:
        """`target[...] = value`, on the user's stream."""
        ...

    def stream(self, device: int) -> int:
        """The address of the stream on which the user's work runs."""
        ...

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        """Memory that this call may use on its stream, its address and what keeps it. Raises LaunchError if full."""
        ...

    def capturing(self) -> bool:
        """Whether the user's stream is recording a graph."""
        ...

    def finished(self, arrays: tuple[Any, ...], device: int) -> None:
        """Called after the last launch, for libraries that share no streams."""
        ...


class TorchArrays:
    """PyTorch tensors. Memory comes from torch's own allocator, which knows streams and captures."""

    name = "PyTorch"
    writes_in_place = True

    def __init__(self) -> None:
        self.torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")
        self.of_torch: dict[Any, DType] = {
            self.torch.float32: F32,
            self.torch.float16: F16,
            self.torch.bfloat16: BF16,
        }
        self.to_torch = {dtype: kind for kind, dtype in self.of_torch.items()}
        raw = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)
        self.stream: Callable[[int], int] = raw or self._stream

    def _stream(self, device: int) -> int:
        return int(self.torch.cuda.current_stream(device).cuda_stream)

    def view(self, array: Any) -> View:
        dtype = self.of_torch.get(array.dtype)
        if dtype is None:
            raise wrong_dtype(array, str(array.dtype))
        if array.is_sparse or array.layout != self.torch.strided:
            raise ProblemError(
                f"A tensor of layout {array.layout} has no strides.", hint="make it dense: tensor.to_dense()."
            )
        if array.is_conj() or array.is_neg():
            array = array.resolve_neg()
        device = array.get_device() if array.is_cuda else None
        return View(array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype, device)

    def empty(self, shape: Shape, dtype: DType, like: Any) -> Any:
        return self.torch.empty(shape, dtype=self.to_torch[dtype], device=like.device)

    def tight(self, array: Any) -> Any:
        return array.detach().contiguous()

    def convert(self, array: Any, dtype: DType) -> Any:
        return array.detach().to(self.to_torch[dtype])

    def assign(self, target: Any, value: Any) -> None:
        target.copy_(value) if isinstance(value, self.torch.Tensor) else target.fill_(value)

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        try:
            memory = self.torch.empty(size_bytes, dtype=self.torch.uint8, device=like.device)
        except self.torch.OutOfMemoryError as full:
            raise no_room(size_bytes) from full
        return memory.data_ptr(), memory

    def capturing(self) -> bool:
        return bool(self.torch.cuda.is_current_stream_capturing())

    def finished(self, arrays: tuple[Any, ...], device: int) -> None:
        pass


class CupyArrays:
    """CuPy arrays. Memory comes from CuPy's pool of the current stream."""

    name = "CuPy"
    writes_in_place = True

    def __init__(self) -> None:
        self.cupy: Any = extras.require("cupy", "Multiplying arrays of CuPy")

    def view(self, array: Any) -> View:
        dtype = _DTYPES.get(array.dtype.name)
        if dtype is None:
            raise wrong_dtype(array, array.dtype.name)
        step = array.itemsize
        return View(array.data.ptr, array.shape, tuple(s // step for s in array.strides), dtype, array.device.id)

    def empty(self, shape: Shape, dtype: DType, like: Any) -> Any:
        return self.cupy.empty(shape, like.dtype if dtype is BF16 else dtype.storage)

    def tight(self, array: Any) -> Any:
        return self.cupy.ascontiguousarray(array)

    def convert(self, array: Any, dtype: DType) -> Any:
        return array.astype(dtype.storage)

    def assign(self, target: Any, value: Any) -> None:
        target[...] = value

    def stream(self, device: int) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        try:
            memory = self.cupy.empty(size_bytes, np.uint8)
        except self.cupy.cuda.memory.OutOfMemoryError as full:
            raise no_room(size_bytes) from full
        return memory.data.ptr, memory

    def capturing(self) -> bool:
        return bool(self.cupy.cuda.get_current_stream().is_capturing())

    def finished(self, arrays: tuple[Any, ...], device: int) -> None:
        pass


class _Ours:
    """What libraries share that give us no stream: our own stream and memory, and a wait at the end."""

    writes_in_place = True

    def stream(self, device: int) -> int:
        return int(open_gpu(device).stream.handle)

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        device = self.view(like).device  # type: ignore[attr-defined]
        try:
            memory = DeviceArray(open_gpu(device or 0), (size_bytes,))
        except LaunchError as full:
            raise no_room(size_bytes) from full
        return memory.pointer, memory

    def capturing(self) -> bool:
        return False

    def finished(self, arrays: tuple[Any, ...], device: int) -> None:
        gpu = open_gpu(device)
        from cuda.bindings import driver

        driver_answer(driver.cuStreamSynchronize(gpu.stream.handle), f"waiting for {gpu.name}")


class JaxArrays(_Ours):
    """JAX arrays. JAX shows no streams and its arrays do not change: inputs are waited for, and so is the result."""

    name = "JAX"
    writes_in_place = False

    def __init__(self) -> None:
        self.jax: Any = extras.require("jax", "Multiplying arrays of JAX")
        self.numpy: Any = self.jax.numpy

    def view(self, array: Any) -> View:
        dtype = _DTYPES.get(array.dtype.name)
        if dtype is None:
            raise wrong_dtype(array, array.dtype.name)
        (device,) = array.devices()
        array.block_until_ready()
        if device.platform not in ("gpu", "cuda"):
            return View(0, array.shape, _tight(array.shape), dtype, None)
        borrowed = borrow(array)
        return View(borrowed.pointer, borrowed.shape, borrowed.strides, dtype, borrowed.device_index or 0)

    def empty(self, shape: Shape, dtype: DType, like: Any) -> Any:
        kind = {F32: "float32", F16: "float16", BF16: "bfloat16"}[dtype]
        (device,) = like.devices()
        # A result of a computation has memory of its own, which nobody else has seen yet.
        return self.jax.device_put(np.zeros(shape, self.numpy.dtype(kind)), device).block_until_ready()

    def tight(self, array: Any) -> Any:
        return array.copy()

    def convert(self, array: Any, dtype: DType) -> Any:
        return array.astype({F32: "float32", F16: "float16", BF16: "bfloat16"}[dtype])

    def assign(self, target: Any, value: Any) -> None:
        raise ProblemError(
            "Arrays of JAX do not change, so nothing can be added in place.", hint="add it to the result."
        )


class AnyArrays(_Ours):
    """Whatever shows `__cuda_array_interface__` or DLPack on a GPU; results are `DeviceArray`s of ours."""

    name = "an array on a GPU"

    def view(self, array: Any) -> View:
        told = borrow(array)
        if told.dtype not in (F32, F16, BF16):
            raise wrong_dtype(array, told.dtype.name)
        return View(told.pointer, told.shape, told.strides, told.dtype, told.device_index or 0)

    def empty(self, shape: Shape, dtype: DType, like: Any) -> Any:
        return DeviceArray(open_gpu(self.view(like).device or 0), shape, dtype.storage)

    def tight(self, array: Any) -> Any:
        raise ProblemError(
            f"The {type(array).__name__} has contiguous rows in neither direction.", hint="copy it in C order first."
        )

    def convert(self, array: Any, dtype: DType) -> Any:
        raise ProblemError(f"The {type(array).__name__} cannot be converted to {dtype} here.")

    def assign(self, target: Any, value: Any) -> None:
        raise ProblemError(f"The {type(target).__name__} cannot be assigned to here.")


class HostArrays:
    """NumPy arrays: copied to a GPU and back where there is one, else multiplied by NumPy."""

    name = "NumPy"
    writes_in_place = True

    def view(self, array: Any) -> View:
        dtype = _DTYPES.get(array.dtype.name)
        if dtype is None:
            raise wrong_dtype(array, array.dtype.name)
        step = array.itemsize
        return View(array.ctypes.data, array.shape, tuple(s // step for s in array.strides), dtype, None)


_DTYPES: dict[str, DType] = {"float32": F32, "float16": F16, "bfloat16": BF16}

_KNOWN: dict[type, Any] = {}
"""The library of each type of array met so far."""

_OF_MODULE: dict[str, type] = {"torch": TorchArrays, "cupy": CupyArrays, "jax": JaxArrays, "jaxlib": JaxArrays}
_MADE: dict[type, Any] = {}


def library_of(array: Any) -> Any:
    """The library of an array. Raises ProblemError for what is none."""
    kind = type(array)
    found = _KNOWN.get(kind)
    if found is None:
        found = _KNOWN[kind] = _made(_library_of(array))
    return found


def _made(kind: type) -> Any:
    if kind not in _MADE:
        _MADE[kind] = kind()
    return _MADE[kind]


def _library_of(array: Any) -> type:
    if isinstance(array, np.ndarray):
        return HostArrays
    for parent in type(array).__mro__:
        found = _OF_MODULE.get(parent.__module__.partition(".")[0])
        if found is not None:
            return found
    if hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack_device__"):
        return AnyArrays
    raise ProblemError(f"Cannot multiply a {type(array).__name__}.", hint="pass arrays of PyTorch, CuPy, JAX or NumPy.")


def wrong_dtype(array: Any, name: str) -> ProblemError:
    """The error for a number format that no kernel multiplies."""
    return DTypeError(
        f"Cannot multiply a {type(array).__name__} of {name}.",
        hint=f"use {', '.join(_DTYPES)}: convert it first.",
    )


class DTypeError(ProblemError, TypeError):
    """A number format that no kernel takes; a TypeError, as other libraries raise it."""


class WorkspaceError(LaunchError):
    """The GPU has no room for a workspace; a kernel that needs none may run instead."""


def no_room(size_bytes: int) -> WorkspaceError:
    return WorkspaceError(f"There is no room for a workspace of {format_bytes(size_bytes)} on the GPU.")


_SAID: set[str] = set()


def say_once(text: str) -> None:
    """A warning that the user sees once a process."""
    if text not in _SAID:
        _SAID.add(text)
        warnings.warn(text, stacklevel=4)


def no_gpu() -> str | None:
    """Why nothing runs on a GPU here; None if something can."""
    return gpu_problem()


def torch_is_tracing() -> bool:
    """Whether PyTorch is compiling the code that is running."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _tight(shape: Shape) -> Shape:
    """Strides in C order, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
