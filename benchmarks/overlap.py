"""What the model of overlap predicts: the tables of docs/distributed.md, printed, written or checked; and what the
plans take on the GPUs of a host, beside the product alone, and NCCL and cuBLAS in turn.

python benchmarks/overlap.py [--write | --check]
torchrun --nproc-per-node=2 benchmarks/overlap.py --measure [--shapes 2048x3584x8192,...] [--out FILE]
python benchmarks/overlap.py --kernels [--shapes 2048x3584x8192,...] [--out FILE]

--kernels takes one GPU: what the kernels that ranks share cost where nothing is waited for, beside plain ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.device.catalog import H200
from tilewright.device.links import NETWORK_400, NVLINK_4, Link
from tilewright.distributed.overlap import Costs, Work, alone_us, in_turn_us
from tilewright.distributed.plans import ARRIVING, GATHERS, SCATTERS, SHARED, chosen, plan_us

PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"
BEGIN, END = "<!-- overlap: begin -->\n", "<!-- overlap: end -->\n"

MEASURED = {
    (64, 14336, 4096): ((29, 76), (26, 58)),
    (512, 14336, 4096): ((50, 87), (55, 106)),
    (2048, 3584, 8192): ((77, 181), (93, 150)),
    (4096, 14336, 4096): ((315, 409), (324, 593)),
    (8192, 14336, 4096): ((618, 781), (633, 1151)),
    (8192, 28672, 8192): ((2314, 2823), (2545, 3469)),
}
"""Two H200s, driver 580.159, torch 2.11, 2026-11-22, us: `torch.mm` alone, and NCCL and `torch.mm` in turn; with an
all-gather, and with a reduce-scatter."""


def work_of(shape: tuple[int, int, int], gathers: bool, ranks: int) -> Work:
    """M x N x K over a group: an all-gather splits N, a reduce-scatter K."""
    m, n, k = shape
    rows = (m // ranks,) * ranks
    return Work(rows, k, n // ranks) if gathers else Work(rows, k // ranks, n)


def against_measurements() -> list[str]:
    costs = Costs.of(H200)
    lines = [
        "| M x N x K | | alone: measured | predicted | in turn: measured | predicted | overlapped: predicted | plan |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shape, pair in MEASURED.items():
        for gathers, (alone, turn) in zip((True, False), pair, strict=True):
            work = work_of(shape, gathers, 2)
            plan = chosen(gathers, work, costs)
            told = (
                "{} x {} x {}".format(*shape), "gather" if gathers else "scatter",
                str(alone), f"{alone_us(work, costs):.0f}", str(turn), f"{in_turn_us(gathers, work, costs):.0f}",
                f"{plan_us(plan, work, costs):.0f}", str(plan),
            )  # fmt: skip
            lines.append(f"| {' | '.join(told)} |")
    return lines


def by_ranks(link: Link) -> list[str]:
    costs = Costs.of(H200, link)
    counts = (2, 4, 8)
    head = [f"{count} GPUs" for count in counts]
    lines = [f"| M x N x K, {link.name} | | {' | '.join(head)} |", "|---|---" + "|---" * len(counts) + "|"]
    for shape in MEASURED:
        for gathers in (True, False):
            cells = []
            for count in counts:
                work = work_of(shape, gathers, count)
                plan, alone = chosen(gathers, work, costs), alone_us(work, costs)
                overlapped, turn = plan_us(plan, work, costs) / alone, in_turn_us(gathers, work, costs) / alone
                cells.append(f"{turn:.2f} → {overlapped:.2f} ({plan})")
            kind = "gather" if gathers else "scatter"
            lines.append(f"| {' x '.join(map(str, shape))} | {kind} | {' | '.join(cells)} |")
    return lines


def tables() -> str:
    parts = (against_measurements(), by_ranks(NVLINK_4), by_ranks(NETWORK_400))
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def written(page: str) -> str:
    """A page with the tables between its markers."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{tables()}{END}{tail}"


