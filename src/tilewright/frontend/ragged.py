"""Products of groups whose sizes lie on the GPU: `grouped_matmul(a, b, offsets=...)`.

The offsets never travel to the host, so that a CUDA graph records the call and follows them. Where wgmma and TMA take
the operands, the resident blocks of one launch read the offsets and find the tiles of all groups themselves.

Elsewhere a kernel reads words of each group (addresses and sizes) from a table, which is computed on the GPU, on the
user's stream. Its grid has room for the largest group there can be; blocks beyond the rows of their group end at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.compute import MOST, gpu_of, refuse_host_memory, refuse_other_library, views_of
from tilewright.frontend.libraries import DTypeError, HostArrays, library_of
from tilewright.frontend.libraries.views import View, c_strides
from tilewright.frontend.on_host import on_host
from tilewright.frontend.options import PLAIN, Options
from tilewright.frontend.requests import Views, checked, power_of_two, requests_of
from tilewright.frontend.shapes import NeedsCopy, ShapeError
from tilewright.ir.kernel import MOST_ALONG_Z
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.packing import Alignment
from tilewright.planning.plan import GroupPlan, Plan
from tilewright.planning.stack import Groups as Ragged
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div


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


def groups_of(a: View, b: View, count: int) -> Groups:
    """(tokens, k) by (groups, k, n), or (m, tokens) by (tokens, n). Raises ShapeError for other shapes.

    count: of the offsets, the ends of the groups.
    """
    if len(a.shape) == 2 and len(b.shape) == 3:
        groups, k, n = b.shape
        if a.shape[1] != k:
            raise ShapeError(
                f"grouped_matmul: a of shape {a.shape} does not go with b of shape {b.shape}.",
                hint="give a of shape (tokens, k) and b of shape (groups, k, n).",
            )
        if groups != count:
            raise ShapeError(
                f"grouped_matmul: there are {count} offsets, and b of shape {b.shape} has {groups} groups."
            )
        # The strides of an empty array may be anything.
        one = replace(b, shape=(k, n), strides=b.strides[1:] if groups else c_strides((k, n)))
        return Groups(Views(a, one), count, a.shape[0], False, (a.shape[0], n))
    if len(a.shape) == 2 and len(b.shape) == 2:
        if a.shape[1] != b.shape[0]:
            raise ShapeError(
                f"grouped_matmul: a of shape {a.shape} does not go with b of shape {b.shape}.",
                hint="give a of shape (m, tokens) and b of shape (tokens, n).",
            )
        return Groups(Views(a, b), count, a.shape[1], True, (count, a.shape[0], b.shape[1]))
    raise ShapeError(
        f"grouped_matmul takes no a of shape {a.shape} and b of shape {b.shape} with offsets.",
        hint="give (tokens, k) and (groups, k, n), (groups, m, k) and (k, tokens), or (m, tokens) and (tokens, n).",
    )


def check_offsets(offsets: Any) -> None:
    """Raises ShapeError, DTypeError or ProblemError for what no offsets are."""
    shape, dtype = getattr(offsets, "shape", None), getattr(offsets, "dtype", None)
    if shape is None or dtype is None:
        raise ProblemError(f"offsets is a {type(offsets).__name__}.", hint="pass an array of int32 on the GPU.")
    if len(shape) != 1:
        raise ShapeError(f"offsets have one dimension, and these have shape {tuple(shape)}.")
    if str(dtype).rpartition(".")[2] != "int32":
        raise DTypeError(f"offsets are int32, and these are {dtype}.", hint="convert them.")


def compute_groups(library: Any, a: Any, b: Any, offsets: Any, options: Options) -> Any:
    """The products of all groups. offsets: where each group ends, int32, ascending; rows beyond the last end are not
    written. The library's arrays must be those of PyTorch, CuPy or NumPy.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked, and LaunchError where a kernel would have
    to be compiled while the stream is recording a graph.
    """
    try:
        key = library.key(options, a, b, offsets, None, None)
    except (AttributeError, RuntimeError):  # of another library, or without memory
        key = None
    known = _KNOWN.get(key)
    if known is not None:
        return known.run(library, a, b, offsets)
    for name, array in (("b", b), ("offsets", offsets)):
        refuse_other_library(library, name, array)
    check_offsets(offsets)
    if len(a.shape) == 3 and len(b.shape) == 2:  # the same, transposed
        return compute_groups(library, b.T, a.swapaxes(-1, -2), offsets, options).T
    if isinstance(library, HostArrays):
        return _on_host(a, b, offsets, options)
    both = views_of(library, a, b)
    groups = groups_of(both.a, both.b, offsets.shape[0])
    try:
        product, dtype = checked(groups.one, options, row_major=True)
        device = refuse_host_memory(library, both)
        pieces = requests_of(groups.one, product, dtype, options)
    except NeedsCopy as needed:
        a, b = (library.tight(x) if name == needed.name else x for name, x in (("a", a), ("b", b)))
        return compute_groups(library, a, b, offsets, options)
    make = library.maker(groups.shape, dtype, a)
    if 0 in groups.shape or not groups.count:
        return make()
    if len(pieces) > 1:
        raise _too_many(groups)
    request = replace(pieces[0].request, alignment=_alignment(pieces[0].request, groups, both.b, dtype))
    plan = None if key is None else _ragged_plan(library, request, groups, both.b, device)
    if plan is None:
        return _by_table(library, request, groups, both.b, (a, b, offsets, make()), device)
    call = _Known(device, make, plan)
    if not both.may_be_half_of_complex_numbers:
        if len(_KNOWN) >= MOST:
            _KNOWN.clear()
        _KNOWN[key] = call
    return call.run(library, a, b, offsets)


@dataclass(frozen=True, slots=True)
class _Known:
    """What calls that look alike share: how their result is made, and launches that find the groups themselves."""

    device: int
    make: Callable[[], Any]
    plan: Plan

    def run(self, library: Any, a: Any, b: Any, offsets: Any) -> Any:
        result, address = self.make(), library.address
        addresses = address(a), address(b), address(result), 0, 0, 0, address(offsets)
        with gpu_of(dispatcher(self.device), library):
            self.plan.run(library.stream(self.device), addresses)
        library.finished((a, b, offsets, result), self.device)
        return result


_KNOWN: dict[Any, _Known] = {}
"""Calls made so far, by their keys."""

os.register_at_fork(after_in_child=_KNOWN.clear)  # CUDA does not work there


def words_of_groups(a: Any, b: Any, offsets: Any, options: Options = PLAIN) -> str:
    """What runs for a call that was made before, for people."""
    known = _KNOWN.get(library_of(a).key(options, a, b, offsets, None, None))
    return "by a table of groups" if known is None else known.plan.words


def _ragged_plan(library: Any, request: Request, groups: Groups, b: View, device: int) -> Plan | None:
    """The plan of a kernel that reads the offsets itself, where there is one. Raises LaunchError in a capture."""
    step = groups.shape[1] * groups.shape[2] if groups.along_k else b.strides[0]
    asked = replace(request, groups=Ragged(groups.count, "k" if groups.along_k else "m", step))
    planner = dispatcher(device)
    if library.capturing() and not planner.knows_ragged(asked):
        raise _not_in_capture(request.gemm)
    return planner.ragged(asked)


def _by_table(
    library: Any, request: Request, groups: Groups, b: View, arrays: tuple[Any, Any, Any, Any], device: int
) -> Any:
    """The result by a kernel that reads where each group lies from a table, made on the GPU. arrays: A, B, the offsets
    and the result."""
    offsets, result = arrays[2:]
    if groups.count > MOST_ALONG_Z:
        raise _too_many(groups)
    planner, gemm = dispatcher(device), request.gemm
    typical = (replace(request, gemm=_sized(gemm, groups, ceil_div(groups.total, groups.count))),) * groups.count
    bounds = (_sized(gemm, groups, groups.total), _sized(gemm, groups, 1))
    with planner.gpu.as_current():
        plan = planner.known_group(typical, bounds, groups.count)
        if plan is None:
            if library.capturing():
                raise _not_in_capture(gemm)
            plan = planner.group(typical, bounds, groups.count)
        table = _table(library, plan, groups, b, offsets, result, gemm)
        plan.launch.launch(library.stream(device), library.address(table))
        library.finished((*arrays, table), device)
    return result


def _not_in_capture(gemm: Gemm) -> LaunchError:
    return LaunchError(
        f"The stream is recording a CUDA graph, and no kernel for groups of {gemm} is loaded yet.",
        note="compiling and loading cannot be recorded.",
        hint="make the same call once before the capture.",
    )


def _too_many(groups: Groups) -> ProblemError:
    return ProblemError(
        f"grouped_matmul: {groups.total} rows in {groups.count} groups are more than one grid has blocks for.",
        hint="call it for parts of the groups.",
    )


def _sized(gemm: Gemm, groups: Groups, size: int) -> Gemm:
    """The problem of a group of this size."""
    return replace(gemm, k=size) if groups.along_k else replace(gemm, m=size)


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


def _table(library: Any, plan: GroupPlan, groups: Groups, b: View, offsets: Any, result: Any, gemm: Gemm) -> Any:
    """A row of 64-bit words for each group, computed on the library's stream."""
    ends = library.words(offsets.shape, offsets)
    ends[:] = offsets
    starts = library.words(offsets.shape, offsets)
    starts[:1] = 0
    starts[1:] = ends[:-1]
    number = library.words(offsets.shape, offsets)
    number[:] = 1
    number = number.cumsum(0) - 1
    step, out_step, one = groups.one.a.dtype.bytes, gemm.out.bytes, groups.one
    at_c = library.address(result)
    if groups.along_k:
        first = one.a.pointer + starts * (one.a.strides[1] * step)
        second = one.b.pointer + starts * (one.b.strides[0] * step)
        third = at_c + number * (gemm.m * gemm.n * out_step)
    else:
        first = one.a.pointer + starts * (one.a.strides[0] * step)
        second = one.b.pointer + number * (b.strides[0] * step)
        third = at_c + starts * (gemm.ldc * out_step)
    words = {"A": first, "B": second, "C": third, "M": gemm.m, "N": gemm.n, "K": gemm.k}
    words |= {"lda": gemm.lda, "ldb": gemm.ldb, "ldc": gemm.ldc, "K" if groups.along_k else "M": ends - starts}
    table = library.words((groups.count, len(plan.columns)), offsets)
    for column, name in enumerate(plan.columns):
        table[:, column] = words[name]
    return table


def _on_host(a: Any, b: Any, offsets: Any, options: Options) -> Any:
    """The same for NumPy's arrays, group by group."""
    views = [View(0, x.shape, c_strides(x.shape), HostArrays().view(x).dtype, None) for x in (a, b)]
    groups = groups_of(views[0], views[1], len(offsets))
    starts = np.concatenate(([0], offsets[:-1])).astype(int)
    spans = [slice(start, end) for start, end in zip(starts, offsets, strict=True)]
    if groups.along_k:
        results = [on_host(a[:, rows], b[rows], None, None, None, options) for rows in spans]
        return np.stack(results) if results else np.empty(groups.shape, a.dtype)
    kind = on_host(a[:0], b[0] if len(b) else np.empty(b.shape[1:], b.dtype), None, None, None, options).dtype
    result = np.zeros(groups.shape, kind)
    for number, rows in enumerate(spans):
        result[rows] = on_host(a[rows], b[number], None, None, None, options)
    return result
