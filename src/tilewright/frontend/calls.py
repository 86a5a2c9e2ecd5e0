"""`matmul` and `linear`: arrays of any library in, an array of the same library out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from tilewright.errors import ProblemError
from tilewright.frontend.complex_numbers import by_real_product, is_complex
from tilewright.frontend.compute import compute
from tilewright.frontend.libraries import DTypeError, HostArrays, TorchArrays, library_of
from tilewright.frontend.libraries.views import ComplexNumbers
from tilewright.frontend.on_host import on_host
from tilewright.frontend.options import PLAIN, Guarding, Options, Precision, options_asked, unguarded
from tilewright.frontend.prepared import Prepared
from tilewright.frontend.shapes import ShapeError
from tilewright.frontend.tracing import Traced, ask
from tilewright.frontend.weights import QuantizedWeight

_DEFAULT: Precision = "default"

Multiply = Callable[..., Any]
"""A function of (a, b, out, c, bias, options, operands)."""

MULTIPLY: dict[type, Multiply] = {}
"""Where a call goes, by the type of `a`: to a GPU, to the host, or to PyTorch's transforms in front of both."""


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    out_dtype: Any = None,
    precision: Precision = _DEFAULT,
    guard: Guarding = "on",
    deterministic: bool | Literal["bitwise"] | None = None,
    batch_invariant: bool = False,
) -> Any:
    """`activation(alpha * a @ b + beta * c + bias)`, with the shapes of NumPy's matmul, in one kernel where it can be;
    arrays of PyTorch, CuPy, JAX or NumPy.

    out: where the result goes. c: added, of the result's shape or one that broadcasts to it; beta is 1 where it is not
    given. bias: one number for each column, of shape (n,), or for each row, of shape (m, 1). activation: "relu",
    "gelu", "gelu_tanh" or "silu". epilogue: a function of `alpha * a @ b + beta * c + bias` and of operands by their
    names, of Python's operators and `tilewright.ops`, whose value is the result; it is called once, with symbols, and
    becomes a part of the kernel (docs/epilogues.md). A tuple or a dictionary of values is several results. operands:
    for that function, each a number, or an array of shape (n,), (m, 1) or the result's. out_dtype: "f32" or the
    operands' format; of several results one for all, or a tuple or dictionary of any. precision: of f32 operands:
    "tf32" lets them be rounded to tf32, for tensor cores; "bf16x9", "bf16x6", "bf16x3", "tf32x3" and "f16x3" multiply
    pieces of them by tensor cores, with the bounds of docs/accuracy.md; "f32_emulated" is the fastest of these whose
    bound is not above that of f32 arithmetic, or f32 arithmetic where that is faster. guard: "off" makes it "f16x3",
    whatever the operands' range. deterministic: every kernel gives the same bits in every run; "bitwise" also keeps to
    one order of summation whatever is tuned. batch_invariant: a row has the same bits however many rows there are.

    b may be what `prepare` or `quantize_weight` made of a constant operand. Operands of complex64 are multiplied as
    real ones (docs/accuracy.md).

    Work runs on the current stream of the arrays' library. NumPy's arrays are copied to a GPU and back; with no GPU
    NumPy computes, and a warning says so once. Raises what NumPy raises for shapes (ShapeError is a ValueError),
    DTypeError, a TypeError, for number formats, and ProblemError for arrays on different devices.

    >>> import numpy as np
    >>> try:
    ...     matmul(np.ones((2, 3), np.float32), np.ones((4, 2), np.float32))
    ... except ValueError as error:
    ...     print(str(error).splitlines()[0][-28:])
    (size 4 is different from 3)
    """
    if guard != "on":
        precision = unguarded(precision, guard)
    others = (out_dtype, precision, deterministic, batch_invariant, activation, c is not None)
    if is_compiling():
        named = {"out": out, "c": c, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation}
        named |= {"epilogue": epilogue, "operands": operands, "out_dtype": out_dtype, "precision": precision}
        named |= {"deterministic": deterministic, "batch_invariant": batch_invariant}
        return _compiled(a, b, named, others)
    arrays: tuple[Any, ...] = ()
    if epilogue is not None or operands is not None:
        options, arrays = with_function(epilogue, operands, (alpha, beta, *others), b, out)
        if options.beta == 0:
            c = None
    elif (
        (activation is None and out_dtype is None and c is None and beta is None and precision is _DEFAULT)
        and (deterministic is None and batch_invariant is False and type(alpha) is float and alpha == 1.0)
    ):  # fmt: skip
        options = PLAIN  # which looking up takes longer than all of these
    else:
        options = options_asked(alpha, beta, *others)
        if options.beta == 0:
            c = None
    multiply = b.multiply_by if type(b) in (Prepared, QuantizedWeight) else MULTIPLY.get(type(a)) or multiply_of(a)
    try:
        if options.traced is not None:
            return options.traced.given(multiply(a, b, out, c, bias, options, arrays))
        return multiply(a, b, out, c, bias, options)
    except ComplexNumbers:
        named = {"alpha": alpha, "beta": beta if c is not None else None, "activation": activation}
        named |= {"out": out, "c": c, "bias": bias, "epilogue": epilogue, "operands": operands, "out_dtype": out_dtype}
        named |= {"precision": precision, "deterministic": deterministic, "batch_invariant": batch_invariant}
        return by_real_product(matmul, a, b, named)


