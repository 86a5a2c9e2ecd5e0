"""Rows that indices name, gathered or summed with weights, in an order that never changes: what computes a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import F32, FP8_FORMATS, DType
from tilewright.errors import ProblemError
from tilewright.frontend.compute import device_of, refuse_other_library
from tilewright.frontend.known_calls import KNOWN, KnownCall
from tilewright.frontend.libraries import DTypeError, HostArrays
from tilewright.frontend.ragged import NOT_READ, refuse_elsewhere
from tilewright.frontend.remembered import key_of
from tilewright.frontend.requests import power_of_two
from tilewright.frontend.shapes import ShapeError, has_plain_rows
from tilewright.kernels.row_sums import MOST_TERMS
from tilewright.planning.dispatch import dispatcher
from tilewright.problem.gemm import LARGEST_SIZE
from tilewright.problem.row_sums import RowSums
from tilewright.units import type_name


def combined_on_host(x: Any, rows: Any, weights: Any) -> Any:
    """The same for NumPy's arrays."""
    count, terms = check_rows(x, rows, weights)
    kind = HostArrays().view(x).dtype
    _refuse_codes(kind, terms, weights is not None)
    named = rows.reshape(count, terms)
    known = (named >= 0) & (named < x.shape[0])
    found = np.zeros((count, x.shape[1]), np.float32)
    for term in range(terms if len(x) else 0):
        factor = known[:, term] if weights is None else np.where(known, weights.reshape(count, terms), 0)[:, term]
        found += factor[:, None] * kind.decode(x[np.where(known, named, 0)[:, term]])
    return kind.encode(found)


@dataclass(frozen=True, slots=True)
class Listed:
    """Terms that lie in one list, those of each result behind those of the one before. begins: where, int32, of one
    more than there are results."""

    begins: Any


def check_rows(x: Any, rows: Any, weights: Any, listed: Listed | None = None) -> tuple[int, int]:
    """How many results there are, and the terms of each; 0 where they are listed. Raises ShapeError, DTypeError or
    ProblemError for rows that x cannot have."""
    shape, dtype = getattr(rows, "shape", None), getattr(rows, "dtype", None)
    if shape is None or dtype is None:
        raise ProblemError(f"rows is {type_name(rows)}.", hint="pass an array of int32 on the GPU.")
    if len(x.shape) != 2:
        raise ShapeError(f"combine_rows: x has shape {tuple(x.shape)}, and a matrix has two dimensions.")
    if str(dtype).rpartition(".")[2] != "int32":
        raise DTypeError(f"rows are int32, and these are {dtype}.", hint="convert rows to int32.")
    if len(shape) not in (1, 2):
        raise ShapeError(f"combine_rows: rows have shape {tuple(shape)}.", hint="give (count,) or (count, terms).")
    if weights is not None and tuple(weights.shape) != tuple(shape):
        raise ShapeError(f"combine_rows: weights of shape {tuple(weights.shape)} beside rows of {tuple(shape)}.")
    if listed is not None:
        return listed.begins.shape[0] - 1, 0
    count, terms = shape[0], shape[1] if len(shape) == 2 else 1
    if not 1 <= terms <= MOST_TERMS:
        raise ShapeError(f"combine_rows: a result has {terms} terms, not 1 to {MOST_TERMS}.")
    return count, terms


def compute_combined(library: Any, x: Any, rows: Any, weights: Any = None, listed: Listed | None = None) -> Any:
    """The result of a call. Raises as `combine_rows`, HostMemory for arrays on no GPU, and LaunchError where a kernel
    would have to be compiled in a capture."""
    begins = None if listed is None else listed.begins
    key = key_of(library, (x, rows, weights, begins), "combine_rows")
    known = KNOWN.get(key)
    if known is None:
        if weights is not None:
            refuse_other_library(library, "weights", weights)
            refuse_elsewhere(x, weights, "weights")
        count, terms = check_rows(x, rows, weights, listed)
        refuse_other_library(library, "rows", rows)
        refuse_elsewhere(x, rows, "rows")
        copied = _read_well(library, x, rows, weights)
        if copied is not None:
            return compute_combined(library, *copied, listed)
        known = _settled(library, x, (count, terms), rows.shape[0], weights is not None)
        KNOWN.keep(key, known)
    address = library.address
    of_weights, of_begins = (0 if one is None else address(one) for one in (weights, begins))
    return known.run(library, x, (*NOT_READ, address(rows), 0, of_weights, of_begins))


def _read_well(library: Any, x: Any, rows: Any, weights: Any) -> tuple[Any, Any, Any] | None:
    """The arrays with copies of those that the kernel does not read as they lie; None where it reads all."""
    view = library.view(x)
    if weights is not None and library.view(weights).dtype is not F32:
        return x, rows, library.convert(weights, F32)
    if not has_plain_rows(view):
        return library.tight(x), rows, weights
    for at, one in enumerate((rows, weights)):
        if one is not None and not is_tight(one):
            changed = library.tight(one)
            return (x, changed, weights) if at == 0 else (x, rows, changed)
    return None


def is_tight(array: Any) -> bool:
    """Whether an array lies in C order without gaps."""
    told = getattr(array, "is_contiguous", None)
    return bool(told()) if callable(told) else bool(array.flags.c_contiguous)


def _settled(library: Any, x: Any, shape: tuple[int, int], listed: int, weighted: bool) -> KnownCall:
    view, (count, terms) = library.view(x), shape
    device = device_of(library, view)
    (m, n), dtype = view.shape, view.dtype
    _refuse_codes(dtype, terms, weighted)
    if max(count * max(terms, 1), listed) > LARGEST_SIZE:
        raise ProblemError(f"combine_rows: {count} results of {terms} terms are more than 2**31 - 1 indices.")
    make = library.maker((count, n), dtype, x)
    if 0 in (count, n):
        return KnownCall(device, make, None)
    leading = view.strides[0] if m > 1 else n
    of_list = 0 if terms else listed
    problem = RowSums(count, n, m, max(leading, n), n, dtype, terms, weighted, of_list)
    aligned = power_of_two(view.pointer | leading * dtype.bytes | n * dtype.bytes)
    plan = dispatcher(device).row_sums(problem, aligned, capturing=library.capturing)
    return KnownCall(device, make, plan)


def _refuse_codes(dtype: DType, terms: int, weighted: bool) -> None:
    if dtype in FP8_FORMATS and (terms != 1 or weighted):
        raise DTypeError(
            f"combine_rows: x holds {dtype}, and codes are gathered, not added.",
            hint="give rows of shape (count,) and no weights, or convert x.",
        )
