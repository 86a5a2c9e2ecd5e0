"""A call of plain tensors: memory on a GPU or on the host, of which PyTorch need know nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright import extras
from tilewright.dtypes import DType
from tilewright.frontend.compute import HostMemory, compute
from tilewright.frontend.libraries import library_of
from tilewright.frontend.operands import applied_to, further_of, in_place
from tilewright.frontend.options import Options
from tilewright.frontend.requests import Views, checked
from tilewright.frontend.tracing import Other, operand_name
from tilewright.notices import say_once

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")

LIBRARY: Any = library_of(torch.empty(0))


def compute_plain(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()) -> Any:
    """The result, in a new tensor or in `out`, which autograd is told has changed; a tuple of several."""
    try:
        result = compute(LIBRARY, a, b, out, c, bias, options, operands)
    except HostMemory:
        result = _on_the_host(a, b, out, c, bias, options, operands)
    if out is not None and not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return result


def _on_the_host(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...]) -> Any:
    """The same by PyTorch on the CPU, summed in f32; a warning says so once."""
    say_once(
        "tilewright.matmul computes with PyTorch: the tensors lie in host memory, not on a GPU. Move them to the GPU."
    )
    with torch.no_grad():
        wide = options.alpha * torch.matmul(a.float(), b.float())
        wide = wide if c is None else wide + options.beta * c.float()
        wide = wide if bias is None else wide + bias.float()
        if options.activation is not None:
            wide = activated(options.activation.value, wide)
        to_torch, own = LIBRARY.to_torch, a.dtype
        if options.traced is None:
            result = wide.to(to_torch[options.out_dtype] if options.out_dtype else own)
            return result if out is None else out.copy_(result)
        first, *others = _finished(a, b, wide, options, operands)
        result = first.to(to_torch[options.out_dtype] if options.out_dtype else own)
        result = result if out is None else out.copy_(result)
        kinds = (torch.float32 if one.operation else to_torch[of] if of else own for one, of in _others(options))
        return (result, *(one.to(kind) for one, kind in zip(others, kinds, strict=True))) if others else result


def _others(options: Options) -> Iterator[tuple[Other, DType | None]]:
    """The results behind the first, and the formats that are asked for."""
    return zip(options.others, options.formats, strict=True)


def _finished(a: Any, b: Any, wide: Any, options: Options, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of the function of the epilogue of finished sums, by NumPy."""
    views = Views(LIBRARY.view(a), LIBRARY.view(b), operands=tuple(LIBRARY.view(one) for one in operands))
    product, _ = checked(views, options)
    further_of(options, product, views.a.dtype)
    placed = {
        operand_name(name): in_place(operand.detach().float().numpy(), product)
        for name, operand in zip(options.names, operands, strict=False)
    }
    totals = [wide.numpy()]
    if options.has_second:
        totals.append(torch.matmul(a.float(), operands[-1].float()).numpy())
    return tuple(torch.from_numpy(np.array(one, np.float32)) for one in applied_to(totals, options, placed))


def activated(name: str | None, x: Any) -> Any:
    """An activation by PyTorch, by our name for it."""
    functional = torch.nn.functional
    if name in ("gelu", "gelu_tanh"):
        return functional.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    return x if name is None else {"relu": functional.relu, "silu": functional.silu}[name](x)


def has_tangents() -> bool:
    """Whether tensors may carry derivatives forward."""
    return int(torch.autograd.forward_ad._current_level) >= 0
