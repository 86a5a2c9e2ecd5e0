"""`grouped_matmul`: products of different shapes in one launch, as a mixture of experts needs them.

Addresses and sizes of the products are rows of a table on the GPU; blocks along z have a product each, and the grid is
as large as the largest one's. One kernel serves all, chosen for their work together; only operands that lie in other
orders need another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import CompileError, LaunchError, LoweringError, ProblemError, ScheduleError
from tilewright.frontend.added import Added, added_of
from tilewright.frontend.calls import matmul
from tilewright.frontend.layouts import layouts_of
from tilewright.frontend.libraries import DTypeError, HostArrays, View, library_of
from tilewright.frontend.on_gpu import readable
from tilewright.frontend.options import Options, options_asked, result_format
from tilewright.frontend.recipes import alignment_of, gemm_of
from tilewright.frontend.shapes import Product, ShapeError
from tilewright.ir.kernel import MOST_ALONG_Z
from tilewright.ir.work import Problems
from tilewright.planning.choices import choices_for_list
from tilewright.planning.copies import Alignment
from tilewright.planning.dispatch import SAFE, Dispatcher, dispatcher
from tilewright.planning.kernels import Built
from tilewright.problem.gemm import Gemm
from tilewright.runtime.prepared import PreparedLaunch
from tilewright.toolchain import grid_of

_MOST_REMEMBERED = 1024


def grouped_matmul(
    a: Sequence[Any],
    b: Sequence[Any],
    *,
    bias: Sequence[Any] | None = None,
    activation: str | None = None,
    alpha: float = 1.0,
    out_dtype: Any = None,
    precision: str = "default",
) -> list[Any]:
    """`[activation(alpha * x @ y + z) for x, y, z in zip(a, b, bias)]` in one launch: matrices of any shapes, of one
    library, format and GPU. Options as for `matmul`.

    >>> grouped_matmul([], [])
    []
    """
    a, b = list(a), list(b)
    biases = [None] * len(a) if bias is None else list(bias)
    if not len(a) == len(b) == len(biases):
        counts = f"{len(a)} matrices a, {len(b)} b" + ("" if bias is None else f" and {len(biases)} bias")
        raise ShapeError(f"Cannot multiply {counts} in pairs.", hint="give as many of each.")
    options = options_asked(alpha, None, out_dtype, precision, None, False, activation, False)
    if not a:
        return []
    library = library_of(a[0])
    if isinstance(library, HostArrays):
        given = {"alpha": alpha, "activation": activation, "out_dtype": out_dtype, "precision": precision}
        return [matmul(x, y, bias=z, **given) for x, y, z in zip(a, b, biases, strict=True)]
    pairs = [_pair(library, x, y) for x, y in zip(a, b, strict=True)]
    views = [library.view(x) for x, _, _ in pairs]
    for number, view in enumerate(views):
        if view.device != views[0].device or view.dtype is not views[0].dtype:
            raise ProblemError(
                f"Pair {number} is {view.dtype} on {view.place}, and pair 0 is {views[0].dtype} on {views[0].place}.",
                hint="a group has one format and one GPU.",
            )
    dtype = result_format(options, views[0].dtype)
    results = [library.empty(product.shape, dtype, x) for x, _, product in pairs]
    members = [
        _member(library, pair, result, bias, options)
        for pair, result, bias in zip(pairs, results, biases, strict=True)
        if 0 not in pair[2].shape
    ]
    _start(library, members)
    return results


@dataclass(frozen=True)
class _Member:
    """One product: its arrays, where its result lies, and the problem as the kernels know it."""

    kept: tuple[Any, ...]
    result: Any
    view: View
    gemm: Gemm
    alignment: Alignment
    addresses: dict[str, int]

    @cached_property
    def kind(self) -> Any:
        """Products of the same kind can be in one launch."""
        return self.gemm.a, self.gemm.b, self.gemm.epilogue

    @cached_property
    def sizes(self) -> dict[str, int]:
        gemm = self.gemm
        return {"M": gemm.m, "N": gemm.n, "K": gemm.k, "lda": gemm.lda, "ldb": gemm.ldb, "ldc": gemm.ldc}


def _pair(library: Any, a: Any, b: Any) -> tuple[Any, Any, Product]:
    """Two matrices, copied where kernels cannot read them as they lie, and their product."""
    for array in (a, b):
        if library_of(array) is not library:
            raise ProblemError(f"A group has arrays of {library.name}, and one of {library_of(array).name}.")
        if len(array.shape) != 2:
            raise ShapeError(
                f"A group is of matrices, and one array has shape {tuple(array.shape)}.", hint="use matmul for stacks."
            )
    a, b, product = readable(library, a, b, by_rows=True)
    first, second = library.view(a), library.view(b)
    if first.device is None:
        raise ProblemError(
            f"The arrays of {library.name} lie in host memory, not on a GPU.", hint="move them to the GPU first."
        )
    if first.dtype is not second.dtype:
        raise DTypeError(f"Cannot multiply {first.dtype} by {second.dtype}.", hint="convert one to the other's dtype.")
    if first.device != second.device:
        raise ProblemError(
            f"Cannot multiply arrays on different devices: {first.place} and {second.place}.", hint="move one of them."
        )
    return a, b, product


def _member(library: Any, pair: tuple[Any, Any, Product], result: Any, bias: Any, options: Options) -> _Member:
    a, b, product = pair
    first, second, view = library.view(a), library.view(b), library.view(result)
    added = Added() if bias is None else added_of(library, product, view, None, bias)
    (layout,) = layouts_of(product, view, None, bias_along=added.bias_along)
    addresses = {"A": first.pointer, "B": second.pointer, "C": view.pointer, "bias": added.bias}
    gemm = gemm_of(layout, first, view, added, options)
    alignment = alignment_of(layout, first, second, view, added)
    return _Member((a, b, *added.arrays), result, view, gemm, alignment, addresses)


# -- launches -------------------------------------------------------------------------------------------------------

_TABLES: dict[Any, tuple[int, Any]] = {}
"""Tables that lie on a GPU already, by the device and their words: addresses come again, and a copy takes a while."""

_PREPARED: dict[Any, tuple[PreparedLaunch, Built]] = {}


def _start(library: Any, members: list[_Member]) -> None:
    """One launch for each kind of product."""
    kinds: dict[Any, list[_Member]] = {}
    for member in members:
        kinds.setdefault(member.kind, []).append(member)
    for alike in kinds.values():
        for start in range(0, len(alike), MOST_ALONG_Z):
            _launch(library, alike[start : start + MOST_ALONG_Z])


def _launch(library: Any, members: list[_Member]) -> None:
    device = members[0].view.device
    assert device is not None
    planner = dispatcher(device)
    planner.refuse_fork()
    alignment = Alignment(*(min(getattr(m.alignment, side) for m in members) for side in "abc"))
    key = (device, alignment, *(member.gemm for member in members))
    with planner.gpu.as_current():
        known = _PREPARED.get(key)
        if known is None:
            _refuse_capture(library, "no kernel for these shapes is loaded")
            if len(_PREPARED) >= _MOST_REMEMBERED:
                _PREPARED.clear()
            known = _PREPARED[key] = _prepared(planner, [member.gemm for member in members], alignment)
        launch, built = known
        words = np.array(
            [[{**m.addresses, **m.sizes}[column.name] for column in built.kernel.columns] for m in members], np.int64
        )
        at, kept = _table(library, words, device, members[0].result)
        launch.launch(library.stream(device), at)
        library.finished((kept, *(member.kept for member in members)), device)


def _prepared(planner: Dispatcher, gemms: list[Gemm], alignment: Alignment) -> tuple[PreparedLaunch, Built]:
    """The best kernel that can be built, ready for these shapes."""
    failures = []
    first, *others = gemms
    for choice in (*choices_for_list(gemms, planner.spec), SAFE):
        try:
            built = planner.kernels.kernel(first, alignment, choice, problems=Problems.LISTED, others=others)
            grids = [grid_of(built.kernel, gemm) for gemm in gemms]
            grid = (max(grid[0] for grid in grids), max(grid[1] for grid in grids), len(gemms))
            values = (0, first.alpha, first.beta)
            return built.loaded.prepare(grid, built.kernel.block, values), built
        except (CompileError, LaunchError, LoweringError, ScheduleError) as failure:
            failures.append(failure)
            planner.report(first, str(choice), failure)
    raise failures[-1]


def _table(library: Any, words: Any, device: int, like: Any) -> tuple[int, Any]:
    key = (device, words.tobytes())
    found = _TABLES.get(key)
    if found is None:
        _refuse_capture(library, "these products' addresses are not on the GPU")
        if len(_TABLES) >= _MOST_REMEMBERED:
            _TABLES.clear()
        found = _TABLES[key] = library.upload(words, like)
    return found


def _refuse_capture(library: Any, why: str) -> None:
    if library.capturing():
        raise LaunchError(
            f"The stream is recording a CUDA graph, and {why} yet.",
            note="compiling and copying from the host cannot be recorded.",
            hint="use matmul for each product inside a capture.",
        )
