"""The matrix problems of a product: one, or strided batches of them with one launch each.

Contiguous batch dimensions are merged; those that share B and are contiguous in A become more rows; the longest that is
left is the strided batch of a launch, and the rest are launches one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product as every

from tilewright.frontend.libraries.views import Shape, View
from tilewright.frontend.shapes import NeedsCopy, Product, lone
from tilewright.ir.kernel import MOST_ALONG_Z
from tilewright.planning.packing import Stack
from tilewright.problem.gemm import Order
from tilewright.runtime.memory import c_strides

MOST_ROWS = MOST_ALONG_Z * 64
"""Rows of one launch: rows of tiles are blocks along y, of which a grid has as few as along z."""

Places = tuple[int, ...]
"""For A, B and the result: elements, from where the array begins; the number of the first row; and for other matrices,
which are read beside the result."""


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

    leadings: of the other matrices. stack: the strided batch; None for one problem. starts: where the arrays of each
    launch begin, A and B as the kernel has them.
    """

    m: int
    n: int
    k: int
    a: Side
    b: Side
    leading: int
    leadings: tuple[int, ...]
    swapped: bool
    stack: Stack | None
    starts: tuple[Places, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A batch dimension: its extent, and elements from index to index in A, B, the result and other matrices."""

    extent: int
    steps: tuple[int, ...]

    def follows(self, inner: _Axis) -> bool:
        """Whether this one goes on where the one inside it ends."""
        return all(own == inner.extent * step for own, step in zip(self.steps, inner.steps, strict=True))


def layouts_of(
    product: Product, out: View, others: Mapping[str, View], *, has_rows: bool = False
) -> tuple[Layout, ...]:
    """All launches of a product whose result has at least one element. others: matrices that are read beside the
    result, of its shape, by the names of the call. has_rows: an operand has an element for each row, so that rows of a
    batch are not rows of one matrix.

    Raises CannotWrite, or NeedsCopy for another matrix whose rows are not contiguous where those of the result are.
    """
    down, right, along = product.strides_of(out)
    swapped = _swapped(product.m, product.n, down, right)
    leading = right if swapped else down
    found = [_beside(product, name, view, swapped) for name, view in others.items()]
    steps = zip(product.a.along, product.b.along, along, *(each for _, each in found), strict=True)
    axes = [_Axis(e, s) for e, s in zip(product.batch, steps, strict=True) if e != 1]
    if any(axis.steps[2] == 0 for axis in axes):
        raise CannotWrite
    rows, columns = (product.n, product.m) if swapped else (product.m, product.n)
    a, b = Side(product.a.order, product.a.leading), Side(product.b.order, product.b.leading)
    leadings, start = tuple(each for each, _ in found), (0,) * (4 + len(found))
    whole = Layout(product.m, product.n, product.k, a, b, leading, leadings, False, None, (start,))
    if not swapped and not has_rows:
        whole, axes = _with_rows(whole, _merged(axes))
    if swapped:
        a, b = (Side(side.order.other, side.leading) for side in (whole.b, whole.a))
        axes = [_Axis(x.extent, (x.steps[1], x.steps[0], *x.steps[2:])) for x in axes]
        whole = replace(whole, m=rows, n=columns, a=a, b=b, swapped=True)
    leading, *more = (lone(whole.n) if whole.m == 1 else max(one, 1) for one in (whole.leading, *whole.leadings))
    whole = replace(whole, leading=leading, leadings=tuple(more))
    return tuple(piece for stacked in _stacked(whole, _merged(axes)) for piece in _in_rows(stacked))


def _beside(product: Product, name: str, view: View, swapped: bool) -> tuple[int, Shape]:
    """The leading dimension of another matrix, and its steps along the batch. Raises CannotWrite and NeedsCopy."""
    down, right, along = product.strides_of(view)
    if not _fits(product.m, product.n, down, right, swapped):
        if view.strides == c_strides(view.shape):  # so the columns of the result are contiguous
            raise CannotWrite
        raise NeedsCopy(name, lambda library, array: library.spread(array, product.shape))
    return right if swapped else down, along


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
        extent, (a, b, *written) = axes[-1].extent, axes[-1].steps
        if b != 0 or layout.a.order is not Order.ROW:
            break
        if layout.m == 1:
            if a < max(layout.k, 1) or any(step < layout.n for step in written):
                break
            layout = replace(layout, a=Side(Order.ROW, a), leading=written[0], leadings=tuple(written[1:]))
        elif [a, *written] != [layout.m * line for line in (layout.a.leading, layout.leading, *layout.leadings)]:
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
        moves = (_placed(i * step for step in axis.steps) for i, axis in zip(index, others, strict=True))
        starts.append(_moved(layout.starts[0], *moves))
    layouts = []
    for first in range(0, longest.extent, MOST_ALONG_Z):
        count = min(MOST_ALONG_Z, longest.extent - first)
        here = _placed(first * step for step in longest.steps)
        a, b, c, *added = longest.steps
        stack = Stack(count, a, b, c, tuple(added))
        layouts.append(replace(layout, stack=stack, starts=tuple(_moved(start, here) for start in starts)))
    return layouts


def _placed(steps: Iterable[int]) -> Places:
    """Elements by which a batch index moves places."""
    a, b, c, *others = steps
    return a, b, c, 0, *others


def _moved(start: Places, *moves: Places) -> Places:
    return tuple(sum(each) for each in zip(start, *moves, strict=True))


def _in_rows(layout: Layout) -> list[Layout]:
    """Launches with no more rows than a grid has blocks for."""
    if layout.m <= MOST_ROWS:
        return [layout]
    pieces = []
    for first in range(0, layout.m, MOST_ROWS):
        a = first * (layout.a.leading if layout.a.order is Order.ROW else 1)
        here = (a, 0, first * layout.leading, first, *(first * leading for leading in layout.leadings))
        moved = tuple(_moved(start, here) for start in layout.starts)
        pieces.append(replace(layout, m=min(MOST_ROWS, layout.m - first), starts=moved))
    return pieces
