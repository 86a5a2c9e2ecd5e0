"""`torch.ops.tilewright.matmul`: the call as an operator of PyTorch, with shapes, gradients and a rule for vmap.

Plain calls of plain tensors do not come here. These do: calls that are compiled or traced, that want gradients, or
whose tensors are of a subclass.

The operator under `torch.func.vmap`: the mapped dimension becomes the first of the batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright import extras
from tilewright.errors import ProblemError
from tilewright.frontend.options import Options, options_asked, options_of
from tilewright.frontend.pytorch.gradients import gradients, keep, keep_for_tangents, tangents
from tilewright.frontend.pytorch.plain import LIBRARY, activated, compute_plain, has_tangents, seen
from tilewright.frontend.pytorch.registering import constant_in_graphs, registered
from tilewright.frontend.pytorch.sharded import is_sharded, know_sharding
from tilewright.frontend.requests import Views, checked


def over_a_batch(
    multiply: Any,
    info: Any,
    in_dims: tuple[Any, ...],
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *words: Any,
) -> tuple[Any, int]:
    """The result, and where its mapped dimension is. multiply: the operator."""
    at_a, at_b, at_c, at_bias = (*in_dims, None, None)[:4]
    one_row, one_column = a.dim() - (at_a is not None) == 1, b.dim() - (at_b is not None) == 1

    def with_all_dimensions(x: Any, mapped: Any) -> Any:
        """Something that broadcasts to the result, as if neither operand were a vector."""
        x = x if mapped is None else x.movedim(mapped, 0)
        least = 1 if mapped is None else 2
        while x.dim() < least:
            x = x.unsqueeze(-1)
        x = x.unsqueeze(-1) if one_column else x
        return x.unsqueeze(-2) if one_row else x

    a = a if at_a is None else a.movedim(at_a, 0)
    b = b if at_b is None else b.movedim(at_b, 0)
    a = a.unsqueeze(-2) if one_row else a
    b = b.unsqueeze(-1) if one_column else b
    c = None if c is None else with_all_dimensions(c, at_c)
    bias = None if bias is None else with_all_dimensions(bias, at_bias)
    if at_a is None and at_b is None:
        a, at_a = a.expand(info.batch_size, *a.shape), 0
    rank = max(x.dim() - (at is not None) for x, at in ((a, at_a), (b, at_b)))
    a, b = _lifted(a, at_a, rank), _lifted(b, at_b, rank)
    c = None if c is None else _lifted(c, at_c, rank)
    if at_bias is not None:  # no kernel takes a bias for each product
        bias = _lifted(bias, at_bias, rank)
        c, bias, beta = bias if c is None else bias + beta * c, None, 1.0
    result = multiply(a, b, c, bias, alpha, beta, *words)
    result = result.squeeze(-2) if one_row else result
    return (result.squeeze(-1) if one_column else result), 0


def _lifted(x: Any, mapped: Any, rank: int) -> Any:
    """The same with `rank` dimensions behind the mapped one; what is not mapped broadcasts as it is."""
    if mapped is None:
        return x
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])


torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")

from torch import library  # noqa: E402

_GIVEN = (
    "Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, float beta=1.0, "
    "ScalarType? out_dtype=None, str? activation=None, str precision='default', bool fixed_order=False"
)


Words = tuple[float, float, Any, str | None, str, bool]
"""What is asked beside the tensors, as the operator takes it. DTensor remembers a sharding by the arguments from the
first dtype on: the activation, which decides about partial sums, must come behind it."""


def call(a: Any, b: Any, out: Any, c: Any, bias: Any, words: Words) -> Any:
    """A call as an operator of PyTorch."""
    alpha, beta, out_dtype, activation, *others = words
    know_sharding("matmul")
    tensors = [x for x in (a, b, c, bias, out) if x is not None]
    wants_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if out is not None:
        if wants_gradients:
            refuse_gradients()
        if is_sharded(out):
            return out.copy_(multiply(a, b, c, bias, *words))
        torch.ops.tilewright.matmul_into(out, a, b, c, bias, *words)
        return out
    if not wants_gradients or activation in (None, "relu"):
        return multiply(a, b, c, bias, *words)
    # These gradients need what goes in: kept by PyTorch's own function, it is not computed again.
    return activated(activation, multiply(a, b, c, bias, alpha, beta, out_dtype, None, *others))


def multiply(*given: Any) -> Any:
    """`torch.ops.tilewright.matmul`, of whatever tensors PyTorch has."""
    if not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active() or has_tangents()):
        return _Transformed.apply(*given)
    return torch.ops.tilewright.matmul(*given)


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """The operator where PyTorch transforms functions: `torch.func` and forward-mode derivatives, for which the
    gradients of a registered operator are of no use."""

    @staticmethod
    def forward(*given: Any) -> Any:
        return torch.ops.tilewright.matmul(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs, output)
        keep_for_tangents(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        return gradients(multiply, ctx, gradient)

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> Any:
        return tangents(multiply, ctx, given)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, int]:
        return over_a_batch(multiply, info, in_dims, *given)


@constant_in_graphs
def refuse_gradients() -> None:
    """Raises ProblemError."""
    raise ProblemError(
        "A result that is written into `out` has no gradients, and one of the tensors wants them.",
        hint="leave out `out`, or call within torch.no_grad().",
    )


def words_of(options: Options) -> Words:
    kind = None if options.out_dtype is None else LIBRARY.to_torch[options.out_dtype]
    name = None if options.activation is None else options.activation.value
    return options.alpha, options.beta, kind, name, options.precision, options.fixed_order


def compiled_call(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, *others: Any) -> Any:
    """A call in code that PyTorch compiles. others: the arguments of `options_of` behind beta."""
    # The factors may be numbers that the compiler does not know yet.
    _, _, *words = _words_asked(1.0, beta if beta is None or c is None else 1.0, *others)
    return call(a, b, out, None if beta == 0 else c, bias, (alpha, 1.0 if beta is None else beta, *words))


@constant_in_graphs
def _words_asked(*asked: Any) -> Words:
    """`words_of`, from the arguments of `options_of`. The compiler takes it as it is, and does not look inside."""
    return words_of(options_asked(*asked))


def _options(
    c: Any,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: Any = None,
    activation: str | None = None,
    precision: str = "default",
    fixed_order: bool = False,
) -> Options:
    """PyTorch leaves out last arguments that have their default."""
    factor = None if c is None else beta
    return options_of(alpha, factor, out_dtype, precision, None, fixed_order, activation, c is not None)


def _matmul(a: Any, b: Any, c: Any = None, bias: Any = None, *words: Any) -> Any:
    return compute_plain(a, b, None, c, bias, _options(c, *words))


def _matmul_into(out: Any, a: Any, b: Any, c: Any = None, bias: Any = None, *words: Any) -> None:
    compute_plain(a, b, out, c, bias, _options(c, *words))


def _shaped(a: Any, b: Any, c: Any = None, bias: Any = None, *words: Any) -> Any:
    """A result without elements, or the error that the call would raise."""
    of_c, of_bias = (None if x is None else seen(x, tight=True) for x in (c, bias))
    views = Views(seen(a, tight=True), seen(b, tight=True), None, of_c, of_bias)
    product, dtype = checked(views, _options(c, *words))
    return a.new_empty(product.shape, dtype=LIBRARY.to_torch[dtype])


_OPERATORS = (
    registered(f"matmul({_GIVEN}) -> Tensor", _matmul, _shaped, partial(gradients, multiply), keep),
    registered(f"matmul_into(Tensor(a!) out, {_GIVEN}) -> ()", _matmul_into, lambda out, *given: None),
)
if hasattr(library, "register_vmap"):  # PyTorch 2.5
    library.register_vmap("tilewright::matmul", partial(over_a_batch, torch.ops.tilewright.matmul), lib=_OPERATORS[0])
