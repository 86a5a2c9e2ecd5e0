"""`grouped_matmul`: products of different shapes in one launch, as a mixture of experts needs them.

What runs for lists of matrices is in `lists`, what runs for groups by offsets in `ragged`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.errors import ProblemError
from tilewright.frontend.calls import is_compiling, matmul
from tilewright.frontend.counted import with_counts
from tilewright.frontend.libraries import HostArrays, TorchArrays, library_of
from tilewright.frontend.lists import Arrays, multiply_list
from tilewright.frontend.on_host import on_host
from tilewright.frontend.options import options_asked
from tilewright.frontend.ragged import Room, compute_groups
from tilewright.frontend.rows import gathered
from tilewright.frontend.shapes import ShapeError
from tilewright.units import counted, type_name

_PRECISIONS = ("default", "tf32")


def grouped_matmul(
    a: Any,
    b: Any,
    *,
    offsets: Any = None,
    rows: Any = None,
    counts: Any = None,
    expected_rows: int | None = None,
    bias: Sequence[Any] | None = None,
    activation: str | None = None,
    alpha: float = 1.0,
    out_dtype: Any = None,
    precision: str = "default",
) -> Any:
    """`[activation(alpha * x @ y + z) for x, y, z in zip(a, b, bias)]`: lists of matrices of any shapes, of one
    library, format and GPU, in one launch where that is fastest. Options as for `matmul`. Results may be rows of one
    array. Tensors of PyTorch that want gradients are multiplied one product after another.

    With offsets, a and b are arrays whose rows or columns belong to groups, as in torch._grouped_mm: group i ends
    before row `offsets[i]`, and begins where the one before ends. offsets: (groups,), int32, ascending, on the GPU;
    the host never reads them, so that a CUDA graph records the call. Each is limited to the rows there are; a group
    that ends before it begins, or whose rows begin before the end of another, is empty. alpha, out_dtype and precision
    as for `matmul`. rows: (tokens,), int32, on the GPU: the row of a that is each of the tokens, which a pass before
    gathers (`combine_rows`), so that it reads them once more and writes them once.

    | a, b | result |
    |---|---|
    | (tokens, k), (groups, k, n) | (tokens, n): the rows of each group by its matrix; those beyond the last end: any |
    | (groups, m, k), (k, tokens) | (m, tokens): the same, transposed |
    | (m, tokens), (tokens, n) | (groups, m, n): a sum over the tokens of each group; zeros for an empty one |

    With counts, each group has room for as many rows: a (groups, capacity, k), b (groups, k, n), result (groups,
    capacity, n). counts: (groups,), int32, on the GPU: rows that the group uses, the first ones, limited to its room;
    the others are not multiplied, and those of the result not written. expected_rows: of a group, which the kernel is
    chosen for; as many as there is room for if not given. There are no gradients.

    Raises ShapeError, DTypeError and ProblemError as `matmul`, and LaunchError for a new kind of call in a capture.

    >>> grouped_matmul([], [])
    []
    """
    if precision not in _PRECISIONS:
        raise ProblemError(
            f"grouped_matmul has no precision {precision!r}.",
            hint=f"use {' or '.join(map(repr, _PRECISIONS))}, or matmul for each group.",
        )
    if offsets is not None:
        if bias is not None or activation is not None:
            raise ProblemError(
                "grouped_matmul with offsets adds no bias and has no activation.", hint="apply them to the result."
            )
        if rows is not None:
            a = gathered(a, rows)
        if counts is not None:
            raise ProblemError(
                "grouped_matmul takes offsets or counts, and was given both.",
                hint="offsets end groups of rows that follow each other; counts are of groups with room for as many.",
            )
        return _by_sizes(a, b, offsets, (alpha, out_dtype, precision))
    if counts is not None:
        if bias is not None or activation is not None or rows is not None:
            raise ProblemError(
                "grouped_matmul with counts has no bias, no activation and no rows.", hint="apply them to the result."
            )
        words = (alpha, out_dtype, precision)
        return with_counts(
            "grouped_matmul", a, b, counts, expected_rows, lambda flat, room: _by_sizes(flat, b, counts, words, room)
        )
    if rows is not None:
        raise ProblemError(
            "grouped_matmul gathers rows of groups by offsets, and there are no offsets.",
            hint="give offsets=, where each group ends: (groups,), int32.",
        )
    return _of_lists(_in_pairs(a, b, bias), alpha, activation, out_dtype, precision)


def _in_pairs(a: Any, b: Any, bias: Sequence[Any] | None) -> list[Arrays]:
    """The operands of each product of two lists. Raises ProblemError and ShapeError."""
    given, a, b = a, _listed("a", a), _listed("b", b)
    biases = [None] * len(a) if bias is None else list(bias)
    if not len(a) == len(b) == len(biases):
        counts = f"{counted(len(a), 'matrix', 'matrices')}, b {len(b)}"
        counts += "" if bias is None else f", bias {len(biases)}"
        stacked = "; groups of one matrix a are told by offsets=, where each ends"
        hint = "give as many of each" + (stacked if getattr(given, "ndim", 0) == 2 else "") + "."
        raise ShapeError(f"grouped_matmul multiplies lists in pairs: a has {counts}.", hint=hint)
    return list(zip(a, b, biases, strict=True))


def _of_lists(
    triples: Sequence[Arrays], alpha: float, activation: str | None, out_dtype: Any, precision: str
) -> list[Any]:
    """The products of lists, by the library of the first matrix."""
    if is_compiling():  # an operator for each product
        words: Any = {"alpha": alpha, "activation": activation, "out_dtype": out_dtype, "precision": precision}
        return [matmul(x, y, bias=bias, **words) for x, y, bias in triples]
    options = options_asked(alpha, None, out_dtype, precision, None, False, activation, False)
    if not triples:
        return []
    library = library_of(triples[0][0])
    if isinstance(library, HostArrays):
        return [on_host(x, y, None, None, bias, options) for x, y, bias in triples]
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.lists import multiply_tensors

        return multiply_tensors(triples, options)
    return multiply_list(library, triples, options)


def _listed(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable):
        raise ProblemError(
            f"grouped_matmul takes a list of matrices as {name}, and this is {type_name(given)}.",
            hint="or one matrix a, with offsets or counts.",
        )
    return list(given)


def _by_sizes(a: Any, b: Any, sizes: Any, words: tuple[Any, Any, Any], room: Room | None = None) -> Any:
    """A call with offsets, or with counts, of groups that have room. words: alpha, out_dtype and precision."""
    alpha, out_dtype, precision = words
    asked = (alpha, None, out_dtype, precision, None, False, None, False)
    library = library_of(a)
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.grouped import grouped

        return grouped(a, b, sizes, asked, room)
    return compute_groups(library, a, b, sizes, options_asked(*asked), room)
