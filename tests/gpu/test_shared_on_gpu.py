"""Kernels that ranks share, with all ranks on one GPU: rows that come from the host while a kernel waits for them, and
small kernels that run side by side and add up."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tilewright.frontend.options import PLAIN
from tilewright.lowering.rank_sums import MOST_BLOCKS
from tilewright.runtime.driver import gpu_problem

torch: Any = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs wgmma"
    ),
]

REPETITIONS = 40
_WAIT_S = 30


@pytest.fixture(autouse=True)
def gpu() -> None:
    assert gpu_problem() is None
    torch.manual_seed(0)


def ended() -> None:
    """Wait for the GPU; a kernel that waits for ever ends the run."""
    event, began = torch.cuda.Event(), time.monotonic()
    streams = torch.cuda.current_stream()
    event.record(streams)
    while not event.query():
        if time.monotonic() - began > _WAIT_S:
            pytest.exit("a kernel waits for ever", returncode=1)
        time.sleep(0.0005)


def bounded(found: Any, a: Sequence[Any], b: Sequence[Any], rows: slice) -> bool:
    exact = sum(x.double() @ y.double() for x, y in zip(a, b, strict=True))[rows]
    bound = sum(x.double().abs() @ y.double().abs() for x, y in zip(a, b, strict=True))[rows]
    return bool(((found.double() - exact).abs() <= 2.0**-6 * bound).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [(512, 512), (1000, 3, 1045), (0, 700, 324)])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_kernel_waits_for_rows_from_the_host(rank: int, rows: tuple[int, ...], dtype: Any) -> None:
    """Copies from the host's memory need no SM, so that a kernel on all of them can wait for them."""
    from tilewright.distributed.pytorch.shared import ArrivingProducts

    m, n, k = sum(rows), 2048, 512
    host, b = torch.randn(m, k).to(dtype).pin_memory(), torch.randn(k, n, device="cuda").to(dtype)
    room, raised = torch.empty(m, k, device="cuda", dtype=dtype), torch.ones(1, dtype=torch.int32).pin_memory()
    flags, out = torch.zeros(len(rows), dtype=torch.int32, device="cuda"), b.new_empty(m, n)
    found = ArrivingProducts(rows, rank, flags.data_ptr(), PLAIN, "cuda")
    found.plan(0, room, b)
    side, starts, draw, first = torch.cuda.Stream(), found._shards.starts, random.Random(0), None
    for _ in range(REPETITIONS):
        room.fill_(float("nan"))
        own = slice(starts[rank], starts[rank + 1])
        room[own].copy_(host[own])
        flags.zero_()
        flags[rank] = 1
        torch.cuda.synchronize()
        found.start(0, room, b, out, torch.cuda.current_stream().cuda_stream)
        for distance in range(1, len(rows)):
            peer = (rank + distance) % len(rows)
            time.sleep(0.003 * draw.random())
            with torch.cuda.stream(side):
                here = slice(starts[peer], starts[peer + 1])
                room[here].copy_(host[here], non_blocking=True)
                flags[peer : peer + 1].copy_(raised, non_blocking=True)
        ended()
        first = out.clone() if first is None else first
        assert torch.equal(out, first)
    assert bounded(first, [host.cuda()], [b], slice(0, m))


@pytest.mark.parametrize("rows", [(128, 128), (128, 128, 44), (0, 256)])
@pytest.mark.parametrize("k", [192, 1000])
def test_kernels_side_by_side_add_up(rows: tuple[int, ...], k: int) -> None:
    """Each rank is a stream: few tiles, so that all blocks of all ranks run at once."""
    from tilewright.distributed.pytorch.shared import PartsMemory, SummedProducts, parts_elements, parts_flag_bytes

    ranks, m, n = len(rows), sum(rows), 64
    a = [torch.randn(m, k, device="cuda").bfloat16() for _ in range(ranks)]
    b = [torch.randn(k, n, device="cuda").bfloat16() for _ in range(ranks)]
    room_bytes = 2 * parts_elements(rows, n)
    flag_bytes = parts_flag_bytes(ranks, room_bytes)
    memory = [torch.zeros(flag_bytes + room_bytes, dtype=torch.uint8, device="cuda") for _ in range(ranks)]
    flags = [one.data_ptr() for one in memory]
    received = [address + flag_bytes for address in flags]
    parts = PartsMemory(flags, flag_bytes, received, room_bytes, lambda size: torch.empty_like(memory[0][:size]))
    found = [SummedProducts(rows, rank, parts, PLAIN, "cuda") for rank in range(ranks)]
    blocks = sum(one.plan(0, a[rank], b[rank]).steps[0].launch.grid[0] for rank, one in enumerate(found))
    assert blocks <= torch.cuda.get_device_properties(0).multi_processor_count
    assert len({one.words for one in found}) == 1
    streams, draw = [torch.cuda.Stream() for _ in rows], random.Random(1)
    own = [b[0].new_empty(count, n) for count in rows]
    first: list[Any] = []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        for rank in draw.sample(range(ranks), ranks):
            time.sleep(0.002 * draw.random())
            found[rank].start(0, a[rank], b[rank], own[rank], streams[rank].cuda_stream)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        ended()
        first = first or [one.clone() for one in own]
        assert all(torch.equal(one, other) for one, other in zip(own, first, strict=True))
    starts = found[0]._shards.starts
    for rank, one in enumerate(first):
        assert bounded(one, a, b, slice(starts[rank], starts[rank + 1]))
    for one in memory:
        of_blocks, of_tiles = one[:flag_bytes].view(torch.int32).tensor_split([(ranks + 1) * MOST_BLOCKS])
        assert set(of_blocks.tolist()) == {0, REPETITIONS} and not of_tiles.any()
