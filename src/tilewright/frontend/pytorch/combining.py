"""`torch.ops.tilewright.combine_rows`: gathered and summed rows as an operator of PyTorch, with gradients."""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.frontend.combining import Listed, check_rows, compute_combined
from tilewright.frontend.compute import HostMemory
from tilewright.frontend.pytorch.plain import LIBRARY, at_once, or_on_the_host, refuse_others
from tilewright.frontend.pytorch.registering import registered

torch: Any = extras.require("torch", "Combining rows of tensors of PyTorch")


def combined(x: Any, rows: Any, weights: Any) -> Any:
    """A call with tensors of PyTorch."""
    given = {"rows": rows} if weights is None else {"rows": rows, "weights": weights}
    refuse_others(**given)
    result = at_once(lambda: _computed(x, rows, weights), x, *given.values())
    return result if result is not None else torch.ops.tilewright.combine_rows(x, rows, weights)


def _on_the_host(x: Any, rows: Any, weights: Any = None) -> Any:
    """The same by PyTorch on the CPU, summed in f32."""
    count, terms = check_rows(x, rows, weights)
    named = rows.reshape(count, terms).long()
    known = (named >= 0) & (named < x.shape[0])
    if not x.shape[0]:
        return x.new_zeros(count, x.shape[1])
    if terms == 1 and weights is None:
        stored = x.view(torch.uint8) if x.element_size() == 1 else x  # codes are copied as they are
        found = stored[named[:, 0].where(known[:, 0], 0)]
        found[~known[:, 0]] = 0
        return found.view(x.dtype)
    factors = known.float() if weights is None else weights.reshape(count, terms).float().where(known, 0)
    found = torch.zeros(count, x.shape[1])
    for term in range(terms):
        found += factors[:, term, None] * x[named[:, term].where(known[:, term], 0)].float()
    return found.to(x.dtype)


def _shaped(x: Any, rows: Any, weights: Any = None) -> Any:
    """A result without elements, or the error that the call would raise."""
    count, _ = check_rows(x, rows, weights)
    return x.new_empty(count, x.shape[1])


_computed = or_on_the_host("combine_rows", compute_combined, _on_the_host)


def _listed(gradient: Any, rows: Any, weights: Any, begins: Any) -> Any:
    """Sums of rows of a gradient whose terms lie in one list."""
    try:
        return compute_combined(LIBRARY, gradient, rows, weights, Listed(begins))
    except HostMemory:
        pass
    lines = torch.arange(begins.shape[0] - 1).repeat_interleave(begins.diff().long())
    first = int(begins[0])
    terms = gradient.float()[rows.long()][first : first + len(lines)]
    if weights is not None:
        terms = terms * weights[first : first + len(lines), None]
    found = torch.zeros(begins.shape[0] - 1, gradient.shape[1])
    return found.index_add_(0, lines, terms).to(gradient.dtype)


def _listed_shaped(gradient: Any, rows: Any, weights: Any, begins: Any) -> Any:
    return gradient.new_empty(begins.shape[0] - 1, gradient.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, rows, *weights = inputs  # PyTorch leaves out last arguments that have their default
    ctx.save_for_backward(x, rows, *(weights or [None]))


def _gradients(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    x, rows, weights = ctx.saved_tensors
    terms = rows.shape[1] if rows.dim() == 2 else 1
    for_x = for_weights = None
    flat = rows.reshape(-1)
    if ctx.needs_input_grad[0]:
        ordered, order = flat.sort(stable=True)
        begins = torch.searchsorted(
            ordered, torch.arange(x.shape[0] + 1, dtype=torch.int32, device=rows.device), out_int32=True
        )
        factors = None if weights is None else weights.reshape(-1)[order].float()
        results = (order // terms).to(torch.int32)
        for_x = torch.ops.tilewright.combine_listed_rows(gradient.contiguous(), results, factors, begins)
    if weights is not None and ctx.needs_input_grad[2]:
        gathered = torch.ops.tilewright.combine_rows(x, flat, None).reshape(*rows.shape, x.shape[1])
        wide = gradient.float() if rows.dim() == 1 else gradient.float().unsqueeze(1)
        for_weights = (gathered.float() * wide).sum(-1).to(weights.dtype)
    return (for_x, None, for_weights)[: len(ctx.needs_input_grad)]


_OPERATORS = (
    registered(
        "combine_rows(Tensor x, Tensor rows, Tensor? weights=None) -> Tensor", _computed, _shaped, _gradients, _keep
    ),
    registered(
        "combine_listed_rows(Tensor x, Tensor rows, Tensor? weights, Tensor begins) -> Tensor", _listed, _listed_shaped
    ),
)
