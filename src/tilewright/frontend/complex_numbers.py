"""Products of complex64 as one product of f32, four real products in all (4M).

    A (m, k) as it lies in memory:   re im re im ...          (m, 2k) of f32
    B (k, n) in blocks of 2 x 2:     [re im; -im re]          (2k, 2n) of f32
    C = A @ B as it lies:            re im re im ...          (m, 2n) of f32, (m, n) of complex64

A and C are not copied where their rows are contiguous; B is rewritten, to twice its bytes. Each component of C is a
real sum over 2k, with the bound of its precision: W of 2k times u (|A_re||B_re| + |A_im||B_im|), or the like. Three
products (3M) would save a quarter of the work, but no component would have this bound: the imaginary part is a
difference of larger sums.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import F32
from tilewright.errors import ProblemError
from tilewright.frontend.libraries.views import DTypeError, View
from tilewright.frontend.shapes import ShapeError, product_of
from tilewright.runtime.memory import c_strides
from tilewright.units import type_name

COMPLEX64 = "complex64"

_WAY = "convert one of them, or multiply real and imaginary parts."


def is_complex(array: Any) -> bool:
    """Whether an array holds complex64."""
    return str(getattr(array, "dtype", "")).removeprefix("torch.") == COMPLEX64


def by_real_product(matmul: Callable[..., Any], a: Any, b: Any, asked: dict[str, Any]) -> Any:
    """`matmul(a, b, **asked)` of complex64, by a call of real arrays.

    Raises DTypeError where one operand is real, ProblemError for what has no meaning for complex numbers.
    """
    _check(a, b, asked)
    out, c, bias = (asked[name] for name in ("out", "c", "bias"))
    kind = _kind_of(a)
    *_, shape = real_shapes(tuple(a.shape), tuple(b.shape))
    column = len(b.shape) == 1
    whole, shape = (b[:, None], (*shape, 1)) if column else (b, shape)
    options = {name: value for name, value in asked.items() if name not in ("out", "c", "bias")}
    given: dict[str, Any] = {"bias": None if bias is None else kind.as_real(bias)}
    in_place = out is not None and not column and tuple(out.shape) == shape and kind.lies_in_pairs(out)
    given["out"] = kind.as_real(out) if in_place else None
    if c is not None:
        added = c[..., None] if column and len(c.shape) else c
        given["c"] = given["out"] if in_place and c is out else kind.as_real(kind.spread(added, shape))
    found = kind.as_complex(matmul(kind.as_real(a), kind.in_blocks(whole), **given, **options))
    found = found[..., 0] if column else found
    if out is None:
        return found
    if not in_place:
        if tuple(out.shape) != tuple(found.shape):
            raise ShapeError(f"`out` has shape {tuple(out.shape)}, and the result {tuple(found.shape)}.")
        kind.assign(out, found)
    return out


def real_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shapes of the real operands of a product, and that of the complex result. Raises ShapeError.

    >>> real_shapes((5, 7), (7, 3))
    ((5, 14), (14, 6), (5, 3))
    """
    shape = product_of(*(View(0, one, c_strides(one), F32, None) for one in (a, b))).shape
    whole = (*b, 1) if len(b) == 1 else b
    return (*a[:-1], 2 * a[-1]), (*whole[:-2], 2 * whole[-2], 2 * whole[-1]), shape


def refuse_unasked(activation: Any, epilogue: Any, operands: Any, out_dtype: Any) -> None:
    """Raises ProblemError and DTypeError for what a product of complex64 cannot be asked."""
    if activation is not None or epilogue is not None or operands is not None:
        raise ProblemError(
            "Activations and functions of the epilogue are of real numbers, and the operands are complex64.",
            hint="apply them to the result.",
        )
    if out_dtype is not None and str(out_dtype).removeprefix("torch.") != COMPLEX64:
        raise DTypeError(f"Cannot multiply complex64 into {out_dtype}.", hint="leave out out_dtype.")


def _check(a: Any, b: Any, asked: dict[str, Any]) -> None:
    names = {"a": a, "b": b, "out": asked["out"], "c": asked["c"], "bias": asked["bias"]}
    for name, array in names.items():
        if array is not None and not is_complex(array):
            held = getattr(array, "dtype", type(array).__name__)
            raise DTypeError(f"{name} holds {held}, and other arrays of the call complex64.", hint=_WAY)
    refuse_unasked(*(asked.pop(name) for name in ("activation", "epilogue", "operands", "out_dtype")))
    if asked["bias"] is not None and len(asked["bias"].shape) != 1:
        raise ShapeError(
            f"A bias of complex64 has shape (n,), and this one {tuple(asked['bias'].shape)}.", hint="add it as c."
        )


