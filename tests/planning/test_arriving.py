"""Products whose rows of A arrive while their kernel runs: which kernel is chosen, and that its plan is right."""

from __future__ import annotations

from typing import Any

import pytest
from planned import alignment_of, paper_dispatcher
from simulated import simulated_dispatcher

from tests.simulator.test_ranks import GATHERED, gather_of
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F32
from tilewright.errors import LaunchError
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request
from tilewright.planning.estimates import is_shared
from tilewright.planning.packing import Shards
from tilewright.planning.plan import Place, Plan
from tilewright.problem import Gemm, Order, check
from tilewright.problem.reference import view
from tilewright.simulator import Rank, simulate_ranks
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")


def asked(gemm: Gemm, rows: tuple[int, ...], rank: int) -> Request:
    return Request(gemm, alignment_of(gemm), shards=Shards(rows, rank), without_workspace=True)


def launch_of(plan: Plan) -> Any:
    (step,) = plan.steps
    return step.launch


@pytest.mark.parametrize("size", [(4096, 7168, 4096), (2048, 1792, 8192), (512, 7168, 4096)], ids=str)
@pytest.mark.parametrize("b", [Order.ROW, Order.COL])
def test_persistent_wgmma_kernels_wait(size: tuple[int, int, int], b: Order) -> None:
    """One launch, without a workspace, which is told the tables of shards behind the matrices."""
    gemm = Gemm(*size, BF16, out=BF16, b=b)
    plan = paper_dispatcher(H200).plan(asked(gemm, (size[0] // 2,) * 2, 1))
    (step,) = plan.steps
    assert step.multiplied is not None and isinstance(step.multiplied.config.kernel, WgmmaConfig)
    assert step.multiplied.config.kernel.persistent and not plan.scratch_bytes
    assert step.pointers[3:] == ((Place.SHARD_STARTS, 0), (Place.SHARD_FLAGS, 0))
    assert launch_of(plan).args[-2:] == (2, size[0] // 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_persistent_wgmma_kernels_add_up_over_ranks(rank: int) -> None:
    """What each launch is told: other ranks' tiles come first, of which rows no tile has those of two ranks."""
    gemm, rows = Gemm(2048, 3584, 4096, BF16, out=BF16), (1024, 1024)
    shards = Shards(rows, rank, summed=True)
    plan = paper_dispatcher(H200).plan(Request(gemm, alignment_of(gemm), shards=shards, without_workspace=True))
    (step,) = plan.steps
    assert step.multiplied is not None and isinstance(step.multiplied.config.kernel, WgmmaConfig)
    assert 1024 % step.multiplied.config.kernel.m == 0 and not plan.scratch_bytes
    told = Place.SHARD_STARTS, Place.SENT_PARTS, Place.SENT_FLAGS, Place.RANK_SUMS, Place.RANK_FLAGS
    assert step.pointers[3:] == tuple((place, 0) for place in told)
    assert launch_of(plan).args[-3:] == (2, rank, 1024)


def test_the_plan_of_each_rank_gathers() -> None:
    """The kernel that is chosen, on two ranks, with shards that end inside tiles."""
    rows = (100, 68)
    gemm = Gemm(sum(rows), 136, 72, BF16, out=BF16)
    complete, ranks = gather_of(gemm, rows)
    launches = [launch_of(simulated_dispatcher().plan(asked(gemm, rows, rank))) for rank in range(2)]
    told = [
        Rank(one.operands, launch.options["batching"], one.tables, one.events)
        for one, launch in zip(ranks, launches, strict=True)
    ]
    run = simulate_ranks(launches[0].kernel, told, GATHERED, schedule="moments", resident_blocks=2)
    for operands, memory in zip(complete, run.memory, strict=True):
        verdict = check(operands, gemm.out.decode(view(gemm, "C", memory["C"])))
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("gemm", [Gemm(64, 96, 63, BF16, out=BF16), Gemm(64, 96, 64, F32, out=F32)], ids=str)
def test_rows_that_tma_cannot_read_are_refused(gemm: Gemm) -> None:
    with pytest.raises(LaunchError, match="waits for rows of A that arrive"):
        paper_dispatcher(H200).plan(asked(gemm, (32, 32), 0))


def test_gpus_without_wgmma_are_refused() -> None:
    with pytest.raises(LaunchError, match="waits for rows of A that arrive"):
        paper_dispatcher(device("A100")).plan(asked(Gemm(512, 512, 512, BF16, out=BF16), (256, 256), 0))


def test_ranks_keep_whole_tiles_of_a_cluster() -> None:
    alone = PlanConfig(WgmmaConfig((64, 128, 64), consumers=1))
    shared = PlanConfig(WgmmaConfig((64, 128, 64), consumers=1, cluster=(2, 1)))
    for rows, with_alone, with_shared in (((64, 64), True, False), ((128, 100), True, True), ((100, 64), False, False)):
        shards = Shards(rows, 0, summed=True)
        assert (is_shared(shards, alone), is_shared(shards, shared)) == (with_alone, with_shared), rows


def test_consumers_that_leave_no_registers_for_a_courier_are_not_shared() -> None:
    """With 192 accumulators in ping-pong the kernel spills 304 bytes; with 184 it has 232 registers, which it may."""
    shards = Shards((1024, 1024), 0, summed=True)
    for n, found in ((192, False), (184, True)):
        plan = PlanConfig(WgmmaConfig((128, n, 64), ping_pong=True, subtile=64))
        assert is_shared(shards, plan) is found
        assert is_shared(Shards((1024, 1024), 0), plan)  # rows that arrive take none
