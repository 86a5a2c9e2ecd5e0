"""`grouped_matmul`: products of different shapes in one launch, as a mixture of experts needs them.

Addresses and sizes of the products are rows of a table on the GPU; blocks along z have a product each, and the grid is
as large as the largest one's. One kernel serves all, chosen for their work together; only operands that lie in other
orders need another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.compute import refuse_host_memory, refuse_other_library, views_of
from tilewright.frontend.libraries import HostArrays, TorchArrays, View, library_of
from tilewright.frontend.on_host import on_host
from tilewright.frontend.options import Options, options_asked
from tilewright.frontend.ragged import compute_groups
from tilewright.frontend.requests import checked, requests_of
from tilewright.frontend.shapes import NeedsCopy, ShapeError
from tilewright.ir.kernel import MOST_ALONG_Z
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import dispatcher
from tilewright.problem.gemm import Gemm

_MOST_REMEMBERED = 1024


def grouped_matmul(
    a: Any,
    b: Any,
    *,
    offsets: Any = None,
    bias: Sequence[Any] | None = None,
    activation: str | None = None,
    alpha: float = 1.0,
    out_dtype: Any = None,
    precision: str = "default",
) -> Any:
    """`[activation(alpha * x @ y + z) for x, y, z in zip(a, b, bias)]` in one launch: lists of matrices of any shapes,
    of one library, format and GPU. Options as for `matmul`.

    With offsets, a and b are arrays whose rows or columns belong to groups, as in torch._grouped_mm: group i ends
    before row `offsets[i]`, and begins where the one before ends. offsets: (groups,), int32, ascending, on the GPU;
    the host never reads them, so that a CUDA graph records the call. alpha, out_dtype and precision as for `matmul`.

    | a, b | result |
    |---|---|
    | (tokens, k), (groups, k, n) | (tokens, n): the rows of each group by its matrix; those beyond the last end: any |
    | (groups, m, k), (k, tokens) | (m, tokens): the same, transposed |
    | (m, tokens), (tokens, n) | (groups, m, n): a sum over the tokens of each group; zeros for an empty one |

    Raises ShapeError, DTypeError and ProblemError as `matmul`, and LaunchError for a new kind of call in a capture.

    >>> grouped_matmul([], [])
    []
    """
    if offsets is not None:
        if bias is not None or activation is not None:
            raise ProblemError(
                "grouped_matmul with offsets adds no bias and has no activation.", hint="apply them to the result."
            )
        return _with_offsets(a, b, offsets, alpha, out_dtype, precision)
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
        return [on_host(x, y, None, None, z, options) for x, y, z in zip(a, b, biases, strict=True)]
    pairs = [_pair(library, x, y, z, options) for x, y, z in zip(a, b, biases, strict=True)]
    first = pairs[0].view
    for number, pair in enumerate(pairs):
        view = pair.view
        if view.device != first.device or view.dtype is not first.dtype:
            raise ProblemError(
                f"Pair {number} is {view.dtype} on {view.place}, and pair 0 is {first.dtype} on {first.place}.",
                hint="a group has one format and one GPU.",
            )
    _start(library, pairs)
    return [pair.result for pair in pairs]


def _with_offsets(a: Any, b: Any, offsets: Any, alpha: Any, out_dtype: Any, precision: Any) -> Any:
    asked = (alpha, None, out_dtype, precision, None, False, None, False)
    library = library_of(a)
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.grouped import grouped

        return grouped(a, b, offsets, asked)
    return compute_groups(library, a, b, offsets, options_asked(*asked))


@dataclass(frozen=True)
class _Pair:
    """One product: its arrays, which launches must find alive; where A lies; its result; and its requests, each with
    the addresses of its A, B, C and bias as the kernel has them."""

    arrays: tuple[Any, ...]
    view: View
    result: Any
    requests: tuple[tuple[Request, dict[str, int]], ...]


def _pair(library: Any, a: Any, b: Any, bias: Any, options: Options) -> _Pair:
    refuse_other_library(library, "an array of the group", a)
    for array in (a, b):
        if len(getattr(array, "shape", (0, 0))) != 2:
            raise ShapeError(
                f"A group is of matrices, and one array has shape {tuple(array.shape)}.",
                hint="use matmul for batches.",
            )
    views = views_of(library, a, b, None, None, bias)
    try:
        product, dtype = checked(views, options, row_major=True)
        refuse_host_memory(library, views)
        pieces = requests_of(views, product, dtype, options)
    except NeedsCopy as needed:
        arrays = {"a": a, "b": b, "bias": bias}
        arrays[needed.name] = needed.copied(library, arrays[needed.name])
        return _pair(library, **arrays, options=options)
    result = library.maker(product.shape, dtype, a)()
    at = views.a.pointer, views.b.pointer, library.address(result), 0 if views.bias is None else views.bias.pointer
    requests = []
    for piece in pieces:
        first, second = (at[1], at[0]) if piece.swapped else at[:2]
        for x, y, z, at_bias, _ in piece.starts:
            addresses = {"A": first + x, "B": second + y, "C": at[2] + z, "bias": at[3] + at_bias}
            requests.append((piece.request, addresses))
    return _Pair((a, b, bias), views.a, result, tuple(requests))


# -- launches -------------------------------------------------------------------------------------------------------

_TABLES: dict[Any, tuple[int, Any]] = {}
"""Tables that lie on a GPU already, by the device and their words: addresses come again, and a copy takes a while."""


def _start(library: Any, pairs: Sequence[_Pair]) -> None:
    """One launch for all products that one kernel can compute."""
    alike: dict[Any, list[tuple[Request, dict[str, int]]]] = {}
    for pair in pairs:
        for request, addresses in pair.requests:
            gemm = request.gemm
            alike.setdefault((gemm.a, gemm.b, gemm.epilogue), []).append((request, addresses))
    for requests in alike.values():
        for start in range(0, len(requests), MOST_ALONG_Z):
            _launch(library, requests[start : start + MOST_ALONG_Z], pairs[0])
    library.finished(tuple(pair.arrays for pair in pairs), pairs[0].view.device)


def _launch(library: Any, requests: Sequence[tuple[Request, dict[str, int]]], like: _Pair) -> None:
    device = like.view.device or 0
    planner = dispatcher(device)
    asked = tuple(request for request, _ in requests)
    with planner.gpu.as_current():
        plan = planner.known_group(asked)
        if plan is None:
            _refuse_capture(library, "no kernel for these shapes is loaded")
            plan = planner.group(asked)
        words = np.array(
            [[{**addresses, **_sizes(one.gemm)}[column] for column in plan.columns] for one, addresses in requests],
            np.int64,
        )
        at, kept = _table(library, words, device, like.result)
        plan.launch.launch(library.stream(device), at)
        del kept


def _sizes(gemm: Gemm) -> dict[str, int]:
    return {"M": gemm.m, "N": gemm.n, "K": gemm.k, "lda": gemm.lda, "ldb": gemm.ldb, "ldc": gemm.ldc}


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
