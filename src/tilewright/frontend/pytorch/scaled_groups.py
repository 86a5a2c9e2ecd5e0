"""`torch.ops.tilewright.scaled_grouped_matmul`: products of FP8 groups as an operator of PyTorch. It has no
gradients."""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.frontend.pytorch.plain import LIBRARY, at_once, or_on_the_host, refuse_others, seen
from tilewright.frontend.pytorch.registering import registered, without_gradients
from tilewright.frontend.pytorch.scaled import multiplied, words_asked
from tilewright.frontend.pytorch.sharded import know_sharding
from tilewright.frontend.ragged import Room, check_offsets, spans_of, spans_of_counts
from tilewright.frontend.scaled import ScaledOptions, scaled_options
from tilewright.frontend.scaled_groups import Arrays, GroupViews, checked_groups, compute_scaled_groups, transposed

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")


def scaled_grouped(arrays: Arrays, out_dtype: Any, fast: Any, room: Room | None = None) -> Any:
    """A call with tensors of PyTorch."""
    refuse_others(**dict(zip(("a", "b", "scale_a", "scale_b", "offsets"), arrays, strict=True)))
    result = at_once(lambda: _computed(arrays, scaled_options(out_dtype, fast), room), *arrays)
    if result is not None:
        return result
    know_sharding("scaled_grouped_matmul")
    words = () if room is None else (room.capacity, room.expected)
    return torch.ops.tilewright.scaled_grouped_matmul(*arrays, *words_asked(out_dtype, fast), *words)


def _on_the_host(arrays: Arrays, options: ScaledOptions, room: Room | None) -> Any:
    """The same by PyTorch on the CPU, group by group, summed in f32."""
    other = transposed(arrays)
    if other is not None:
        return _on_the_host(other, options, room).T
    a, b, scale_a, scale_b, offsets = arrays
    result = _shaped(a, b, scale_a, scale_b, offsets, LIBRARY.to_torch[options.out_dtype]).zero_()
    sizes = offsets.tolist()
    spans = spans_of(sizes, a.shape[0]) if room is None else spans_of_counts(sizes, room.capacity)
    for number, rows in enumerate(spans):
        of_a = scale_a if scale_a.numel() == 1 else scale_a[rows]
        of_b = scale_b[number] if scale_b.numel() > 1 and scale_b.shape[0] == b.shape[0] else scale_b
        found = multiplied(a[rows], b[number], of_a, of_b)
        result[rows] = found.to(result.dtype)
    return result


_computed = or_on_the_host("scaled_grouped_matmul", compute_scaled_groups, _on_the_host)


def _scaled(a: Any, b: Any, scale_a: Any, scale_b: Any, offsets: Any, *words: Any) -> Any:
    told = words + (None, False, 0, 0)[len(words) :]  # PyTorch leaves out last arguments that have their default
    room = Room(told[2], told[3]) if told[2] else None
    return _computed((a, b, scale_a, scale_b, offsets), scaled_options(told[0], told[1]), room)


def _shaped(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    offsets: Any,
    out_dtype: Any = None,
    fast: bool = False,
    *room: int,
) -> Any:
    """A result without elements, or the error that the call would raise."""
    check_offsets(offsets)
    other = transposed((a, b, scale_a, scale_b, offsets))
    if other is not None:
        a, b, scale_a, scale_b, _ = other
        return _shaped(a, b, scale_a, scale_b, offsets, out_dtype, fast).T
    options = scaled_options(out_dtype, fast)
    views = GroupViews(seen(a), seen(b), seen(scale_a), seen(scale_b), offsets.shape[0])
    groups, _ = checked_groups(views)
    return a.new_empty(groups.shape, dtype=LIBRARY.to_torch[options.out_dtype])


_GIVEN = (
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offsets, ScalarType? out_dtype=None, "
    "bool fast_accumulation=False, int capacity=0, int expected=0"
)
_OPERATOR = registered(
    f"scaled_grouped_matmul({_GIVEN}) -> Tensor",
    _scaled,
    _shaped,
    *without_gradients(
        "scaled_grouped_matmul has no gradients, and one of its tensors",
        "multiply the operands of the backward pass by calls of their own.",
    ),
)
