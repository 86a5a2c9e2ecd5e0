"""The operator under `torch.func.vmap`: the mapped dimension becomes the first of the batch."""

from __future__ import annotations

from typing import Any


def over_a_batch(
    multiply: Any,
    info: Any,
    in_dims: tuple[Any, ...],
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *words: Any,
) -> tuple[Any, int]:
    """The result, and where its mapped dimension is. multiply: the operator."""
    at_a, at_b, at_c, at_bias = (*in_dims, None, None)[:4]
    one_row, one_column = a.dim() - (at_a is not None) == 1, b.dim() - (at_b is not None) == 1

    def with_all_dimensions(x: Any, mapped: Any) -> Any:
        """Something that broadcasts to the result, as if neither operand were a vector."""
        x = x if mapped is None else x.movedim(mapped, 0)
        least = 1 if mapped is None else 2
        while x.dim() < least:
            x = x.unsqueeze(-1)
        x = x.unsqueeze(-1) if one_column else x
        return x.unsqueeze(-2) if one_row else x

    a = a if at_a is None else a.movedim(at_a, 0)
    b = b if at_b is None else b.movedim(at_b, 0)
    a = a.unsqueeze(-2) if one_row else a
    b = b.unsqueeze(-1) if one_column else b
    c = None if c is None else with_all_dimensions(c, at_c)
    bias = None if bias is None else with_all_dimensions(bias, at_bias)
    if at_a is None and at_b is None:
        a, at_a = a.expand(info.batch_size, *a.shape), 0
    rank = max(x.dim() - (at is not None) for x, at in ((a, at_a), (b, at_b)))
    a, b = _lifted(a, at_a, rank), _lifted(b, at_b, rank)
    c = None if c is None else _lifted(c, at_c, rank)
    if at_bias is not None:  # no kernel takes a bias for each product
        bias = _lifted(bias, at_bias, rank)
        c, bias, beta = bias if c is None else bias + beta * c, None, 1.0
    result = multiply(a, b, c, bias, alpha, beta, *words)
    result = result.squeeze(-2) if one_row else result
    return (result.squeeze(-1) if one_column else result), 0


def _lifted(x: Any, mapped: Any, rank: int) -> Any:
    """The same with `rank` dimensions behind the mapped one; what is not mapped broadcasts as it is."""
    if mapped is None:
        return x
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
