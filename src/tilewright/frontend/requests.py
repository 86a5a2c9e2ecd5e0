"""From the views of a call to its requests: values that say what is multiplied and how it lies, without addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.dtypes import F32, FP8_FORMATS, DType
from tilewright.errors import ProblemError
from tilewright.frontend.layouts import CannotWrite, Layout, Places, layouts_of
from tilewright.frontend.libraries.views import DTypeError, View
from tilewright.frontend.operands import Further, Named, argument_of, check_shape, further_of, named_of
from tilewright.frontend.options import Options, result_format
from tilewright.frontend.shapes import Along, NeedsCopy, Product, ShapeError, bias_along, product_of, spreads_to, tight
from tilewright.planning.assembly import Request
from tilewright.planning.emulated import by_scaled_pieces
from tilewright.planning.packing import Alignment
from tilewright.problem.epilogue import Epilogue, Result
from tilewright.problem.gemm import Gemm
from tilewright.problem.values import Element, Value, draws_of, rotations_of, with_leaves
from tilewright.runtime.memory import c_strides

MOST_RESULTS = 2**40
"""Elements of a result: more than a GPU has bytes. The launches of a larger one would be too many to list."""

Addresses = tuple[int, ...]
"""Of A, B, the result, the bias and the residual, 0 for what is not there; and of each operand of a function."""

_OTHER: dict[Along | None, Along | None] = {"m": "n", "n": "m", None: None}


@dataclass(frozen=True, slots=True)
class Views:
    """Where the arrays of a call lie; None for one that is not given. operands: of a function of the epilogue; the last
    one may be another b (`Options.has_second`)."""

    a: View
    b: View
    out: View | None = None
    c: View | None = None
    bias: View | None = None
    operands: tuple[View, ...] = ()

    @property
    def may_be_half_of_complex_numbers(self) -> bool:
        """Whether an array begins at an odd multiple of 4 bytes: the imaginary part of complex numbers does, and the
        next one there may stand for its negative, which no sign tells."""
        given = (self.a, self.b, self.out, self.c, self.bias, *self.operands)
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
    def is_at_start(self) -> bool:
        """Whether there is one launch, for which all arrays begin where the call has them."""
        return len(self.starts) == 1 and not any(self.starts[0])

    @property
    def without_workspace(self) -> Piece:
        return replace(self, request=replace(self.request, without_workspace=True))


def checked(views: Views, options: Options, *, row_major: bool = False) -> tuple[Product, DType]:
    """The product that is asked for, and the format of its result. row_major: see `product_of`.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked, NeedsCopy for strides of A or B.
    """
    a, b, out = views.a, views.b, views.out
    for factor in (a, b):
        if factor.dtype in FP8_FORMATS:
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
    if prod(product.shape) > MOST_RESULTS:
        raise ProblemError(
            f"A result of shape {product.shape} has more than 2**40 elements, and no GPU holds so many.",
            hint="multiply a part of the rows at a time.",
        )
    refuse_narrow_addends(dtype, {"c": views.c, "bias": views.bias})
    if out is not None:
        _check_out(out, product, dtype, a)
    named, second = _parted(views, options)
    if second is not None:
        _check_second(second, b)
    operands = tuple(zip(options.names, named, strict=True))
    for name, view in (("c", views.c), ("bias", views.bias), *operands):
        if view is not None and view.device != a.device:
            raise ProblemError(
                f"{name} lies on {view.place}, and the result on {a.place}.", hint=f"move {name} to {a.place}."
            )
    if views.c is not None and not spreads_to(views.c.shape, product.shape):
        raise ShapeError(f"c of shape {views.c.shape} does not broadcast to the result's shape {product.shape}.")
    if views.bias is not None:
        bias_along(views.bias.shape, product)
    for name, view in operands:
        check_shape(name, view, product)
    refuse_odd_pairs(product, options)
    return product, dtype


def refuse_odd_pairs(product: Product, options: Options) -> None:
    """Raises ShapeError where a function turns pairs of columns, and the result has an odd number of them."""
    # The functions first: torch.compile, with symbols for sizes, compiles for each answer to what is asked of n.
    rotates = any(True for value in options.values for _ in rotations_of(value))
    if rotates and (product.n % 2 or product.one_column):
        raise ShapeError(
            f"A result of shape {product.shape} has an odd number of columns, and the epilogue turns pairs of them."
        )


def _parted(views: Views, options: Options) -> tuple[tuple[View, ...], View | None]:
    """The operands of the function, and the second b."""
    return (views.operands[:-1], views.operands[-1]) if options.has_second else (views.operands, None)


def _check_second(second: View, b: View) -> None:
    if second.shape != b.shape:
        raise ShapeError(f"The factors of shapes {b.shape} and {second.shape} do not give sums of one shape.")
    if second.dtype is not b.dtype or second.device != b.device:
        raise DTypeError(
            f"One factor is {b.dtype} on {b.place}, and the other {second.dtype} on {second.place}.",
            hint="convert or move one of them.",
        )


def _check_out(out: View, product: Product, dtype: DType, a: View) -> None:
    if out.device != a.device:
        raise ProblemError(f"`out` lies on {out.place}, and the operands on {a.place}.", hint="move one of them.")
    if out.shape != product.shape:
        raise ShapeError(f"`out` has shape {out.shape}, and the result {product.shape}.")
    if out.dtype is not dtype:
        other = f"pass out_dtype='{out.dtype}', or " if out.dtype is F32 else "pass "
        raise DTypeError(f"`out` holds {out.dtype}, and the result is {dtype}.", hint=f"{other}an out of {dtype}.")


def requests_of(views: Views, product: Product, dtype: DType, options: Options) -> tuple[Piece, ...]:
    """The requests of a product that was `checked`, in the order of their launches; none for an empty result.

    Raises NeedsCopy for a bias or a residual that is not read as it lies, CannotWrite for such an `out`.
    """
    if 0 in product.shape:
        return ()
    out, residual = views.result(product, dtype), _residual(views, product, dtype)
    along = None if views.bias is None else _bias_along(views.bias, product, dtype)
    named, second = _parted(views, options)
    operands = named_of(options.names, named, product)
    if second is not None:
        _check_lies_as_b(views, second, len(named))
    further = further_of(options, product, dtype if views.a.dtype in FP8_FORMATS else views.a.dtype)
    others = {} if residual is None else {"c": residual}
    others |= {one.argument: one.view for one in operands if one.is_matrix}
    others |= {one.name: one.view for one in further if one.is_matrix}
    vectors = [one.view for one in operands if one.along is not None]
    vectors += [] if views.bias is None else [views.bias]
    has_rows = along == "m" or any(one.along == "m" for one in operands)
    pieces = []
    layouts = layouts_of(product, out, others, has_rows=has_rows)
    draws = any(True for value in options.values for _ in draws_of(value))
    if further or draws:
        _check_folds(further, layouts, product, draws=draws)
    for layout in layouts:
        if layout.swapped and (draws or any(True for value in options.values for _ in rotations_of(value))):
            raise CannotWrite  # places, and pairs of columns, are those of the kernel's columns
        if second is not None and (layout.swapped or layout.stack is not None):
            raise CannotWrite if layout.swapped else NeedsCopy("a", tight)
        along_c = _OTHER[along] if layout.swapped else along
        epilogue = epilogue_of(along_c, residual is not None, operands, options, further, swapped=layout.swapped)
        gemm = _gemm_of(layout, views.a.dtype, dtype, epilogue, options)
        alignment = _alignment_of(layout, views, out, tuple(others.values()), vectors, second)
        starts = tuple(_starts(layout, start, gemm, residual is not None, operands, further) for start in layout.starts)
        algorithm, or_f32 = options.algorithm_of(views.a.dtype, gemm.k)
        request = Request(gemm, alignment, layout.stack, options.fixed_order, algorithm=algorithm, or_f32=or_f32)
        request = by_scaled_pieces(request)
        pieces.append(Piece(request, starts, layout.swapped))
    return tuple(pieces)


def _check_lies_as_b(views: Views, second: View, number: int) -> None:
    """Raises NeedsCopy where two factors do not lie alike."""
    if second.strides == views.b.strides:
        return
    if views.b.strides != c_strides(views.b.shape):
        raise NeedsCopy("b", tight)
    raise NeedsCopy(argument_of(number), tight)


def _check_folds(
    further: tuple[Further, ...], layouts: tuple[Layout, ...], product: Product, *, draws: bool = False
) -> None:
    """Raises ShapeError for folds of what is not one matrix, and for numbers that are drawn by its rows."""
    if len(layouts) == 1 and layouts[0].stack is None:
        return
    if all(one.is_matrix for one in further) and not draws:
        return
    raise ShapeError(
        f"Rows and columns of a result of shape {product.shape} are not {'counted' if draws else 'folded'}: it is not "
        "one matrix.",
        note="a batch is one where b has two dimensions, and the rows of a and of all operands follow each other.",
        hint="call matmul for each matrix of the batch, or fold the result.",
    )


def refuse_narrow_addends(out: DType, given: Mapping[str, View | None]) -> None:
    """Raises DTypeError for what is read in the format of a result of FP8, which would round it."""
    name = next((name for name, view in given.items() if view is not None), None)
    if out in FP8_FORMATS and name is not None:
        raise DTypeError(
            f"A {name} is read in the format of the result, and {out} would round it.",
            hint=f"pass it to the function: epilogue=lambda acc, {name}: ..., operands={{'{name}': ...}}.",
        )


def epilogue_of(
    bias: Along | None,
    residual: bool,
    operands: tuple[Named, ...],
    options: Options,
    further: tuple[Further, ...],
    *,
    swapped: bool = False,
) -> Epilogue:
    """What a launch makes of its sums. bias: of the kernel's C; swapped: rows of the result are its columns."""
    if options.function is None:
        return Epilogue(bias, residual, options.activation)
    added = {added.name: added for added in (one.added(swapped=swapped) for one in operands)}

    def bound(value: Value) -> Value:
        return with_leaves(value, lambda leaf: Element(added[leaf.operand.name]) if isinstance(leaf, Element) else leaf)

    results = tuple(Result(one.added(), bound(one.other.value)) for one in further)
    return Epilogue(bias, residual, options.activation, function=bound(options.function), results=results)


