"""What an epilogue adds to a product: a bias, and a residual that has the result's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tilewright.errors import ProblemError
from tilewright.frontend.libraries import View, library_of
from tilewright.frontend.shapes import Product, ShapeError, spreads_to

Along = Literal["m", "n"]


@dataclass(frozen=True, slots=True)
class Added:
    """bias: its address, 0 where there is none; bias_along: "n" if it has an element for each column, "m" for each row.

    residual: where it lies; None where nothing is added, or what the result itself held (`onto_itself`). arrays: whose
    memory that is, some of them copies, to be kept until the kernels have started.
    """

    bias: int = 0
    bias_along: Along | None = None
    residual: View | None = None
    onto_itself: bool = False
    arrays: tuple[Any, ...] = ()

    def as_given(self, c: Any, bias: Any, out: Any) -> bool:
        """Whether the kernels read the user's own arrays, and no copies; the result itself only where it is given as
        `c`, not where another view of it is."""
        if self.onto_itself and c is not out:
            return False
        return all(array is None or array is c or array is bias for array in self.arrays)


NOTHING = Added()


def added_of(library: Any, product: Product, result: View, c: Any, bias: Any) -> Added:
    """What a call adds, as the kernels take it. Raises ShapeError and ProblemError for what cannot be added."""
    at_bias, along, kept_bias = _bias(library, product, result, bias) if bias is not None else (0, None, None)
    if c is None:
        return Added(at_bias, along, arrays=(kept_bias,))
    c = _matched(library, c, result, "c")
    view = library.view(c)
    if not spreads_to(view.shape, result.shape):
        raise ShapeError(f"c of shape {view.shape} does not broadcast to the result's shape {result.shape}.")
    if view.lies_as(result):
        return Added(at_bias, along, onto_itself=True, arrays=(kept_bias, c))
    if view.shape != result.shape:
        c = library.spread(c, result.shape)
        view = library.view(c)
    return Added(at_bias, along, view, arrays=(kept_bias, c))


def with_copied_residual(library: Any, added: Added, shape: tuple[int, ...]) -> Added:
    """The same, its residual in C order."""
    *others, c = added.arrays
    copied = library.spread(c, shape)
    return Added(added.bias, added.bias_along, library.view(copied), arrays=(*others, copied))


def _bias(library: Any, product: Product, result: View, bias: Any) -> tuple[int, Along, Any]:
    bias = _matched(library, bias, result, "bias")
    view = library.view(bias)
    along = bias_along(view.shape, product)
    length = product.n if along == "n" else product.m
    step = next((s for extent, s in zip(view.shape, view.strides, strict=True) if extent != 1), 1)
    if length > 1 and step != 1:
        bias = library.tight(bias)
        view = library.view(bias)
    return view.pointer, along, bias


def bias_along(shape: tuple[int, ...], product: Product) -> Along:
    """Whether a bias has an element for each row or each column of the result. Raises ShapeError if for neither."""
    whole = (*product.batch, product.m, product.n)
    wanted = [*shape, *((1,) if product.one_column else ())]
    if product.one_row and not product.one_column:
        wanted = [*wanted[:-1], 1, *wanted[-1:]]
    padded = [1] * (len(whole) - len(wanted)) + wanted
    if len(padded) == len(whole) and all(extent == 1 for extent in padded[:-2]):
        if padded[-2:] == [1, product.n]:
            return "n"
        if padded[-2:] == [product.m, 1]:
            return "m"
    columns = "" if product.one_column else f" ({product.n},) for the columns"
    rows = "" if product.one_row else f" ({product.m},{'' if product.one_column else ' 1'}) for the rows"
    raise ShapeError(
        f"A bias of shape {shape} fits neither the rows nor the columns of a result of shape {product.shape}.",
        hint=f"give one of shape{' or'.join(filter(None, (columns, rows))) or ' ()'}, or add it as c.",
    )


def _matched(library: Any, array: Any, result: View, name: str) -> Any:
    """An array that is added, in the result's format and on its device."""
    if library_of(array) is not library:
        raise ProblemError(
            f"{name} is an array of {library_of(array).name}, and the product is one of {library.name}.",
            hint="convert it to that library: both take DLPack.",
        )
    view = library.view(array)
    if view.device != result.device:
        raise ProblemError(
            f"{name} lies on {view.place}, and the result on {result.place}.", hint=f"move {name} to {result.place}."
        )
    return array if view.dtype is result.dtype else library.convert(array, result.dtype)
