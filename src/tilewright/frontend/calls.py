"""`matmul` and `linear`: arrays of any library in, an array of the same library out."""

from __future__ import annotations

from typing import Any, Literal

from tilewright.errors import ProblemError
from tilewright.frontend.compute import compute
from tilewright.frontend.libraries import TorchArrays, library_of
from tilewright.frontend.options import PLAIN, Options, options_asked
from tilewright.frontend.remembered import FAST
from tilewright.frontend.torch_calls import handed_over, is_compiling, note_written

Precision = Literal["default", "tf32"]
_DEFAULT: Precision = "default"


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
    out_dtype: Any = None,
    precision: Precision = _DEFAULT,
    deterministic: bool | Literal["bitwise"] | None = None,
    batch_invariant: bool = False,
) -> Any:
    """`activation(alpha * a @ b + beta * c + bias)`, with the shapes of NumPy's matmul, in one kernel where it can be;
    arrays of PyTorch, CuPy, JAX or NumPy.

    out: where the result goes. c: added, of the result's shape or one that broadcasts to it; beta is 1 where it is not
    given. bias: one number for each column, of shape (n,), or for each row, of shape (m, 1). activation: "relu",
    "gelu", "gelu_tanh" or "silu". out_dtype: "f32" or the operands' format. precision: "tf32" lets f32 operands be
    rounded to tf32, for tensor cores. deterministic: every kernel here gives the same bits in every run; "bitwise" also
    keeps to one order of summation whatever is tuned. batch_invariant: a row of the result has the same bits however
    many rows there are.

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
    others = (out_dtype, precision, deterministic, batch_invariant, activation, c is not None)
    if is_compiling():
        from tilewright.frontend.pytorch.operator import compiled_call

        return compiled_call(a, b, out, c, bias, alpha, beta, *others)
    if (
        (activation is None and out_dtype is None and c is None and beta is None and precision is _DEFAULT)
        and (deterministic is None and batch_invariant is False and type(alpha) is float and alpha == 1.0)
    ):  # fmt: skip
        options = PLAIN  # which looking up takes longer than all of these
    else:
        options = options_asked(alpha, beta, *others)
    fast = FAST.get(type(a))
    if fast is not None:
        result = fast(a, b, out, c, bias, options)
        if result is not None:
            return result
    return multiply(a, b, out, c, bias, options)


def linear(x: Any, weight: Any, bias: Any = None, *, activation: str | None = None) -> Any:
    """`activation(x @ weight.T + bias)`; without the activation as torch.nn.functional.linear."""
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
    return matmul(x, weight.T if len(shape) == 2 else weight, bias=bias, activation=activation)


def multiply(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options = PLAIN) -> Any:
    """A call, whatever it asks."""
    if c is not None and options.beta == 0:
        c = None
    library = library_of(a)
    for name, other in (("b", b), ("out", a if out is None else out)):
        if library_of(other) is not library:
            raise ProblemError(
                f"{name} is an array of {library_of(other).name}, and a is one of {library.name}.",
                hint="convert one to the other's library: both take DLPack.",
            )
    if isinstance(library, TorchArrays):
        handed = handed_over(library, a, b, out, c, bias, options)
        if handed is not None:
            return handed
        if out is not None:
            note_written(out)
    return compute(library, a, b, out, c, bias, options)
