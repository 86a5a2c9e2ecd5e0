"""The operands that a function of the epilogue names: which element of each belongs to an element of the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import F32, Array, DType
from tilewright.frontend.libraries.views import View
from tilewright.frontend.options import Options
from tilewright.frontend.shapes import Along, NeedsCopy, Product, ShapeError, fits_along, spreads_to, tight
from tilewright.frontend.tracing import Other, factor_name, operand_name
from tilewright.problem.quantization import BLOCK, scales_of_blocks, spread_over_blocks
from tilewright.problem.values import Added, Exact, Fold, evaluate, folded_array
from tilewright.runtime.memory import c_strides
from tilewright.units import ceil_div


@dataclass(frozen=True, slots=True)
class Named:
    """An operand as a kernel reads it. along: a vector's dimension of the result; None for a matrix, and for a single
    number."""

    name: str
    argument: str
    view: View
    along: Along | None = None
    single: bool = False

    @property
    def is_matrix(self) -> bool:
        return self.along is None and not self.single

    def added(self, *, swapped: bool) -> Added:
        """What the kernel is told of it. swapped: rows of the result are columns of the kernel's C."""
        if self.single:
            return Added(operand_name(self.name), "n", self.view.dtype, single=True)
        along = self.along if not swapped or self.along is None else "n" if self.along == "m" else "m"
        return Added(operand_name(self.name), along, self.view.dtype)


@dataclass(frozen=True, slots=True)
class Further:
    """A result behind the first, as a kernel writes it. view: of a new array, which begins at a multiple of 16 bytes
    and is in C order."""

    name: str
    other: Other
    view: View

    @property
    def is_matrix(self) -> bool:
        return self.other.operation is None

    def added(self) -> Added:
        """What the kernel is told of it, of whose C the rows are those of the result."""
        operation = self.other.operation
        if operation is None:
            return Added(self.name, None, self.view.dtype)
        codes = self.other.codes
        fold = Fold(operation, BLOCK if codes else 0, whole=self.other.along is None, codes=codes)
        return Added(self.name, self.other.along or "m", F32, own=True, fold=fold)


def further_of(options: Options, product: Product, dtype: DType) -> tuple[Further, ...]:
    """The results of a call behind the first. dtype: of the operands. Raises ShapeError for folds of what has none."""
    found = []
    for number, (other, asked) in enumerate(zip(options.others, options.formats, strict=True), 1):
        shape, kind = product.shape, asked or dtype
        if other.operation is not None:
            kind = F32
            if product.one_row or product.one_column or 0 in product.shape:
                raise ShapeError(
                    f"A result of shape {product.shape} has no rows and columns to fold.",
                    hint="multiply matrices, none of them empty.",
                )
            shape = (1,) if other.along is None else (*shape[:-1], 1) if other.along == "m" else (product.n,)
            if other.codes is not None:
                shape = (ceil_div(product.n, BLOCK), math.prod(product.shape[:-1]))
        found.append(Further(f"result_{number}", other, View(0, shape, c_strides(shape), kind, None)))
    return tuple(found)


def argument_of(number: int) -> str:
    """By which an error or a copy names an operand, of which there are any number."""
    return f"operand {number}"


def named_of(names: tuple[str, ...], views: tuple[View, ...], product: Product) -> tuple[Named, ...]:
    """The operands of a product that was checked. Raises NeedsCopy for one that is not read as it lies."""
    return tuple(
        _named(name, argument_of(number), view, product)
        for number, (name, view) in enumerate(zip(names, views, strict=True))
    )


def _named(name: str, argument: str, view: View, product: Product) -> Named:
    if all(extent == 1 for extent in view.shape):
        return Named(name, argument, view, single=True)
    along = fits_along(view.shape, product)
    if along is not None:
        step = next(s for extent, s in zip(view.shape, view.strides, strict=True) if extent != 1)
        if step != 1:
            raise NeedsCopy(argument, tight)
        return Named(name, argument, view, along)
    if view.shape != product.shape:
        raise NeedsCopy(argument, lambda library, array: library.spread(array, product.shape))
    return Named(name, argument, view)


def check_shape(name: str, view: View, product: Product) -> None:
    """Raises ShapeError for an operand that does not broadcast to the result."""
    if fits_along(view.shape, product) is None and not spreads_to(view.shape, product.shape):
        rows = "" if product.one_row else f", ({product.m}, 1) for each row"
        raise ShapeError(
            f"The operand {name} of shape {view.shape} does not broadcast to a result of shape {product.shape}.",
            hint=f"give one number, ({product.n},) for each column{rows}, or one for each element.",
        )


def in_place(operand: Array, product: Product) -> Array:
    """An operand in a shape that broadcasts to the result's: an element for each row lies along the rows."""
    along = fits_along(operand.shape, product)
    if along == "m" and operand.size > 1:
        return operand.reshape(product.m, *(() if product.one_column else (1,)))
    return operand


def applied_to(totals: Sequence[Any], options: Options, operands: Mapping[str, Array]) -> tuple[Any, ...]:
    """The activation, or the results of the function of the epilogue, of finished sums on the host. operands: by the
    names of the kernel."""
    if options.traced is None:
        return (totals[0] if options.activation is None else options.activation.of(totals[0]),)
    factors = zip((factor_name(name) for name in options.traced.factors), options.numbers, strict=True)
    sums = tuple(np.asarray(total, np.float64) for total in totals)
    exact = Exact(sums, 1.0, 0.0, lambda name: operands[name], dict(factors))
    whole = [np.broadcast_to(evaluate(value, exact), np.shape(totals[0])) for value in options.traced.values]
    others = zip(whole[1:], options.others, strict=True)
    if options.traced.codes is not None:
        scales = scales_of_blocks(whole[0], options.traced.codes)
        whole[0] = whole[0] / spread_over_blocks(scales, whole[0].shape[-1])
        codes = scales.reshape(-1, scales.shape[-1]).T
        return whole[0], codes, *(_made(one, of) for one, of in list(others)[1:])
    return whole[0], *(_made(one, of) for one, of in others)


def _made(value: Any, other: Other) -> Any:
    """A result behind the first, of its values."""
    return value if other.operation is None else folded_array(other.operation, other.along, value)
