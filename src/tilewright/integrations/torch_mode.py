"""The mode behind `tilewright.route_torch` where its kernels cannot stand in PyTorch's dispatcher: before PyTorch 2.9,
and in a block that lies inside a compiled function.

It sees the functions of PyTorch that are called from Python (`TorchFunctionMode`). torch.compile knows such a mode.
Gradients are those of our operator, wherever they are computed. Every function of PyTorch in the block costs a call of
Python (tests/gpu/test_torch_on_gpu.py times it).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tilewright import extras
from tilewright.frontend import matmul
from tilewright.frontend.options import Precision
from tilewright.frontend.pytorch.registering import constant_in_graphs
from tilewright.frontend.shapes import ShapeError
from tilewright.integrations.routed import Routed

torch: Any = extras.require("torch", "Routing the products of PyTorch")

from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch._subclasses.functional_tensor import FunctionalTensor  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

DEVICE = "cuda"
"""Where the tensors lie whose products are routed."""

FORMATS = frozenset((torch.float32, torch.float16, torch.bfloat16))


class Mode(Routed, TorchFunctionMode):  # type: ignore[misc]
    """The mode of one block, and what happened in it."""

    def __init__(self, precision: Precision = "default") -> None:
        Routed.__init__(self)
        TorchFunctionMode.__init__(self)
        self.precision = precision

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inside = _INSIDE.get(function)
        if inside is not None and all(kind in _PLAIN for kind in types):  # a subclass answers for itself
            return inside(self.precision, *args, **kwargs)
        route = _ROUTES.get(function)
        if route is not None and route.takes(args, kwargs):
            result = route.call(self.precision, *args, **kwargs)
            if not torch.compiler.is_compiling():
                self.decline(_reason(args, kwargs)) if result is NotImplemented else self.count()
            if result is not NotImplemented:
                return result
        return function(*args, **kwargs)


def _reason(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why PyTorch computes a product, in few words."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, torch.Tensor):
            if x.device.type != DEVICE:
                return f"on {x.device.type}"
            if x.dtype not in FORMATS:
                return str(x.dtype).removeprefix("torch.")
    return "shapes, strides or types that tilewright does not take"


@dataclass(frozen=True, slots=True)
class Route:
    """Our function for one of PyTorch's, behind the block's precision; its result is NotImplemented for what stays with
    PyTorch.

    least: arguments that must be given. most: that may be given by position. names: of all.
    """

    call: Callable[..., Any]
    least: int
    most: int
    names: frozenset[str]

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the arguments are those of our function; else PyTorch knows what to do, or to say."""
        if not self.least <= len(args) + len(kwargs) or len(args) > self.most:
            return False
        return all(name in self.names for name in kwargs)


_ROUTES: dict[Any, Route] = {}


