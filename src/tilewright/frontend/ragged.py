"""Products of groups whose sizes lie on the GPU: `grouped_matmul(a, b, offsets=...)`.

The offsets never travel to the host, so that a CUDA graph records the call and follows them: the resident blocks of one
launch read them and find the tiles of all groups themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.frontend.compute import device_of, refuse_other_library, views_of
from tilewright.frontend.known_calls import KNOWN, KnownCall
from tilewright.frontend.libraries import DTypeError, HostArrays, library_of
from tilewright.frontend.libraries.views import View
from tilewright.frontend.on_host import on_host
from tilewright.frontend.options import PLAIN, Options
from tilewright.frontend.remembered import key_of
from tilewright.frontend.requests import Views, checked, power_of_two, requests_of
from tilewright.frontend.shapes import NeedsCopy, ShapeError
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import dispatcher, refuse_capture
from tilewright.planning.packing import Alignment
from tilewright.planning.packing import Groups as Ragged
from tilewright.planning.plan import Place, Plan
from tilewright.runtime.memory import c_strides
from tilewright.units import counted, type_name


@dataclass(frozen=True, slots=True)
class Groups:
    """What is multiplied: `count` groups that share `total` rows of A and C, or where `along_k`, as many terms of sums.

    one: the views of one group's matrices, if that had all rows or terms. shape: of the result.
    """

    one: Views
    count: int
    total: int
    along_k: bool
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """Of groups that have counts: the rows that each has room for, and how many are expected; 0: any."""

    capacity: int
    expected: int = 0


def groups_of(a: View, b: View, count: int, call: str = "grouped_matmul") -> Groups:
    """(tokens, k) by (groups, k, n), or (m, tokens) by (tokens, n). Raises ShapeError for other shapes.

    count: of the offsets, the ends of the groups. call: what was called.
    """
    if len(a.shape) == 2 and len(b.shape) == 3:
        groups, k, n = b.shape
        if a.shape[1] != k:
            raise ShapeError(
                f"{call}: a of shape {a.shape} does not go with b of shape {b.shape}.",
                hint="give a of shape (tokens, k) and b of shape (groups, k, n).",
            )
        if groups != count:
            raise ShapeError(
                f"{call}: {counted(count, 'offset')} for {counted(groups, 'group')}, those of b of shape {b.shape}.",
                hint="give the end of each group.",
            )
        # The strides of an empty array may be anything.
        one = replace(b, shape=(k, n), strides=b.strides[1:] if groups else c_strides((k, n)))
        return Groups(Views(a, one), count, a.shape[0], False, (a.shape[0], n))
    if len(a.shape) == 2 and len(b.shape) == 2:
        if a.shape[1] != b.shape[0]:
            raise ShapeError(
                f"{call}: a of shape {a.shape} does not go with b of shape {b.shape}.",
                hint="give a of shape (m, tokens) and b of shape (tokens, n).",
            )
        return Groups(Views(a, b), count, a.shape[1], True, (count, a.shape[0], b.shape[1]))
    raise ShapeError(
        f"{call} takes no a of shape {a.shape} and b of shape {b.shape} with offsets.",
        hint="give (tokens, k) and (groups, k, n), (groups, m, k) and (k, tokens), or (m, tokens) and (tokens, n).",
    )


def check_offsets(offsets: Any, name: str = "offsets") -> None:
    """Raises ShapeError, DTypeError or ProblemError for what no offsets are, or no counts."""
    shape, dtype = getattr(offsets, "shape", None), getattr(offsets, "dtype", None)
    if shape is None or dtype is None:
        raise ProblemError(f"{name} is {type_name(offsets)}.", hint="pass an array of int32 on the GPU.")
    if len(shape) != 1:
        raise ShapeError(f"{name} have one dimension, and these have shape {tuple(shape)}.")
    if str(dtype).rpartition(".")[2] != "int32":
        raise DTypeError(f"{name} are int32, and these are {dtype}.", hint=f"convert {name} to int32.")


def refuse_elsewhere(a: Any, offsets: Any, name: str = "offsets") -> None:
    """Raises ProblemError where numbers that a kernel reads lie on another device than a."""
    here, there = getattr(a, "device", None), getattr(offsets, "device", None)
    if here != there:
        raise ProblemError(f"{name} lie on {there}, and a on {here}.", hint=f"move {name}; the host never reads them.")


def compute_groups(library: Any, a: Any, b: Any, offsets: Any, options: Options, room: Room | None = None) -> Any:
    """The products of all groups. offsets: where each group ends, int32, ascending; rows beyond the last end are not
    written. room: they are counts, and a has the room of all groups, one below the other. The library's arrays must be
    those of PyTorch, CuPy or NumPy.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked, and LaunchError where a kernel would have
    to be compiled while the stream is recording a graph.
    """
    key = key_of(library, (a, b, offsets), "grouped_matmul", options, room)
    known = KNOWN.get(key)
    if known is None:
        for name, array in (("b", b), ("offsets", offsets)):
            refuse_other_library(library, name, array)
        check_offsets(offsets)
        refuse_elsewhere(a, offsets, "offsets" if room is None else "counts")
        if len(a.shape) == 3 and len(b.shape) == 2:  # the same, transposed
            return compute_groups(library, b.T, a.swapaxes(-1, -2), offsets, options).T
        if isinstance(library, HostArrays):
            return _on_host(a, b, offsets, options, room)
        if are_scattered(offsets):
            return compute_groups(library, a, b, library.tight(offsets), options, room)
        both = views_of(library, a, b)
        try:
            known = _settled(library, both, offsets.shape[0], options, room, a)
        except NeedsCopy as needed:
            a, b = (library.tight(x) if name == needed.name else x for name, x in (("a", a), ("b", b)))
            return compute_groups(library, a, b, offsets, options, room)
        if not both.may_be_half_of_complex_numbers:
            KNOWN.keep(key, known)
    return known.run(library, a, (*NOT_READ, library.address(offsets)), b)


NOT_READ = (0,) * (Place.GROUP_ENDS - Place.BIAS)
"""In the places between the result and the ends of groups."""


def _settled(library: Any, both: Views, count: int, options: Options, room: Room | None, like: Any) -> KnownCall:
    groups = groups_of(both.a, both.b, count)
    product, dtype = checked(groups.one, options, row_major=True)
    device = device_of(library, both.a)
    pieces = requests_of(groups.one, product, dtype, options)
    make = library.maker(groups.shape, dtype, like)
    if 0 in groups.shape or not groups.count:
        return KnownCall(device, make, None)
    if len(pieces) > 1:
        raise ProblemError(
            f"grouped_matmul: {groups.total} rows in {groups.count} groups are more than one grid has blocks for.",
            hint="call it for parts of the groups.",
        )
    step = groups.shape[1] * groups.shape[2] if groups.along_k else both.b.strides[0]
    asked = ragged_of(groups.count, "k" if groups.along_k else "m", step, room=room)
    request = pieces[0].request
    request = replace(request, alignment=_alignment(request, groups, both.b, dtype), groups=asked)
    return KnownCall(device, make, planned_groups(library, request, device))


def ragged_of(
    count: int, along: Literal["m", "k"], step: int, added: tuple[int, ...] = (), *, room: Room | None
) -> Ragged:
    """What the planning is told of groups."""
    told = Ragged(count, along, step, added)
    return told if room is None else replace(told, capacity=room.capacity, expected=room.expected)


def words_of_groups(a: Any, b: Any, offsets: Any, options: Options = PLAIN, room: Room | None = None) -> str:
    """What runs for a call that was made before, for people."""
    return KNOWN[key_of(library_of(a), (a, b, offsets), "grouped_matmul", options, room)].words


def are_scattered(offsets: Any) -> bool:
    """Whether neighbours among the offsets are none in memory."""
    if offsets.shape[0] < 2:
        return False
    if hasattr(offsets, "stride"):  # a tensor's, in elements; those of other libraries are in bytes
        return bool(offsets.stride(0) != 1)
    steps = getattr(offsets, "strides", None)
    return steps is not None and steps[0] != offsets.dtype.itemsize


def planned_groups(library: Any, request: Request, device: int) -> Plan:
    """The plan of a kernel that reads the offsets itself. Raises LaunchError in a capture."""
    planner = dispatcher(device)
    if not planner.knows_ragged(request):
        refuse_capture(library.capturing(), f"no kernel for groups of {request.gemm}")
    return planner.ragged(request)


def _alignment(request: Request, groups: Groups, b: View, dtype: DType) -> Alignment:
    """What the matrices of every group are aligned to: they begin wherever a group may."""
    step, one = groups.one.a.dtype.bytes, groups.one
    if groups.along_k:
        apart = one.a.strides[1], one.b.strides[0], one.a.shape[0] * one.b.shape[1]
    else:
        apart = one.a.strides[0], b.strides[0], one.b.shape[1]
    sizes = (power_of_two(apart[0] * step), power_of_two(apart[1] * step), power_of_two(apart[2] * dtype.bytes))
    known = request.alignment
    return Alignment(min(known.a, sizes[0]), min(known.b, sizes[1]), min(known.c, sizes[2]))


def spans_of(ends: Sequence[int], total: int, *, along_k: bool = False) -> list[slice]:
    """The rows of each group, or its terms, as kernels find them (`lowering.groups`).

    >>> spans_of([-1, 3, 2, 9], 5)
    [slice(0, 0, None), slice(0, 3, None), slice(3, 3, None), slice(2, 2, None)]
    """
    found, first, largest = [], 0, 0
    for end in (min(max(end, 0), total) for end in ends):
        found.append(slice(first, max(first, end) if along_k or first >= largest else first))
        first, largest = end, max(largest, end)
    return found


def spans_of_counts(counts: Sequence[int], capacity: int) -> list[slice]:
    """The rows of each group that has room for so many.

    >>> spans_of_counts([3, -1, 9], 5)
    [slice(0, 3, None), slice(5, 5, None), slice(10, 15, None)]
    """
    limited = (min(max(count, 0), capacity) for count in counts)
    return [slice(number * capacity, number * capacity + count) for number, count in enumerate(limited)]


def _on_host(a: Any, b: Any, offsets: Any, options: Options, room: Room | None) -> Any:
    """The same for NumPy's arrays, group by group."""
    views = [View(0, x.shape, c_strides(x.shape), HostArrays().view(x).dtype, None) for x in (a, b)]
    groups = groups_of(views[0], views[1], len(offsets))
    sizes = [int(one) for one in offsets]
    spans = (
        spans_of(sizes, groups.total, along_k=groups.along_k) if room is None else spans_of_counts(sizes, room.capacity)
    )
    if groups.along_k:
        results = [on_host(a[:, rows], b[rows], None, None, None, options) for rows in spans]
        return np.stack(results) if results else np.empty(groups.shape, a.dtype)
    kind = on_host(a[:0], b[0] if len(b) else np.empty(b.shape[1:], b.dtype), None, None, None, options).dtype
    result = np.zeros(groups.shape, kind)
    for number, rows in enumerate(spans):
        result[rows] = on_host(a[rows], b[number], None, None, None, options)
    return result
