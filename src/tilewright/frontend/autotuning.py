"""`autotune`: the first call of a new problem measures the best few candidates, and later ones run the fastest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import count
from operator import add
from typing import Any

from tilewright.bench import quick
from tilewright.frontend.guard_flags import FLAG_BYTES, FLAGS_BYTES
from tilewright.frontend.libraries import View, WorkspaceError
from tilewright.frontend.requests import Piece, Views
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.plan import Place, Plan
from tilewright.units import ceil_div, round_up

VARIABLE = "TILEWRIGHT_AUTOTUNE"
"""The environment variable: "1" is one `autotune` around the whole process."""

CANDIDATES = 6
"""Plans that are measured at most."""

BUILD_SECONDS = 0.5
"""No third candidate is built once this time has gone by: a kernel that was never compiled takes some tenths."""

_L2_MULTIPLE, _MOST_COPIES = 4, 16
_MOST_BYTES = 1 << 30
"""Of copies of operands. Larger operands do not stay in L2, and are read where they lie."""

_LOCK = threading.Lock()
_OPEN: list[object] = [VARIABLE] if os.environ.get(VARIABLE) == "1" else []
ON_ENTRY: list[Callable[[], None]] = []
"""Called when a block opens: calls that are remembered would not be planned again."""


class autotune:
    """Within the block, the first call of a new problem measures up to six candidates on the GPU, and the fastest
    serves this and all later calls of the process. Beyond the second, none is begun to be compiled after half a second.

    A problem is one kind of call: shapes, strides, formats, alignment and options. Candidates write into memory of
    their own. Nothing is measured while a stream records a CUDA graph, for calls with `deterministic="bitwise"` or
    `batch_invariant`, or under `torch.use_deterministic_algorithms(True)`. Which candidate wins may differ from run to
    run, and with it the last bits of results. The block holds for all threads, the environment
    variable TILEWRIGHT_AUTOTUNE=1 for the whole process. See also `torch.backends.cudnn.benchmark`.

    >>> with autotune():
    ...     pass
    """

    def __enter__(self) -> autotune:
        with _LOCK:
            _OPEN.append(self)
        for forget in ON_ENTRY:
            forget()
        return self

    def __exit__(self, *raised: object) -> None:
        with _LOCK:
            _OPEN.remove(self)


def measured(planner: Dispatcher, library: Any, piece: Piece, views: Views, like: Any) -> Plan | None:
    """The fastest plan of a request that was not measured yet, which is kept; None where nothing is to be measured.

    like: an array of the library, on the device of the request.
    """
    request = piece.request
    if (
        not _OPEN
        or request.prepared
        or request.fixed_order
        or request.without_workspace
        or request.gemm.epilogue.results  # for which there is no memory to measure in
        or planner.is_measured(request)
    ):
        return None
    if library.capturing() or library.deterministic():
        return None
    plans = planner.candidates(request, CANDIDATES, BUILD_SECONDS)
    best = plans[0]
    if len(plans) > 1:
        try:
            with _LOCK, planner.gpu.as_current():
                times = _times_us(planner, library, piece, views, plans, like)
        except WorkspaceError:
            return None
        best = plans[times.index(min(times))]
    planner.keep(request, best)
    return best


def _times_us(
    planner: Dispatcher, library: Any, piece: Piece, views: Views, plans: Sequence[Plan], like: Any
) -> list[float]:
    """Microseconds of each plan, into memory of its own; on copies of A and B that L2 does not hold, if there is room.

    Raises WorkspaceError where there is no room for the result.
    """
    gemm, stack = piece.request.gemm, piece.request.stack
    first, second = (views.b, views.a) if piece.swapped else (views.a, views.b)
    before = [view.pointer - view.span[0] for view in (first, second)]  # bytes that lie before the first element
    sizes = [_round(view.span[1] - view.span[0]) for view in (first, second)]
    reach = 0 if stack is None else (stack.count - 1) * stack.c
    c_before = -min(0, reach) * gemm.out.bytes
    c_size = _round((abs(reach) + (gemm.m - 1) * gemm.ldc + gemm.n) * gemm.out.bytes)
    set_bytes = sum(sizes) + c_size
    copies = min(_MOST_COPIES, ceil_div(_L2_MULTIPLE * planner.spec.l2_bytes, set_bytes))
    if copies * set_bytes > _MOST_BYTES:
        copies = 1
    scratch_bytes = max(plan.scratch_bytes for plan in plans)
    room = copies * set_bytes if copies > 1 else c_size
    start, kept = library.scratch(room + scratch_bytes + 2 * _ALIGNMENT, like)
    start = round_up(start, _ALIGNMENT)
    x, y, _, *at = piece.starts[0]
    given = (0 if view is None else view.pointer for view in (views.bias, views.c, *views.operands))
    bias, residual, *operands = map(add, given, at)
    unused = (0,) * (Place.GUARD_A - Place.SCRATCH - 1)
    flags = range(start + room + scratch_bytes, start + room + scratch_bytes + FLAGS_BYTES, FLAG_BYTES)
    copied: list[quick.Copy] = []
    addresses = []
    for copy in range(copies):
        begin = start + copy * set_bytes
        a, b, c = first.pointer, second.pointer, begin
        if copies > 1:
            a, b, c = begin + before[0], begin + sizes[0] + before[1], begin + sum(sizes)
            copied += [(begin, first.span[0], _length(first)), (begin + sizes[0], second.span[0], _length(second))]
        addresses.append((a + x, b + y, c + c_before, bias, residual, start + room, *unused, *flags, *operands))
    turns = count()
    runs = [lambda stream, plan=plan: plan.run(stream, addresses[next(turns) % copies]) for plan in plans]
    times = quick.times_us(planner.gpu, library.stream(planner.gpu.index), copied, runs)
    del kept  # nothing is under way any more
    return times


_ALIGNMENT = 256


def _round(size_bytes: int) -> int:
    return round_up(max(1, size_bytes), _ALIGNMENT)


def _length(view: View) -> int:
    low, high = view.span
    return high - low
