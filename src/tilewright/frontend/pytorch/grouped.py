"""`torch.ops.tilewright.grouped_matmul`: products of groups as an operator of PyTorch, with shapes and gradients."""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.errors import ProblemError
from tilewright.frontend.options import Options, options_asked, options_with
from tilewright.frontend.pytorch.plain import LIBRARY, at_once, compute_plain, or_on_the_host, refuse_others, seen
from tilewright.frontend.pytorch.registering import constant_in_graphs, registered
from tilewright.frontend.pytorch.sharded import know_sharding
from tilewright.frontend.ragged import Room, check_offsets, compute_groups, groups_of, spans_of, spans_of_counts
from tilewright.frontend.requests import checked

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")


def grouped(a: Any, b: Any, offsets: Any, asked: tuple[Any, ...], room: Room | None = None) -> Any:
    """A call with tensors of PyTorch. asked: the arguments of `options_of`. room: as of `compute_groups`."""
    refuse_others(b=b, offsets=offsets)
    result = at_once(lambda: _computed(a, b, offsets, options_asked(*asked), room), a, b, offsets)
    if result is not None:
        return result
    know_sharding("grouped_matmul")
    words = () if room is None else (room.capacity, room.expected)
    return torch.ops.tilewright.grouped_matmul(a, b, offsets, *_words_asked(*asked), *words)


@constant_in_graphs
def _words_asked(*asked: Any) -> tuple[float, Any, bool]:
    """The options as the operator takes them. The compiler takes them as they are."""
    options = options_asked(*asked)
    kind = None if options.out_dtype is None else LIBRARY.to_torch[options.out_dtype]
    return options.alpha, kind, options.tf32


def _room(*words: Any) -> Room | None:
    """Of the words behind alpha, the result's format and tf32: the capacity of groups, and the rows expected."""
    capacity, *expected = (*words[3:], 0, 0)[:2]
    return Room(capacity, *expected) if capacity else None


def _options(alpha: float = 1.0, out_dtype: Any = None, tf32: bool = False, *room: int) -> Options:
    return options_with(alpha=alpha, out_dtype=out_dtype, precision="tf32" if tf32 else "default")


def _grouped(a: Any, b: Any, offsets: Any, *words: Any) -> Any:
    return _computed(a, b, offsets, _options(*words), _room(*words))


def _on_the_host(a: Any, b: Any, offsets: Any, options: Options, room: Room | None) -> Any:
    """The same for tensors in host memory, group by group."""
    along_k = a.dim() == b.dim()
    total = a.shape[0] if b.dim() == 3 else b.shape[-1 - along_k]
    sizes = offsets.tolist()
    spans = spans_of(sizes, total, along_k=along_k) if room is None else spans_of_counts(sizes, room.capacity)
    result = _shaped(a, b, offsets, options.alpha, options.out_dtype and LIBRARY.to_torch[options.out_dtype]).zero_()
    for number, rows in enumerate(spans):
        if a.dim() == 3:
            result[:, rows] = compute_plain(a[number], b[:, rows], None, None, None, options)
        elif b.dim() == 3:
            result[rows] = compute_plain(a[rows], b[number], None, None, None, options)
        else:
            result[number] = compute_plain(a[:, rows], b[rows], None, None, None, options)
    return result


_computed = or_on_the_host("matmul", compute_groups, _on_the_host)


def _shaped(a: Any, b: Any, offsets: Any, *words: Any) -> Any:
    """A result without elements, or the error that the call would raise."""
    check_offsets(offsets)
    if a.dim() == 3 and b.dim() == 2:
        return _shaped(b.T, a.swapaxes(-1, -2), offsets, *words).T
    groups = groups_of(seen(a, tight=True), seen(b, tight=True), offsets.shape[0])
    _, dtype = checked(groups.one, _options(*words), row_major=True)
    return a.new_empty(groups.shape, dtype=LIBRARY.to_torch[dtype])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, offsets, *words = inputs  # PyTorch leaves out last arguments that have their default
    ctx.room = _room(*words)
    ctx.save_for_backward(a, b, offsets)
    options = _options(*words)
    ctx.alpha, ctx.tf32 = options.alpha, options.tf32


def _gradients(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    """One for each argument that was given. The sum over a group's tokens and the product by its matrix are each the
    gradient of the other."""
    if ctx.room is not None:
        raise ProblemError(
            "grouped_matmul with counts has no gradients, and one of its tensors wants them.",
            hint="pass detached tensors, or groups by offsets.",
        )
    a, b, offsets = ctx.saved_tensors
    factor = gradient.to(a.dtype)

    def product(x: Any, y: Any) -> Any:
        return torch.ops.tilewright.grouped_matmul(x, y, offsets, ctx.alpha, None, ctx.tf32)

    for_a = for_b = None
    if ctx.needs_input_grad[0]:
        for_a = product(b, factor.mT).mT if a.dim() == b.dim() else product(factor, b.mT)
    if ctx.needs_input_grad[1]:
        for_b = product(a.mT, factor)
    return (for_a, for_b, *(None,) * (len(ctx.needs_input_grad) - 2))


_GIVEN = (
    "Tensor a, Tensor b, Tensor offsets, float alpha=1.0, ScalarType? out_dtype=None, bool tf32=False, "
    "int capacity=0, int expected=0"
)
_OPERATOR = registered(f"grouped_matmul({_GIVEN}) -> Tensor", _grouped, _shaped, _gradients, _keep)
