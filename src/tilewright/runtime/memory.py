"""Memory on the GPU: arrays of our own, and pointers borrowed from other libraries' arrays."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tilewright.dtypes import ALL, Array, DType
from tilewright.errors import ProblemError
from tilewright.runtime.driver import Gpu, driver_answer
from tilewright.units import format_bytes, type_name

POISON_BYTE = 0xFF
"""Repeated, it is NaN in f16, bf16, f32 and f64, and -1 in the integers."""


class DeviceArray:
    """A contiguous array on a GPU, from `cuMemAlloc`; freed by `close`, by `with`, or with the object.

    Copies run on the stream of the GPU object and are complete when the method returns. Work on other streams
    is not waited for: synchronise them first.
    """

    def __init__(self, gpu: Gpu, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> None:
        """Uninitialised memory for `shape` elements. Raises LaunchError if the GPU has no room."""
        from cuda.bindings import driver

        self.gpu = gpu
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nbytes = math.prod(shape) * self.dtype.itemsize
        # The driver refuses 0 bytes, and an empty matrix is a matrix.
        allocation = driver_answer(
            driver.cuMemAlloc(max(1, self.nbytes)), f"allocating {format_bytes(self.nbytes)} on {gpu.name}"
        )
        self.pointer = int(allocation)
        self._free = weakref.finalize(self, driver.cuMemFree, allocation)
        self._free.atexit = False  # the driver takes everything back at exit, and may be gone by then

    @classmethod
    def of(cls, gpu: Gpu, host: Array) -> Self:
        """A copy of `host` on the GPU, in C order."""
        array = cls(gpu, host.shape, host.dtype)
        array.upload(host)
        return array

    @classmethod
    def repeated(cls, gpu: Gpu, pattern: Array, elements: int, *, copies: int = 1, pitch_bytes: int = 0) -> Self:
        """A pattern again and again, for so many elements; of that so many copies, `pitch_bytes` apart.

        Only the pattern comes from the host: the rest is copied on the GPU, twice as much each time.
        """
        own_bytes, first = elements * pattern.itemsize, np.ascontiguousarray(pattern).reshape(-1)[:elements]
        array = cls(gpu, (((copies - 1) * pitch_bytes + own_bytes) // pattern.itemsize,), pattern.dtype)
        array._copy_in(first)
        array._spread(first.nbytes, own_bytes)
        array._spread(pitch_bytes, array.nbytes if copies > 1 else 0)
        array._wait()
        return array

    def _spread(self, there_bytes: int, until_bytes: int) -> None:
        """Copy what lies at the start behind itself until so many bytes are written."""
        from cuda.bindings import driver

        while 0 < there_bytes < until_bytes:
            size_bytes = min(there_bytes, until_bytes - there_bytes)
            copy = driver.cuMemcpyDtoDAsync(
                self.pointer + there_bytes, self.pointer, size_bytes, self.gpu.stream.handle
            )
            driver_answer(copy, f"copying {format_bytes(size_bytes)} on {self.gpu.name}")
            there_bytes += size_bytes

    def upload(self, host: Array) -> None:
        """Overwrite all of it with `host`, which must have its shape and NumPy type."""
        if host.shape != self.shape or host.dtype != self.dtype:
            raise ProblemError(
                f"Cannot upload {host.dtype} {host.shape} into a device array of {self.dtype} {self.shape}."
            )
        contiguous = np.ascontiguousarray(host)
        self._copy_in(contiguous)
        self._wait()

    def _copy_in(self, host: Array) -> None:
        """Start to copy a contiguous array to the start of this one."""
        from cuda.bindings import driver

        if host.nbytes:
            copy = driver.cuMemcpyHtoDAsync(self.pointer, host.ctypes.data, host.nbytes, self.gpu.stream.handle)
            driver_answer(copy, f"copying {format_bytes(host.nbytes)} to {self.gpu.name}")

    def download(self) -> Array:
        """A copy on the host."""
        from cuda.bindings import driver

        host = np.empty(self.shape, self.dtype)
        if self.nbytes:
            copy = driver.cuMemcpyDtoHAsync(host.ctypes.data, self.pointer, self.nbytes, self.gpu.stream.handle)
            driver_answer(copy, f"copying {format_bytes(self.nbytes)} from {self.gpu.name}")
        self._wait()
        return host

    def download_parts(self, starts: Sequence[int], length: int) -> Array:
        """Copies of so many elements behind each of some places, one row for each; elements are counted in C order."""
        from cuda.bindings import driver

        host = np.empty((len(starts), length), self.dtype)
        size_bytes, stream = length * self.dtype.itemsize, self.gpu.stream.handle
        if starts and (min(starts) < 0 or (max(starts) + length) * self.dtype.itemsize > self.nbytes):
            raise ProblemError(f"Parts of {length} elements at {min(starts)} to {max(starts)} exceed {self!r}.")
        for number, start in enumerate(starts if size_bytes else ()):
            copy = driver.cuMemcpyDtoHAsync(
                host.ctypes.data + number * size_bytes, self.pointer + start * self.dtype.itemsize, size_bytes, stream
            )
            driver_answer(copy, f"copying {format_bytes(size_bytes)} from {self.gpu.name}")
        self._wait()
        return host

    def poison(self) -> None:
        """Fill it with NaN, so that an unwritten element is seen."""
        self.fill_bytes(POISON_BYTE)

    def fill_bytes(self, byte: int) -> None:
        """Set every byte to `byte`."""
        from cuda.bindings import driver

        if self.nbytes:
            fill = driver.cuMemsetD8Async(self.pointer, byte, self.nbytes, self.gpu.stream.handle)
            driver_answer(fill, f"filling {format_bytes(self.nbytes)} on {self.gpu.name}")
        self._wait()

    def close(self) -> None:
        """Free the memory. Nothing happens the second time."""
        self._free()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": None,
        }

    def _wait(self) -> None:
        from cuda.bindings import driver

        driver_answer(driver.cuStreamSynchronize(self.gpu.stream.handle), f"waiting for {self.gpu.name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}, {self.shape}, at {self.pointer:#x} on {self.gpu.name})"


@dataclass(frozen=True, slots=True)
class BorrowedArray:
    """Where another library's array lies. `owner` is kept, so that the memory lives as long as this does.

    pointer: address of the first element on the device. strides: in elements. device_index: as the driver
    counts, None where the array does not tell.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device_index: int | None
    owner: Any


