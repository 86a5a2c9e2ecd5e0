"""What a call multiplies: the shapes of its arrays as NumPy's matmul understands them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ProblemError
from tilewright.frontend.libraries.views import Shape, View
from tilewright.problem.gemm import Order
from tilewright.units import round_up


class ShapeError(ProblemError, ValueError):
    """Shapes that do not multiply; a ValueError with NumPy's words, as NumPy raises it."""


class NeedsCopy(Exception):
    """Neither index of a matrix is contiguous. `which`: 0 or 1, the operand."""

    def __init__(self, which: int) -> None:
        super().__init__(which)
        self.which = which


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


def product_of(a: View, b: View, *, by_rows: bool = False) -> Product:
    """The product of two arrays. by_rows: a single column is not taken for one line, as in a group, whose matrices
    have one order. Raises ShapeError, or NeedsCopy."""
    for number, view in enumerate((a, b)):
        if not view.shape:
            raise ShapeError(
                f"matmul: Input operand {number} does not have enough dimensions "
                f"(has 0, gufunc core with {_SIGNATURE} requires 1)"
            )
    one_row, one_column = len(a.shape) == 1, len(b.shape) == 1
    shape_a, strides_a = ((1, *a.shape), (0, *a.strides)) if one_row else (a.shape, a.strides)
    shape_b, strides_b = ((*b.shape, 1), (*b.strides, 0)) if one_column else (b.shape, b.strides)
    (m, k), (k_b, n) = shape_a[-2:], shape_b[-2:]
    if k != k_b:
        raise ShapeError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc {_SIGNATURE} "
            f"(size {k_b} is different from {k})"
        )
    batch = _broadcast(shape_a[:-2], shape_b[:-2], a.shape, b.shape)
    along_a, along_b = _along(shape_a, strides_a, batch), _along(shape_b, strides_b, batch)
    shape = (*batch, *(() if one_row else (m,)), *(() if one_column else (n,)))
    # Of an empty array strides may be anything: nobody reads it.
    order_a, leading_a = (
        _order(m, k, strides_a[-2], strides_a[-1], 0, by_rows) if 0 not in a.shape else (Order.ROW, max(k, 1))
    )
    order_b, leading_b = (
        _order(k, n, strides_b[-2], strides_b[-1], 1, by_rows) if 0 not in b.shape else (Order.ROW, max(n, 1))
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


def lone(length: int) -> int:
    """The leading dimension of a matrix of one line: nothing lies beyond it, so that it may be one for all copies."""
    return round_up(max(length, 1), 8)


def _broadcast(a: Shape, b: Shape, whole_a: Shape, whole_b: Shape) -> Shape:
    longest = max(len(a), len(b))
    padded = [(1,) * (longest - len(shape)) + shape for shape in (a, b)]
    result = []
    for x, y in zip(*padded, strict=True):
        if x != y and 1 not in (x, y):
            raise ShapeError(
                f"operands could not be broadcast together with remapped shapes [original->remapped]: "
                f"{_text(whole_a)}->({','.join(map(str, a))},newaxis,newaxis) "
                f"{_text(whole_b)}->({','.join(map(str, b))},newaxis,newaxis)"
            )
        result.append(y if x == 1 else x)
    return tuple(result)


def _text(shape: Shape) -> str:
    return f"({','.join(map(str, shape))})"


def _along(shape: Shape, strides: Shape, batch: Shape) -> Shape:
    """Strides of a batch after broadcasting."""
    own = [0 if extent == 1 else stride for extent, stride in zip(shape[:-2], strides[:-2], strict=True)]
    return tuple([0] * (len(batch) - len(own)) + own)


def _order(rows: int, columns: int, down: int, right: int, which: int, by_rows: bool) -> tuple[Order, int]:
    """The order and leading dimension of a matrix with these strides; rows are preferred, but for a single column.

    Raises NeedsCopy.
    """
    if columns == 1 < rows and down == 1 and not by_rows:
        return Order.COL, lone(rows)  # one line rather than lines of one element, which no wide load reads
    if (columns <= 1 or right == 1) and (rows <= 1 or down >= max(columns, 1)):
        return Order.ROW, lone(columns) if rows <= 1 else down
    if (rows <= 1 or down == 1) and (columns <= 1 or right >= max(rows, 1)):
        return Order.COL, lone(rows) if columns <= 1 else right
    raise NeedsCopy(which)
