"""From the views of a call to its requests: values that say what is multiplied and how it lies, without addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.frontend.layouts import Layout, layouts_of
from tilewright.frontend.libraries.views import DTypeError, View, c_strides
from tilewright.frontend.options import Options, result_format
from tilewright.frontend.shapes import (
    Along,
    NeedsCopy,
    Product,
    ShapeError,
    bias_along,
    product_of,
    spreads_to,
    tight,
)
from tilewright.planning.assembly import Request
from tilewright.planning.packing import Alignment
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.gemm import Gemm

Addresses = tuple[int, int, int, int, int]
"""Of A, B, the result, the bias and the residual; 0 for what is not there."""

_OTHER: dict[Along | None, Along | None] = {"m": "n", "n": "m", None: None}


@dataclass(frozen=True, slots=True)
class Views:
    """Where the arrays of a call lie; None for one that is not given."""

    a: View
    b: View
    out: View | None = None
    c: View | None = None
    bias: View | None = None

    @property
    def may_be_half_of_complex_numbers(self) -> bool:
        """Whether an array begins at an odd multiple of 4 bytes: the imaginary part of complex numbers does, and the
        next one there may stand for its negative, which no sign tells."""
        given = (self.a, self.b, self.out, self.c, self.bias)
        return any(view is not None and view.pointer & 7 == 4 for view in given)

    def result(self, product: Product, dtype: DType) -> View:
        """Where the result lies; a new array begins at a multiple of 16 bytes and is in C order."""
        return self.out or View(0, product.shape, c_strides(product.shape), dtype, self.a.device)


@dataclass(frozen=True, slots=True)
class Piece:
    """One request, and where the arrays of each of its launches begin, in bytes; A and B as the kernel has them, which
    is exchanged where `swapped`."""

    request: Request
    starts: tuple[Addresses, ...]
    swapped: bool

    @property
    def without_workspace(self) -> Piece:
        return replace(self, request=replace(self.request, without_workspace=True))


def checked(views: Views, options: Options, *, row_major: bool = False) -> tuple[Product, DType]:
    """The product that is asked for, and the format of its result. row_major: see `product_of`.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked, NeedsCopy for strides of A or B.
    """
    a, b, out = views.a, views.b, views.out
    for factor in (a, b):
        if not factor.dtype.is_result:
            raise DTypeError(
                f"Operands of {factor.dtype} are multiplied with their scales.",
                hint="call tilewright.scaled_matmul, or convert them first.",
            )
    if a.dtype is not b.dtype:
        raise DTypeError(f"Cannot multiply {a.dtype} by {b.dtype}.", hint="convert one to the other's dtype.")
    if a.device != b.device:
        raise ProblemError(
            f"Cannot multiply arrays on different devices: {a.place} and {b.place}.", hint="move one of them."
        )
    product, dtype = product_of(a, b, row_major=row_major), result_format(options, a.dtype)
    if out is not None:
        _check_out(out, product, dtype, a)
    for name, view in (("c", views.c), ("bias", views.bias)):
        if view is not None and view.device != a.device:
            raise ProblemError(
                f"{name} lies on {view.place}, and the result on {a.place}.", hint=f"move {name} to {a.place}."
            )
    if views.c is not None and not spreads_to(views.c.shape, product.shape):
        raise ShapeError(f"c of shape {views.c.shape} does not broadcast to the result's shape {product.shape}.")
    if views.bias is not None:
        bias_along(views.bias.shape, product)
    return product, dtype


def _check_out(out: View, product: Product, dtype: DType, a: View) -> None:
    if out.device != a.device:
        raise ProblemError(f"`out` lies on {out.place}, and the operands on {a.place}.", hint="move one of them.")
    if out.shape != product.shape:
        raise ShapeError(f"`out` has shape {out.shape}, and the result {product.shape}.")
    if out.dtype is not dtype:
        raise DTypeError(
            f"`out` holds {out.dtype}, and the result is {dtype}.",
            hint=f"pass out_dtype='{out.dtype}', or another out.",
        )


def requests_of(views: Views, product: Product, dtype: DType, options: Options) -> tuple[Piece, ...]:
    """The requests of a product that was `checked`, in the order of their launches; none for an empty result.

    Raises NeedsCopy for a bias or a residual that is not read as it lies, CannotWrite for such an `out`.
    """
    if 0 in product.shape:
        return ()
    out, residual = views.result(product, dtype), _residual(views, product, dtype)
    along = None if views.bias is None else _bias_along(views.bias, product, dtype)
    pieces = []
    for layout in layouts_of(product, out, residual, bias_along=along):
        epilogue = Epilogue(_OTHER[along] if layout.swapped else along, residual is not None, options.activation)
        gemm = _gemm_of(layout, views.a.dtype, dtype, epilogue, options)
        alignment = _alignment_of(layout, views, out, residual)
        step, out_step = views.a.dtype.bytes, dtype.bytes
        starts = tuple(
            (a * step, b * step, c * out_step, at_bias * out_step, r * out_step if residual is not None else 0)
            for a, b, c, at_bias, r in layout.starts
        )
        algorithm, or_f32 = options.algorithm_of(views.a.dtype, gemm.k)
        request = Request(gemm, alignment, layout.stack, options.fixed_order, algorithm=algorithm, or_f32=or_f32)
        pieces.append(Piece(request, starts, layout.swapped))
    return tuple(pieces)


def _residual(views: Views, product: Product, dtype: DType) -> View | None:
    """What is read beside the result: not a `c` that is the result itself, which kernels find where they write."""
    c = views.c
    if c is None or (views.out is not None and c.lies_as(views.out)):
        return None
    if c.dtype is not dtype:
        raise NeedsCopy("c", lambda library, array: library.convert(array, dtype))
    if c.shape != product.shape:
        raise NeedsCopy("c", lambda library, array: library.spread(array, product.shape))
    return c


def _bias_along(bias: View, product: Product, dtype: DType) -> Along:
    if bias.dtype is not dtype:
        raise NeedsCopy("bias", lambda library, array: library.convert(array, dtype))
    along = bias_along(bias.shape, product)
    length = product.n if along == "n" else product.m
    step = next((s for extent, s in zip(bias.shape, bias.strides, strict=True) if extent != 1), 1)
    if length > 1 and step != 1:
        raise NeedsCopy("bias", tight)
    return along


def _gemm_of(layout: Layout, dtype: DType, out: DType, epilogue: Epilogue, options: Options) -> Gemm:
    """The problem that each launch of a layout computes."""
    return Gemm(
        layout.m,
        layout.n,
        layout.k,
        dtype,
        out=out,
        a=layout.a.order,
        b=layout.b.order,
        alpha=options.alpha,
        beta=options.beta,
        lda=layout.a.leading,
        ldb=layout.b.leading,
        ldc=layout.leading,
        product=options.product_of(dtype),
        epilogue=epilogue,
        ld_residual=layout.residual_leading,
    )


def _alignment_of(layout: Layout, views: Views, out: View, residual: View | None) -> Alignment:
    """What addresses, rows and steps between matrices are multiples of, in bytes."""
    step, out_step = views.a.dtype.bytes, out.dtype.bytes
    first, second = (views.b, views.a) if layout.swapped else (views.a, views.b)
    bits_a, bits_b = layout.a.leading * step, layout.b.leading * step
    bits_c, bits_residual = layout.leading * out_step, layout.residual_leading * out_step
    if layout.stack is not None:
        bits_a, bits_b = bits_a | layout.stack.a * step, bits_b | layout.stack.b * step
        bits_c, bits_residual = bits_c | layout.stack.c * out_step, bits_residual | layout.stack.residual * out_step
    for x, y, z, _, r in layout.starts:
        bits_a, bits_b = bits_a | first.pointer + x * step, bits_b | second.pointer + y * step
        bits_c |= out.pointer + z * out_step
        if residual is not None:
            bits_residual |= residual.pointer + r * out_step
    if residual is not None:
        bits_c |= bits_residual
    at_bias = 0 if views.bias is None else views.bias.pointer
    return Alignment(power_of_two(bits_a), power_of_two(bits_b), power_of_two(bits_c | at_bias))


def power_of_two(value: int) -> int:
    """The largest power of two that divides an address, at most 16."""
    return min(value & -value, 16) if value else 16
