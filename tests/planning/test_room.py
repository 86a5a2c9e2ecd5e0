"""Plans whose compiled kernels have less room on an SM than their estimates count on are passed over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, TF32
from tilewright.kernels.mma_presets import BEST as MMA_BEST
from tilewright.kernels.mma_presets import at_depth
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma_presets import persistent
from tilewright.planning.account import PaperGpu
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.estimates import estimated
from tilewright.planning.kernels import Built
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows
from tilewright.planning.plan import Plan
from tilewright.planning.room import MOST_PASSED_OVER, runs_as_counted
from tilewright.problem import Gemm, Order
from tilewright.toolchain import Build
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
ALONE = SimtConfig((128, 128, 16), (64, 64), unroll=8)
"""128 threads with about 220 registers: two blocks on an SM."""


@dataclass(frozen=True)
class Given:
    """Of a cubin, what is asked for."""

    registers: int
    spill_store_bytes: int = 0

    @property
    def resources(self) -> Given:
        return self


def made(config: PlanConfig, gemm: Gemm, kernels: PaperKernels) -> Plan:
    return plan_of(kernels, Request(gemm, alignment_of_rows(gemm)), config)


def is_full(config: SimtConfig, gemm: Gemm, given: Given) -> bool:
    plan = made(PlanConfig(config), gemm, PaperKernels(H200))
    cubins: Any = {step.launch.source: given for step in plan.steps}
    return runs_as_counted(plan, cubins, H200)


@pytest.mark.parametrize("config", [ALONE, replace(ALONE, split_k=3)], ids=["", "split-K"])
def test_as_many_blocks_as_are_counted_on(config: SimtConfig) -> None:
    gemm = Gemm(4096, 4096, 4096, b=Order.COL)
    assert is_full(config, gemm, Given(255)) and is_full(config, gemm, Given(255, 64))
    assert not is_full(config, gemm, Given(255, 72))
    small = replace(config, tile=(64, 64, 16), warp_tile=(32, 32))  # four blocks with 96 registers, three with 160
    assert is_full(small, gemm, Given(96)) and not is_full(small, gemm, Given(160))


def test_fragments_ahead_are_no_excuse_for_a_block_less() -> None:
    """As 32 x 128 x 16 of 197 x 2880 x 4096: 644 blocks, five for the busiest SM, of which four had room."""
    by_async: Any = {"a_transport": "cp_async", "b_transport": "cp_async", "stages": 4, "split_k": 4}
    ahead = SimtConfig((32, 128, 16), (32, 64), **by_async, double_buffered_fragments=True, interleaved_copies=True)
    gemm = Gemm(197, 2880, 4096)
    assert is_full(ahead, gemm, Given(168)) and not is_full(ahead, gemm, Given(172))
    stream = replace(ahead, split_k=1, stream_k=True, persistent=True, raster_rows=8)
    assert is_full(stream, gemm, Given(172))


def test_a_small_grid_needs_no_second_block() -> None:
    config = SimtConfig((64, 64, 16), (32, 32), unroll=8)
    one, two = (Gemm(64, 64 * tiles, 512, b=Order.COL) for tiles in (132, 133))
    assert is_full(config, one, Given(255)) and is_full(config, two, Given(255))
    assert is_full(config, one, Given(160)) and not is_full(config, Gemm(64, 64 * 528, 512, b=Order.COL), Given(255))


def test_kernels_of_mma_sync_that_spill_are_passed_over() -> None:
    """As 64 x 256 x 16 of 54 x 1454 x 7249 in tf32, whose guards of single elements leave 276 bytes without registers:
    79 us, the next one 24."""
    gemm = Gemm(54, 1454, 7249, product=TF32)
    plan = made(PlanConfig(at_depth(MMA_BEST, gemm)), gemm, PaperKernels(H200))
    cubins: list[Any] = [
        {step.launch.source: given for step in plan.steps} for given in (Given(255, 64), Given(255, 72))
    ]
    assert [runs_as_counted(plan, of, H200) for of in cubins] == [True, False]


def test_of_other_kernels_and_without_a_compiler_nothing_is_asked() -> None:
    gemm = Gemm(512, 512, 512, BF16, out=BF16, b=Order.COL)
    plan = made(PlanConfig(persistent(128, 128, 2, subtile=64)), gemm, PaperKernels(H200))
    cubins: Any = {step.launch.source: Given(255, 400) for step in plan.steps}
    assert runs_as_counted(plan, cubins, H200) and runs_as_counted(plan, {}, H200)


class Crowded(PaperKernels):
    """A compiler that gives the first kernels all registers of a thread, and spills."""

    def __init__(self, crowded: int) -> None:
        super().__init__(H200)
        self.left = crowded

    def _loaded(self, built: Build) -> Built:
        given: Any = Given(255, 400) if self.left > 0 else Given(64)
        self.cubins[built.source] = given
        self.left -= 1
        return super()._loaded(built)


@pytest.mark.parametrize(("crowded", "number"), [(0, 0), (1, 1), (99, MOST_PASSED_OVER)])
def test_dispatch_passes_over_a_few_of_them(crowded: int, number: int) -> None:
    gemm = Gemm(1000, 2000, 3000, b=Order.COL)
    request = Request(gemm, alignment_of_rows(gemm))
    gpu: Any = PaperGpu(H200.name, H200.arch)
    dispatcher = Dispatcher(gpu)
    dispatcher.kernels = Crowded(crowded)
    ways = [str(config) for config in islice(estimated(request, H200), MOST_PASSED_OVER + 1)]
    assert dispatcher.plan(request).words == ways[number]


def test_where_there_is_no_other_way_one_that_was_passed_over_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm(1000, 2000, 3000, b=Order.COL)
    request = Request(gemm, alignment_of_rows(gemm))
    gpu: Any = PaperGpu(H200.name, H200.arch)
    dispatcher = Dispatcher(gpu)
    dispatcher.kernels = Crowded(99)
    few = list(islice(estimated(request, H200), MOST_PASSED_OVER - 1))
    monkeypatch.setattr(dispatcher, "_ranked", lambda _: iter(few))
    assert dispatcher.plan(request).words == str(few[0])


def test_what_was_measured_is_passed_over_for_nothing() -> None:
    gemm = Gemm(1000, 2000, 3000, b=Order.COL)
    database: Any = SimpleNamespace(winner=lambda *_: SimpleNamespace(config=PlanConfig(ALONE)))
    gpu: Any = PaperGpu(H200.name, H200.arch)
    dispatcher = Dispatcher(gpu, database)
    dispatcher.kernels = Crowded(1)
    assert dispatcher.plan(Request(gemm, alignment_of_rows(gemm))).words == str(PlanConfig(ALONE))
