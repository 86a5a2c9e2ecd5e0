"""A call whose arrays lie on a GPU."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.frontend.added import NOTHING, Added, added_of, with_copied_residual
from tilewright.frontend.layouts import CannotWrite, ResidualNeedsCopy
from tilewright.frontend.libraries import DTypeError, View, WorkspaceError
from tilewright.frontend.options import Options, result_format
from tilewright.frontend.recipes import Recipe, recipe_of, start
from tilewright.frontend.remembered import remember
from tilewright.frontend.shapes import NeedsCopy, Product, ShapeError, product_of
from tilewright.notices import say_once
from tilewright.planning.dispatch import dispatcher


def on_gpu(library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
    """The product of two arrays of one format on one GPU, in a new array or the user's."""
    x, y, product = readable(library, a, b)
    first, second = library.view(x), library.view(y)
    dtype = result_format(options, first.dtype)
    result = library.empty(product.shape, dtype, x) if out is None else _checked(library, out, product, dtype, first)
    told = library.view(result)
    added = added_of(library, product, told, c, bias) if c is not None or bias is not None else NOTHING
    if 0 in told.shape:
        return result
    try:
        if out is not None and _shares_memory(told, first, second, added):
            raise CannotWrite
        recipe, added = _started(library, product, first, second, result, added, options)
    except CannotWrite:
        library.assign(out, on_gpu(library, a, b, None, c, bias, options))
        return out
    library.finished((x, y, result, *added.arrays), told.device or 0)
    if recipe is not None and x is a and y is b and added.as_given(c, bias, out):
        remember(library, (a, b, c, bias), out, options, result, recipe)
    return result


def readable(library: Any, a: Any, b: Any, *, by_rows: bool = False) -> tuple[Any, Any, Product]:
    """The arrays, copied where neither rows nor columns are contiguous, and their product.

    by_rows: see `product_of`.
    """
    try:
        return a, b, product_of(library.view(a), library.view(b), by_rows=by_rows)
    except NeedsCopy as needed:
        if needed.which == 0:
            return readable(library, library.tight(a), b, by_rows=by_rows)
        b = library.tight(b)
    return a, b, product_of(library.view(a), library.view(b), by_rows=by_rows)


def _checked(library: Any, out: Any, product: Product, dtype: DType, first: View) -> Any:
    """The user's array for the result, which must fit."""
    if not library.writes_in_place:
        raise ProblemError(f"Arrays of {library.name} do not change, so `out` cannot be given.")
    view = library.view(out)
    if view.device != first.device:
        raise ProblemError(f"`out` lies on {view.place}, and the operands on {first.place}.", hint="move one of them.")
    if view.shape != product.shape:
        raise ShapeError(f"`out` has shape {view.shape}, and the result {product.shape}.")
    if view.dtype is not dtype:
        raise DTypeError(
            f"`out` holds {view.dtype}, and the result is {dtype}.",
            hint=f"pass out_dtype='{view.dtype}', or another out.",
        )
    return out


def _shares_memory(out: View, a: View, b: View, added: Added) -> bool:
    """Whether writing the result may change what is still to be read."""
    others = [a, b, *([added.residual] if added.residual is not None else [])]
    low, high = out.span
    return any(out.overlaps(other) for other in others) or low <= added.bias < high


def _started(
    library: Any, product: Product, first: View, second: View, result: Any, added: Added, options: Options
) -> tuple[Recipe | None, Added]:
    """Starts a call; its recipe, None if it is not the usual one. Raises CannotWrite."""
    told = library.view(result)
    assert told.device is not None
    planner = dispatcher(told.device)

    def run(with_added: Added, *, without_workspace: bool = False) -> Recipe:
        recipe = recipe_of(
            planner,
            library.capturing,
            product,
            first,
            second,
            told,
            with_added,
            options,
            without_workspace=without_workspace,
        )
        residual = 0 if with_added.residual is None else with_added.residual.pointer
        with planner.gpu.as_current():
            addresses = (first.pointer, second.pointer, told.pointer, with_added.bias, residual)
            start(library, recipe, addresses, planner.gpu.index, result)
        return recipe

    try:
        return run(added), added
    except WorkspaceError as full:
        say_once(f"{full.headline} A slower kernel that needs none runs instead.")
        run(added, without_workspace=True)
        return None, added
    except ResidualNeedsCopy:
        copied = with_copied_residual(library, added, told.shape)
    try:
        return run(copied), copied
    except ResidualNeedsCopy:  # the result has contiguous columns
        raise CannotWrite from None
