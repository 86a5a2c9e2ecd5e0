"""Products of FP8 operands inside `route_torch`: `torch._scaled_mm`, what `torch.nn.functional.scaled_mm` calls, and
`torch._scaled_grouped_mm`.

Routed is what PyTorch itself accepts on Hopper, with one scale for each operand, for each row and column, or for each
block of 128 of k; all else goes on to PyTorch, which computes it or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import extras
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.libraries import library_of
from tilewright.frontend.scaled import Arrays, compute_scaled, scaled_options
from tilewright.frontend.scaled_groups import compute_scaled_groups
from tilewright.frontend.scales import BLOCK
from tilewright.integrations.routed import Routed
from tilewright.notices import say_once
from tilewright.units import ceil_div, round_up

torch: Any = extras.require("torch", "Routing the products of PyTorch")

_LIBRARY: Any = library_of(torch.empty(0))
_FP8 = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
_RESULTS = frozenset((torch.bfloat16, torch.float16, torch.float32))

MULTIPLE = 16
"""Elements that k and n are multiples of, as PyTorch demands."""

TENSOR_WISE, ROW_WISE, BLOCK_1, BLOCK_128 = 0, 1, 4, 5
"""Recipes of scales: of blocks of 1 x 128, and of 128 x 128. Source: torch.nn.functional.ScalingType."""

_RECIPES = (
    *((TENSOR_WISE, TENSOR_WISE), (ROW_WISE, ROW_WISE)),
    *((BLOCK_1, BLOCK_128), (BLOCK_128, BLOCK_1), (BLOCK_1, BLOCK_1)),
)
"""Of A and B."""


def scaled_mm(
    block: Routed,
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
    *,
    out: Any = None,
) -> Any:
    """`aten::_scaled_mm` by tilewright; None where PyTorch shall compute it, or say what is wrong."""
    if a.dim() != 2 or b.dim() != 2:
        return block.decline("shapes that do not multiply")
    if scale_result is not None:
        return block.decline("a scale of the result")
    shapes = tuple(scale_a.shape), tuple(scale_b.shape)
    single = scale_a.numel() == scale_b.numel() == 1
    if not single and shapes not in _pairs(a.shape[0], b.shape[1], a.shape[1]):
        return block.decline("scales of other shapes")
    return _product(block, (a, b, scale_a, scale_b, bias, out), out_dtype or a.dtype, use_fast_accum)


def _pairs(m: int, n: int, k: int) -> tuple[Any, ...]:
    """The shapes of two arrays of scales that PyTorch takes beside one in all for each: of rows and columns, and the
    pairs of blocks."""
    depth = ceil_div(k, BLOCK)
    of_a, of_b = ((m, depth), (ceil_div(m, BLOCK), depth)), ((depth, n), (depth, ceil_div(n, BLOCK)))
    return ((m, 1), (1, n)), (of_a[0], of_b[1]), (of_a[1], of_b[0]), (of_a[0], of_b[0])


def scaled_mm_v2(
    block: Routed,
    a: Any,
    b: Any,
    scale_a: Any,
    recipe_a: Any,
    swizzle_a: Any,
    scale_b: Any,
    recipe_b: Any,
    swizzle_b: Any,
    bias: Any = None,
    out_dtype: Any = None,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
    *,
    out: Any = None,
) -> Any:
    """`aten::_scaled_mm_v2`, as `scaled_mm`."""
    recipes = (*recipe_a, *recipe_b)
    if recipes not in _RECIPES or not len(scale_a) == len(scale_b) == 1:
        return block.decline("scales of other recipes")
    if contraction_dim:
        return block.decline("a contraction over other dimensions")
    if a.dim() != 2 or b.dim() != 2:
        return block.decline("shapes that do not multiply")
    m, n, depth = a.shape[0], b.shape[1], ceil_div(a.shape[1], BLOCK)
    first, second = scale_a[0], scale_b[0]
    if recipes[1] == ROW_WISE and tuple(second.shape) == (n, 1):
        second = second.reshape(1, n)
    elif recipes[1] == BLOCK_1:
        second = second.T
    padded = (round_up(depth, 4),)  # of scales of 128 x 128, which have k first
    if recipes[0] == BLOCK_128 and first.shape[:1] == padded:
        first = first[:depth].T
    if recipes[1] == BLOCK_128 and second.shape[:1] == padded:
        second = second[:depth]
    shapes = tuple(first.shape), tuple(second.shape)
    of_a = {ROW_WISE: (m, 1), BLOCK_1: (m, depth), BLOCK_128: (ceil_div(m, BLOCK), depth)}
    of_b = {ROW_WISE: (1, n), BLOCK_1: (depth, n), BLOCK_128: (depth, ceil_div(n, BLOCK))}
    single = recipes[0] == TENSOR_WISE and first.numel() == second.numel() == 1
    if not single and shapes != (of_a.get(recipes[0]), of_b.get(recipes[1])):
        return block.decline("scales of other shapes")
    return _product(block, (a, b, first, second, bias, out), out_dtype or a.dtype, use_fast_accum)


def _product(block: Routed, arrays: Arrays, kind: Any, fast: bool) -> Any:
    a, b, scale_a, scale_b, bias, _ = arrays
    why = _why_not(a, b, bias, kind, whole=scale_a.numel() == scale_b.numel() == 1)
    if why:
        return block.decline(why)
    options = scaled_options(kind, bool(fast))
    return unless_refused(block, lambda: compute_scaled(_LIBRARY, arrays, options), also_launches=True)


def scaled_grouped_mm(
    block: Routed,
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    offs: Any = None,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """`aten::_scaled_grouped_mm` by tilewright, of rows or columns in groups; None where PyTorch shall compute it, or
    say what is wrong."""
    if offs is None or bias is not None or scale_result is not None:
        return block.decline("_scaled_grouped_mm without offsets, with a bias or a scale of the result")
    if {a.dim(), b.dim()} != {2, 3}:
        return block.decline("_scaled_grouped_mm of two matrices")
    if a.dtype is not b.dtype or a.dtype is not torch.float8_e4m3fn or out_dtype is not torch.bfloat16:
        return block.decline(f"{a.dtype} by {b.dtype} in groups, into {out_dtype}".replace("torch.", ""))
    if a.shape[-1] % MULTIPLE or b.shape[-1] % MULTIPLE or a.stride(-1) != 1 or b.stride(-2) != 1:
        return block.decline("sizes or orders that PyTorch does not take")
    rows = tuple(x.shape[:-1] if x is a else (*x.shape[:-2], x.shape[-1]) for x in (a, b))
    if (tuple(scale_a.shape), tuple(scale_b.shape)) != rows:
        return block.decline("scales of other shapes")
    arrays, options = (a, b, scale_a, scale_b, offs), scaled_options(out_dtype, bool(use_fast_accum))
    groups = lambda: laid_out(compute_scaled_groups(_LIBRARY, arrays, options))  # noqa: E731
    return unless_refused(block, groups, also_launches=True)


def laid_out(result: Any) -> Any:
    """The result of groups with the strides that PyTorch gives it, on which compiled code relies: rows one behind the
    other, each padded to a multiple of 16 bytes."""
    columns = round_up(result.shape[-1], _ROW_BYTES // result.element_size())
    strides = (columns, 1) if result.dim() == 2 else (result.shape[1] * columns, columns, 1)
    if result.stride() == strides:
        return result
    return result.new_empty(*result.shape[:-1], columns)[..., : result.shape[-1]].copy_(result)


_ROW_BYTES = 16


def scaled_grouped_mm_v2(
    block: Routed,
    a: Any,
    b: Any,
    scale_a: Any,
    recipe_a: Any,
    swizzle_a: Any,
    scale_b: Any,
    recipe_b: Any,
    swizzle_b: Any,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> Any:
    """`aten::_scaled_grouped_mm_v2`, as `scaled_grouped_mm`."""
    if (*recipe_a, *recipe_b) != (ROW_WISE, ROW_WISE) or not len(scale_a) == len(scale_b) == 1 or contraction_dim:
        return block.decline("scales of other recipes")
    return scaled_grouped_mm(block, a, b, scale_a[0], scale_b[0], offs, bias, None, out_dtype, use_fast_accum)


def unless_refused(block: Routed, ours: Callable[[], Any], *, also_launches: bool = False) -> Any:
    """What a call of ours computes; None where it refuses. also_launches: where this GPU cannot, too."""
    try:
        result = ours()
    except ProblemError as refused:
        return block.decline(refused.headline.rstrip("."))
    except LaunchError as failure:
        if _LIBRARY.capturing():
            say_once(f"route_torch leaves a product to PyTorch: {failure.headline}")
            return block.decline("first met in a CUDA graph capture")
        if not also_launches:
            raise
        return block.decline(failure.headline.rstrip("."))
    block.count()
    return result


def _why_not(a: Any, b: Any, bias: Any, kind: Any, *, whole: bool) -> str:
    """Why PyTorch shall have a product, in few words; empty where we take it. whole: with scales of tensors, beside
    which cuBLAS makes e4m3, rounded to nearest, the largest number of what is larger, as we do."""
    if a.dtype not in _FP8 or b.dtype not in _FP8 or a.dtype is b.dtype is torch.float8_e5m2:
        return f"{a.dtype} by {b.dtype}".replace("torch.", "")
    if kind not in _RESULTS and not (kind is torch.float8_e4m3fn and whole and bias is None):
        return f"a result of {kind}".replace("torch.", "")
    if a.shape[1] != b.shape[0] or a.shape[1] % MULTIPLE or b.shape[1] % MULTIPLE:
        return "sizes that PyTorch does not take"
    if a.stride(1) != 1 or b.stride(0) != 1:
        return "orders that PyTorch does not take"
    if bias is not None and (kind is torch.float32 or bias.dtype is not kind or tuple(bias.shape) != (b.shape[1],)):
        return "a bias that PyTorch does not take"
    return ""