def _compiled(a: Any, b: Any, named: dict[str, Any], others: tuple[Any, ...]) -> Any:
    """A call in code that PyTorch compiles. others: what follows beta in `options_of`."""
    if is_complex(a):
        return by_real_product(matmul, a, b, named)
    if named["epilogue"] is not None or named["operands"] is not None:
        from tilewright.frontend.pytorch.functions import apart

        return apart(matmul, (a, b), named)
    if type(b) is QuantizedWeight:
        raise ProblemError(
            "torch.compile does not see products with a quantised weight.",
            hint="call matmul in a function that torch.compiler.disable decorates.",
        )
    if type(b) is Prepared:
        b, others = b.weight, (others[0], b.precision, *others[2:])
    from tilewright.frontend.pytorch.operator import compiled_call

    return compiled_call(a, b, named["out"], named["c"], named["bias"], named["alpha"], named["beta"], *others)


def _of_results(out_dtype: Any, traced: Traced) -> Any:
    """The formats of a function's results, one for all or in their order. Raises ProblemError."""
    if isinstance(out_dtype, dict):
        unknown = [key for key in out_dtype if key not in (traced.keys or ())]
        if unknown:
            raise ProblemError(
                f"out_dtype has a format of {unknown[0]!r}, and the epilogue gives nothing of that name.",
                hint=f"results are {', '.join(map(repr, traced.keys or ('one without a name',)))}.",
            )
        return tuple(out_dtype.get(key) for key in traced.keys or ())
    return tuple(out_dtype) if isinstance(out_dtype, list) else out_dtype


def with_function(
    epilogue: Any, operands: Any, asked: tuple[Any, ...], b: Any, out: Any
) -> tuple[Options, tuple[Any, ...]]:
    """What a call with a function of the epilogue asks, and the arrays that the function reads. asked: alpha, beta, and
    what follows in `options_of`. Raises ProblemError, also for several results where one is asked for."""
    alpha, beta, out_dtype, *others = asked
    traced, numbers, arrays = _asked(epilogue, operands, others[-2])
    options = options_asked(alpha, beta, _of_results(out_dtype, traced), *others, traced, numbers)
    if options.others:
        _check_several(options, b, out)
    return options, arrays


