"""PyTorch tensors. Memory comes from torch's own allocator, which knows streams and captures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright import extras
from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, Array, DType
from tilewright.errors import ProblemError
from tilewright.frontend.libraries.views import NoMemory, Shape, Signed, View, format_named, no_room
from tilewright.runtime.memory import c_strides


class TorchArrays(Signed):
    """The library of `torch.Tensor`."""

    name = "PyTorch"
    writes_in_place = True

    def __init__(self) -> None:
        self.torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")
        self.to_torch: dict[DType, Any] = {F32: self.torch.float32, F16: self.torch.float16, BF16: self.torch.bfloat16}
        self.to_torch |= {E4M3: self.torch.float8_e4m3fn, E5M2: self.torch.float8_e5m2}
        self._formats: dict[Any, DType] = {kind: dtype for dtype, kind in self.to_torch.items()}
        raw = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)
        self.address: Callable[[Any], int] = self.torch.Tensor.data_ptr
        self.stream: Callable[[int], int] = raw or self._stream
        self._is_wrapped = self.torch._C._functorch.is_functorch_wrapped_tensor
        self._tracing_state = self.torch._C._get_tracing_state
        self.launches_alone = self.torch.cuda.device_count() <= 1

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
        if self._is_wrapped(array) or self._tracing_state() is not None:
            raise NoMemory("The tensor has no memory of its own: PyTorch transforms or traces the call.")
        if array.is_neg():
            raise ProblemError(
                "The tensor stands for the negative of what lies in memory.", hint="pass tensor.resolve_neg()."
            )
        if array.device.type not in ("cuda", "cpu"):
            raise ProblemError(
                f"The tensor lies on {array.device}, and kernels run on CUDA devices.",
                hint='move it: tensor.to("cuda").',
            )
        device = array.get_device() if array.is_cuda else None
        return View(array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype, device)

    def sign(self, array: Any) -> Any:
        return array.dtype, array.shape, array.stride(), array.get_device(), array.data_ptr() & 15

    def key(self, options: Any, a: Any, b: Any, c: Any, bias: Any, out: Any, operands: tuple[Any, ...] = ()) -> Any:
        if c is not None or out is not None or operands:
            return super().key(options, a, b, c, bias, out, operands)
        try:
            key = (  # what most calls ask, in half the time
                options,
                a.dtype, a.shape, a.stride(), a.get_device(), a.data_ptr() & 15,
                b.dtype, b.shape, b.stride(), b.get_device(), b.data_ptr() & 15,
            )  # fmt: skip
        except RuntimeError:
            if a.is_nested or b.is_nested:
                raise ProblemError("A nested tensor has no strides.", hint="use grouped_matmul.") from None
            raise
        return (
            key
            if bias is None
            else (*key, bias.dtype, bias.shape, bias.stride(), bias.get_device(), bias.data_ptr() & 15)
        )

    def maker(self, shape: Shape, dtype: DType, like: Any) -> Callable[[], Any]:
        # `torch.empty` tries another overload first, which takes 3 us; what compiled graphs call asks no dispatcher.
        guards = getattr(getattr(self.torch._C, "_dynamo", None), "guards", None)
        quick = getattr(guards, f"_empty_strided_{like.device.type}", None) if self.launches_alone else None
        if quick is not None:
            return partial(quick, tuple(shape), c_strides(shape), self.to_torch[dtype])
        empty = self.torch.empty_strided
        return partial(empty, shape, c_strides(shape), dtype=self.to_torch[dtype], device=like.device)

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

    def elsewhere(self, device: int) -> bool:
        return int(self.torch.cuda.current_device()) != device

    def capturing(self) -> bool:
        return bool(self.torch.cuda.is_current_stream_capturing())

    def deterministic(self) -> bool:
        return bool(self.torch.are_deterministic_algorithms_enabled())

    def finished(self, device: int) -> None:
        pass
