"""Lists of products: what runs for calls that look alike, and the addresses that each call puts in.

in rows   A's matrices are rows of one matrix, one behind the other, and B's lie equally far apart: the groups of
          one persistent wgmma kernel, whose ends are uploaded once
alone     products so large that a launch for each, of the best kernel for it, is estimated to be faster
together  all others: one launch of a kernel whose table of addresses and sizes is an argument of the launch, so
          that nothing is copied to the GPU
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from tilewright.dtypes import Array
from tilewright.errors import ProblemError
from tilewright.frontend.compute import Parts, device_of, planned, refuse_other_library, run, views_of
from tilewright.frontend.options import Options
from tilewright.frontend.remembered import Remembered, remembered
from tilewright.frontend.requests import Piece, Views, checked, power_of_two, requests_of
from tilewright.frontend.shapes import NeedsCopy, ShapeError
from tilewright.ir.kernel import PASSED_WORDS
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import dispatcher, refuse_capture
from tilewright.planning.packing import Alignment, Groups
from tilewright.planning.plan import GroupPlan, Plan
from tilewright.problem.gemm import Gemm, Order

Arrays = tuple[Any, Any, Any]
"""a, b and the bias of one product; None for no bias."""

Addresses = tuple[int, int, int, int]
"""Of A, B, the result and the bias."""


def multiply_list(library: Any, triples: Sequence[Arrays], options: Options) -> list[Any]:
    """The results of all products. Raises as `matmul`, and LaunchError for a new kind of call in a capture."""
    try:
        keys = [library.key(options, x, y, None, z, None) for x, y, z in triples]
    except (AttributeError, RuntimeError):  # of another library, or without memory
        keys = [None]
    key = None if None in keys else tuple(keys)
    call = _KNOWN.get(key)
    if call is None:
        readable = [_readable(library, triple, options) for triple in triples]
        if any(new is not old for new, old in zip(chain(*readable), chain(*triples), strict=True)):
            return multiply_list(library, readable, options)
        call = ListCall(library, triples, options)
        if call.is_kept:
            _KNOWN.keep(key, call)
    return call.run(library, triples)


def _readable(library: Any, triple: Arrays, options: Options) -> Arrays:
    """The arrays of a product, or copies that a kernel reads."""
    refuse_other_library(library, "an array of the group", triple[0])
    refuse_batches(*triple[:2])
    given = dict(zip(("a", "b", "bias"), triple, strict=True))
    while True:
        try:
            views = views_of(library, given["a"], given["b"], None, None, given["bias"])
            requests_of(views, *checked(views, options, row_major=True), options)
        except NeedsCopy as needed:
            given[needed.name] = needed.copied(library, given[needed.name])
        else:
            return given["a"], given["b"], given["bias"]


def refuse_batches(*arrays: Any) -> None:
    """Raises ShapeError for an array of a group that is not a matrix."""
    for array in arrays:
        if len(getattr(array, "shape", (0, 0))) != 2:
            raise ShapeError(
                f"A group is of matrices, and one array has shape {tuple(array.shape)}.",
                hint="use matmul for batches.",
            )


@dataclass(frozen=True, slots=True)
class _Product:
    """One product of the list. pieces: its requests; none where it has no elements."""

    pieces: tuple[Piece, ...]
    make: Callable[[], Any]
    addresses: tuple[int, int]
    rows: int


class ListCall:
    """What calls that look alike share. The arrays that it is made with say how they lie, and are not kept."""

    def __init__(self, library: Any, triples: Sequence[Arrays], options: Options) -> None:
        views = [views_of(library, x, y, None, None, z) for x, y, z in triples]
        _check_alike(views)
        self.device = 0
        self._products = [self._product(library, *one, options) for one in zip(views, triples, strict=True)]
        self.is_kept = not any(view.may_be_half_of_complex_numbers for view in views)
        self._planner = dispatcher(self.device)
        self._like = triples[0][0]
        self._rows = self._in_rows(library)
        self._alone: list[tuple[int, Parts]] = []
        self._together: list[_Table] = []
        if self._rows is None:
            with self._planner.gpu.as_current():
                self._plan(library)
        self._like = None

    def _product(self, library: Any, views: Views, triple: Arrays, options: Options) -> _Product:
        product, dtype = checked(views, options, row_major=True)
        self.device = device_of(library, views.a)
        pieces = requests_of(views, product, dtype, options)
        make = library.maker(product.shape, dtype, triple[0])
        return _Product(pieces, make, (views.a.pointer, views.b.pointer), views.a.shape[0])

    # -- what runs ----------------------------------------------------------------------------------------------------

    def _plan(self, library: Any) -> None:
        """Products that one kernel can compute are one launch, as far as that is the fastest."""
        alike: dict[Any, list[tuple[int, Piece]]] = {}
        for number, product in enumerate(self._products):
            for piece in product.pieces:
                gemm = piece.request.gemm
                alike.setdefault((gemm.a, gemm.b, gemm.epilogue), []).append((number, piece))
        for pieces in alike.values():
            requests = [piece.request for _, piece in pieces for _ in piece.starts]
            if self._planner.is_better_alone(requests):
                self._alone += [
                    (number, ((piece, planned(self._planner, library, piece)),)) for number, piece in pieces
                ]
            else:
                self._together += _tables(library, self.device, pieces)

    def _in_rows(self, library: Any) -> _Rows | None:
        """The products as groups of one kernel, where they lie so."""
        request, lie = _groups_of(self._products) if self.is_kept else (None, None)
        if request is None or lie is None or not self._planner.reads_groups_by_tma(request):
            return None
        refuse_capture(library.capturing(), "no kernel for these shapes")
        plan = self._planner.ragged(request)
        at_ends, kept = library.upload(np.array(lie.ends, np.int32), self._like)
        make = library.maker((lie.ends[-1], request.gemm.n), request.gemm.out, self._like)
        return _Rows(plan, lie, at_ends, kept, make)

    # -- a call -------------------------------------------------------------------------------------------------------

    def run(self, library: Any, triples: Sequence[Arrays]) -> list[Any]:
        """Results for arrays that look like those that this was made with."""
        address = library.address
        at = [(address(x), address(y)) for x, y, _ in triples]
        current = self._planner.gpu.as_current() if library.elsewhere(self.device) else nullcontext()
        with current:
            if self._rows is not None and self._rows.lie.holds(at):
                results = self._rows.run(library.stream(self.device), address, at)
            else:
                if self._rows is not None and not (self._alone or self._together):
                    self._plan(library)
                results = [product.make() for product in self._products]
                self._start(library, triples, at, results)
        library.finished(self.device)
        return results

    def _start(
        self, library: Any, triples: Sequence[Arrays], at: Sequence[tuple[int, int]], results: Sequence[Any]
    ) -> None:
        address = library.address
        places: list[Addresses] = [
            (*pair, address(result), 0 if triple[2] is None else address(triple[2]))
            for pair, result, triple in zip(at, results, triples, strict=True)
        ]
        for table in self._together:
            table.launch(library.stream(self.device), np.array(places, np.uint64).view(np.int64))
        for number, parts in self._alone:
            run(library, parts, (*places[number], 0), self.device, results[number])


_KNOWN: Remembered[ListCall] = remembered()
"""Calls made so far, by their keys."""


def _check_alike(views: Sequence[Views]) -> None:
    first = views[0].a
    for number, one in enumerate(views):
        if one.a.device != first.device or one.a.dtype is not first.dtype:
            raise ProblemError(
                f"Pair {number} is {one.a.dtype} on {one.a.place}, and pair 0 is {first.dtype} on {first.place}.",
                hint="a group has one format and one GPU.",
            )


# -- one launch, whose table is an argument -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """A launch of several products. words: its table, with offsets in the place of addresses. places: the column of
    each kind of address, and which address of a product that is for each row. numbers: the product of each row."""

    plan: GroupPlan
    words: Array
    places: tuple[tuple[int, Array], ...]
    numbers: Array

    def launch(self, stream: int, addresses: Array) -> None:
        """addresses: a row for each product of the list, as `Addresses`."""
        words = self.words.copy()
        for column, which in self.places:
            words[:, column] += addresses[self.numbers, which]
        self.plan.launch.launch_table(stream, words)


def _tables(library: Any, device: int, pieces: Sequence[tuple[int, Piece]]) -> list[_Table]:
    """The launches of products that one kernel computes: as many as have room among the arguments of a launch."""
    columns = 9 + (pieces[0][1].request.gemm.epilogue.bias is not None)
    each = [(number, piece, start) for number, piece in pieces for start in piece.starts]
    most = PASSED_WORDS // columns
    return [_table(library, device, each[first : first + most]) for first in range(0, len(each), most)]


def _table(library: Any, device: int, each: Sequence[tuple[int, Piece, tuple[int, ...]]]) -> _Table:
    planner, asked = dispatcher(device), tuple(piece.request for _, piece, _ in each)
    refuse_capture(planner.known_group(asked) is None and library.capturing(), "no kernel for these shapes")
    plan = planner.group(asked)
    rows = []
    for _, piece, (x, y, z, at_bias, _) in each:
        offsets = {"A": x, "B": y, "C": z, "bias": at_bias}
        rows.append([{**offsets, **_sizes(piece.request.gemm)}[column] for column in plan.columns])
    swapped = np.array([piece.swapped for _, piece, _ in each], np.int64)
    which = {"A": swapped, "B": 1 - swapped, "C": np.full(len(each), 2), "bias": np.full(len(each), 3)}
    places = tuple((at, which[name]) for at, name in enumerate(plan.columns) if name in which)
    return _Table(plan, np.array(rows, np.int64), places, np.array([number for number, _, _ in each]))


def _sizes(gemm: Gemm) -> dict[str, int]:
    return {"M": gemm.m, "N": gemm.n, "K": gemm.k, "lda": gemm.lda, "ldb": gemm.ldb, "ldc": gemm.ldc}


# -- rows of one matrix ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lie:
    """How products lie whose A and C are rows of one matrix each, and whose B lie equally far apart.

    ends: behind the rows of each product. row_bytes: from row to row of A. step_bytes: from B to B.
    """

    ends: tuple[int, ...]
    row_bytes: int
    step_bytes: int

    def first(self, at: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The addresses of the whole A, and of the first B: those of an empty array may be anything."""
        number = next(number for number, end in enumerate(self.ends) if end)
        return at[number][0], at[number][1] - number * self.step_bytes

    def holds(self, at: Sequence[tuple[int, int]]) -> bool:
        """Whether the matrices of a call lie so. at: addresses of A and B of each product."""
        first_a, first_b = self.first(at)
        start = 0
        for number, ((a, b), end) in enumerate(zip(at, self.ends, strict=True)):
            if end > start and (a, b) != (first_a + start * self.row_bytes, first_b + number * self.step_bytes):
                return False
            start = end
        return True


