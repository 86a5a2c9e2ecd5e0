"""Products over the GPUs of a host: results, graphs, streams, groups, and ranks that come late."""

from __future__ import annotations

import itertools
import random
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilewright
from tilewright.distributed import all_gather_matmul, matmul_reduce_scatter
from tilewright.distributed.plans import ARRIVING, GATHERS, SCALED_AS_WHOLE, SCATTERS, SHARED, Plan
from tilewright.distributed.pytorch import products
from tilewright.distributed.pytorch.agreement import GATHER, SCATTER, RankCall
from tilewright.distributed.pytorch.scales import Scales
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.options import PLAIN
from tilewright.frontend.scaled import scaled_options

warnings.simplefilter("ignore")

EVERY_GATHER = (*GATHERS, ARRIVING)
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def normal(*shape: int, seed: int, dtype: Any = torch.bfloat16) -> Any:
    """The same on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def gather(a: Any, b: Any, plan: Any = None, group: Any = None) -> Any:
    return products.computed(RankCall(GATHER, a, (b,), PLAIN, plan=plan), group or dist.group.WORLD)[0]


def scatter(a: Any, b: Any, plan: Any = None, group: Any = None) -> Any:
    return products.computed(RankCall(SCATTER, a, (b,), PLAIN, plan=plan), group or dist.group.WORLD)[0]


def shards_of(rows: list[int], k: int, dtype: Any = torch.bfloat16) -> list[Any]:
    return [normal(count, k, seed=i, dtype=dtype) for i, count in enumerate(rows)]


def case_gathers(rank: int, ranks: int) -> None:
    for dtype, (n, k) in itertools.product(UNIT, ((256, 128), (520, 264), (97, 63))):
        for rows in ([128] * ranks, [300, *[7] * (ranks - 1)], [0, *[257] * (ranks - 1)]):
            shards, b = shards_of(rows, k, dtype), normal(k, n, seed=50 + rank, dtype=dtype)
            alone = torch.cat([tilewright.matmul(shard, b) for shard in shards])
            exact = torch.cat(shards).double() @ b.double()
            bound = (4 * UNIT[dtype] + 2 * k * 2.0**-24) * (torch.cat(shards).double().abs() @ b.double().abs())
            assert torch.equal(gather(shards[rank], b, GATHERS[0]), alone), (dtype, n, k, rows)
            waits = dtype is not torch.float32 and k % 8 == 0 and n % 8 == 0  # TMA reads rows of bf16 and f16
            for plan in EVERY_GATHER if waits else GATHERS:
                assert ((gather(shards[rank], b, plan).double() - exact).abs() <= bound).all(), (
                    plan,
                    dtype,
                    n,
                    k,
                    rows,
                )


def case_scatters(rank: int, ranks: int) -> None:
    for dtype, m, (n, k) in itertools.product(UNIT, (512, 301, 1), ((256, 128), (520, 264), (97, 63))):
        parts = [(normal(m, k, seed=i, dtype=dtype), normal(k, n, seed=50 + i, dtype=dtype)) for i in range(ranks)]
        own = slice(rank * -(-m // ranks), (rank + 1) * -(-m // ranks))
        exact = sum(a.double() @ b.double() for a, b in parts)[own]
        bound = (2 + ranks) * UNIT[dtype] + 2 * k * 2.0**-24
        bound = bound * sum(a.double().abs() @ b.double().abs() for a, b in parts)[own]
        waits = dtype is not torch.float32 and k % 8 == 0 and n % 8 == 0 and m in (512, 1)  # own rows are whole tiles
        for plan in (*SCATTERS, SHARED) if waits else SCATTERS:
            first, again = scatter(*parts[rank], plan), scatter(*parts[rank], plan)
            assert torch.equal(first, again), (plan, dtype, m, n, k)
            assert ((first.double() - exact).abs() <= bound).all(), (plan, dtype, m, n, k)


def case_fp8(rank: int, ranks: int) -> None:
    """A gather has the bits of each rank's rows multiplied alone; a scatter is within the bound of what each rank
    rounds."""
    fp8 = torch.float8_e4m3fn
    for by_rows, m, n, k in ((True, 256, 256, 512), (False, 72, 264, 128)):
        shards = [normal(m, k, seed=i).to(fp8) for i in range(ranks)]
        scales = [normal(m if by_rows else 1, 1, seed=20 + i, dtype=torch.float32).abs() + 0.5 for i in range(ranks)]
        b = normal(n, k, seed=50 + rank).to(fp8).T
        all_of_b = [normal(1, n if by_rows else 1, seed=60 + i, dtype=torch.float32).abs() + 0.5 for i in range(ranks)]
        of_b = all_of_b[rank]
        whole = torch.cat([x.double() * scale.double() for x, scale in zip(shards, scales, strict=True)])
        exact, sizes = (whole @ b.double()) * of_b, (whole.abs() @ b.double().abs()) * of_b
        bound = 2.0**-8 * exact.abs() + 2.0**-10 * sizes
        for fast in (False, True)[: 1 + by_rows]:  # few kernels: each takes seconds to compile
            options = {"scale_a": scales[rank], "scale_b": of_b, "fast_accumulation": fast}
            alone = [
                tilewright.scaled_matmul(shard, b, scale, of_b, fast_accumulation=fast)
                for shard, scale in zip(shards, scales, strict=True)
            ]
            given = shards[rank], (b,), scaled_options(None, fast), None, Plan("gather"), Scales(scales[rank], (of_b,))
            for _ in range(3):  # the second call is recorded, the third replayed
                (found,) = products.computed(RankCall(GATHER, *given), dist.group.WORLD)
                assert torch.equal(found, torch.cat(alone)), (by_rows, m, n, k)
                found = all_gather_matmul(shards[rank], b, **options)
                assert ((found.double() - exact).abs() <= bound).all(), (by_rows, m, n, k, fast)
        parts = [(normal(m, k, seed=i).to(fp8), normal(n, k, seed=50 + i).to(fp8).T) for i in range(ranks)]
        whole = [
            tilewright.scaled_matmul(x, y, *both, out_dtype="f32").double()
            for (x, y), *both in zip(parts, scales, all_of_b, strict=True)
        ]
        own = slice(rank * -(-m // ranks), (rank + 1) * -(-m // ranks))
        bound = 2.0**-7 * sum(one.abs() for one in whole)[own] + 1e-6
        for plan in SCALED_AS_WHOLE[1:]:
            given = parts[rank][0], (parts[rank][1],), scaled_options(None, False), None, plan
            for _ in range(3):
                asked = RankCall(SCATTER, *given, Scales(scales[rank], (of_b,)))
                (found,) = products.computed(asked, dist.group.WORLD)
                assert ((found.double() - sum(whole)[own]).abs() <= bound).all(), (plan, by_rows, m, n, k)


def case_options(rank: int, ranks: int) -> None:
    shards, b = shards_of([256] * ranks, 128), [normal(128, n, seed=n + rank) for n in (256, 64)]
    wide = all_gather_matmul(shards[rank], b, out_dtype="f32")
    for found, x in zip(wide, b, strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, torch.cat([tilewright.matmul(shard, x, out_dtype="f32") for shard in shards]))
    assert products.state_of(dist.group.WORLD).peers and GATHER in products.state_of(dist.group.WORLD).workspaces


def case_gradients(rank: int, ranks: int) -> None:
    m, k, n = 256, 128, 192
    whole = [normal(m * ranks, k, seed=1), normal(k, n * ranks, seed=2), normal(n * ranks, k, seed=3)]
    x, up, down = (t.double().requires_grad_() for t in whole)
    (x @ up @ down).square().mean().backward()
    tokens, columns = slice(rank * m, (rank + 1) * m), slice(rank * n, (rank + 1) * n)
    own = [whole[0][tokens], whole[1][:, columns], whole[2][columns]]
    a, u, d = (t.contiguous().requires_grad_() for t in own)
    result = matmul_reduce_scatter(all_gather_matmul(a, u), d)
    (result.float().square().sum() / (m * ranks * k)).backward()
    for mine, theirs in ((a.grad, x.grad[tokens]), (u.grad, up.grad[:, columns]), (d.grad, down.grad[columns])):
        assert (mine.double() - theirs).norm() <= 0.02 * theirs.norm()


def case_late_ranks(rank: int, ranks: int) -> None:
    shards, b = shards_of([256] * ranks, 512), normal(512, 384, seed=50 + rank)
    expected = torch.cat([tilewright.matmul(shard, b) for shard in shards])
    x, y = normal(300, 256, seed=60 + rank), normal(256, 384, seed=70 + rank)
    tall = normal(512, 256, seed=80 + rank)
    rows_of = {plan: tall if plan == SHARED else x for plan in (*SCATTERS, SHARED)}
    scattered = {plan: scatter(rows, y, plan) for plan, rows in rows_of.items()}
    gathered = {plan: gather(shards[rank], b, plan) for plan in EVERY_GATHER}
    assert torch.equal(gathered[GATHERS[0]], expected)
    draw, wrong = random.Random(rank), torch.zeros((), device="cuda", dtype=torch.int64)
    for repetition in range(1000):
        if draw.random() < 0.5:
            torch.cuda._sleep(draw.randrange(1000, 300_000))
        if draw.random() < 0.05:
            time.sleep(0.003 * draw.random())
        plan = EVERY_GATHER[repetition % len(EVERY_GATHER)]
        wrong += (gather(shards[rank], b, plan) != gathered[plan]).any()
        plan = list(rows_of)[repetition % len(rows_of)]
        wrong += (scatter(rows_of[plan], y, plan) != scattered[plan]).any()
    assert not int(wrong)


def case_graphs(rank: int, ranks: int) -> None:
    static = normal(256, 512, seed=rank)
    b, x, y = normal(512, 384, seed=50 + rank), normal(300, 256, seed=60 + rank), normal(256, 384, seed=70 + rank)
    tall = normal(512, 256, seed=80 + rank)
    for first, second in zip(itertools.cycle(EVERY_GATHER), (*SCATTERS, SHARED), strict=False):

        def both(first: Plan = first, second: Plan = second) -> tuple[Any, Any]:
            return gather(static, b, first), scatter(tall if second == SHARED else x, y, second)

        both()
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            both()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            captured = both()
        for repetition in range(5):
            static.copy_(normal(256, 512, seed=100 * repetition + rank))
            for _ in range(3):
                graph.replay()
            shards = [normal(256, 512, seed=100 * repetition + i) for i in range(ranks)]
            eager = both()
            assert torch.equal(captured[0], eager[0]) and torch.equal(captured[1], eager[1])
            assert first is not GATHERS[0] or torch.equal(
                eager[0], torch.cat([tilewright.matmul(s, b) for s in shards])
            )
        torch.cuda.synchronize()


def case_a_new_call_in_a_capture_is_refused(rank: int, ranks: int) -> None:
    a, b = normal(64, 72, seed=rank), normal(72, 40, seed=9)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            all_gather_matmul(a, b)
    except LaunchError as error:
        assert "first time" in str(error)
    else:
        raise AssertionError("no error")
    torch.cuda.synchronize()


def case_streams_and_groups(rank: int, ranks: int) -> None:
    second = dist.new_group(list(range(ranks)))
    shards, b = shards_of([256] * ranks, 512), normal(512, 384, seed=50 + rank)
    expected = torch.cat([tilewright.matmul(shard, b) for shard in shards])
    assert torch.equal(gather(shards[rank], b, GATHERS[0]), expected)
    torch.cuda.synchronize()
    x, y = normal(512, 256, seed=80 + rank), normal(256, 384, seed=70 + rank)
    streams, found, scattered = [torch.cuda.Stream() for _ in range(3)], [], []
    for number in range(60):
        with torch.cuda.stream(streams[number % 3]):
            group = (dist.group.WORLD, second)[number // 2 % 2]
            found.append(gather(shards[rank], b, EVERY_GATHER[number % 3], group))
            scattered.append(scatter(x, y, SHARED, group))
    torch.cuda.synchronize()
    assert all(torch.equal(one, found[number % 3]) for number, one in enumerate(found))
    assert torch.equal(found[0], expected) and all(torch.equal(one, scattered[0]) for one in scattered)


def case_every_queue_of_the_gpu(rank: int, ranks: int) -> None:
    """Streams share a few queues: calls on more streams than there are, whose results lie elsewhere each time, so that
    none is a replay."""
    x, y = normal(512, 256, seed=80 + rank), normal(256, 384, seed=70 + rank)
    shards, b = shards_of([256] * ranks, 512), normal(512, 384, seed=50 + rank)
    expected = [scatter(x, y, SHARED), *(gather(shards[rank], b, plan) for plan in EVERY_GATHER)]
    found = []
    for _ in range(40):
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append([scatter(x, y, SHARED), *(gather(shards[rank], b, plan) for plan in EVERY_GATHER)])
    torch.cuda.synchronize()
    assert all(torch.equal(mine, one) for some in found for mine, one in zip(some, expected, strict=True))


def case_errors(rank: int, ranks: int) -> None:
    try:
        all_gather_matmul(normal(64, 64 + 8 * rank, seed=0), normal(64 + 8 * rank, 32, seed=1))
    except ProblemError as error:
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, str(error))
        assert len(set(told)) == 1 and "agree about k" in told[0]
    else:
        raise AssertionError("no error")


class Linear(torch.nn.Linear):
    """A layer of ours."""

    def forward(self, x: Any) -> Any:
        return tilewright.linear(x, self.weight, self.bias)


def case_parallelized_layers(rank: int, ranks: int) -> None:
    torch.manual_seed(3)
    plain = torch.nn.Sequential(Linear(256, 1024), Linear(1024, 256)).to("cuda", torch.bfloat16)
    torch.manual_seed(3)
    split = torch.nn.Sequential(Linear(256, 1024), Linear(1024, 256)).to("cuda", torch.bfloat16)
    x = normal(128, 256, seed=5)
    columns = tilewright.linear(x, plain[0].weight.chunk(ranks)[rank], plain[0].bias.chunk(ranks)[rank])
    mesh = init_device_mesh("cuda", (ranks,))
    parallelize_module(split, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    assert torch.equal(split[0](x), columns), "nothing is summed across ranks"
    for model in (plain, split):
        model(x).float().square().mean().backward()
    for own, one in zip(split.parameters(), plain.parameters(), strict=True):
        whole = own.grad.full_tensor()
        assert (whole - one.grad).float().norm() <= 0.02 * one.grad.float().norm()
