"""Products of groups of FP8 operands with scales, whose sizes lie on the GPU.

One launch, as `ragged` makes it: the resident blocks read the offsets, and the scales where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import F32, FP8_FORMATS, DType
from tilewright.errors import ProblemError
from tilewright.frontend.compute import device_of, refuse_other_library
from tilewright.frontend.known_calls import KNOWN, KnownCall
from tilewright.frontend.layouts import MOST_ROWS
from tilewright.frontend.libraries import DTypeError, View
from tilewright.frontend.options import PLAIN
from tilewright.frontend.ragged import (
    NOT_READ,
    Groups,
    Room,
    are_scattered,
    check_offsets,
    groups_of,
    planned_groups,
    ragged_of,
    refuse_elsewhere,
)
from tilewright.frontend.remembered import key_of
from tilewright.frontend.requests import power_of_two, requests_of
from tilewright.frontend.scaled import ScaledOptions, refuse_device
from tilewright.frontend.scales import BLOCK, side_of
from tilewright.frontend.shapes import NeedsCopy, ShapeError, product_of
from tilewright.planning.assembly import Request
from tilewright.planning.packing import TMA_BYTES, Alignment
from tilewright.problem.block_scales import SIDES, BlockScales
from tilewright.problem.epilogue import Epilogue, Scale
from tilewright.problem.gemm import Order
from tilewright.units import ceil_div

Arrays = tuple[Any, ...]
"""a, b, scale_a, scale_b and the offsets of a call."""

_NAME, _NAMES = "scaled_grouped_matmul", ("a", "b", "scale_a", "scale_b")


@dataclass(frozen=True, slots=True)
class GroupViews:
    """Where the arrays of a call lie, but for the offsets, of which there are `count`."""

    a: View
    b: View
    scale_a: View
    scale_b: View
    count: int


@dataclass(frozen=True, slots=True)
class _Scaling:
    """whole: scales of the finished sum; own: those of which each group has its own; steps: from group to group."""

    whole: tuple[Scale, ...] = ()
    own: tuple[Scale, ...] = ()
    blocks: BlockScales | None = None
    steps: tuple[int, ...] = ()


def checked_groups(views: GroupViews) -> tuple[Groups, _Scaling]:
    """The groups of a call of (tokens, k) by (groups, k, n), and what its scales scale. Raises DTypeError, ShapeError
    and ProblemError for what cannot be asked."""
    for name, view in (("a", views.a), ("b", views.b)):
        if view.dtype not in FP8_FORMATS:
            raise DTypeError(
                f"scaled_grouped_matmul: {name} holds {view.dtype}, and operands with scales are of FP8.",
                hint="use float8_e4m3fn or float8_e5m2; grouped_matmul multiplies other formats.",
            )
    if (len(views.a.shape), len(views.b.shape)) != (2, 3):
        raise ShapeError(
            f"scaled_grouped_matmul takes no a of shape {views.a.shape} and b of shape {views.b.shape}.",
            note="FP8 sums over the tokens of each group would begin inside of the 16 bytes that TMA loads.",
            hint="give (tokens, k) and (groups, k, n), or (groups, m, k) and (k, tokens); multiply bf16 for others.",
        )
    for name, view in (("b", views.b), ("scale_a", views.scale_a), ("scale_b", views.scale_b)):
        if view.device != views.a.device:
            raise ProblemError(
                f"scaled_grouped_matmul: {name} lies on {view.place}, and a on {views.a.place}.", hint="move one."
            )
        if name != "b" and view.dtype is not F32:
            raise DTypeError(f"scaled_grouped_matmul: {name} holds {view.dtype}, and scales are f32.", hint="convert.")
    groups = groups_of(views.a, views.b, views.count, "scaled_grouped_matmul")
    if groups.total > MOST_ROWS:
        raise ProblemError(
            f"scaled_grouped_matmul: {groups.total} rows are more than one grid has blocks for.",
            hint=f"multiply at most {MOST_ROWS} at a time.",
        )
    return groups, _scaling(groups, views)


def _scaling(groups: Groups, views: GroupViews) -> _Scaling:
    m, n, k = groups.total, groups.shape[1], views.a.shape[1]
    count, depth, of_a, of_b = groups.count, ceil_div(k, BLOCK), views.scale_a, views.scale_b
    a, b = _whole_of_a(of_a, m), _whole_of_b(of_b, count, n)
    if a is not None and b is not None:
        for name, view, along in (("scale_a", of_a, a == "m"), ("scale_b", of_b, b == "n")):
            _check_neighbours(name, view, along)
        own: tuple[Scale, ...] = (b,) if b == "n" or of_b.shape[:1] == (count,) != (1,) else ()
        return _Scaling((a, b), own, steps=tuple(of_b.strides[0] for _ in own))
    side = side_of(of_b.shape, [(count, depth, ceil_div(n, side)) for side in SIDES])
    if of_a.shape != (m, depth) or side is None:
        raise _wrong(groups, k, views)
    for name, view in (("scale_a", of_a), ("scale_b", of_b)):
        if min(view.strides) < 0:
            raise ProblemError(
                f"scaled_grouped_matmul: {name} has strides {view.strides}.", hint=f"pass {name}.contiguous()."
            )
    steps_a, steps_b = (of_a.strides[0], of_a.strides[1]), (of_b.strides[2], of_b.strides[1])
    blocks = BlockScales(1, side, BLOCK, steps_a, steps_b, own=("block_scale_b",))
    return _Scaling(blocks=blocks, steps=(of_b.strides[0],))


def _whole_of_a(view: View, m: int) -> Scale | None:
    """What there is one scale of a for, if not for blocks."""
    if all(extent == 1 for extent in view.shape):
        return "a"
    return "m" if view.shape in ((m,), (m, 1)) else None


def _whole_of_b(view: View, count: int, n: int) -> Scale | None:
    if all(extent == 1 for extent in view.shape) or view.shape in ((count,), (count, 1), (count, 1, 1)):
        return "b"
    return "n" if view.shape in ((count, n), (count, 1, n)) else None


def _check_neighbours(name: str, view: View, along: bool) -> None:
    """along: whether one line has several scales, which the kernel reads as neighbours."""
    steps = [step for extent, step in zip(view.shape, view.strides, strict=True) if extent > 1]
    if (along and steps and steps[-1] != 1) or min(steps, default=0) < 0:
        raise ProblemError(
            f"scaled_grouped_matmul: {name} of shape {view.shape} has strides {view.strides}, and kernels read "
            "neighbours.",
            hint=f"pass {name}.contiguous().",
        )


def _wrong(groups: Groups, k: int, views: GroupViews) -> ShapeError:
    m, n, count, depth = groups.total, groups.shape[1], groups.count, ceil_div(k, BLOCK)
    return ShapeError(
        f"scaled_grouped_matmul: scale_a has shape {views.scale_a.shape}, beside scale_b of shape "
        f"{views.scale_b.shape}.",
        note=f"there are {m} rows, {count} groups, {n} columns and {k} of k; scales of blocks stand beside others.",
        hint=f"give scale_a one element or {(m,)}, and scale_b one element, {(count,)} or {(count, n)}; or "
        f"{(m, depth)}, and {(count, depth, n)} or {(count, depth, ceil_div(n, BLOCK))}.",
    )


def request_of_groups(
    views: GroupViews, options: ScaledOptions, room: Room | None = None, moved: frozenset[str] = frozenset()
) -> tuple[Groups, Request | None]:
    """The request of a call; None where there is nothing to compute. Raises as `checked_groups`, and NeedsCopy for an
    operand that no kernel reads well. moved: the operands that are copies already."""
    groups, scaling = checked_groups(views)
    one, out = groups.one, options.out_dtype
    product = product_of(one.a, one.b)
    for name, order, wanted in (("a", product.a.order, Order.ROW), ("b", product.b.order, Order.COL)):
        if product.k > 1 and order is not wanted and 0 not in views.b.shape:
            raise NeedsCopy(name, _along_k if name == "b" else _copied)
    at_a, at_b = views.a.pointer | product.a.leading, views.b.pointer | product.b.leading | views.b.strides[0]
    for name, lies in (("a", at_a), ("b", at_b)):
        if product.k % TMA_BYTES == 0 and lies % TMA_BYTES and name not in moved:  # TMA can load a copy
            raise NeedsCopy(name, _along_k if name == "b" else _copied)
    pieces = requests_of(one, product, out, PLAIN)
    if not pieces or not groups.count:
        return groups, None
    request = pieces[0].request
    gemm = replace(
        request.gemm,
        epilogue=Epilogue(scale=scaling.whole, own=scaling.own),
        block_scales=scaling.blocks if product.k else None,
        b_dtype=one.b.dtype if one.b.dtype is not one.a.dtype else None,
    )
    added = scaling.steps if product.k or scaling.whole else ()
    asked = ragged_of(groups.count, "m", views.b.strides[0], added, room=room)
    every = BLOCK if gemm.block_scales is not None else options.promote_every
    alignment = _alignment(request.alignment, views, scaling, out)
    return groups, replace(request, gemm=gemm, alignment=alignment, groups=asked, promote_every=every)


def _copied(library: Any, array: Any) -> Any:
    return library.spread(array, tuple(array.shape))


def _along_k(library: Any, b: Any) -> Any:
    """A copy of matrices with k contiguous."""
    return _copied(library, b.swapaxes(-1, -2)).swapaxes(-1, -2)


def _alignment(known: Alignment, views: GroupViews, scaling: _Scaling, out: DType) -> Alignment:
    """What the matrices of every group are aligned to, and the scales beside C as many elements. known: of one."""
    beside_c = 0
    if "n" in scaling.whole:
        beside_c = views.scale_b.pointer // F32.bytes * out.bytes | scaling.steps[0] * out.bytes
    of_b = power_of_two(views.b.strides[0])  # elements of one byte
    return Alignment(known.a, min(known.b, of_b), min(known.c, power_of_two(beside_c)))


def views_of_groups(library: Any, arrays: Arrays) -> GroupViews:
    """Where the arrays of a call lie."""
    a, b, scale_a, scale_b = (library.view(array) for array in arrays[:4])
    return GroupViews(a, b, scale_a, scale_b, arrays[4].shape[0])


def transposed(arrays: Arrays) -> Arrays | None:
    """The arrays of (groups, m, k) by (k, tokens) as those of (tokens, k) by (groups, k, m); None for others."""
    a, b, scale_a, scale_b, offsets = arrays
    if len(a.shape) != 3 or len(b.shape) != 2:
        return None
    if len(scale_b.shape) == 2:
        scale_b = scale_b.T
    if len(scale_a.shape) == 3:
        scale_a = scale_a.swapaxes(-1, -2)
    return b.T, a.swapaxes(-1, -2), scale_b, scale_a, offsets


def compute_scaled_groups(
    library: Any,
    arrays: Arrays,
    options: ScaledOptions,
    room: Room | None = None,
    moved: frozenset[str] = frozenset(),
) -> Any:
    """The result of a call. room: as of `compute_groups`. moved: as `request_of_groups`.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked, HostMemory for arrays on no GPU, and
    LaunchError for a GPU without FP8, or where a kernel would have to be compiled in a capture.
    """
    key = key_of(library, arrays, _NAME, options, room)
    known = KNOWN.get(key)
    if known is None:
        for name, array in zip((*_NAMES, "offsets"), arrays, strict=True):
            refuse_other_library(library, name, array)
        check_offsets(arrays[4])
        refuse_elsewhere(arrays[0], arrays[4], "offsets" if room is None else "counts")
        other = transposed(arrays)
        if other is not None:
            return compute_scaled_groups(library, other, options).T
        if are_scattered(arrays[4]):
            return compute_scaled_groups(library, (*arrays[:4], library.tight(arrays[4])), options, room, moved)
        try:
            known = _settled(library, arrays, options, room, moved)
        except NeedsCopy as needed:
            at = _NAMES.index(needed.name)
            copied = (*arrays[:at], needed.copied(library, arrays[at]), *arrays[at + 1 :])
            return compute_scaled_groups(library, copied, options, room, moved | {needed.name})
        KNOWN.keep(key, known)
    a, b, scale_a, scale_b, offsets = arrays
    address = library.address
    return known.run(library, a, (*NOT_READ, address(offsets), 0, address(scale_a), address(scale_b)), b)


def _settled(
    library: Any, arrays: Arrays, options: ScaledOptions, room: Room | None, moved: frozenset[str]
) -> KnownCall:
    views = views_of_groups(library, arrays)
    groups, request = request_of_groups(views, options, room, moved)
    device = device_of(library, views.a)
    in_blocks = request is not None and request.gemm.block_scales is not None
    refuse_device(device, views.a.dtype, in_blocks=in_blocks)
    make = library.maker(groups.shape, options.out_dtype, arrays[0])
    if request is None:
        return KnownCall(device, make, None)
    return KnownCall(device, make, planned_groups(library, request, device))


def words_of_scaled_groups(library: Any, arrays: Arrays, options: ScaledOptions, room: Room | None = None) -> str:
    """What runs for a call that was made before, for people."""
    return KNOWN[key_of(library, transposed(arrays) or arrays, _NAME, options, room)].words
