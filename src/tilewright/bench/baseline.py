"""cuBLAS, through whichever framework is installed: the peer every figure is a ratio to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import extras
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.runtime.driver import Gpu


@dataclass(frozen=True, slots=True)
class Baseline:
    """A peer: what it is, its version, and a function that launches it on the GPU's stream."""

    name: str
    version: str
    launch: Callable[[Sequence[int]], None]


def cublas(gpu: Gpu, gemm: Gemm) -> Baseline | None:
    """cuBLAS for a problem with alpha 1 and beta 0, or None where no framework brings it.

    True fp32 unless the problem asks for tf32; 16-bit operands with fp32 accumulation.
    """
    if extras.available("torch"):
        return _through_torch(gpu, gemm)
    if extras.available("cupy"):
        return _through_cupy(gpu, gemm)
    return None


class _Borrowed:
    """Device memory at an address, as `__cuda_array_interface__` shows it."""

    def __init__(self, pointer: int, shape: tuple[int, int], strides: tuple[int, int], typestr: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "data": (pointer, False),
            "version": 3,
        }


def _borrowed(gemm: Gemm, name: OperandName, pointer: int) -> _Borrowed:
    operand = gemm.operand(name)
    rows, cols = (gemm.size(dim) for dim in operand.dims)
    step = operand.dtype.bytes
    across = gemm.leading(name) * step
    strides = (across, step) if operand.order is Order.ROW else (step, across)
    # A format that NumPy lacks is shown as integers, and viewed as itself by the framework.
    typestr = operand.dtype.numpy.str if operand.dtype.is_numpy else f"<i{step}"
    return _Borrowed(pointer, (rows, cols), strides, typestr)


def _through_torch(gpu: Gpu, gemm: Gemm) -> Baseline:
    torch: Any = extras.require("torch", "Timing cuBLAS")
    tf32 = gemm.multiplies_tf32
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    stream = torch.cuda.ExternalStream(int(gpu.stream.handle))
    views: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}

    def tensor(name: OperandName, pointer: int) -> Any:
        found = torch.as_tensor(_borrowed(gemm, name, pointer), device=f"cuda:{gpu.index}")
        return found.view(getattr(torch, gemm.operand(name).dtype.array_name))

    def launch(pointers: Sequence[int]) -> None:
        key = tuple(pointers)
        if key not in views:
            names: tuple[OperandName, ...] = ("A", "B", "C")
            a, b, c = (tensor(name, pointer) for name, pointer in zip(names, pointers, strict=True))
            views[key] = (a, b, c)
        a, b, c = views[key]
        torch.backends.cuda.matmul.allow_tf32 = tf32
        with torch.cuda.stream(stream):
            torch.mm(a, b, out=c)

    return Baseline("cuBLAS", f"torch {torch.__version__}, CUDA {torch.version.cuda}", launch)


def _through_cupy(gpu: Gpu, gemm: Gemm) -> Baseline | None:
    if not gemm.dtype.is_numpy or gemm.multiplied is not gemm.dtype:
        return None
    cupy: Any = extras.require("cupy", "Timing cuBLAS")
    stream = cupy.cuda.ExternalStream(int(gpu.stream.handle))
    views: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}

    def launch(pointers: Sequence[int]) -> None:
        key = tuple(pointers)
        if key not in views:
            names: tuple[OperandName, ...] = ("A", "B", "C")
            a, b, c = (cupy.asarray(_borrowed(gemm, n, p)) for n, p in zip(names, pointers, strict=True))
            views[key] = (a, b, c)
        a, b, c = views[key]
        with stream:
            cupy.matmul(a, b, out=c)

    return Baseline("cuBLAS", f"cupy {cupy.__version__}", launch)
