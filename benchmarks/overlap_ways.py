"""Products over the GPUs of a host, timed in every way: beside the product alone, and NCCL and cuBLAS in turn.

`benchmarks/overlap.py --measure` runs it. Times are microseconds of the slowest rank, calls one after the other: issued
call by call ("eager"), and as replays of a CUDA graph of one call ("graph", NCCL captured likewise). "host" is what the
host takes to issue a call.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.records import this_run
from tilewright.distributed.plans import ARRIVING, GATHERS, SCATTERS, SHARED

ROUNDS, REPETITIONS = 5, 10
"""Each way in turn in each round, so many calls of it one after the other; the median of the rounds."""

Way = Callable[[], Any]
Shape = tuple[int, int, int]


def gathering(shape: Shape, rank: int, ranks: int, every: bool) -> tuple[dict[str, Way], Any, Any, str]:
    """The ways to gather rows and multiply them in bf16, the result in f32, the bound of its error, and which plan is
    chosen. every: way; else the one that is chosen, and NCCL and cuBLAS in turn."""
    import torch
    import torch.distributed as dist

    import tilewright
    from tilewright.distributed import all_gather_matmul
    from tilewright.distributed.pytorch import products
    from tilewright.distributed.pytorch.agreement import GATHER, RankCall
    from tilewright.frontend.options import PLAIN

    m, n, k = shape
    whole, b = drawn(m, k, seed=1), drawn(k, n // ranks, seed=2 + rank)
    shard, room = whole[rank * m // ranks : (rank + 1) * m // ranks].contiguous(), torch.empty_like(whole)

    def in_turn() -> Any:
        dist.all_gather_into_tensor(room, shard)
        return torch.mm(room, b)

    ways: dict[str, Way] = {"in turn": in_turn, "chosen": lambda: all_gather_matmul(shard, b)}
    if every:
        ways |= {"torch.mm alone": lambda: torch.mm(whole, b), "alone": lambda: tilewright.matmul(whole, b)}
        for plan in (*GATHERS, ARRIVING):
            asked = RankCall(GATHER, shard, (b,), PLAIN, plan=plan)
            ways[str(plan)] = lambda asked=asked: products.computed(asked, dist.group.WORLD)[0]
    plan = products.known_of(RankCall(GATHER, shard, (b,), PLAIN), dist.group.WORLD).plan
    return ways, whole.float() @ b.float(), 2.0**-7 * (whole.float().abs() @ b.float().abs()), str(plan)


def scattering(shape: Shape, rank: int, ranks: int, every: bool) -> tuple[dict[str, Way], Any, Any, str]:
    """The same for products whose sums are scattered; the result of the product alone is not compared."""
    import torch
    import torch.distributed as dist

    import tilewright
    from tilewright.distributed import matmul_reduce_scatter
    from tilewright.distributed.pytorch import products
    from tilewright.distributed.pytorch.agreement import SCATTER, RankCall
    from tilewright.frontend.options import PLAIN

    m, n, k = shape
    a, b = drawn(m, k // ranks, seed=1 + rank), drawn(k // ranks, n, seed=40 + rank)
    total = a.float() @ b.float()
    bound = a.float().abs() @ b.float().abs()
    own, limit = total.new_empty(m // ranks, n), total.new_empty(m // ranks, n)
    dist.reduce_scatter_tensor(own, total)
    dist.reduce_scatter_tensor(limit, bound)
    room = a.new_empty(m // ranks, n)

    def in_turn() -> Any:
        dist.reduce_scatter_tensor(room, torch.mm(a, b))
        return room

    ways: dict[str, Way] = {"in turn": in_turn, "chosen": lambda: matmul_reduce_scatter(a, b)}
    if every:
        ways |= {"torch.mm alone": lambda: torch.mm(a, b), "alone": lambda: tilewright.matmul(a, b)}
        for plan in (*SCATTERS, *((SHARED,) if m // ranks % 256 == 0 else ())):  # own rows are whole tiles
            asked = RankCall(SCATTER, a, (b,), PLAIN, plan=plan)
            ways[str(plan)] = lambda asked=asked: products.computed(asked, dist.group.WORLD)[0]
    plan = products.known_of(RankCall(SCATTER, a, (b,), PLAIN), dist.group.WORLD).plan
    return ways, own, 2.0**-6 * limit, str(plan)


def drawn(*shape: int, seed: int) -> Any:
    """The same on all ranks."""
    import torch

    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda", dtype=torch.bfloat16)


def drawn_problems(count: int, seed: int, ranks: int) -> list[tuple[str, Shape]]:
    """Problems of layers: m of 16 to 16384, n and k of 512 to 16384, at most 2 TFLOP over the group."""
    draw = random.Random(seed)
    found = list[tuple[str, Shape]]()
    while len(found) < count:
        m, n, k = (2 ** draw.uniform(math.log2(low), 14) for low in (16, 512, 512))
        shape = (
            round(m / (8 * ranks)) * 8 * ranks,
            round(n / (64 * ranks)) * 64 * ranks,
            round(k / 64 / ranks) * 64 * ranks,
        )
        if min(shape) and 2 * math.prod(shape) <= 2e12:
            found.append((("gather", "scatter")[len(found) % 2], shape))
    return found


def _multiple(size: float, of: int) -> int:
    return round(size / of) * of


def recorded(way: Way) -> Way:
    """The same as the replay of a CUDA graph, which returns the result."""
    import torch
    import torch.distributed as dist

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = way()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def timed_us(way: Way, repetitions: int) -> tuple[float, float]:
    """The mean time of calls one after the other, of the slowest rank, and of the host to issue one."""
    import torch
    import torch.distributed as dist

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    way()
    dist.barrier()
    torch.cuda.synchronize()
    begin.record()
    began = time.perf_counter()
    for _ in range(repetitions):
        way()
    host_us = (time.perf_counter() - began) * 1e6 / repetitions
    end.record()
    torch.cuda.synchronize()
    took = torch.tensor([begin.elapsed_time(end) * 1e3 / repetitions, host_us], device="cuda")
    dist.all_reduce(took, dist.ReduceOp.MAX)
    time_us, host_us = took.tolist()
    return time_us, host_us


def measured(ways: dict[str, Way], expected: Any, bound: Any, plan: str, graphs: bool) -> dict[str, Any]:
    """Times of all ways in turn, and which results were wrong."""
    wrong = [name for name, way in ways.items() if is_wrong(way(), expected, bound)]
    all_ways = {"eager": ways}
    if graphs:
        all_ways["graph"] = {name: recorded(way) for name, way in ways.items()}
        wrong += [f"{name} (graph)" for name, way in all_ways["graph"].items() if is_wrong(way(), expected, bound)]
    rounds = [
        {kind: {name: timed_us(way, REPETITIONS) for name, way in some.items()} for kind, some in all_ways.items()}
        for _ in range(ROUNDS)
    ]
    found: dict[str, Any] = {
        kind: {name: round(statistics.median(one[kind][name][0] for one in rounds), 1) for name in some}
        for kind, some in all_ways.items()
    }
    found["host"] = {name: round(min(one["eager"][name][1] for one in rounds)) for name in ("in turn", "chosen")}
    return {"plan": plan, **found} | ({"wrong": wrong} if wrong else {})


def is_wrong(result: Any, expected: Any, bound: Any) -> bool:
    return result.shape == expected.shape and not ((result.float() - expected).abs() <= bound + 1e-6).all()


MAKERS = {"gather": gathering, "scatter": scattering}


def measure(problems: Sequence[tuple[str, Shape]], out: str, *, every: bool, graphs: bool) -> int:
    """Check every way, then time all in turn. Prints a line a problem on rank 0, which writes a record after each.
    Returns 1 where a result is wrong."""
    import torch
    import torch.distributed as dist

    from tilewright.runtime.driver import open_gpu

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    origin = {
        "gpu": torch.cuda.get_device_name(), "driver": open_gpu(rank).driver_version, "ranks": ranks,
        "torch": torch.__version__, **this_run(),
    }  # fmt: skip
    times, failed = list[dict[str, Any]](), torch.zeros(1, device="cuda")
    for kind, shape in problems:
        found = measured(*MAKERS[kind](shape, rank, ranks, every), graphs=graphs)
        for name in found.get("wrong", ()):
            print(f"rank {rank}: {kind} {shape}, {name}: wrong", flush=True)
            failed += 1
        times.append({"kind": kind, "shape": shape, **found})
        if rank == 0:
            print("x".join(map(str, shape)), kind, json.dumps(found), flush=True)
            if out:
                lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in times)
                Path(out).write_text(f'{{"origin":{json.dumps(origin)},\n"times":[\n{lines}\n]}}\n')
    dist.all_reduce(failed)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return int(failed.item() > 0)


def arriving_kernels(shape: Shape) -> tuple[dict[str, Way], Any, Any]:
    """A rank's product of two, plain and by the kernel that waits for rows, all of whose flags are set beforehand."""
    import torch

    import tilewright
    from tilewright.distributed.pytorch.shared import ArrivingProducts
    from tilewright.frontend.options import PLAIN

    m, n, k = shape
    a, b = drawn(m, k, seed=1), drawn(k, n // 2, seed=2)
    raised = torch.ones(2, dtype=torch.int32, device="cuda")
    arriving = ArrivingProducts((m // 2, m // 2), 0, raised.data_ptr(), PLAIN, "cuda")
    stream = torch.cuda.current_stream().cuda_stream

    def gathered() -> Any:
        out = a.new_empty(m, n // 2)
        arriving.start(0, a, b, out, stream)
        return out

    ways: dict[str, Way] = {"torch.mm": lambda: torch.mm(a, b), "matmul": lambda: tilewright.matmul(a, b)}
    ways["waiting"] = gathered
    return ways, a.float() @ b.float(), 2.0**-7 * (a.float().abs() @ b.float().abs())


def measure_kernels(shapes: Sequence[Shape], out: str) -> int:
    """On one GPU: check every way, then time all in turn. Returns 1 where a result is wrong."""
    import torch

    found: list[dict[str, Any]] = []
    wrong = 0
    for shape in shapes:
        ways, expected, bound = arriving_kernels(shape)
        for name, way in ways.items():
            if is_wrong(way(), expected, bound):
                print(f"{shape}, {name}: wrong", flush=True)
                wrong = 1
        rounds = [{name: alone_timed_us(way) for name, way in ways.items()} for _ in range(ROUNDS)]
        times = {name: round(statistics.median(one[name] for one in rounds), 2) for name in ways}
        found.append({"shape": shape, "us": times})
        print("x".join(map(str, shape)), json.dumps(times), flush=True)
    if out:
        gpu, version = torch.cuda.get_device_name(), torch.__version__
        Path(out).write_text(json.dumps({"gpu": gpu, "torch": version, "times": found}, indent=1))
    return wrong


def alone_timed_us(way: Way) -> float:
    """The mean time of calls one after the other."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    way()
    begin.record()
    for _ in range(REPETITIONS):
        way()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end) * 1e3 / REPETITIONS)