def _instead_of(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(call: Callable[..., Any]) -> Callable[..., Any]:
        _, *parameters = inspect.signature(call).parameters.values()
        least = sum(p.default is p.empty for p in parameters)
        most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        route = Route(call, least, most, frozenset(p.name for p in parameters))
        _ROUTES.update(dict.fromkeys(functions, route))
        return call

    return register


@_instead_of(torch.matmul, torch.linalg.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
def _matmul(precision: Precision, input: Any, other: Any) -> Any:
    return _product(precision, input, other)


@_instead_of(torch.Tensor.__rmatmul__)
def _reversed_matmul(precision: Precision, input: Any, other: Any) -> Any:
    return _product(precision, other, input)


@_instead_of(torch.mm, torch.Tensor.mm)
def _mm(precision: Precision, input: Any, mat2: Any) -> Any:
    return _product(precision, input, mat2, dimensions=2)


@_instead_of(torch.bmm, torch.Tensor.bmm)
def _bmm(precision: Precision, input: Any, mat2: Any) -> Any:
    return _product(precision, input, mat2, dimensions=3)


@_instead_of(torch.addmm, torch.Tensor.addmm)
def _addmm(precision: Precision, input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _product(precision, mat1, mat2, c=input, alpha=alpha, beta=beta, dimensions=2)


@_instead_of(torch.baddbmm, torch.Tensor.baddbmm)
def _baddbmm(precision: Precision, input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _product(precision, batch1, batch2, c=input, alpha=alpha, beta=beta, dimensions=3)


@_instead_of(functional.linear)
def _linear(precision: Precision, input: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return NotImplemented
    return _product(precision, input, weight.t(), bias=bias)


def _product(
    precision: Precision,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    bias: Any = None,
    alpha: Any = 1,
    beta: Any = 1,
    dimensions: int | None = None,
) -> Any:
    """The product by tilewright, or NotImplemented. dimensions: that both must have."""
    tensors = [x for x in (a, b, c, bias) if x is not None]
    if not all(isinstance(x, torch.Tensor) and x.device.type == DEVICE for x in tensors):
        return NotImplemented
    if torch.is_autocast_enabled(DEVICE):
        a, b, c, bias = (_cast(x, torch.get_autocast_dtype(DEVICE)) for x in (a, b, c, bias))
        tensors = [x for x in (a, b, c, bias) if x is not None]
    if not all(_is_plain(x) and x.dtype == a.dtype and x.device == a.device for x in tensors):
        return NotImplemented
    if any(0 in x.shape for x in (a, b)) or not all(isinstance(x, (int, float)) for x in (alpha, beta)):
        return NotImplemented
    if dimensions is not None and (a.dim() != dimensions or b.dim() != dimensions or a.shape[:-2] != b.shape[:-2]):
        return NotImplemented
    if c is not None and beta == 1 and c.dim() == 1 and c.shape == b.shape[-1:]:
        c, bias = None, c
    factors: dict[str, Any] = {"alpha": alpha, "beta": None if c is None else beta}
    try:
        return matmul(a, b, c=c, bias=bias, precision=precision_of(a.dtype, precision), **factors)
    except ShapeError:
        return NotImplemented  # PyTorch says it in its own words


@constant_in_graphs
def may_use_tf32() -> bool:
    """What the user allowed PyTorch; torch.compile looks after it, and compiles anew when it changes."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)  # PyTorch 2.9, where the old one may refuse
    return bool(torch.get_float32_matmul_precision() != "highest" if precision is None else precision == "tf32")


def precision_of(dtype: Any, asked: Precision) -> Precision:
    """The precision of a routed product: tf32 where the user allowed it to PyTorch, else what the block asks."""
    if dtype is not torch.float32:
        return "default"
    return "tf32" if may_use_tf32() else asked


def _cast(x: Any, dtype: Any) -> Any:
    """What torch.autocast would hand to a product."""
    return x if x is None or x.dtype not in FORMATS else x.to(dtype)


def _is_plain(x: Any) -> bool:
    """Whether a tensor is elements in memory and nothing else; a subclass has rules of its own for products."""
    if type(x) not in _PLAIN or x.dtype not in FORMATS or x.layout != torch.strided:
        return False
    return torch.compiler.is_compiling() or not x.is_neg()


_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)


def _never(tensors: Any) -> bool:
    return False


def _seen_through(function: Any) -> Any:
    """A function of PyTorch written in Python, which would else be one call to the mode, products and all."""
    names = {**function.__globals__, "has_torch_function": _never, "has_torch_function_unary": _never}
    same = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    same.__kwdefaults__ = function.__kwdefaults__
    return same


def _routed(function: Any) -> Any:
    """A function of PyTorch that calls others, in a block of its own: while one is asked about, the mode is off."""
    seen_through = _seen_through(function)

    def call(precision: Precision, *args: Any, **kwargs: Any) -> Any:
        with Mode(precision):
            return seen_through(*args, **kwargs)

    return call


_INSIDE = {
    functional.multi_head_attention_forward: torch.compiler.allow_in_graph(
        _routed(functional.multi_head_attention_forward)
    ),
    # What was checkpointed is called once more by these.
    torch.autograd.grad: _routed(torch.autograd.grad),
    torch.autograd.backward: _routed(torch.autograd.backward),
    torch.Tensor.backward: _routed(torch.Tensor.backward),
}
