"""What a call multiplies: the shapes of its arrays as NumPy's matmul understands them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.errors import ProblemError
from tilewright.frontend.libraries.views import Shape, View
from tilewright.problem.gemm import Order
from tilewright.units import round_up

Along = Literal["m", "n"]


class ShapeError(ProblemError, ValueError):
    """Shapes that do not multiply; a ValueError with NumPy's words, as NumPy raises it."""


class NeedsCopy(Exception):
    """No kernel reads an array of the call as it lies. name: the argument; copied: what is read in its place, made of
    its library and the array."""

    def __init__(self, name: str, copied: Callable[[Any, Any], Any]) -> None:
        super().__init__(name)
        self.name = name
        self.copied = copied


def tight(library: Any, array: Any) -> Any:
    """A copy in C order."""
    return library.tight(array)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand: the order of its matrices, elements from line to line, and from matrix to matrix along the batch."""

    order: Order
    leading: int
    along: Shape


@dataclass(frozen=True, slots=True)
class Product:
    """A call: products of m x k by k x n, one for each index of `batch`. shape: of the result as the user sees it.

    one_row, one_column: A or B is a vector, and the result lacks that dimension.
    """

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    batch: Shape
    shape: Shape
    one_row: bool = False
    one_column: bool = False

    def strides_of(self, view: View) -> tuple[int, int, Shape]:
        """Elements from row to row, column to column, and along the batch, of an array shaped as the result is."""
        strides = list(view.strides)
        right = 0 if self.one_column else strides.pop()
        down = 0 if self.one_row else strides.pop()
        return down, right, tuple(0 if e == 1 else s for e, s in zip(self.batch, strides, strict=True))


_SIGNATURE = "signature (n?,k),(k,m?)->(n?,m?)"


def product_of(a: View, b: View, *, row_major: bool = False) -> Product:
    """The product of two arrays. row_major: a single column is row-major like the other matrices of its group.

    Raises ShapeError, or NeedsCopy where neither index of a matrix is contiguous.
    """
    for number, view in enumerate((a, b)):
        if not view.shape:
            raise ShapeError(
                f"matmul: Input operand {number} does not have enough dimensions "
                f"(has 0, gufunc core with {_SIGNATURE} requires 1)",
                hint="alpha= multiplies by a number.",
            )
    one_row, one_column = len(a.shape) == 1, len(b.shape) == 1
    shape_a, strides_a = ((1, *a.shape), (0, *a.strides)) if one_row else (a.shape, a.strides)
    shape_b, strides_b = ((*b.shape, 1), (*b.strides, 0)) if one_column else (b.shape, b.strides)
    (m, k), (k_b, n) = shape_a[-2:], shape_b[-2:]
    if k != k_b:
        raise ShapeError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc {_SIGNATURE} "
            f"(size {k_b} is different from {k})",
            hint=f"a has shape {_text(a.shape)} and b {_text(b.shape)}: as many columns of a are needed as rows of b.",
        )
    batch = _broadcast(shape_a[:-2], shape_b[:-2], a.shape, b.shape)
    along_a, along_b = _along(shape_a, strides_a, batch), _along(shape_b, strides_b, batch)
    shape = (*batch, *(() if one_row else (m,)), *(() if one_column else (n,)))
    # The strides of an empty array may be anything: it is not read.
    order_a, leading_a = (
        _order(m, k, strides_a[-2], strides_a[-1], "a", row_major) if 0 not in a.shape else (Order.ROW, max(k, 1))
    )
    order_b, leading_b = (
        _order(k, n, strides_b[-2], strides_b[-1], "b", row_major) if 0 not in b.shape else (Order.ROW, max(n, 1))
    )
    first, second = Matrix(order_a, leading_a, along_a), Matrix(order_b, leading_b, along_b)
    return Product(m, n, k, first, second, batch, shape, one_row, one_column)


def spreads_to(shape: Shape, target: Shape) -> bool:
    """Whether NumPy broadcasts a shape to another.

    >>> spreads_to((3, 1), (2, 3, 4)), spreads_to((3,), (3, 4))
    (True, False)
    """
    if len(shape) > len(target):
        return False
    return all(own in (1, wanted) for own, wanted in zip(reversed(shape), reversed(target), strict=False))


def fits_along(shape: Shape, product: Product) -> Along | None:
    """The dimension of the result for each row or column of which an array has an element; None if for neither."""
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
    return None


def bias_along(shape: Shape, product: Product) -> Along:
    """Whether a bias has an element for each row or each column of the result. Raises ShapeError if for neither."""
    along = fits_along(shape, product)
    if along is not None:
        return along
    columns = "" if product.one_column else f" ({product.n},) for the columns"
    rows = "" if product.one_row else f" ({product.m},{'' if product.one_column else ' 1'}) for the rows"
    raise ShapeError(
        f"A bias of shape {shape} fits neither the rows nor the columns of a result of shape {product.shape}.",
        hint=f"give one of shape{' or'.join(filter(None, (columns, rows))) or ' ()'}, or add it as c.",
    )


def has_plain_rows(matrix: View) -> bool:
    """Whether the elements of a row are neighbours, and no row lies in another."""
    (rows, columns), (down, right) = matrix.shape, matrix.strides
    if not rows or not columns:
        return True  # the strides of an empty array may be anything
    return (columns == 1 or right == 1) and (rows == 1 or down >= columns)


def lone(length: int) -> int:
    """The leading dimension of a matrix of one line: no element lies beyond it, so that it may suit every copy."""
    return round_up(max(length, 1), 16)


def _broadcast(a: Shape, b: Shape, whole_a: Shape, whole_b: Shape) -> Shape:
    longest = max(len(a), len(b))
    padded = [(1,) * (longest - len(shape)) + shape for shape in (a, b)]
    result = []
    for x, y in zip(*padded, strict=True):
        if x != y and 1 not in (x, y):
            raise ShapeError(
                f"operands could not be broadcast together with remapped shapes [original->remapped]: "
                f"{_text(whole_a)}->({','.join(map(str, a))},newaxis,newaxis) "
                f"{_text(whole_b)}->({','.join(map(str, b))},newaxis,newaxis)",
                hint="dimensions before the last two are a batch: equal in a and b, or 1 in one of them.",
            )
        result.append(y if x == 1 else x)
    return tuple(result)


def _text(shape: Shape) -> str:
    return f"({','.join(map(str, shape))})"


def _along(shape: Shape, strides: Shape, batch: Shape) -> Shape:
    """Strides of a batch after broadcasting."""
    own = [0 if extent == 1 else stride for extent, stride in zip(shape[:-2], strides[:-2], strict=True)]
    return tuple([0] * (len(batch) - len(own)) + own)


def _order(rows: int, columns: int, down: int, right: int, name: str, row_major: bool) -> tuple[Order, int]:
    """The order and leading dimension of a matrix with these strides; rows are preferred, but for a single column.

    Raises NeedsCopy.
    """
    if columns == 1 < rows and down == 1 and not row_major:
        return Order.COL, lone(rows)  # one line rather than lines of one element, which no wide load reads
    if (columns <= 1 or right == 1) and (rows <= 1 or down >= max(columns, 1)):
        return Order.ROW, lone(columns) if rows <= 1 else down
    if (rows <= 1 or down == 1) and (columns <= 1 or right >= max(rows, 1)):
        return Order.COL, lone(rows) if columns <= 1 else right
    raise NeedsCopy(name, tight)