def _starts(
    layout: Layout,
    start: Places,
    gemm: Gemm,
    residual: bool,
    operands: tuple[Named, ...],
    results: tuple[Further, ...],
) -> Addresses:
    """Bytes from where the arrays of a call begin to what a launch reads and writes."""
    a, b, c, row, *others = start
    step, out_step = gemm.dtype.bytes, gemm.out.bytes
    bias = row * out_step if gemm.epilogue.bias == "m" else 0
    further = iter(others)
    at_residual = next(further) * out_step if residual else 0
    found = []
    for one in operands:
        along_rows = one.added(swapped=layout.swapped).along == "m"
        found.append((next(further) if one.is_matrix else row if along_rows else 0) * one.view.dtype.bytes)
    found += [next(further) * one.view.dtype.bytes if one.is_matrix else 0 for one in results]
    if gemm.accumulators > 1:
        found.append(b * step)
    return (a * step, b * step, c * out_step, bias, at_residual, *found)


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
        ld_added=layout.leadings,
        numbers=options.numbers,
    )


def _alignment_of(
    layout: Layout, views: Views, out: View, others: tuple[View, ...], vectors: Sequence[View], second: View | None
) -> Alignment:
    """What addresses, rows and steps between matrices are multiples of, in bytes; of what is read beside the result, in
    bytes of as many of its elements."""
    step, out_step = views.a.dtype.bytes, out.dtype.bytes
    first, last = (views.b, views.a) if layout.swapped else (views.a, views.b)
    bits_a, bits_b, bits_c = layout.a.leading * step, layout.b.leading * step, layout.leading
    if second is not None:
        bits_b |= second.pointer
    for leading in layout.leadings:
        bits_c |= leading
    if layout.stack is not None:
        bits_a, bits_b = bits_a | layout.stack.a * step, bits_b | layout.stack.b * step
        for elements in (layout.stack.c, *layout.stack.added):
            bits_c |= elements
    bits_c *= out_step
    for x, y, z, _, *more in layout.starts:
        bits_a, bits_b = bits_a | first.pointer + x * step, bits_b | last.pointer + y * step
        bits_c |= out.pointer + z * out_step
        for view, start in zip(others, more, strict=True):
            bits_c |= (view.pointer // view.dtype.bytes + start) * out_step
    for view in vectors:
        bits_c |= view.pointer // view.dtype.bytes * out_step
    return Alignment(power_of_two(bits_a), power_of_two(bits_b), power_of_two(bits_c))


def power_of_two(value: int) -> int:
    """The largest power of two that divides an address, at most 16."""
    return min(value & -value, 16) if value else 16
