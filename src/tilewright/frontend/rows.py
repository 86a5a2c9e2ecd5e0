"""`combine_rows`: rows that indices name, gathered or summed with weights. `combining` computes the calls."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.combining import combined_on_host, compute_combined
from tilewright.frontend.libraries import HostArrays, TorchArrays, library_of
from tilewright.frontend.shapes import ShapeError


def combine_rows(x: Any, rows: Any, weights: Any = None) -> Any:
    """`sum(weights[:, j] * x[rows[:, j]] for j in range(terms))`: the results of experts, brought back to their tokens.

    x: (tokens, n), f32, f16, bf16, or FP8 where rows are gathered without weights. rows: int32, on the GPU: (count,),
    which gathers rows, or (count, terms), whose terms are added in the order of j, in f32, rounded once. weights: f32
    (or of a format that is converted), of the shape of rows. A row that x does not have, also a negative one, leaves
    its term out. Returns (count, n), of x's format.

    One kernel at the speed of memory: it reads a row of x for each term and writes each result once. The same bits in
    every run. It has gradients: those of x are sums of the same kind, by the sorted indices; those of the weights are
    PyTorch's. Raises ShapeError, DTypeError and ProblemError for what cannot be asked.
    """
    library = library_of(x)
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.combining import combined

        return combined(x, rows, weights)
    if isinstance(library, HostArrays):
        return combined_on_host(x, rows, weights)
    return compute_combined(library, x, rows, weights)


def gathered(a: Any, rows: Any) -> Any:
    """The rows of a that are the tokens of groups. Raises ShapeError for what are none."""
    if len(getattr(rows, "shape", (0,))) != 1:
        raise ShapeError(f"rows of groups have one dimension, and these have shape {tuple(rows.shape)}.")
    return combine_rows(a, rows)
