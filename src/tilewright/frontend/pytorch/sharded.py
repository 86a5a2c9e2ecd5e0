"""How products of DTensors are sharded: rules of `torch.ops.tilewright.matmul`, `grouped_matmul`, `scaled_matmul` and
`scaled_grouped_matmul` for one dimension of a device mesh. DTensor redistributes operands that lie otherwise.

`torch.distributed.tensor` is not imported before the program imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright import extras
from tilewright.frontend.pytorch.registering import constant_in_graphs

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


@constant_in_graphs
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


def scaled_rules(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, *words: Any) -> list[Rule]:
    """Rows, columns, k, and replicated operands, with the scales and the bias that go with them. Blocks that have a
    scale lie on one rank."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    ranks, whole = a.mesh.size(), Replicate()
    in_blocks = scale_a.ndim == 2 and scale_a.shape[1] > 1 and scale_b.shape[0] > 1
    rules = [(whole, whole, whole, whole, whole, whole)]
    of_rows = _scale_place(scale_a.shape, 0, a.shape[0], ranks)
    of_columns = _scale_place(scale_b.shape, scale_b.ndim - 1, b.shape[1], ranks)
    if of_rows is not None:
        rules.append((Shard(0), Shard(0), whole, of_rows, whole, whole))
    if of_columns is not None:
        rules.append((Shard(1), whole, Shard(1), whole, of_columns, Shard(0)))
    if not _is_fp8(words[:1]) and (not in_blocks or a.shape[1] % (_BLOCK * ranks) == 0):
        along = (Shard(1), Shard(0)) if in_blocks else (whole, whole)
        rules.append((Partial(), Shard(1), Shard(0), *along, Partial()))
    unsaid = [None] * len(words)
    return [([out], [*given, None if bias is None else added, *unsaid]) for out, *given, added in rules]


def scaled_grouped_rules(a: Any, b: Any, scale_a: Any, scale_b: Any, offsets: Any, *words: Any) -> list[Rule]:
    """Columns of all groups, k, and replicated operands, with their scales; all are replicated where a is that of the
    groups."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    ranks, whole = a.mesh.size(), Replicate()
    rules = [(whole, whole, whole, whole, whole)]
    in_blocks = scale_b.ndim == 3
    if a.ndim == 2 and b.ndim == 3:  # (tokens, k) by (groups, k, n)
        last = scale_b.ndim - 1
        of_columns = _scale_place(scale_b.shape, last, b.shape[2], ranks) if last else whole
        if of_columns is not None:
            rules.append((Shard(1), whole, Shard(2), whole, of_columns))
        if not _is_fp8(words[:1]) and (not in_blocks or a.shape[1] % (_BLOCK * ranks) == 0):
            along = (Shard(1), Shard(1)) if in_blocks else (whole, whole)
            rules.append((Partial(), Shard(1), Shard(1), *along))
    return [([out], [*given, whole, *[None] * len(words)]) for out, *given in rules]


_BLOCK = 128
"""Rows, columns or elements of k of a block that has a scale."""


def _scale_place(shape: Sequence[int], at: int, extent: int, ranks: int) -> Any:
    """How scales lie whose operand is sharded along rows or columns, of which there are `extent`. at: the dimension of
    the scales. None where a block with one scale would lie on two ranks."""
    from torch.distributed.tensor import Replicate, Shard

    if all(one == 1 for one in shape):
        return Replicate()
    return Shard(at) if shape[at] == extent or extent % (_BLOCK * ranks) == 0 else None


def _is_fp8(words: Sequence[Any]) -> bool:
    """Whether a result is asked for whose parts cannot be summed."""
    return any(word is not None and word.itemsize == 1 for word in words)


_RULES: dict[str, Callable[..., list[Rule]]] = {
    "matmul": matmul_rules,
    "grouped_matmul": grouped_rules,
    "scaled_matmul": scaled_rules,
    "scaled_grouped_matmul": scaled_grouped_rules,
}
