"""A call, where its arrays lie: on a GPU or on the host."""

from __future__ import annotations

from typing import Any

from tilewright.errors import ProblemError
from tilewright.frontend.libraries import DTypeError, HostArrays, TorchArrays
from tilewright.frontend.on_gpu import on_gpu
from tilewright.frontend.on_host import on_host
from tilewright.frontend.options import Options


def compute(library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
    """The result of a call whose arrays are all of one library. Raises DTypeError and ProblemError."""
    first, second = library.view(a), library.view(b)
    if first.dtype is not second.dtype:
        raise DTypeError(f"Cannot multiply {first.dtype} by {second.dtype}.", hint="convert one to the other's dtype.")
    if first.device != second.device:
        raise ProblemError(
            f"Cannot multiply arrays on different devices: {first.place} and {second.place}.", hint="move one of them."
        )
    if first.device is not None:
        return on_gpu(library, a, b, out, c, bias, options)
    if not isinstance(library, HostArrays):
        without_cuda = isinstance(library, TorchArrays) and library.torch.version.cuda is None
        first_of_all = "install a PyTorch that has CUDA, for this one has none, then " if without_cuda else ""
        raise ProblemError(
            f"The arrays of {library.name} lie in host memory, not on a GPU.",
            hint=f"{first_of_all}move them to the GPU first.",
        )
    return on_host(a, b, out, c, bias, options)
