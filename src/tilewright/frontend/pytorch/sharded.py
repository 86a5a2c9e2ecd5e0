"""How products of DTensors are sharded: rules of `torch.ops.tilewright.matmul` and `grouped_matmul` for one dimension
of a device mesh. DTensor redistributes operands that lie otherwise.

`torch.distributed.tensor` is not imported before the program imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright import extras

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")

_DTENSOR = "torch.distributed.tensor"
_KNOWN: set[str] = set()
"""The operators whose rules DTensor knows."""

Rule = tuple[list[Any], list[Any]]
"""Placements of the outputs, and of the arguments; None for one that is not a tensor."""


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor."""
    module = sys.modules.get(_DTENSOR)
    return module is not None and isinstance(tensor, module.DTensor)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def know_sharding(name: str) -> None:
    """DTensor knows the rules of an operator, if the program uses DTensor."""
    if name in _KNOWN or _DTENSOR not in sys.modules:
        return
    _KNOWN.add(name)
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:  # PyTorch before 2.6
        return
    register_sharding(getattr(torch.ops.tilewright, name).default)(_RULES[name])


def matmul_rules(a: Any, b: Any, c: Any = None, bias: Any = None, *words: Any) -> list[Rule]:
    """Rows, columns, k, each dimension of the batch, partial sums, and replicated operands.

    A sum over ranks is that of the results only where no activation (words[3]) comes behind it. `c` and the bias are
    partial sums there themselves.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    one_row, one_column = a.ndim == 1, b.ndim == 1
    batch = max(a.ndim, b.ndim, 2) - 2
    of_a, of_b = _dimensions(a.shape, batch, one_row=one_row), _dimensions(b.shape, batch, one_column=one_column)
    added = [None if x is None else _dimensions(x.shape, batch, one_row, one_column) for x in (c, bias)]
    result = [*range(batch), *([] if one_row else [batch]), *([] if one_column else [batch + 1])]

    def along(at: int) -> Rule | None:
        """A dimension of the product, sharded in the result and in the operands that have it."""
        first = of_a.get(at) if at <= batch else None
        second = of_b.get(at) if at != batch else None
        if first is None and second is None:
            return None  # one element, or one that only k has
        own = [first, second, *(None if x is None else x.get(at) for x in added)]
        given = [True, True, *(x is not None for x in added)]
        places = [(Replicate() if i is None else Shard(i)) if x else None for i, x in zip(own, given, strict=True)]
        return [Shard(result.index(at))], places

    def rest(placement: Any) -> list[Any]:
        return [None if x is None else placement for x in added]

    rules: list[Rule] = [([Replicate()], [Replicate(), Replicate(), *rest(Replicate())])]
    rules += [rule for rule in map(along, result) if rule is not None]
    if len(words) <= 3 or words[3] is None:
        of_k = [Shard(a.ndim - 1), Shard(max(b.ndim - 2, 0))]
        for inputs in (of_k, [Partial(), Replicate()], [Replicate(), Partial()]):
            rules.append(([Partial()], [*inputs, *rest(Partial())]))
    return [(outputs, [*inputs, *[None] * len(words)]) for outputs, inputs in rules]


def _dimensions(shape: Sequence[int], batch: int, one_row: bool = False, one_column: bool = False) -> dict[int, int]:
    """Where the dimensions of a product (batch, row, column) lie in an array, but for those that it broadcasts.
    one_row, one_column: the array lacks that dimension."""
    product = [*range(batch), *([] if one_row else [batch]), *([] if one_column else [batch + 1])]
    own = product[len(product) - len(shape) :]
    return {at: i for i, (at, extent) in enumerate(zip(own, shape, strict=True)) if extent != 1}


def grouped_rules(a: Any, b: Any, offsets: Any, *words: Any) -> list[Rule]:
    """Rows or columns of all groups, k where it is not what the groups share, partial sums, and replicated operands.
    The offsets count all tokens, so that tokens are not sharded."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    whole = Replicate()
    rules = [(whole, whole, whole), (Partial(), Partial(), whole), (Partial(), whole, Partial())]
    if a.ndim == 2 and b.ndim == 3:  # (tokens, k) by (groups, k, n)
        rules += [(Shard(1), whole, Shard(2)), (Partial(), Shard(1), Shard(1))]
    elif a.ndim == 3 and b.ndim == 2:  # (groups, m, k) by (k, tokens)
        rules += [(Shard(0), Shard(1), whole), (Partial(), Shard(2), Shard(0))]
    else:  # (m, tokens) by (tokens, n)
        rules += [(Shard(1), Shard(0), whole), (Shard(2), whole, Shard(1))]
    return [([out], [of_a, of_b, whole, *[None] * len(words)]) for out, of_a, of_b in rules]


_RULES: dict[str, Callable[..., list[Rule]]] = {"matmul": matmul_rules, "grouped_matmul": grouped_rules}
