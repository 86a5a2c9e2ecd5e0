"""`torch.ops.tilewright.matmul`: the call as an operator of PyTorch, with shapes, gradients and a rule for vmap.

Plain calls of plain tensors do not come here. These do: calls that are compiled or traced, that want gradients, or
whose tensors are of a subclass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright import extras
from tilewright.errors import ProblemError
from tilewright.frontend.added import bias_along
from tilewright.frontend.compute import compute
from tilewright.frontend.libraries import DTypeError, View, library_of
from tilewright.frontend.libraries.views import c_strides
from tilewright.frontend.options import Options, options_asked, options_of, result_format
from tilewright.frontend.pytorch.gradients import gradients, keep
from tilewright.frontend.pytorch.mapped import over_a_batch
from tilewright.frontend.pytorch.transformed import multiply
from tilewright.frontend.shapes import ShapeError, product_of, spreads_to
from tilewright.frontend.torch_calls import known_call, known_call_into, note_written

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")

from torch import library  # noqa: E402

_TORCH: Any = library_of(torch.empty(0))
_KNOWN, _KNOWN_INTO = known_call(_TORCH), known_call_into(_TORCH)

_GIVEN = (
    "Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, float beta=1.0, str? activation=None, "
    "ScalarType? out_dtype=None, bool tf32=False, bool fixed_order=False"
)


Words = tuple[float, float, str | None, Any, bool, bool]
"""What is asked beside the tensors, as the operator takes it."""


def call(a: Any, b: Any, out: Any, c: Any, bias: Any, words: Words) -> Any:
    """A call as an operator of PyTorch."""
    alpha, beta, activation, *others = words
    tensors = [x for x in (a, b, c, bias, out) if x is not None]
    wants_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if out is not None:
        if wants_gradients:
            _refuse_gradients()
        torch.ops.tilewright.matmul_into(out, a, b, c, bias, *words)
        return out
    if not wants_gradients or activation in (None, "relu"):
        return multiply(a, b, c, bias, *words)
    # These gradients need what goes in: kept by PyTorch's own function, it is not computed again.
    before = multiply(a, b, c, bias, alpha, beta, None, *others)
    if activation == "silu":
        return torch.nn.functional.silu(before)
    return torch.nn.functional.gelu(before, approximate="tanh" if activation == "gelu_tanh" else "none")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _refuse_gradients() -> None:
    raise ProblemError(
        "A result that is written into `out` has no gradients, and one of the tensors wants them.",
        hint="leave out `out`, or call within torch.no_grad().",
    )


def words_of(options: Options) -> Words:
    kind = None if options.out_dtype is None else _TORCH.to_torch[options.out_dtype]
    name = None if options.activation is None else options.activation.value
    return options.alpha, options.beta, name, kind, options.tf32, options.fixed_order


def compiled_call(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, *others: Any) -> Any:
    """A call in code that PyTorch compiles. others: the arguments of `options_of` behind beta."""
    # The factors may be numbers that the compiler does not know yet.
    _, _, *words = _words_asked(1.0, beta if beta is None or c is None else 1.0, *others)
    return call(a, b, out, None if beta == 0 else c, bias, (alpha, 1.0 if beta is None else beta, *words))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _words_asked(*asked: Any) -> Words:
    """`words_of`, from the arguments of `options_of`. The compiler takes it as it is, and does not look inside."""
    return words_of(options_asked(*asked))


def _options(
    c: Any,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    out_dtype: Any = None,
    tf32: bool = False,
    fixed_order: bool = False,
) -> Options:
    """PyTorch leaves out last arguments that have their default."""
    precision = "tf32" if tf32 else "default"
    factor = None if c is None else beta
    return options_of(alpha, factor, out_dtype, precision, None, fixed_order, activation, c is not None)


def _matmul(a: Any, b: Any, c: Any = None, bias: Any = None, *words: Any) -> Any:
    options = _options(c, *words)
    known = _KNOWN(a, b, c, bias, options)
    return compute(_TORCH, a, b, None, c, bias, options) if known is None else known


def _matmul_into(out: Any, a: Any, b: Any, c: Any = None, bias: Any = None, *words: Any) -> None:
    options = _options(c, *words)
    if not _KNOWN_INTO(a, b, out, c, bias, options):
        compute(_TORCH, a, b, out, c, bias, options)
    note_written(out)


def _shaped(a: Any, b: Any, c: Any = None, bias: Any = None, *words: Any) -> Any:
    """A result without elements, or the error that the call would raise."""
    options = _options(c, *words)
    first, second = _seen(a), _seen(b)
    if first.dtype is not second.dtype:
        raise DTypeError(f"Cannot multiply {first.dtype} by {second.dtype}.", hint="convert one to the other's dtype.")
    if a.device != b.device:
        raise ProblemError(
            f"Cannot multiply arrays on different devices: {a.device} and {b.device}.", hint="move one of them."
        )
    product = product_of(first, second)
    if bias is not None:
        bias_along(tuple(bias.shape), product)
    if c is not None and not spreads_to(tuple(c.shape), product.shape):
        raise ShapeError(f"c of shape {tuple(c.shape)} does not broadcast to the result's shape {product.shape}.")
    return a.new_empty(product.shape, dtype=_TORCH.to_torch[result_format(options, first.dtype)])


def _seen(tensor: Any) -> View:
    """The shape and format of a tensor that has no elements."""
    shape = tuple(tensor.shape)
    return View(0, shape, c_strides(shape), _TORCH.format_of(tensor), None)


def _register() -> Any:
    """The operators; they last as long as what is returned."""
    operators = library.Library("tilewright", "DEF")
    operators.define(f"matmul({_GIVEN}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    operators.define(f"matmul_into(Tensor(a!) out, {_GIVEN}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
    for name, computed in (("matmul", _matmul), ("matmul_into", _matmul_into)):
        operators.impl(name, computed, "CompositeExplicitAutograd")
    library.register_fake("tilewright::matmul", _shaped, lib=operators)
    library.register_fake("tilewright::matmul_into", lambda out, *given: None, lib=operators)
    library.register_autograd("tilewright::matmul", partial(gradients, multiply), setup_context=keep, lib=operators)
    if hasattr(library, "register_vmap"):  # PyTorch 2.5
        library.register_vmap("tilewright::matmul", partial(over_a_batch, torch.ops.tilewright.matmul), lib=operators)
    return operators


_OPERATORS = _register()
