"""PyTorch tensors. Memory comes from torch's own allocator, which knows streams and captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import extras
from tilewright.dtypes import BF16, F16, F32, Array, DType
from tilewright.errors import ProblemError
from tilewright.frontend.libraries.views import Shape, View, c_strides, format_named, no_room


class TorchArrays:
    """The library of `torch.Tensor`."""

    name = "PyTorch"
    writes_in_place = True

    def __init__(self) -> None:
        self.torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")
        self.to_torch = {F32: self.torch.float32, F16: self.torch.float16, BF16: self.torch.bfloat16}
        self._formats: dict[Any, DType] = {kind: dtype for dtype, kind in self.to_torch.items()}
        raw = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)
        self.stream: Callable[[int], int] = raw or self._stream

    def _stream(self, device: int) -> int:
        return int(self.torch.cuda.current_stream(device).cuda_stream)

    def format_of(self, array: Any) -> DType:
        return self._formats.get(array.dtype) or format_named(str(array.dtype), array)

    def view(self, array: Any) -> View:
        dtype = self.format_of(array)
        if array.layout != self.torch.strided:
            raise ProblemError(
                f"A tensor of layout {array.layout} has no strides.", hint="make it dense: tensor.to_dense()."
            )
        if array.is_neg():
            raise ProblemError(
                "The tensor stands for the negative of what lies in memory.", hint="pass tensor.resolve_neg()."
            )
        if array.device.type not in ("cuda", "cpu"):
            raise ProblemError(f"The tensor lies on {array.device}, and kernels run on CUDA devices.")
        device = array.get_device() if array.is_cuda else None
        return View(array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype, device)

    def sign(self, array: Any) -> Any:
        return array.dtype, array.shape, array.stride(), array.get_device(), array.data_ptr() & 15

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def empty(self, shape: Shape, dtype: DType, like: Any) -> Any:
        # In C order; `torch.empty` tries another overload first, which takes 3 us.
        return self.torch.empty_strided(shape, c_strides(shape), dtype=self.to_torch[dtype], device=like.device)

    def tight(self, array: Any) -> Any:
        return array.detach().contiguous()

    def spread(self, array: Any, shape: Shape) -> Any:
        return array.detach().expand(shape).clone(memory_format=self.torch.contiguous_format)

    def convert(self, array: Any, dtype: DType) -> Any:
        return array.detach().to(self.to_torch[dtype])

    def assign(self, target: Any, value: Any) -> None:
        target.copy_(value)

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        try:
            memory = self.torch.empty(size_bytes, dtype=self.torch.uint8, device=like.device)
        except self.torch.OutOfMemoryError as full:
            raise no_room(size_bytes) from full
        return memory.data_ptr(), memory

    def upload(self, words: Array, like: Any) -> tuple[int, Any]:
        memory = self.torch.as_tensor(words, device=like.device)
        return memory.data_ptr(), memory

    def capturing(self) -> bool:
        return bool(self.torch.cuda.is_current_stream_capturing())

    def finished(self, arrays: tuple[Any, ...], device: int) -> None:
        pass
