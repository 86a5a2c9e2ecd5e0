"""Products over two ranks by collectives, in host memory: the fallback, gradients, and errors on every rank."""

from __future__ import annotations

import gc
import itertools
import re
import warnings
import weakref
from typing import Any

import torch
import torch.distributed as dist

import tilewright
from tilewright.distributed import all_gather_matmul, matmul_reduce_scatter
from tilewright.errors import ProblemError

warnings.simplefilter("ignore")


def integers(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    """Small ones, whose sums are exact in any order; the same on all ranks."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case_gather(rank: int, ranks: int) -> None:
    for rows in ([3] * ranks, [5, *[2] * (ranks - 1)], [0, *[4] * (ranks - 1)]):
        shards = [integers(count, 8, seed=i) for i, count in enumerate(rows)]
        b = integers(8, 6, seed=10 + rank)
        whole = torch.cat(shards) @ b
        assert torch.equal(all_gather_matmul(shards[rank], b), whole)
        assert torch.equal(all_gather_matmul(shards[rank], b, rows=rows), whole)
        several = all_gather_matmul(shards[rank], [b, b[:, :2]], dist.group.WORLD)
        assert torch.equal(several[0], whole) and torch.equal(several[1], whole[:, :2])
    for k, n in ((0, 6), (8, 0)):
        found = all_gather_matmul(integers(4, k, seed=rank), integers(k, n, seed=1))
        assert torch.equal(found, torch.zeros(4 * ranks, n))
        assert torch.equal(matmul_reduce_scatter(integers(4, k), integers(k, n)), torch.zeros(4 // ranks, n))
    wide = all_gather_matmul(
        integers(4, 8, dtype=torch.bfloat16), integers(8, 6, dtype=torch.bfloat16), out_dtype="f32"
    )
    assert wide.dtype == torch.float32 and wide.shape == (4 * ranks, 6)


def case_scatter(rank: int, ranks: int) -> None:
    for m in (4 * ranks, 7, 1, 0):
        parts = [(integers(m, 8, seed=i), integers(8, 6, seed=20 + i)) for i in range(ranks)]
        whole = sum(a @ b for a, b in parts)
        size = -(-m // ranks)
        expected = whole[rank * size : (rank + 1) * size]
        assert torch.equal(matmul_reduce_scatter(*parts[rank]), expected)
        (twice,) = matmul_reduce_scatter(parts[rank][0], [2 * parts[rank][1]])
        assert torch.equal(twice, 2 * expected)
    rows = [5, *[0] * (ranks - 2), 2]
    parts = [(integers(7, 8, seed=i), integers(8, 6, seed=20 + i)) for i in range(ranks)]
    whole = sum(a @ b for a, b in parts)
    start = sum(rows[:rank])
    result = matmul_reduce_scatter(*parts[rank], rows=rows)
    assert torch.equal(result, whole[start : start + rows[rank]])


FP8 = torch.float8_e4m3fn


def scales_of(kind: str, count: int, seed: int) -> Any:
    """Powers of two, so that products of integers stay exact."""
    each = 2.0 ** integers(count if kind == "rows" else 1, 1, seed=seed)
    return each if kind == "rows" else each[0]


def case_gather_of_fp8(rank: int, ranks: int) -> None:
    """The bits of each rank's rows multiplied alone; a rank with one row has one scale, whatever the others have."""
    uneven = [5, *[1] * (ranks - 1)], [0, *[3] * (ranks - 1)]
    for (kind, k), rows in itertools.product((("rows", 16), ("whole", 32)), ([4] * ranks, *uneven)):
        shards = [integers(count, k, seed=i).to(FP8) for i, count in enumerate(rows)]
        scales = [scales_of(kind, count, 30 + i) for i, count in enumerate(rows)]
        b = [integers(k, n, seed=10 + rank).to(FP8) for n in (6, 8)]
        of_b = [scales_of(kind, n, 60 + rank).T for n in (6, 8)]
        found = all_gather_matmul(shards[rank], b, scale_a=scales[rank], scale_b=of_b)
        for mine, x, scale in zip(found, b, of_b, strict=True):
            pairs = zip(shards, scales, strict=True)
            alone = torch.cat([tilewright.scaled_matmul(s, x, of_s, scale) for s, of_s in pairs if len(s)])
            assert mine.dtype == torch.bfloat16 and torch.equal(mine, alone), (kind, rows)
        wide = all_gather_matmul(shards[rank], b[0], scale_a=scales[rank], scale_b=of_b[0], out_dtype="f32")
        assert wide.dtype == torch.float32 and torch.equal(wide.to(torch.bfloat16), found[0])


def case_scatter_of_fp8(rank: int, ranks: int) -> None:
    """Each rank has scales of its own, and each sends what it has scaled, in the format of the result."""
    for kind, m in itertools.product(("rows", "whole"), (4 * ranks, 7, 1)):
        a = [integers(m, 16, seed=i).to(FP8) for i in range(ranks)]
        b = [integers(16, 6, seed=20 + i).to(torch.float8_e5m2) for i in range(ranks)]
        scales = [(scales_of(kind, m, 30 + i), scales_of(kind, 6, 40 + i).T) for i in range(ranks)]
        parts = [tilewright.scaled_matmul(x, y, *both) for x, y, both in zip(a, b, scales, strict=True)]
        whole = sum(part.float() for part in parts).to(torch.bfloat16)
        size, (of_a, of_b) = -(-m // ranks), scales[rank]
        found = matmul_reduce_scatter(a[rank], b[rank], scale_a=of_a, scale_b=of_b)
        assert torch.equal(found, whole[rank * size : (rank + 1) * size]), (kind, m)


def case_scales_that_do_not_fit(rank: int, ranks: int) -> None:
    """The same error on every rank, and what a rank sees before it asks the others."""
    a, b, one = integers(4, 16).to(FP8), integers(16, 6).to(FP8), torch.ones(1)
    rows = torch.ones(4, 1)
    wrong: list[tuple[str, Any, dict[str, Any]]] = [
        ("do not agree about scale_a", (a, b), {"scale_a": rows if rank else one, "scale_b": one}),
        ("on rank 0: .*scale_b", (a, b), {"scale_a": one, "scale_b": one if rank else torch.ones(1, 5)}),
        ("one scale_a and 1 scale_b", (a, b), {"scale_a": one}),
        ("have no gradients", (a, b), {"scale_a": one.clone().requires_grad_(), "scale_b": one}),
        ("operands with scales are of FP8", (a.float(), b.float()), {"scale_a": one, "scale_b": one}),
        ("fast_accumulation is for", (a.float(), b.float()), {"fast_accumulation": True}),
    ]
    for text, given, options in wrong:
        try:
            all_gather_matmul(*given, **options)
        except ProblemError as error:
            assert re.search(text, str(error)), (text, str(error))
        else:
            raise AssertionError(text)


def case_gradients(rank: int, ranks: int) -> None:
    rows = [5, *[2] * (ranks - 1)]
    start = sum(rows[:rank])
    shards = [integers(count, 8, seed=i) for i, count in enumerate(rows)]
    weights = [[integers(8, 6, seed=30 + i), integers(8, 4, seed=40 + i)] for i in range(ranks)]
    backs = [[integers(10, 8, seed=50 + i)] for i in range(ranks)]

    whole = torch.cat(shards).requires_grad_()
    all_weights = [[w.clone().requires_grad_() for w in pair] for pair in weights]
    all_backs = [[w.clone().requires_grad_() for w in pair] for pair in backs]
    total = 0
    for (up, gate), (down,) in zip(all_weights, all_backs, strict=True):
        total = total + torch.cat([whole @ up, whole @ gate], 1) @ down
    loss = (total * integers(*total.shape, seed=99)).sum()
    loss.backward()

    a = shards[rank].clone().requires_grad_()
    own = [w.clone().requires_grad_() for w in weights[rank]]
    down = backs[rank][0].clone().requires_grad_()
    result = matmul_reduce_scatter(torch.cat(all_gather_matmul(a, own), 1), down, rows=rows)
    assert torch.equal(result, total[start : start + rows[rank]])
    (result * integers(*total.shape, seed=99)[start : start + rows[rank]]).sum().backward()
    assert torch.equal(a.grad, whole.grad[start : start + rows[rank]])
    for mine, theirs in zip((*own, down), (*all_weights[rank], *all_backs[rank]), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def raised(call: Any) -> str:
    try:
        call()
    except ProblemError as error:
        return str(error)
    raise AssertionError("no error")


def case_errors_are_the_same_on_every_rank(rank: int, ranks: int) -> None:
    b = integers(8, 9)  # of a shape that no rank has met before
    calls = {
        "k": lambda: all_gather_matmul(integers(4, 8 + rank), integers(8 + rank, 9)),
        "formats": lambda: all_gather_matmul(
            integers(4, 8).to(kind := (torch.float32, torch.bfloat16)[rank % 2]), b.to(kind)
        ),
        "options": lambda: all_gather_matmul(integers(4, 8), b, precision="tf32" if rank else "default"),
        "n": lambda: matmul_reduce_scatter(integers(4, 8), integers(8, 9 + rank)),
        "m": lambda: matmul_reduce_scatter(integers(4 + rank, 8), b),
        "rows": lambda: matmul_reduce_scatter(integers(4, 8), b, rows=[4 - rank, rank, *[0] * (ranks - 2)]),
        "call": lambda: matmul_reduce_scatter(integers(4, 8), b) if rank else all_gather_matmul(integers(4, 8), b),
        "on rank 1": lambda: all_gather_matmul(integers(4, 8 + rank), b),
        "sum is not": lambda: matmul_reduce_scatter(integers(4, 8), b, rows=[3] * ranks),
        "ranks.": lambda: matmul_reduce_scatter(integers(4, 8), b, rows=[4]),
        "rows of a": lambda: all_gather_matmul(integers(4, 8), b, rows=[4] * (ranks - 1) + [3]),
        "must be tensors": lambda: all_gather_matmul(integers(4, 8) if rank else None, b),
    }
    for words, call in calls.items():
        own = raised(call)
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, own)
        assert words in own and len(set(told)) == 1, told


def case_groups(rank: int, ranks: int) -> None:
    alone = [dist.new_group([i]) for i in range(ranks)]
    a, b = integers(4, 8, seed=rank), integers(8, 6)
    assert torch.equal(all_gather_matmul(a, b, alone[rank]), a @ b)
    assert torch.equal(matmul_reduce_scatter(a, b, alone[rank]), a @ b)
    assert "not a member" in raised(lambda: all_gather_matmul(a, b, alone[(rank + 1) % ranks]))
    second = dist.new_group(list(range(ranks)))
    assert torch.equal(all_gather_matmul(a, b, second), torch.cat([integers(4, 8, seed=i) for i in range(ranks)]) @ b)
    alive = weakref.ref(second)
    dist.destroy_process_group(second)
    del second
    gc.collect()
    assert alive() is None  # else its threads run on, and may abort the process as it ends


def case_lazily_named(rank: int, ranks: int) -> None:
    assert tilewright.distributed.all_gather_matmul is all_gather_matmul
