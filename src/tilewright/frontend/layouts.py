"""The matrix problems of a product: one, or strided batches of them with one launch each.

Contiguous batch dimensions are merged; those that share B and are contiguous in A become more rows; the longest that is
left is the strided batch of a launch, and the rest are launches one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as every

from tilewright.frontend.libraries.views import View, c_strides
from tilewright.frontend.shapes import NeedsCopy, Product, lone
from tilewright.ir.kernel import MOST_ALONG_Z
from tilewright.planning.stack import Stack
from tilewright.problem.gemm import Order

MOST_ROWS = MOST_ALONG_Z * 64
"""Rows of one launch: rows of tiles are blocks along y, of which a grid has as few as along z."""

Places = tuple[int, int, int, int, int]
"""For A, B, the result, the bias and the residual: elements, from where the array begins."""


class CannotWrite(Exception):
    """A result is written with contiguous rows or columns, which these strides do not have."""


@dataclass(frozen=True, slots=True)
class Side:
    """The order and leading dimension of A or B."""

    order: Order
    leading: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Launches of one kernel. C is row-major: for a column-major result A and B have changed places (`swapped`).

    stack: the strided batch; None for one problem. starts: where the arrays of each launch begin, A and B as the kernel
    has them.
    """

    m: int
    n: int
    k: int
    a: Side
    b: Side
    leading: int
    residual_leading: int
    swapped: bool
    stack: Stack | None
    starts: tuple[Places, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A batch dimension: its extent, and elements from index to index in A, B, the result and the residual."""

    extent: int
    steps: tuple[int, int, int, int]

    def follows(self, inner: _Axis) -> bool:
        """Whether this one goes on where the one inside it ends."""
        return all(own == inner.extent * step for own, step in zip(self.steps, inner.steps, strict=True))


def layouts_of(product: Product, out: View, residual: View | None, *, bias_along: str | None) -> tuple[Layout, ...]:
    """All launches of a product whose result has at least one element. Raises CannotWrite, or NeedsCopy for a residual
    whose rows are not contiguous where those of the result are."""
    down, right, along = product.strides_of(out)
    swapped = _swapped(product.m, product.n, down, right)
    leading = right if swapped else down
    other, along_other, residual_leading = residual or out, along, leading
    if residual is not None:
        down, right, along_other = product.strides_of(other)
        if not _fits(product.m, product.n, down, right, swapped):
            if residual.strides == c_strides(residual.shape):  # so the columns of the result are contiguous
                raise CannotWrite
            raise NeedsCopy("c", lambda library, c: library.spread(c, product.shape))
        residual_leading = right if swapped else down
    steps = zip(product.a.along, product.b.along, along, along_other, strict=True)
    axes = [_Axis(e, s) for e, s in zip(product.batch, steps, strict=True) if e != 1]
    if any(axis.steps[2] == 0 for axis in axes):
        raise CannotWrite
    rows, columns = (product.n, product.m) if swapped else (product.m, product.n)
    a, b = Side(product.a.order, product.a.leading), Side(product.b.order, product.b.leading)
    whole = Layout(product.m, product.n, product.k, a, b, leading, residual_leading, False, None, ((0,) * 5,))
    if not swapped and bias_along != "m":
        whole, axes = _with_rows(whole, _merged(axes))
    if swapped:
        a, b = (Side(_transposed(side.order), side.leading) for side in (whole.b, whole.a))
        axes = [_Axis(x.extent, (x.steps[1], x.steps[0], *x.steps[2:])) for x in axes]
        whole = replace(whole, m=rows, n=columns, a=a, b=b, swapped=True)
    whole = replace(
        whole,
        leading=max(whole.leading, lone(whole.n)) if whole.m == 1 else max(whole.leading, 1),
        residual_leading=0
        if residual is None
        else max(whole.residual_leading, lone(whole.n))
        if whole.m == 1
        else max(whole.residual_leading, 1),
    )
    bias_moves = (bias_along == "m") != swapped
    return tuple(piece for stacked in _stacked(whole, _merged(axes)) for piece in _in_rows(stacked, bias_moves))


def _fits(m: int, n: int, down: int, right: int, swapped: bool) -> bool:
    """Whether a matrix with these strides has contiguous rows (columns, if swapped) that share no elements."""
    if swapped:
        return _fits(n, m, right, down, False)
    return (n == 1 or right == 1) and (m == 1 or down >= n)


def _swapped(m: int, n: int, down: int, right: int) -> bool:
    if _fits(m, n, down, right, False):
        return False
    if _fits(m, n, down, right, True):
        return True
    raise CannotWrite


def _transposed(order: Order) -> Order:
    return Order.COL if order is Order.ROW else Order.ROW


def _merged(axes: list[_Axis]) -> list[_Axis]:
    merged: list[_Axis] = []
    for axis in axes:
        if merged and merged[-1].follows(axis):
            axis = _Axis(merged.pop().extent * axis.extent, axis.steps)
        merged.append(axis)
    return merged


def _with_rows(layout: Layout, axes: list[_Axis]) -> tuple[Layout, list[_Axis]]:
    """The innermost batch dimensions as more rows, as long as B is the same for all of them."""
    while axes:
        extent, (a, b, out, residual) = axes[-1].extent, axes[-1].steps
        if b != 0 or layout.a.order is not Order.ROW:
            break
        if layout.m == 1:
            if a < max(layout.k, 1) or out < layout.n or residual < layout.n:
                break
            layout = replace(layout, a=Side(Order.ROW, a), leading=out, residual_leading=residual)
        elif (a, out, residual) != tuple(
            layout.m * line for line in (layout.a.leading, layout.leading, layout.residual_leading)
        ):
            break
        layout, axes = replace(layout, m=layout.m * extent), axes[:-1]
    return layout, axes


def _stacked(layout: Layout, axes: list[_Axis]) -> list[Layout]:
    """The longest batch dimension as the stack of each launch, and the others as launches."""
    if not axes:
        return [layout]
    longest = max(axes, key=lambda axis: axis.extent)
    others = [axis for axis in axes if axis is not longest]
    starts = []
    for index in every(*(range(axis.extent) for axis in others)):
        a, b, out, residual = (
            sum(i * x.steps[which] for i, x in zip(index, others, strict=True)) for which in range(4)
        )
        starts.append((a, b, out, 0, residual))
    layouts = []
    for first in range(0, longest.extent, MOST_ALONG_Z):
        count = min(MOST_ALONG_Z, longest.extent - first)
        a, b, out, residual = (first * step for step in longest.steps)
        moved = tuple((s[0] + a, s[1] + b, s[2] + out, 0, s[4] + residual) for s in starts)
        layouts.append(replace(layout, stack=Stack(count, *longest.steps), starts=moved))
    return layouts


def _in_rows(layout: Layout, bias_moves: bool) -> list[Layout]:
    """Launches with no more rows than a grid has blocks for. bias_moves: it has an element for each row."""
    if layout.m <= MOST_ROWS:
        return [layout]
    pieces = []
    for first in range(0, layout.m, MOST_ROWS):
        a = first * (layout.a.leading if layout.a.order is Order.ROW else 1)
        out, residual, bias = first * layout.leading, first * layout.residual_leading, first if bias_moves else 0
        moved = tuple((s[0] + a, s[1], s[2] + out, bias, s[4] + residual) for s in layout.starts)
        pieces.append(replace(layout, m=min(MOST_ROWS, layout.m - first), starts=moved))
    return pieces
