"""The scales of a call of `scaled_matmul`: what there is one scale for, from the shapes of the two arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.dtypes import F32
from tilewright.errors import ProblemError
from tilewright.frontend.libraries.views import DTypeError, Shape, View
from tilewright.frontend.shapes import ShapeError
from tilewright.problem.block_scales import SIDES, BlockScales
from tilewright.problem.epilogue import Scale
from tilewright.units import ceil_div

BLOCK = 128
"""Elements of k of a block that has a scale of its own."""

_MOST = 2**31 - 1
"""Kernels find the scales of blocks by offsets of 32 bits."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """whole: scales that multiply the finished sum, of rows and columns or of whole operands. blocks: of blocks of k,
    which multiply the sum of a block."""

    whole: tuple[Scale, ...] = ()
    blocks: BlockScales | None = None


def scaling_of(m: int, n: int, k: int, scale_a: View, scale_b: View) -> Scaling:
    """What two arrays of scales scale. Raises DTypeError, ShapeError and ProblemError for what no scales are."""
    for name, view in (("scale_a", scale_a), ("scale_b", scale_b)):
        if view.dtype is not F32:
            raise DTypeError(f"scaled_matmul: {name} holds {view.dtype}, and scales are f32.", hint="convert it.")
    whole = _whole(scale_a, (m, 1), "m"), _whole(scale_b, (1, n), "n")
    if whole[0] is not None and whole[1] is not None:
        for name, scale, view in (("scale_a", whole[0], scale_a), ("scale_b", whole[1], scale_b)):
            _check_neighbours(name, scale, view)
        return Scaling((whole[0], whole[1]))
    depth = ceil_div(k, BLOCK)
    side_a = side_of(scale_a.shape, [(ceil_div(m, side), depth) for side in SIDES])
    side_b = side_of(scale_b.shape, [(depth, ceil_div(n, side)) for side in SIDES])
    if side_a is None or side_b is None:
        raise _wrong(m, n, depth, scale_a, scale_b, of_a=whole[0] is None and side_a is None)
    steps_a, steps_b = scale_a.strides, scale_b.strides[::-1]
    for name, view in (("scale_a", scale_a), ("scale_b", scale_b)):
        reach = sum((extent - 1) * step for extent, step in zip(view.shape, view.strides, strict=True))
        if min(view.strides) < 0 or reach > _MOST:
            raise ProblemError(
                f"scaled_matmul: strides {view.strides} of {name} reach {reach} elements.",
                hint=f"pass {name}.contiguous().",
            )
    return Scaling(blocks=BlockScales(side_a, side_b, BLOCK, (steps_a[0], steps_a[1]), (steps_b[0], steps_b[1])))


def _whole(view: View, each: tuple[int, int], along: Scale) -> Scale | None:
    """What there is one scale for, if not for blocks. each: the shape of one for each row of A, or column of B."""
    if all(extent == 1 for extent in view.shape):
        return "a" if along == "m" else "b"
    return along if view.shape in ((each[0] * each[1],), each) else None


def side_of(shape: Shape, shapes: Sequence[Shape]) -> int | None:
    """Rows of A, or columns of B, of a block. shapes: those of scales, for each of `SIDES`."""
    return next((side for side, one in zip(SIDES, shapes, strict=True) if shape == one), None)


def _check_neighbours(name: str, scale: Scale, view: View) -> None:
    if scale in ("a", "b"):
        return
    step = next((step for extent, step in zip(view.shape, view.strides, strict=True) if extent > 1), 1)
    if step != 1:
        raise ProblemError(
            f"scaled_matmul: the elements of {name} lie {step} apart, and kernels read neighbours.",
            hint=f"pass {name}.contiguous().",
        )


def _wrong(m: int, n: int, depth: int, scale_a: View, scale_b: View, *, of_a: bool) -> ShapeError:
    """The error for shapes that are those of no scales, or not of two that go together."""
    name, view = ("scale_a", scale_a) if of_a else ("scale_b", scale_b)
    if of_a:
        shapes = (m, 1), (m, depth), (ceil_div(m, BLOCK), depth)
    else:
        shapes = (1, n), (depth, n), (depth, ceil_div(n, BLOCK))
    known = " or ".join(map(str, dict.fromkeys(shapes)))
    return ShapeError(
        f"scaled_matmul: {name} has shape {view.shape}, beside {'scale_b' if of_a else 'scale_a'} of shape "
        f"{(scale_b if of_a else scale_a).shape}.",
        note=f"scales are one in all, one for each row or column, or one for each block of {BLOCK} of k and of 1 or "
        f"{BLOCK} rows or columns; those of blocks stand beside others of blocks.",
        hint=f"give {name} one element, or shape {known}.",
    )
