"""The same products by collectives of PyTorch, one after the other: for ranks that cannot reach each other's memory.

The sum over ranks is ours, in the order of the ranks, because NCCL's depends on how it connects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from tilewright import extras
from tilewright.distributed.pytorch.agreement import Agreed, RankCall
from tilewright.distributed.pytorch.scales import Scales, multiplied

torch: Any = extras.require("torch", "Multiplying on several GPUs")
dist: Any = torch.distributed

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""By its name since PyTorch 2.13, which warns of the old one."""


def gathered(shard: Any, rows: Sequence[int], group: Any) -> Any:
    """The rows of all ranks."""
    largest = max(rows)
    padded = shard.contiguous()
    if shard.shape[0] != largest:
        padded = shard.new_zeros(largest, shard.shape[1])
        padded[: shard.shape[0]] = shard
    whole = shard.new_empty(len(rows) * largest, shard.shape[1])
    _all_gather(whole, padded, group=group)
    if len(set(rows)) == 1:
        return whole
    return torch.cat([whole[rank * largest : rank * largest + count] for rank, count in enumerate(rows)])


def all_gather_matmul(call: RankCall, agreed: Agreed, group: Any) -> list[Any]:
    a, b, options, scales, rows = call.a, call.b, call.options, call.scales, agreed.rows
    if scales is None:
        return multiplied(gathered(a, rows, group), b, options, None)
    whole = gathered(a.view(torch.uint8), rows, group).view(a.dtype)
    of_rows = scales.a.expand(a.shape[0], 1) if a.shape[0] else scales.a.new_empty(0, 1)
    whole_scales = gathered(of_rows, rows, group)
    ends = list(accumulate(rows))
    parts = []
    for first, behind in zip([0, *ends[:-1]], ends, strict=True):
        of_rank = whole_scales[first : behind if agreed.scaled_rows else first + 1]
        parts.append(multiplied(whole[first:behind], b, options, Scales(of_rank, scales.b)) if first < behind else [])
    return [torch.cat(some) for some in zip(*(part for part in parts if part), strict=True)]


def matmul_reduce_scatter(call: RankCall, agreed: Agreed, group: Any) -> list[Any]:
    rows = agreed.rows
    own = rows[dist.get_rank(group)]
    results = []
    for partial in multiplied(call.a, call.b, call.options, call.scales):
        received = partial.new_empty(len(rows) * own, partial.shape[1])
        dist.all_to_all_single(received, partial, [own] * len(rows), list(rows), group=group)
        results.append(summed([received[rank * own : (rank + 1) * own] for rank in range(len(rows))]))
    return results


def summed(parts: Sequence[Any], out: Any = None) -> Any:
    """The sum in order, in f32, rounded once."""
    if len(parts) == 2:  # what PyTorch adds in one launch is computed in f32
        return torch.add(parts[0], parts[1], out=out)
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts[0].dtype) if out is None else out.copy_(total)
