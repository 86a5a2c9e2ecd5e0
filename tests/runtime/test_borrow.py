"""Pointers borrowed from other libraries' arrays, read from the protocols they speak; no GPU is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import F16, F32, I64
from tilewright.errors import ProblemError
from tilewright.runtime.memory import borrow


class OnGpu:
    """A NumPy array that says it is on GPU 1, as PyTorch and CuPy do: the capsule is real, the place is not."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.dtype = host.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1

    def __dlpack__(self, *, stream: int) -> Any:
        assert stream == -1
        return self.host.__dlpack__()


class Interface:
    def __init__(self, **fields: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, "stream": None, "strides": None, **fields}


@pytest.mark.parametrize("dtype", [F16, F32, I64])
def test_dlpack_gives_pointer_shape_strides_and_device(dtype: Any) -> None:
    host = np.zeros((4, 6), dtype.numpy)
    borrowed = borrow(OnGpu(host))
    assert borrowed.pointer == host.ctypes.data
    assert (borrowed.shape, borrowed.strides) == ((4, 6), (6, 1))
    assert (borrowed.dtype, borrowed.device_index) == (dtype, 1)


class TakesMinusOneForAHandle(OnGpu):
    """As JAX does: -1 goes to the driver as the handle of a stream, and without a stream the array is waited for."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self.asked: list[int | None] = []

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append(stream)
        if stream is not None:
            raise RuntimeError("INTERNAL: CUDA error: : CUDA_ERROR_INVALID_HANDLE: invalid resource handle")
        return self.host.__dlpack__()


def test_a_library_that_takes_minus_one_for_a_stream_is_asked_to_wait() -> None:
    array = TakesMinusOneForAHandle(np.zeros((4, 6), np.float32))
    assert borrow(array).pointer == array.host.ctypes.data
    assert array.asked == [-1, None]


def test_jax_is_never_given_minus_one() -> None:
    kind = type("ArrayImpl", (TakesMinusOneForAHandle,), {"__module__": "jaxlib._jax"})
    array = kind(np.zeros((4, 6), np.float32))
    assert borrow(array).shape == (4, 6)
    assert array.asked == [None]


def test_views_keep_their_strides_and_their_start() -> None:
    host = np.zeros((8, 10), np.float32)
    view = host[2:, 1::3].T
    borrowed = borrow(OnGpu(view))
    assert borrowed.pointer == view.ctypes.data != host.ctypes.data
    assert (borrowed.shape, borrowed.strides) == ((3, 6), (3, 10))


def test_the_owner_is_kept_and_looking_does_not_consume_it() -> None:
    array = OnGpu(np.zeros(3, np.float32))
    assert borrow(array).owner is borrow(array).owner is array


def test_the_array_interface_gives_strides_in_elements() -> None:
    whole = borrow(Interface(data=(0x1000, False), shape=(3, 5), typestr="<f4"))
    assert (whole.pointer, whole.strides, whole.dtype, whole.device_index) == (0x1000, (5, 1), F32, None)
    view = borrow(Interface(data=(0x1000, False), shape=(3, 5), typestr="<f2", strides=(32, 2)))
    assert (view.strides, view.dtype) == ((16, 1), F16)


def test_an_array_of_the_host_is_refused() -> None:
    with pytest.raises(ProblemError, match="The ndarray lies in host memory, not on a GPU"):
        borrow(np.zeros(3))


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(ProblemError, match="A list is not an array on a GPU"):
        borrow([1.0, 2.0])


@pytest.mark.parametrize(
    "array",
    [
        OnGpu(np.zeros(3, np.complex64)),
        OnGpu(np.zeros(3, np.uint16)),
        Interface(data=(0x1000, False), shape=(3,), typestr="<c8"),
    ],
)
def test_a_dtype_no_kernel_takes_is_refused(array: Any) -> None:
    with pytest.raises(ProblemError, match=r"which no kernel here takes\. Known: f32, f16, bf16, f64, i32, i64, bool"):
        borrow(array)


def test_an_array_that_does_not_give_out_its_memory_says_why() -> None:
    class RequiresGrad(OnGpu):
        def __dlpack__(self, *, stream: int) -> Any:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    with pytest.raises(ProblemError, match="does not give out its memory: Can't export tensors that require gradient"):
        borrow(RequiresGrad(np.zeros(3, np.float32)))