ROUNDS, REPETITIONS = 7, 10
"""Each way in turn in each round, so many calls of it one after the other; the median of the rounds."""

Way = Callable[[], Any]


def gathering(shape: tuple[int, int, int], rank: int, ranks: int) -> tuple[dict[str, Way], Any, Any]:
    """The ways to gather rows and multiply them in bf16, the result in f32, and the bound of its error."""
    import torch
    import torch.distributed as dist

    import tilewright
    from tilewright.distributed.pytorch import products
    from tilewright.distributed.pytorch.agreement import GATHER
    from tilewright.frontend.options import PLAIN

    m, n, k = shape
    whole, b = drawn(m, k, seed=1), drawn(k, n // ranks, seed=2 + rank)
    shard, room = whole[rank * m // ranks : (rank + 1) * m // ranks].contiguous(), torch.empty_like(whole)

    def in_turn() -> Any:
        dist.all_gather_into_tensor(room, shard)
        return torch.mm(room, b)

    ways: dict[str, Way] = {"torch.mm alone": lambda: torch.mm(whole, b), "alone": lambda: tilewright.matmul(whole, b)}
    ways["in turn"] = in_turn
    for plan in (*GATHERS, ARRIVING):
        ways[str(plan)] = lambda plan=plan: products.computed(GATHER, shard, (b,), dist.group.WORLD, PLAIN, None, plan)[
            0
        ]
    return ways, whole.float() @ b.float(), 2.0**-7 * (whole.float().abs() @ b.float().abs())


def scattering(shape: tuple[int, int, int], rank: int, ranks: int) -> tuple[dict[str, Way], Any, Any]:
    """The same for products whose sums are scattered; of the product alone, its first rows are compared."""
    import torch
    import torch.distributed as dist

    import tilewright
    from tilewright.distributed.pytorch import products
    from tilewright.distributed.pytorch.agreement import SCATTER
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

    ways: dict[str, Way] = {"torch.mm alone": lambda: torch.mm(a, b), "alone": lambda: tilewright.matmul(a, b)}
    ways["in turn"] = in_turn
    for plan in (*SCATTERS, *((SHARED,) if m // ranks % 256 == 0 else ())):  # own rows are whole tiles
        ways[str(plan)] = lambda plan=plan: products.computed(SCATTER, a, (b,), dist.group.WORLD, PLAIN, None, plan)[0]
    return ways, own, 2.0**-6 * limit


def drawn(*shape: int, seed: int) -> Any:
    """The same on all ranks."""
    import torch

    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda", dtype=torch.bfloat16)


def timed_us(way: Way) -> float:
    """The mean time of calls one after the other, of the slowest rank."""
    import torch
    import torch.distributed as dist

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    way()
    dist.barrier()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(REPETITIONS):
        way()
    end.record()
    torch.cuda.synchronize()
    took = torch.tensor([begin.elapsed_time(end) * 1e3 / REPETITIONS], device="cuda")
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def measure(shapes: list[tuple[int, int, int]], out: str) -> int:
    """Check every way, then time all in turn. Prints a line a shape on rank 0. Returns 1 where a result is wrong."""
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    found: list[dict[str, Any]] = []
    wrong = torch.zeros(1, device="cuda")
    for shape in shapes:
        for kind, make in (("gather", gathering), ("scatter", scattering)):
            ways, expected, bound = make(shape, rank, ranks)
            for name, way in ways.items():
                result = way()
                if result.shape == expected.shape and not ((result.float() - expected).abs() <= bound + 1e-6).all():
                    print(f"rank {rank}: {kind} {shape}, {name}: wrong", flush=True)
                    wrong += 1
            rounds = [{name: timed_us(way) for name, way in ways.items()} for _ in range(ROUNDS)]
            times = {name: round(statistics.median(one[name] for one in rounds), 2) for name in ways}
            found.append({"shape": shape, "kind": kind, "us": times})
            if rank == 0:
                print("x".join(map(str, shape)), kind, json.dumps(times), flush=True)
    dist.all_reduce(wrong)
    if rank == 0 and out:
        gpu, version = torch.cuda.get_device_name(), torch.__version__
        Path(out).write_text(json.dumps({"gpu": gpu, "ranks": ranks, "torch": version, "times": found}, indent=1))
    dist.destroy_process_group()
    return int(wrong.item() > 0)


def shared_kernels(shape: tuple[int, int, int]) -> tuple[dict[str, Way], Any, Any]:
    """A rank's product of two, plain and by the kernels that ranks share, all of whose flags are set beforehand: the
    sums that another rank would send are zero. The last way is what setting the flags of sums takes by itself."""
    import torch

    import tilewright
    from tilewright.distributed.pytorch.shared import ArrivingProducts, SummedProducts
    from tilewright.frontend.options import PLAIN

    m, n, k = shape
    rows, flag_bytes = (m // 2, m // 2), 8 << 20
    a, b = drawn(m, k, seed=1), drawn(k, n // 2, seed=2)
    raised = torch.ones(2, dtype=torch.int32, device="cuda")
    memory = torch.zeros(2, flag_bytes + m * n * 2 + (64 << 20), dtype=torch.uint8, device="cuda")
    addresses = [one.data_ptr() for one in memory]
    arriving = ArrivingProducts(rows, 0, raised.data_ptr(), PLAIN, "cuda")
    summed = SummedProducts(rows, 0, [one + flag_bytes for one in addresses], addresses, PLAIN, "cuda")
    flags = memory[0, :flag_bytes].view(torch.int32)[: 1 << 17]
    stream = torch.cuda.current_stream().cuda_stream

    def gathered() -> Any:
        out = a.new_empty(m, n // 2)
        arriving.start(0, a, b, out, stream)
        return out

    def scattered() -> Any:
        out = a.new_empty(m // 2, n // 2)
        flags.fill_(1)
        summed.start(0, a, b, out, stream)
        return out

    ways: dict[str, Way] = {"torch.mm": lambda: torch.mm(a, b), "matmul": lambda: tilewright.matmul(a, b)}
    ways |= {"waiting": gathered, "summing": scattered, "flags": lambda: flags.fill_(1)}
    return ways, a.float() @ b.float(), 2.0**-7 * (a.float().abs() @ b.float().abs())


def measure_kernels(shapes: list[tuple[int, int, int]], out: str) -> int:
    """On one GPU: check every way, then time all in turn. Returns 1 where a result is wrong."""
    import torch

    found: list[dict[str, Any]] = []
    wrong = 0
    for shape in shapes:
        ways, expected, bound = shared_kernels(shape)
        for name, way in ways.items():
            result = way()
            if result.dim() == 2:
                here = slice(0, result.shape[0])
                if not ((result.float() - expected[here]).abs() <= bound[here] + 1e-6).all():
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", action="store_true", help="under torchrun, one process a GPU")
    parser.add_argument("--kernels", action="store_true", help="on one GPU")
    parser.add_argument("--shapes", default=",".join("x".join(map(str, shape)) for shape in MEASURED))
    parser.add_argument("--out", default="", help="a JSON file of what was measured")
    asked = parser.parse_args()
    if asked.measure or asked.kernels:
        m_n_k = [tuple(map(int, shape.split("x"))) for shape in asked.shapes.split(",")]
        shapes = [(m, n, k) for m, n, k in m_n_k]
        return measure(shapes, asked.out) if asked.measure else measure_kernels(shapes, asked.out)
    page = PAGE.read_text(encoding="utf-8")
    if asked.write:
        PAGE.write_text(written(page), encoding="utf-8")
    elif asked.check:
        if page != written(page):
            print(f"{PAGE.name} is not what the model says: python benchmarks/overlap.py --write", file=sys.stderr)
            return 1
    else:
        print(tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())