class _Arrays:
    """What is done with arrays of NumPy and CuPy; of others, by a module that is NumPy's twin."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def lies_in_pairs(self, array: Any) -> bool:
        """Whether memory may be seen as real numbers: elements of a row follow each other."""
        return bool(array.shape[-1] <= 1 or array.strides[-1] == array.itemsize)

    def as_real(self, array: Any) -> Any:
        """(..., n) as (..., 2n) of f32, the same memory where that is possible."""
        if self.module.__name__ in ("numpy", "cupy") and self.lies_in_pairs(array) and array.shape[-1] > 0:
            return array.view(np.float32)
        pairs = self.module.stack((array.real, array.imag), -1)
        return pairs.reshape(*array.shape[:-1], 2 * array.shape[-1])

    def as_complex(self, array: Any) -> Any:
        """The inverse of `as_real`."""
        if self.module.__name__ in ("numpy", "cupy") and array.shape[-1] > 0:
            return self.module.ascontiguousarray(array).view(np.complex64)
        return (array[..., 0::2] + 1j * array[..., 1::2]).astype(np.complex64)

    def in_blocks(self, array: Any) -> Any:
        """(..., k, n) as (..., 2k, 2n)."""
        stack = self.module.stack
        rows = stack((array.real, array.imag), -1), stack((-array.imag, array.real), -1)
        *batch, k, n = array.shape
        return stack(rows, -3).reshape(*batch, 2 * k, 2 * n)

    def spread(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Broadcast to a shape. Raises ShapeError."""
        try:
            return self.module.broadcast_to(array, shape).copy()
        except ValueError:
            raise ShapeError(f"c of shape {array.shape} does not broadcast to the result's shape {shape}.") from None

    def assign(self, target: Any, value: Any) -> None:
        target[...] = value


class _Tensors(_Arrays):
    """Tensors of PyTorch, by operators that have gradients."""

    def lies_in_pairs(self, array: Any) -> bool:
        return (array.shape[-1] <= 1 or array.stride(-1) == 1) and not array.is_conj()

    def as_real(self, array: Any) -> Any:
        pairs = self.module.view_as_real(array.resolve_conj().resolve_neg())
        return (pairs if array.shape[-1] <= 1 or pairs.stride(-2) == 2 else pairs.contiguous()).flatten(-2)

    def as_complex(self, array: Any) -> Any:
        return self.module.view_as_complex(array.unflatten(-1, (-1, 2)))

    def in_blocks(self, array: Any) -> Any:
        pairs = self.module.view_as_real(array.resolve_conj().resolve_neg())
        real, imaginary = pairs[..., 0], pairs[..., 1]
        rows = pairs, self.module.stack((-imaginary, real), -1)
        *batch, k, n = array.shape
        return self.module.stack(rows, -3).reshape(*batch, 2 * k, 2 * n)

    def spread(self, array: Any, shape: tuple[int, ...]) -> Any:
        try:
            return array.expand(shape).contiguous()
        except RuntimeError:
            raise ShapeError(
                f"c of shape {tuple(array.shape)} does not broadcast to the result's shape {shape}."
            ) from None

    def assign(self, target: Any, value: Any) -> None:
        target.copy_(value)


_MODULES: dict[str, tuple[str, type[_Arrays]]] = {
    "numpy": ("numpy", _Arrays),
    "cupy": ("cupy", _Arrays),
    "jax": ("jax.numpy", _Arrays),
    "jaxlib": ("jax.numpy", _Arrays),
    "torch": ("torch", _Tensors),
}


def _kind_of(array: Any) -> _Arrays:
    """What is done with the arrays of a library. Raises ProblemError for those of none of these."""
    for parent in type(array).__mro__:
        found = _MODULES.get(parent.__module__.partition(".")[0])
        if found is not None:
            return found[1](sys.modules[found[0]])
    raise ProblemError(
        f"{type_name(array, 'A')} of complex64 is not taken apart here.",
        hint="pass arrays of PyTorch, CuPy, JAX or NumPy.",
    )
