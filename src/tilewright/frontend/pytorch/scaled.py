"""`torch.ops.tilewright.scaled_matmul`: products of FP8 operands as an operator of PyTorch. It has no gradients."""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.errors import ProblemError
from tilewright.frontend.pytorch.plain import LIBRARY, at_once, or_on_the_host, results_of, seen
from tilewright.frontend.pytorch.registering import constant_in_graphs, registered, without_gradients
from tilewright.frontend.pytorch.sharded import know_sharding
from tilewright.frontend.scaled import (
    Arrays,
    ScaledOptions,
    ScaledViews,
    checked_scaled,
    compute_scaled,
    scaled_options,
)
from tilewright.frontend.scales import BLOCK, scaling_of
from tilewright.frontend.shapes import product_of

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")


def scaled(arrays: Arrays, out_dtype: Any, fast: Any) -> Any:
    """A call with tensors of PyTorch."""
    if not torch.compiler.is_compiling():
        result = _of_plain(arrays, scaled_options(out_dtype, fast))
        if result is not None:
            return result
    know_sharding("scaled_matmul")
    result = torch.ops.tilewright.scaled_matmul(*arrays[:5], *words_asked(out_dtype, fast))
    return result if arrays[5] is None else arrays[5].copy_(result)


def _of_plain(arrays: Arrays, options: ScaledOptions) -> Any:
    """The results of tensors that lie in memory; None where PyTorch must see the call as an operator."""
    given = [array for array in arrays if array is not None]
    if len(given) < _LEAST or not all(isinstance(array, torch.Tensor) for array in given):
        return compute_scaled(LIBRARY, arrays, options)  # which says what is wrong
    return at_once(lambda: compute_scaled_plain(arrays, options), *given)


_LEAST = 4
"""Tensors of a call."""


@constant_in_graphs
def words_asked(out_dtype: Any, fast: Any) -> tuple[Any, bool]:
    """The options as the operator takes them. The compiler takes them as they are."""
    options = scaled_options(out_dtype, fast)
    return LIBRARY.to_torch[options.out_dtype], options.fast


def computed_with_function(arrays: Arrays, options: ScaledOptions) -> Any:
    """A call with a function as its epilogue, which has no gradients."""
    results = _of_plain(arrays, options)
    if results is not None:
        return results
    raise ProblemError(
        "A scaled product with a function as its epilogue is of plain tensors, and has no gradients.",
        note="PyTorch's tracers, modes and torch.func do not see into it.",
        hint="call it outside of them, on detached tensors.",
    )


def compute_scaled_plain(arrays: Arrays, options: ScaledOptions) -> Any:
    """The result, in a new tensor or in `out`, which autograd is told has changed; a tuple of several."""
    result = _computed(arrays, options)
    if arrays[5] is not None and not arrays[5].is_inference():
        torch.autograd.graph.increment_version(arrays[5])
    return result


def _on_the_host(arrays: Arrays, options: ScaledOptions) -> Any:
    """The same by PyTorch on the CPU, summed in f32."""
    a, b, scale_a, scale_b, bias, out, *operands = arrays
    found = multiplied(a, b, scale_a, scale_b)
    found = found if bias is None else found + bias.float()
    product, into = product_of(seen(a, tight=True), seen(b, tight=True)), options.out_dtype
    first, *others = results_of(found, product, options.call, operands, into, into)
    result = first if out is None else out.copy_(first)
    return (result, *others) if others else result


_computed = or_on_the_host("scaled_matmul", compute_scaled, _on_the_host)


def multiplied(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """The product in f32, with its scales."""
    views = seen(scale_a), seen(scale_b)
    blocks = scaling_of(a.shape[0], b.shape[1], a.shape[1], *views).blocks
    if blocks is None:
        return (a.float() @ b.float()) * _along(scale_a, 1) * _along(scale_b, 0)
    return (a.float() * _spread(scale_a, a.shape, blocks.a)) @ (b.float() * _spread(scale_b.T, b.T.shape, blocks.b).T)


def _spread(scale: Any, shape: Any, side: int) -> Any:
    """The scale of each element of an operand whose rows run along k."""
    return scale.repeat_interleave(side, 0)[: shape[0]].repeat_interleave(BLOCK, 1)[:, : shape[1]]


def _along(scale: Any, dimension: int) -> Any:
    """A scale as it is multiplied with the result. dimension: where it has one element."""
    return scale.reshape(()) if scale.numel() == 1 else scale.reshape(-1).unsqueeze(dimension)


def _scaled(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None, fast: bool = False
) -> Any:
    return compute_scaled_plain((a, b, scale_a, scale_b, bias, None), scaled_options(out_dtype, fast))


def _shaped(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None, fast: bool = False
) -> Any:
    """A result without elements, or the error that the call would raise."""
    options = scaled_options(out_dtype, fast)
    factors = seen(a, tight=True), seen(b, tight=True)
    views = ScaledViews(*factors, seen(scale_a), seen(scale_b), None if bias is None else seen(bias))
    checked_scaled(views, options)
    return a.new_empty(views.shape, dtype=LIBRARY.to_torch[options.out_dtype])


_GIVEN = (
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, ScalarType? out_dtype=None, "
    "bool fast_accumulation=False"
)
_OPERATOR = registered(
    f"scaled_matmul({_GIVEN}) -> Tensor",
    _scaled,
    _shaped,
    *without_gradients(
        "scaled_matmul has no gradients, and one of its tensors",
        "multiply the operands of the backward pass by calls of their own.",
    ),
)
