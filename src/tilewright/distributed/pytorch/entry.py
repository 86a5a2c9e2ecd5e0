"""What a user's call becomes: results, and their gradients, which are products over ranks as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import extras
from tilewright.distributed.pytorch import collectives
from tilewright.distributed.pytorch.agreement import GATHER, SCATTER, RankCall
from tilewright.distributed.pytorch.products import computed, known_of
from tilewright.distributed.pytorch.scales import Asked, scales_asked
from tilewright.errors import ProblemError
from tilewright.frontend.options import Options, options_with
from tilewright.frontend.pytorch.plain import compute_plain

torch: Any = extras.require("torch", "Multiplying on several GPUs")
dist: Any = torch.distributed


def called(
    name: str, a: Any, b: Any, group: Any, options: Asked, rows: Sequence[int] | None, scale_a: Any, scale_b: Any
) -> Any:
    """`all_gather_matmul` or `matmul_reduce_scatter`, by its name: a tensor for one b, a list for a sequence of
    them."""
    several = not isinstance(b, torch.Tensor) and isinstance(b, Sequence)
    given = tuple(b) if several else (b,)
    group, rows = _group(name, group), None if rows is None else tuple(map(int, rows))
    scales = scales_asked(given, scale_a, scale_b)
    if scales is not None:
        results: Sequence[Any] = computed(RankCall(name, a, given, options, rows, scales=scales), group)
    elif torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in (a, *given)):
        results = _Call.apply(name, group, options, rows, a, *given)
    else:
        results = computed(RankCall(name, a, given, options, rows), group)
    return list(results) if several else results[0]


def _group(name: str, group: Any) -> Any:
    if not dist.is_available() or not dist.is_initialized():
        raise ProblemError(
            f"{name} needs a process group, and torch.distributed is not initialised.",
            hint="call torch.distributed.init_process_group first, and start with torchrun.",
        )
    if group is None:
        return dist.group.WORLD
    if dist.get_rank(group) < 0:
        raise ProblemError(f"{name}: this rank is not a member of the group.")
    return group


class _Call(torch.autograd.Function):  # type: ignore[misc]
    """A call with gradients: that of the shard, or of a, is a product of the other kind; those of b are products with
    what one of both gathers: the rows of a gather, the gradients of a scatter."""

    @staticmethod
    def forward(ctx: Any, name: str, group: Any, options: Options, rows: Any, a: Any, *b: Any) -> tuple[Any, ...]:
        asked = RankCall(name, a, b, options, rows)
        results = computed(asked, group)
        ctx.rows = known_of(asked, group).agreed.rows
        ctx.save_for_backward(a, *b)
        ctx.gathers, ctx.group, ctx.options = name == GATHER, group, options
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        a, *b = ctx.saved_tensors
        own, options = [gradient.to(a.dtype) for gradient in gradients], _backwards(ctx.options)
        needs = ctx.needs_input_grad[4:]
        for_a, for_b = None, [None] * len(b)
        if needs[0]:
            other = SCATTER if ctx.gathers else GATHER
            (for_a,) = computed(RankCall(other, _beside(own), (_beside(b).T,), options, ctx.rows), ctx.group)
        if ctx.gathers and any(needs[1:]):
            a = collectives.gathered(a, ctx.rows, ctx.group)
        for number, gradient in enumerate(own):
            if needs[1 + number]:
                whole = gradient if ctx.gathers else collectives.gathered(gradient, ctx.rows, ctx.group)
                for_b[number] = _product(a.T, whole, options)
        return (None, None, None, None, for_a, *for_b)


def _backwards(options: Options) -> Options:
    """What the products of gradients ask: results of the operands' format."""
    return options_with(precision=options.precision, fixed_order=options.fixed_order)


def _beside(matrices: Sequence[Any]) -> Any:
    """Matrices side by side: a product with them sums over the columns of all."""
    return matrices[0] if len(matrices) == 1 else torch.cat(tuple(matrices), 1)


def _product(a: Any, b: Any, options: Options) -> Any:
    return compute_plain(a, b, None, None, None, options)
