"""A call of plain tensors: memory on a GPU or on the host, of which PyTorch need know nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import extras
from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.frontend.compute import HostMemory, compute
from tilewright.frontend.libraries import NoMemory, View, library_of
from tilewright.frontend.operands import applied_to, further_of, in_place
from tilewright.frontend.options import Options
from tilewright.frontend.requests import Views, checked
from tilewright.frontend.shapes import Product
from tilewright.frontend.tracing import operand_name
from tilewright.notices import say_once
from tilewright.runtime.memory import c_strides
from tilewright.units import type_name

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")

LIBRARY: Any = library_of(torch.empty(0))

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
observers: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)
"""How many modes look at every operator: a tracer, a counter of operations."""


def is_plain(*tensors: Any) -> bool:
    """Whether PyTorch need not see a call with some tensors."""
    if not all(type(tensor) in PLAIN for tensor in tensors) or observers() or has_tangents():
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def at_once(call: Callable[[], Any], *tensors: Any) -> Any:
    """The result of a call whose tensors are plain and lie in memory; None where PyTorch must see it as an operator."""
    if torch.compiler.is_compiling() or tensors[0].is_meta or not is_plain(*tensors):
        return None
    try:
        return call()
    except NoMemory:
        return None


def seen(tensor: Any, *, tight: bool = False) -> View:
    """Where a tensor lies that may have no elements. tight: as if it were in C order."""
    device = tensor.device.index or 0 if tensor.device.type == "cuda" else None
    shape = tuple(tensor.shape)
    return View(0, shape, c_strides(shape) if tight else tuple(tensor.stride()), LIBRARY.format_of(tensor), device)


def or_on_the_host(name: str, compute: Callable[..., Any], on_the_host: Callable[..., Any]) -> Callable[..., Any]:
    """What computes a call, from what does so with arrays of a library on a GPU; tensors in host memory are left to
    PyTorch on the CPU, which a warning says once. name: of the call."""

    def computed(*given: Any) -> Any:
        try:
            return compute(LIBRARY, *given)
        except HostMemory:
            pass
        say_once(
            f"tilewright.{name} computes with PyTorch: the tensors lie in host memory, not on a GPU. Move them to the "
            "GPU."
        )
        with torch.no_grad():
            return on_the_host(*given)

    return computed


def refuse_others(**named: Any) -> None:
    """Raises ProblemError for an argument that is not a tensor."""
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):
            raise ProblemError(f"{name} is {type_name(tensor)}, beside tensors of PyTorch.", hint="pass a tensor.")


def compute_plain(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()) -> Any:
    """The result, in a new tensor or in `out`, which autograd is told has changed; a tuple of several."""
    result = _computed(a, b, out, c, bias, options, operands)
    if out is not None and not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return result


def _on_the_host(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...]) -> Any:
    """The same by PyTorch on the CPU, summed in f32."""
    wide = options.alpha * torch.matmul(a.float(), b.float())
    wide = wide if c is None else wide + options.beta * c.float()
    wide = wide if bias is None else wide + bias.float()
    if options.activation is not None:
        wide = activated(options.activation.value, wide)
    of_a, of_b, *others = (seen(one, tight=True) for one in (a, b, *operands))
    views = Views(of_a, of_b, operands=tuple(others))
    product, into = checked(views, options)
    second = torch.matmul(a.float(), operands[-1].float()) if options.has_second else None
    first, *further = results_of(wide, product, options, operands, into, of_a.dtype, second)
    result = first if out is None else out.copy_(first)
    return (result, *further) if further else result


_computed = or_on_the_host("matmul", compute, _on_the_host)


def results_of(
    wide: Any,
    product: Product,
    options: Options,
    operands: Sequence[Any],
    into: DType,
    others: DType,
    second: Any = None,
) -> list[Any]:
    """The results of finished sums, those of a function by NumPy. into: the format of the first; others: of others, if
    none is asked for; second: the other sum, where there is one."""
    if options.traced is None:
        return [_in_format(wide, into)]
    kinds = [into, *(one.view.dtype for one in further_of(options, product, others))]
    placed = {
        operand_name(name): in_place(operand.detach().float().numpy(), product)
        for name, operand in zip(options.names, operands, strict=False)
    }
    totals = [wide.numpy(), *([] if second is None else [second.numpy()])]
    made = (torch.from_numpy(np.array(one, np.float32)) for one in applied_to(totals, options, placed))
    return [_in_format(one, kind) for one, kind in zip(made, kinds, strict=True)]


def _in_format(numbers: Any, dtype: DType) -> Any:
    """Numbers rounded to a format; what is larger than the largest number of FP8 becomes that."""
    largest = dtype.largest
    return (numbers if largest == float("inf") else numbers.clamp(-largest, largest)).to(LIBRARY.to_torch[dtype])


def activated(name: str | None, x: Any) -> Any:
    """An activation by PyTorch, by our name for it."""
    functional = torch.nn.functional
    if name in ("gelu", "gelu_tanh"):
        return functional.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    return x if name is None else {"relu": functional.relu, "silu": functional.silu}[name](x)


def has_tangents() -> bool:
    """Whether tensors may carry derivatives forward."""
    return int(torch.autograd.forward_ad._current_level) >= 0