def borrow(array: Any) -> BorrowedArray:
    """The memory of a GPU array that speaks DLPack or `__cuda_array_interface__` (PyTorch, CuPy, JAX, Numba).

    Nothing is copied, and only JAX's arrays are waited for: work must run on the stream on which the array was written.
    Raises ProblemError for what is not an array, lies in host memory, or has a dtype we do not know.
    """
    if hasattr(array, "__dlpack_device__"):
        return _borrow_by_dlpack(array)
    if hasattr(array, "__cuda_array_interface__"):
        return _borrow_by_interface(array)
    raise ProblemError(
        f"{type_name(array, 'A')} is not an array on a GPU.",
        hint="pass an array of PyTorch, CuPy, JAX or NumPy.",
    )


_OF_LIBRARIES = [dtype for dtype in ALL if dtype.names.dlpack is not None]
_DTYPE_OF_TYPESTR = {dtype.numpy.str: dtype for dtype in _OF_LIBRARIES if dtype.is_numpy}

# Source: dlpack.h 1.1, DLDeviceType and DLDataTypeCode.
_DLPACK_CUDA, _DLPACK_CUDA_MANAGED = 2, 13
_DTYPE_OF_DLPACK = {(dtype.names.dlpack, dtype.bits): dtype for dtype in _OF_LIBRARIES}


class _DLTensor(ctypes.Structure):
    """The head of a DLManagedTensor. Source: dlpack.h 1.1, struct DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _borrow_by_dlpack(array: Any) -> BorrowedArray:
    device_type, device_index = array.__dlpack_device__()
    if int(device_type) not in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED):
        raise ProblemError(
            f"The {type(array).__name__} lies in host memory, not on a GPU.",
            hint="move it to the GPU first, or copy it with DeviceArray.of.",
        )
    try:
        capsule = _capsule_of(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as refusal:
        raise ProblemError(
            f"The {type(array).__name__} does not give out its memory: {refusal}",
            hint="of a PyTorch tensor that requires gradients, pass `tensor.detach()`.",
        ) from refusal
    return _read_capsule(capsule, array, int(device_index))


def _capsule_of(array: Any) -> Any:
    """What an array shows of itself, unasked to wait (-1) where its library knows how not to.

    JAX takes -1 for the handle of a stream, and the driver refuses it (seen with JAX 0.11); without a stream it waits
    on the host until the array is computed, which is right for every stream. Source: jaxlib/dlpack.cc,
    BufferToDLPackManagedTensor.
    """
    if type(array).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return array.__dlpack__()
    try:
        return array.__dlpack__(stream=-1)
    except (RuntimeError, ValueError):  # other libraries may take it for a handle too
        return array.__dlpack__()


def _read_capsule(capsule: Any, owner: Any, device_index: int | None) -> BorrowedArray:
    """Look into a DLPack capsule without consuming it: `owner` keeps the memory, the capsule frees itself.

    `cuda.core` could read it too, but names bf16 only where the package ml_dtypes is installed.
    """
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    dtype = _DTYPE_OF_DLPACK.get((tensor.type_code, tensor.type_bits))
    if dtype is None or tensor.type_lanes != 1:
        raise _unknown_dtype(owner, getattr(owner, "dtype", f"code {tensor.type_code}, {tensor.type_bits} bits"))
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else c_strides(shape)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return BorrowedArray(pointer, shape, strides, dtype, device_index, owner)


def _borrow_by_interface(array: Any) -> BorrowedArray:
    told = array.__cuda_array_interface__
    dtype = _DTYPE_OF_TYPESTR.get(told["typestr"])
    if dtype is None:
        raise _unknown_dtype(array, told["typestr"])
    shape = tuple(told["shape"])
    strides_bytes = told.get("strides")
    strides = c_strides(shape) if strides_bytes is None else tuple(step // dtype.bytes for step in strides_bytes)
    return BorrowedArray(told["data"][0], shape, strides, dtype, None, array)


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in C order, in elements.

    >>> c_strides((3, 4, 5))
    (20, 5, 1)
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _unknown_dtype(array: Any, dtype: object) -> ProblemError:
    known = ", ".join(dict.fromkeys(map(repr, _DTYPE_OF_DLPACK.values())))
    return ProblemError(f"The {type(array).__name__} holds {dtype}, which no kernel here takes. Known: {known}.")