@dataclass(frozen=True, slots=True)
class _Rows:
    """Products that are the groups of one launch. at_ends: the address of their ends on the GPU, which `kept` keeps."""

    plan: Plan
    lie: _Lie
    at_ends: int
    kept: Any
    make: Callable[[], Any]

    def run(self, stream: int, address: Callable[[Any], int], at: Sequence[tuple[int, int]]) -> list[Any]:
        whole, ends = self.make(), self.lie.ends
        self.plan.run(stream, (*self.lie.first(at), address(whole), 0, 0, 0, self.at_ends))
        return [whole[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)]


def _groups_of(products: Sequence[_Product]) -> tuple[Request, _Lie] | tuple[None, None]:
    """The request of products that lie in rows, and how; None where they do not."""
    filled = [(number, one) for number, one in enumerate(products) if one.pieces]
    if len(filled) < 2 or any(len(one.pieces) > 1 or not _is_plain(one.pieces[0]) for _, one in filled):
        return None, None
    requests = [one.pieces[0].request for _, one in filled]
    model = max(requests, key=lambda request: request.gemm.m)
    gemm, size_bytes = model.gemm, model.gemm.dtype.bytes
    (first, one), (second, other) = filled[:2]
    apart, left = divmod(other.addresses[1] - one.addresses[1], (second - first) * size_bytes)
    alike = all(_but_rows(request.gemm, gemm) == _but_rows(gemm, gemm) for request in requests)
    if not alike or gemm.a is not Order.ROW or gemm.epilogue.bias is not None or gemm.m < 2 or left or apart < 0:
        return None, None
    ends = np.cumsum([one.rows if one.pieces else 0 for one in products]).tolist()
    lie = _Lie(tuple(ends), gemm.lda * size_bytes, apart * size_bytes)
    if not lie.holds([one.addresses for one in products]):
        return None, None
    a, b, c = (min(request.alignment.of(name) for request in requests) for name in ("A", "B", "C"))
    aligned = Alignment(a, min(b, power_of_two(apart * size_bytes)), min(c, power_of_two(gemm.n * gemm.out.bytes)))
    whole = replace(gemm, m=ends[-1], ldc=gemm.n)
    return replace(model, gemm=whole, alignment=aligned, groups=Groups(len(products), "m", apart)), lie


def _is_plain(piece: Piece) -> bool:
    return not piece.swapped and piece.is_at_start and piece.request.stack is None


def _but_rows(gemm: Gemm, model: Gemm) -> Gemm:
    """A product but for its rows. Of a single row the pitch is anything."""
    return replace(gemm, m=0, lda=gemm.lda if gemm.m > 1 else model.lda, ldc=0)