def _check_several(options: Options, b: Any, out: Any) -> None:
    if out is not None:
        raise ProblemError(
            f"The epilogue has {1 + len(options.others)} results, and `out` is one array.", hint="leave out `out`."
        )
    if type(b) is Prepared:
        raise ProblemError("A product with a prepared weight has one result.", hint="pass the weight itself.")


def _asked(epilogue: Any, operands: Any, activation: Any) -> tuple[Any, tuple[float, ...], tuple[Any, ...]]:
    """What a function of the epilogue asks. Raises ProblemError."""
    if epilogue is None:
        raise ProblemError("There are operands, and no epilogue that reads them.", hint="epilogue=function.")
    if activation is not None:
        raise ProblemError(
            f"There are an epilogue and activation={activation!r}.",
            hint=f"use tilewright.ops.{activation} in the function.",
        )
    return ask(epilogue, operands)


def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    precision: Precision = _DEFAULT,
) -> Any:
    """`activation(x @ weight.T + bias)`; without the activation as torch.nn.functional.linear.

    x: (..., in_features). weight: (out_features, in_features), or (in_features,) for one output, or `.T` of what
    `quantize_weight` made. bias: (out_features,).
    epilogue, operands, precision: as of `matmul`.
    Raises as `matmul`, in words of x, weight and bias.
    """
    try:  # and not getattr, which PyTorch 2.4 cannot compile
        shape = weight.shape
    except AttributeError:
        shape = None
    if shape is None or len(shape) not in (1, 2):
        raise ProblemError(
            f"A weight has one or two dimensions, and this {type(weight).__name__} "
            f"{'has no shape' if shape is None else f'has shape {tuple(shape)}'}.",
            hint="give one of shape (out_features, in_features).",
        )
    given = x, weight.T if len(shape) == 2 else weight
    asked: dict[str, Any] = {"bias": bias, "activation": activation, "epilogue": epilogue, "operands": operands}
    if is_compiling():
        return matmul(*given, **asked, precision=precision)
    try:
        return matmul(*given, **asked, precision=precision)
    except ProblemError as error:
        if type(weight) is QuantizedWeight:
            raise
        raise _in_words_of_linear(error, x, weight, bias) from None


def _in_words_of_linear(error: ProblemError, x: Any, weight: Any, bias: Any) -> ProblemError:
    """The error of a product, which speaks of a, b and their shapes, as one of x, weight and bias."""
    first, second = (library_of(array) for array in (x, weight))
    if first is not second:
        return ProblemError(
            f"linear: weight is an array of {second.name}, and x is one of {first.name}.",
            hint="convert one to the other's library: both take DLPack.",
        )
    if x.dtype != weight.dtype:
        return DTypeError(f"linear: x holds {x.dtype}, and weight {weight.dtype}.", hint="convert one of them.")
    if not len(x.shape) or x.shape[-1] != weight.shape[-1]:
        return ShapeError(
            f"linear: x of shape {tuple(x.shape)} does not go with a weight of shape {tuple(weight.shape)}.",
            hint="the last dimension of both is in_features.",
        )
    if isinstance(error, ShapeError) and bias is not None:
        features = weight.shape[0] if len(weight.shape) == 2 else 1
        return ShapeError(
            f"linear: a bias of shape {tuple(bias.shape)} does not go with a weight of shape {tuple(weight.shape)}.",
            hint=f"give one of shape ({features},), with an element for each output feature.",
        )
    places = [first.view(array).place for array in (x, weight)]
    if places[0] != places[1]:
        return ProblemError(f"linear: x lies on {places[0]}, and weight on {places[1]}.", hint="move one of them.")
    return error


def is_compiling() -> bool:
    """Whether PyTorch is compiling the code that runs now."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def multiply_of(a: Any) -> Multiply:
    """Where a call goes whose first array is this one."""
    library = library_of(a)
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.entry import multiply as found
    elif isinstance(library, HostArrays):
        found = on_host
    else:
        found = partial(compute, library)
    MULTIPLY[type(a)] = found
    return found
