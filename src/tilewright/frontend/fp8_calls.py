"""`scaled_matmul`, `scaled_grouped_matmul` and `quantize`: products of FP8 operands with scales, and what makes them.

`scaled`, `scaled_groups` and `quantizing` compute the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.errors import ProblemError
from tilewright.frontend.calls import is_compiling, with_function
from tilewright.frontend.compute import refuse_other_library
from tilewright.frontend.counted import with_counts
from tilewright.frontend.libraries import TorchArrays, library_of
from tilewright.frontend.quantizing import Scales, checked_words, compute_quantized
from tilewright.frontend.ragged import Room
from tilewright.frontend.rows import gathered
from tilewright.frontend.scaled import Arrays, ScaledOptions, compute_scaled, scaled_options
from tilewright.frontend.scaled_groups import compute_scaled_groups
from tilewright.frontend.scales import BLOCK
from tilewright.frontend.shapes import ShapeError
from tilewright.units import ceil_div


def scaled_matmul(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    *,
    bias: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    fast_accumulation: bool = False,
    epilogue: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
) -> Any:
    """`(a @ b) * scale_a * scale_b + bias` of FP8 operands, in one kernel on the tensor cores of Hopper (sm_90).

    a: (m, k). b: (k, n). Each holds float8_e4m3fn or float8_e5m2 of PyTorch. b is read as it lies where k is
    contiguous, as in `weight.T`; other orders are transposed before. scale_a, scale_b: f32, on the same GPU, where the
    kernel reads them: one element, or one for each row of a, of shape (m, 1) or (m,), and each column of b, of shape
    (1, n) or (n,). Or both have one for each block of 128 of k, and of 1 or 128 rows of a, (m, k / 128) or
    (m / 128, k / 128), and columns of b, (k / 128, n) or (k / 128, n / 128), rounded up, of any strides; they multiply
    the sums of their blocks. bias: (n,). out: where the result goes. out_dtype: bf16 if not given, f16, f32, e4m3 or
    e5m2. epilogue, operands: a function of that result, and what it reads, as of `matmul`. Results of FP8 are rounded
    to nearest, and what is too large becomes the largest number; the function divides by their scale.
    fast_accumulation: sums stay in the tensor cores, which keep 13 fraction bits; else, and with scales of blocks, the
    sum of every 128 of k is added to a sum in f32 (docs/fp8.md has the bounds).

    Raises ShapeError, a ValueError, and DTypeError, a TypeError, for what does not fit, ProblemError for strides and
    devices, and LaunchError for another GPU.
    """
    library = library_of(a)
    arrays = (a, b, scale_a, scale_b, bias, out)
    if epilogue is not None or operands is not None:
        if is_compiling():
            from tilewright.frontend.pytorch.functions import apart

            named = {"bias": bias, "out": out, "out_dtype": out_dtype, "fast_accumulation": fast_accumulation}
            return apart(scaled_matmul, arrays[:4], named | {"epilogue": epilogue, "operands": operands})
        call, given = with_function(epilogue, operands, (1.0, None, out_dtype, *_PLAIN_CALL), b, out)
        options = scaled_options(call.out_dtype, fast_accumulation, call)
        assert call.traced is not None
        return call.traced.given(_with_function(library, (*arrays, *given), options))
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.scaled import scaled

        return scaled(arrays, out_dtype, fast_accumulation)
    return compute_scaled(library, arrays, scaled_options(out_dtype, fast_accumulation))


_PLAIN_CALL = ("default", None, False, None, False)
"""What `options_of` takes behind the format of the result, of a call that asks nothing of it."""


def _with_function(library: Any, arrays: Arrays, options: ScaledOptions) -> Any:
    """A call with a function."""
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.scaled import computed_with_function

        return computed_with_function(arrays, options)
    return compute_scaled(library, arrays, options)


def scaled_grouped_matmul(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    *,
    offsets: Any = None,
    rows: Any = None,
    counts: Any = None,
    expected_rows: int | None = None,
    out_dtype: Any = None,
    fast_accumulation: bool = False,
) -> Any:
    """`(a[rows] @ b[i]) * scale_a[rows] * scale_b[i]` for the rows of each group i, FP8 operands, in one launch, as
    torch._scaled_grouped_mm. Group i ends before row `offsets[i]`, and begins where the one before ends.

    a: (tokens, k). b: (groups, k, n). Each holds float8_e4m3fn or float8_e5m2; both are read as they lie where k is
    contiguous, and copied before where it is not. Or a: (groups, m, k) and b: (k, tokens): the same, transposed, with
    the scales of the one for those of the other. offsets: (groups,), int32, ascending, on the GPU; the host never reads
    them, so that a CUDA graph records the call. Offsets are limited to the tokens there are; a group that ends before
    it begins, or begins before the end of another, is empty. Rows of no group are not written.

    scale_a: f32, one element, or one for each row, (tokens,) or (tokens, 1). scale_b: one element, one for each group,
    (groups,), or one for each column of each, (groups, n). Or both have one for each block of 128 of k, and of each
    row, (tokens, k / 128), and of 1 or 128 columns of each group, (groups, k / 128, n) or (groups, k / 128, n / 128),
    rounded up, of any strides. out_dtype: bf16 if not given, f16, f32, e4m3 or e5m2. fast_accumulation: as
    `scaled_matmul`. rows: as of `grouped_matmul`, of a and of its scales. Returns (tokens, n). counts,
    expected_rows: as of `grouped_matmul`, instead of offsets; a is (groups, capacity, k) then, scale_a one element,
    (groups, capacity) or (groups, capacity, k / 128), and the result (groups, capacity, n).

    Raises ShapeError, a ValueError, and DTypeError, a TypeError, for what does not fit, ProblemError for strides and
    devices, and LaunchError for another GPU, or for a new kind of call in a capture.
    """
    if (offsets is None) is (counts is None):
        raise ProblemError(
            "scaled_grouped_matmul takes offsets or counts.", hint="give one of them: (groups,), int32, on the GPU."
        )
    words = (out_dtype, fast_accumulation)
    if counts is not None or rows is not None:
        refuse_other_library(library_of(a), "scale_a", scale_a)
    if counts is not None:
        if rows is not None:
            raise ProblemError("scaled_grouped_matmul with counts gathers no rows.")
        single = all(extent == 1 for extent in scale_a.shape)
        flat_scale = scale_a if single else _flat_scale(a, scale_a)
        return with_counts(
            *("scaled_grouped_matmul", a, b, counts, expected_rows),
            lambda flat, room: _by_sizes((flat, b, flat_scale, scale_b, counts), words, room),
        )
    if rows is not None:
        scale_a = _gathered_scale(a, scale_a, rows)
        a = gathered(a, rows)
    return _by_sizes((a, b, scale_a, scale_b, offsets), words)


def _by_sizes(arrays: Arrays, words: tuple[Any, Any], room: Room | None = None) -> Any:
    """A call with offsets, or with counts, of groups that have room. words: out_dtype and fast_accumulation."""
    library = library_of(arrays[0])
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.scaled_groups import scaled_grouped

        return scaled_grouped(arrays, *words, room)
    return compute_scaled_groups(library, arrays, scaled_options(*words), room)


def _flat_scale(a: Any, scale: Any) -> Any:
    """The scales of the rows of all groups, one below the other. Raises ShapeError for others."""
    shape, of_a = tuple(scale.shape), tuple(a.shape)
    if len(of_a) != 3 or shape[:2] != of_a[:2] or len(shape) not in (2, 3):
        raise ShapeError(
            f"scaled_grouped_matmul: scale_a has shape {shape}, beside a of shape {of_a}.",
            hint="give it one element, (groups, capacity), or (groups, capacity, k / 128).",
        )
    return scale.reshape(-1, *shape[2:])


def _gathered_scale(a: Any, scale: Any, rows: Any) -> Any:
    """The scales of gathered rows. Raises ShapeError where a has other rows."""
    shape = tuple(scale.shape)
    if len(a.shape) != 2:
        raise ShapeError(f"scaled_grouped_matmul gathers rows of a matrix, and a has shape {tuple(a.shape)}.")
    if all(extent == 1 for extent in shape):
        return scale
    if len(shape) not in (1, 2) or shape[0] != a.shape[0]:
        raise ShapeError(
            f"scaled_grouped_matmul: scale_a has shape {shape}, and a has {a.shape[0]} rows, of which `rows` gathers.",
            hint=f"give scale_a one element, {(a.shape[0],)}, or {(a.shape[0], ceil_div(a.shape[1], BLOCK))}.",
        )
    return gathered(scale if len(shape) == 2 else scale.reshape(-1, 1), rows)


def quantize(x: Any, *, scales: Scales = "row", dtype: Any = "e4m3") -> tuple[Any, Any]:
    """FP8 codes and f32 scales of a matrix, near to `x` when multiplied; `x.T` of a weight's codes is b of
    `scaled_matmul`.

    x: (m, k), f32, f16 or bf16, on a GPU. scales: "row", of shape (m, 1); "tensor", of shape (1,); or "1x128", one for
    each 128 of a row, of shape (m, k / 128), rounded up, those of a column adjacent in memory, as PyTorch takes them.
    dtype: "e4m3" or "e5m2", or PyTorch's name for it. A scale is the largest finite magnitude over the largest number
    of the format (448, 57344), at least 2**-126; codes are rounded to nearest, ties to even. NaN stays NaN; infinities
    become the largest number.

    One kernel, which reads x once from memory ("tensor": three, which read it twice). Raises ShapeError, DTypeError and
    ProblemError for what cannot be quantised.
    """
    library = library_of(x)
    if isinstance(library, TorchArrays):
        from tilewright.frontend.pytorch.quantizing import quantized

        return quantized(x, scales, dtype)
    return compute_quantized(library, x, *checked_words(scales, dtype))
