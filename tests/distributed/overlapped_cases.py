"""The steps of `symmetric.py` on two processes whose GPU is the CPU: symmetric memory is a file that both map, and
every operation of a stream runs at once."""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from cuda.bindings import driver

from tilewright.distributed import all_gather_matmul, matmul_reduce_scatter
from tilewright.distributed.plans import ARRIVING, SCALED_AS_WHOLE, SHARED, Plan
from tilewright.distributed.pytorch import agreement, products, symmetric
from tilewright.distributed.pytorch.agreement import GATHER, SCATTER, RankCall
from tilewright.distributed.pytorch.scales import Scales
from tilewright.distributed.timeline import slot_of
from tilewright.errors import LaunchError
from tilewright.frontend.options import PLAIN, options_of
from tilewright.frontend.scaled import scaled_options

warnings.simplefilter("ignore")

GATHERS = [Plan("gather"), Plan("gather exchanged"), ARRIVING]
SCATTERS = [Plan("scatter"), Plan("scatter", 2), Plan("scatter added"), Plan("scatter exchanged"), SHARED]


class Memory:
    """A file for each rank, mapped by all."""

    def __init__(self, size: int) -> None:
        told: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(told)
        path, rank = f"{told[0]}/{{}}", dist.get_rank()
        with open(path.format(rank), "wb") as file:
            file.truncate(size)
        dist.barrier()
        self.all = [
            torch.from_file(path.format(i), True, size, dtype=torch.uint8) for i in range(dist.get_world_size())
        ]
        dist.barrier()
        os.remove(path.format(rank))
        self.own = self.all[rank]

    def get_buffer(self, rank: int, sizes: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
        count = 1
        for extent in sizes:
            count *= extent
        return self.all[rank].view(dtype)[offset : offset + count].view(sizes)


class Stream:
    cuda_stream = 0

    def __init__(self, *device: Any, **options: Any) -> None: ...

    def wait_event(self, event: Any) -> None:
        assert event.recorded, "an event is waited for that nobody recorded"

    def synchronize(self) -> None: ...


class Event:
    recorded = False

    def record(self, stream: Any) -> None:
        self.recorded = True

    def query(self) -> bool:
        return True


def operated(stream: int, count: int, operations: list[Any], flags: int) -> tuple[Any]:
    """Waits for words, and words that are set, in order."""
    assert count == len(operations)
    for one in operations:
        word = ctypes.c_int32.from_address(int(one.writeValue.address))
        if one.operation == driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32:
            word.value = int(one.writeValue.value)
            continue
        end = time.monotonic() + 20
        while word.value != int(one.waitValue.value):
            assert time.monotonic() < end, "a flag is never set"
    return (driver.CUresult.CUDA_SUCCESS,)


def copied(target: int, source: int, size: int, stream: int) -> tuple[Any]:
    ctypes.memmove(target, source, size)
    return (driver.CUresult.CUDA_SUCCESS,)


def multiplied(library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Any) -> Any:
    """In the place of our kernels, which other tests run."""
    assert options.beta == (c is not None)
    product = a.float() @ b.float()
    return out.copy_(product if c is None else product + c)


def multiplied_with_scales(library: Any, arrays: Any, options: Any) -> Any:
    a, b, scale_a, scale_b, _, out = arrays
    return out.copy_(a.float() @ b.float() * scale_a * scale_b)


class Arriving:
    """In the place of kernels that wait for rows: the shards in the order of arrival, each behind its flag."""

    def __init__(self, rows: tuple[int, ...], rank: int, flags: int, options: Any, device: Any) -> None:
        self.bounds, self.rank, self.flags = [0, *itertools.accumulate(rows)], rank, flags

    def start(self, number: int, a: Any, b: Any, out: Any, stream: int, *, waits: bool = True) -> None:
        ranks = len(self.bounds) - 1
        for distance in range(ranks):
            shard = (self.rank + distance) % ranks
            word, end = ctypes.c_int32.from_address(self.flags + 4 * shard), time.monotonic() + 20
            while waits and word.value != 1:
                assert time.monotonic() < end, "rows never arrive"
            rows = slice(self.bounds[shard], self.bounds[shard + 1])
            out[rows] = a[rows].float() @ b.float()


class Summed:
    """In the place of kernels that add up over ranks: an exchange behind a product."""

    words: frozenset[Any] = frozenset()

    def __init__(self, rows: tuple[int, ...], rank: int, memory: Any, options: Any, device: Any) -> None:
        self.exchange = Exchanged(rows, rank, memory.received, memory.flags, device)

    def plan(self, number: int, a: Any, b: Any) -> None: ...

    def start(self, number: int, a: Any, b: Any, out: Any, stream: int) -> None:
        self.exchange.start(a.float() @ b.float(), out, stream)


class Exchanged:
    """In the place of kernels by which threads exchange rows. The flags are words: whether a peer may be written, and
    whether what it sends is there."""

    def __init__(self, rows: tuple[int, ...], rank: int, received: Any, flags: Any, device: Any) -> None:
        self.rows, self.rank, self.received, self.flags = rows, rank, received, flags
        self.bounds = [0, *itertools.accumulate(rows)]

    def plan(self, source: Any, summed: bool) -> None: ...

    def meet(self, which: int) -> None:
        others = [peer for peer in range(len(self.rows)) if peer != self.rank]
        for peer in others:
            ctypes.c_int32.from_address(self.flags[peer] + 4 * (2 * self.rank + which)).value = 1
        for peer in others:
            word, end = ctypes.c_int32.from_address(self.flags[self.rank] + 4 * (2 * peer + which)), time.monotonic()
            while word.value != 1:
                assert time.monotonic() < end + 20, "a peer never comes"
            word.value = 0

    def start(self, source: Any, out: Any, stream: int) -> None:
        self.meet(0)
        row = source.shape[1] * source.element_size()
        for peer, count in enumerate(self.rows):
            if out is None:
                at, part = self.bounds[self.rank], source
            else:
                at, part = slot_of(self.rank, peer, self.rows), source[self.bounds[peer] : self.bounds[peer + 1]]
            if out is None or peer != self.rank:
                ctypes.memmove(self.received[peer] + at * row, part.contiguous().data_ptr(), part.shape[0] * row)
            assert out is None or part.shape[0] == count
        self.meet(1)
        if out is None:
            return
        total = source[self.bounds[self.rank] : self.bounds[self.rank + 1]].clone()
        for peer in range(len(self.rows)):
            if peer != self.rank:
                part, at = torch.empty_like(total), slot_of(peer, self.rank, self.rows)
                ctypes.memmove(part.data_ptr(), self.received[self.rank] + at * row, part.numel() * part.element_size())
                total += part
        out.copy_(total)


@contextmanager
def gpus() -> Any:
    made: list[Memory] = []

    def empty(size: int, **kwargs: Any) -> Any:
        made.append(Memory(size))
        return made[-1].own

    judged = products.agreed
    fake = SimpleNamespace(Stream=Stream, Event=Event, current_stream=Stream, synchronize=lambda *device: None,
                           is_current_stream_capturing=lambda: False, set_stream=lambda stream: None)  # fmt: skip
    with (
        patch.object(symmetric, "compute", multiplied),
        patch.object(symmetric, "compute_scaled", multiplied_with_scales),
        patch.object(symmetric, "ArrivingProducts", Arriving),
        patch.object(symmetric, "SummedProducts", Summed),
        patch.object(symmetric, "Exchanges", Exchanged),
        patch.object(symmetric_memory, "empty", empty),
        patch.object(symmetric_memory, "rendezvous", lambda memory, name: made[-1]),
        patch.object(products, "agreed", lambda own, group: replace(judged(own, group), peers=True)),
        patch.object(torch, "cuda", SimpleNamespace(**{**vars(torch.cuda), **vars(fake)})),
        patch.object(driver, "cuStreamBatchMemOp", operated),
        patch.object(driver, "cuMemcpyAsync", copied),
    ):
        products._STATES.clear()
        yield
        products._STATES.clear()


def computed(asked: RankCall) -> list[Any]:
    return products.computed(asked, dist.group.WORLD)


def integers(*shape: int, seed: int) -> Any:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def case_gather(rank: int, ranks: int) -> None:
    with gpus():
        for rows, plan, again in itertools.product(([8] * ranks, [5, 0], [3, 140]), GATHERS, range(3)):
            shards = [integers(count, 16, seed=10 * again + i) for i, count in enumerate(rows)]
            b = [integers(16, 8, seed=50 + rank), integers(16, 12, seed=60 + rank)]
            found = computed(RankCall(GATHER, shards[rank], tuple(b), PLAIN, plan=plan))
            for mine, x in zip(found, b, strict=True):
                assert torch.equal(mine, torch.cat(shards) @ x), (rows, plan, again)
        assert len(products.state_of(dist.group.WORLD).retired) == 0


def case_scatter(rank: int, ranks: int) -> None:
    wide = options_of(1.0, None, "f32", "default", None, False, None, False)
    with gpus():
        for m, plan, again in itertools.product((16, 7, 1, 300), SCATTERS, range(3)):
            parts = [(integers(m, 16, seed=10 * again + i), integers(16, 8, seed=20 + i)) for i in range(ranks)]
            whole = sum(a @ b for a, b in parts)
            size = -(-m // ranks)
            a, b = parts[rank]
            options = (PLAIN, wide)[again % 2]
            found = computed(RankCall(SCATTER, a, (b, 2 * b), options, plan=plan))
            for factor, mine in enumerate(found, 1):
                assert torch.equal(mine, factor * whole[rank * size : (rank + 1) * size]), (m, plan, again)


def case_fp8(rank: int, ranks: int) -> None:
    """Scales of rows travel with them, or the one of a rank."""
    fp8, options = torch.float8_e4m3fn, scaled_options("f32", False)
    kinds = itertools.product(((True, 16), (False, 32)), ([8] * ranks, [5, 1], [0, 140]), range(3))
    with gpus():
        for (by_rows, k), rows, again in kinds:
            shards = [integers(count, k, seed=10 * again + i).to(fp8) for i, count in enumerate(rows)]
            scales = [2.0 ** integers(count if by_rows else 1, 1, seed=30 + i + again) for i, count in enumerate(rows)]
            b = [integers(k, n, seed=50 + rank).to(fp8) for n in (8, 12)]
            of_b = (torch.full((1, 1), 2.0), torch.full((1, 12), 0.5))
            whole = torch.cat([shard.float() * scale for shard, scale in zip(shards, scales, strict=True)])
            for plan in (Plan("gather"), *((Plan("gather exchanged"),) if by_rows else ())):
                asked = RankCall(GATHER, shards[rank], tuple(b), options, None, plan, Scales(scales[rank], of_b))
                for mine, x, scale in zip(computed(asked), b, of_b, strict=True):
                    assert torch.equal(mine, whole @ x.float() * scale), (plan, by_rows, rows, again)
        for by_rows, m, plan in itertools.product((True, False), (16, 7), SCALED_AS_WHOLE[1:]):
            parts = [(integers(m, 16, seed=i).to(fp8), integers(16, 8, seed=20 + i).to(fp8)) for i in range(ranks)]
            scales = [2.0 ** integers(m if by_rows else 1, 1, seed=30 + i) for i in range(ranks)]
            of_b = torch.full((1, 1), 1.0 + rank)
            whole = sum((1.0 + i) * (a.float() * scales[i] @ b.float()) for i, (a, b) in enumerate(parts))
            a, b = parts[rank]
            (found,) = computed(RankCall(SCATTER, a, (b,), options, None, plan, Scales(scales[rank], (of_b,))))
            size = -(-m // ranks)
            assert torch.equal(found, whole[rank * size : (rank + 1) * size]), (by_rows, m, plan)
        with patch.object(products, "ranked", lambda *given: (SHARED, Plan("scatter"), *SCALED_AS_WHOLE[1:])):
            one = torch.ones(1, 1)
            matmul_reduce_scatter(*parts[rank], scale_a=one, scale_b=one)
        with patch.object(products, "ranked", lambda *given: (Plan("gather exchanged"), Plan("gather"))):
            all_gather_matmul(*parts[rank], scale_a=one, scale_b=one)
        assert not any(
            name[0] == GATHER and one.plan == Plan("gather exchanged") and name[3] is None
            for name, one in products.state_of(dist.group.WORLD).known.items()
        )
        assert Plan("scatter exchanged") in plans_of() and not plans_of() & {SHARED, Plan("scatter")}


def case_memory_grows(rank: int, ranks: int) -> None:
    with gpus():
        for width in (16, 1 << 14, 16):
            a, b = integers(64, width, seed=rank), integers(width, 8, seed=9)
            (found,) = computed(RankCall(GATHER, a, (b,), PLAIN, plan=Plan("gather")))
            assert torch.equal(found, torch.cat([integers(64, width, seed=i) for i in range(ranks)]) @ b)
        assert len(products.state_of(dist.group.WORLD).retired) == 1
        assert symmetric.Workspace is type(products.state_of(dist.group.WORLD).workspaces[GATHER])


def plans_of() -> set[Any]:
    return {known.plan for known in products.state_of(dist.group.WORLD).known.values()}


def first(plan: Plan) -> Any:
    """The plan that is chosen, as long as all ranks have what it needs."""
    return patch.object(products, "ranked", lambda *given: (plan, Plan(plan.kind.split()[0])))


def case_one_kernel_is_chosen(rank: int, ranks: int) -> None:
    shards, b = [integers(8, 16, seed=i) for i in range(ranks)], integers(16, 8, seed=9)
    with gpus():
        with first(ARRIVING):
            assert torch.equal(all_gather_matmul(shards[rank], b), torch.cat(shards) @ b)
        with first(SHARED):
            whole = sum(shard @ b for shard in shards)
            assert torch.equal(matmul_reduce_scatter(shards[rank], b), whole.chunk(ranks)[rank])
        assert plans_of() == {ARRIVING, SHARED}


def case_beside_other_groups_no_kernel_fills_the_gpu_and_waits(rank: int, ranks: int) -> None:
    """A kernel of another group may wait on the same GPU for a peer whose GPU is full of one that waits for it."""
    a, b = integers(8, 24, seed=rank), integers(24, 8, seed=9)
    assert agreement.is_alone()
    two = SimpleNamespace(
        pg_map={"world": ("nccl", None), "other": ("cpu:gloo,cuda:nccl", None), "host": ("gloo", None)}, group_count=3
    )
    one = SimpleNamespace(pg_map={"world": ("nccl", None), "host": ("gloo", None)}, group_count=2)
    silent = SimpleNamespace(pg_map=one.pg_map)
    for world, alone in ((two, False), (one, True), (silent, False)):
        with patch.object(dist.distributed_c10d, "_world", world):
            assert agreement.is_alone() == alone
    with gpus(), first(SHARED), patch.object(agreement, "is_alone", lambda: rank == 0):
        whole = sum(integers(8, 24, seed=i) @ b for i in range(ranks))
        assert torch.equal(matmul_reduce_scatter(a, b), whole.chunk(ranks)[rank])
        assert plans_of() == {Plan("scatter")}


def case_a_group_that_is_made_later_ends_it(rank: int, ranks: int) -> None:
    """The same call, which was agreed upon and is remembered, by another plan."""
    a, b = integers(8, 24, seed=rank), integers(24, 8, seed=9)
    whole = sum(integers(8, 24, seed=i) @ b for i in range(ranks)).chunk(ranks)[rank]
    with gpus(), first(SHARED):
        assert torch.equal(matmul_reduce_scatter(a, b), whole) and plans_of() == {SHARED}
        dist.new_group([0])  # of which the other ranks are no members
        with patch.object(agreement, "is_alone", lambda: rank != 0):
            assert torch.equal(matmul_reduce_scatter(a, b), whole) and plans_of() == {Plan("scatter")}
            assert torch.equal(matmul_reduce_scatter(a, b), whole)


def case_a_rank_without_the_kernel_makes_all_do_without(rank: int, ranks: int) -> None:
    shards, b = [integers(8, 16, seed=i) for i in range(ranks)], integers(16, 8, seed=9)

    def refused(*given: Any, **options: Any) -> None:
        raise LaunchError("No such kernel here.")

    with gpus():
        with first(ARRIVING), patch.object(Arriving, "start", refused if rank else Arriving.start):
            assert torch.equal(all_gather_matmul(shards[rank], b), torch.cat(shards) @ b)
        with first(SHARED), patch.object(Summed, "words", frozenset({((8,), f"kernel {rank}")})):
            whole = sum(shard @ b for shard in shards)
            assert torch.equal(matmul_reduce_scatter(shards[rank], b), whole.chunk(ranks)[rank])
        assert plans_of() == {Plan("gather"), Plan("scatter")}
