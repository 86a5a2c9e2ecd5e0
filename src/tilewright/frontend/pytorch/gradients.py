"""Derivatives of `activation(alpha * a @ b + beta * c + bias)`, computed by the operator itself (`multiply`).

They are made of differentiable operators, so that gradients of gradients need nothing more. A gradient is rounded to
the format of the operands before it is multiplied.
"""

from __future__ import annotations

from typing import Any

from tilewright import extras

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What the gradients need. ReLU's sign is seen in its result; what went into another function is computed again."""
    a, b, c, bias, *ctx.options = inputs
    activation = ctx.options[3]
    wants_a, wants_b, *_ = ctx.needs_input_grad
    again = activation not in (None, "relu")
    ctx.shapes = [None if x is None else (x.shape, x.dtype) for x in (a, b, c, bias)]
    ctx.save_for_backward(
        a if wants_b or again else None,
        b if wants_a or again else None,
        c if again else None,
        bias if again else None,
        output if activation == "relu" else None,
    )


def gradients(multiply: Any, ctx: Any, gradient: Any) -> tuple[Any, ...]:
    """One for each argument that was given."""
    a, b, c, bias, output = ctx.saved_tensors
    alpha, beta, out_dtype, activation, precision, fixed_order = ctx.options
    needs = ctx.needs_input_grad  # PyTorch leaves out last arguments that have their default
    wants_a, wants_b, wants_c, wants_bias = (*needs, False, False)[:4]
    if activation == "relu":
        gradient = torch.ops.aten.threshold_backward(gradient, output, 0)
    elif activation is not None:
        before = multiply(a, b, c, bias, alpha, beta, out_dtype, None, precision, fixed_order)
        gradient = _through(activation, gradient, before)

    (shape_a, dtype), (shape_b, _), *added = ctx.shapes
    whole = gradient.unsqueeze(-1) if len(shape_b) == 1 else gradient
    whole = whole.unsqueeze(-2) if len(shape_a) == 1 else whole
    factor = whole.to(dtype)

    def product(x: Any, y: Any) -> Any:
        return multiply(x, y, None, None, alpha, 1.0, None, None, precision, fixed_order)

    for_a = for_b = None
    if wants_a:
        columns = b.unsqueeze(-1) if b.dim() == 1 else b
        for_a = _summed(product(factor, columns.mT), _as_matrix(shape_a, 0)).reshape(shape_a)
    if wants_b:
        rows = a.unsqueeze(0) if a.dim() == 1 else a
        if len(shape_b) <= 2 and rows.dim() > 2:  # one long product instead of a sum over the batch
            rows, factor = rows.flatten(0, -2), factor.flatten(0, -2)
        for_b = _summed(product(rows.mT, factor), _as_matrix(shape_b, 1)).reshape(shape_b)
    for_c = for_bias = None
    if wants_c:
        shape, kind = added[0]
        for_c = (_summed(gradient, shape) * beta).to(kind)
    if wants_bias:
        shape, kind = added[1]
        for_bias = _summed(whole, _beside(shape, shape_a, shape_b)).reshape(shape).to(kind)
    return (for_a, for_b, for_c, for_bias, *(None,) * len(ctx.options))[: len(needs)]


def keep_for_tangents(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What `tangents` needs, until the call ends."""
    ctx.save_for_forward(*inputs[:4], output)


def tangents(multiply: Any, ctx: Any, given: tuple[Any, ...]) -> Any:
    """The tangent of the result, from those of the tensors; None for one that has none."""
    a, b, c, bias, output = ctx.saved_tensors
    alpha, beta, out_dtype, activation, precision, fixed_order = ctx.options
    of_a, of_b, of_c, of_bias, *_ = given

    def product(x: Any, y: Any) -> Any:
        return multiply(x, y, None, None, alpha, 1.0, out_dtype, None, precision, fixed_order)

    parts = [
        None if of_a is None else product(of_a, b),
        None if of_b is None else product(a, of_b),
        None if of_c is None else beta * of_c,
        of_bias,
    ]
    tangent = torch.zeros_like(output)
    for part in parts:
        tangent = tangent if part is None else tangent + part
    if activation is None:
        return tangent
    if activation == "relu":
        return torch.ops.aten.threshold_backward(tangent, output, 0)
    before = multiply(a, b, c, bias, alpha, beta, out_dtype, None, precision, fixed_order)
    return _through(activation, tangent, before)


def _through(activation: str, gradient: Any, before: Any) -> Any:
    """A gradient before the activation, from the one behind it and what went in."""
    if activation == "silu":
        return torch.ops.aten.silu_backward(gradient, before)
    return torch.ops.aten.gelu_backward(gradient, before, approximate="tanh" if activation == "gelu_tanh" else "none")


def _summed(gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of what was broadcast from a shape."""
    return gradient if gradient.shape == shape else gradient.sum_to_size(shape)


def _as_matrix(shape: Any, which: int) -> tuple[int, ...]:
    """The shape of an operand that may be a vector: a row on the left (0), a column on the right (1)."""
    if len(shape) > 1:
        return tuple(shape)
    return (1, *shape) if which == 0 else (*shape, 1)


def _beside(shape: Any, shape_a: Any, shape_b: Any) -> tuple[int, ...]:
    """The shape of a bias, beside a result that keeps the dimensions that vectors lack."""
    whole = (*shape, 1) if len(shape_b) == 1 else tuple(shape)
    return (*whole[:-1], 1, *whole[-1:]) if len(shape_a) == 1 else whole
