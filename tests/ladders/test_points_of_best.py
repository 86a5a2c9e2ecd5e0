"""Every kernel of hopper/best is right: persistent or with a block a tile, C by TMA or from registers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.errors import ScheduleError
from tilewright.ir.async_stmt import StartNextGrid, TmaLoad, TmaStore, WaitPreviousGrid
from tilewright.ir.buffer import Space
from tilewright.ir.stmt import Body, For, If, Stmt
from tilewright.ir.visit import bodies, moved_from, written
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.configuration import described
from tilewright.kernels.wgmma import SMALL_TILE, WgmmaConfig, fits
from tilewright.kernels.wgmma_presets import (
    COOPERATIVE,
    NARROW,
    PING_PONG,
    at_depth,
    clustered,
    one_tile,
    persistent,
    skinny,
)
from tilewright.ladders import find_rung
from tilewright.ladders.hopper_points import of_best as configurations
from tilewright.problem import Gemm, Operands, Order, check, make_operands
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.functions import Activation
from tilewright.schedule import Reorder, Schedule, Specialize, Split, Tensorize
from tilewright.toolchain import Build, build, run_on_simulator

H200 = device("H200")
OWN = [config for config in configurations() if (config.m, config.n, config.ping_pong) != (128, 256, False)]


def small() -> list[Any]:
    """A kernel of each kind with a ring of two or three stages, which is filled again and again."""
    kinds: dict[WgmmaConfig, WgmmaConfig] = {}
    for number, config in enumerate(OWN):
        kinds.setdefault(replace(config, stages=2, raster_rows=2), replace(config, stages=2 + number % 2))
    return [pytest.param(config, id=described(config)) for config in kinds.values()]


def schedule_at(gemm: Gemm, config: WgmmaConfig) -> Schedule:
    return at_depth(config, gemm).schedule(gemm)


def right(gemm: Gemm, point: Any) -> Build:
    operands, built = make_operands(gemm), build(gemm, schedule_at(gemm, point))
    computed, run = run_on_simulator(built, operands)
    verdict = check(operands, computed)
    assert verdict.ok and not run.errors, verdict.message
    return built


@pytest.mark.cross_section("point", every=17)
@pytest.mark.parametrize("point", small())
def test_a_point_is_right_at_every_edge(point: Any) -> None:
    """Tiles that end outside, rows of C that end inside 16 bytes, and more tiles than persistent blocks."""
    m, n = point.m, point.n
    right(Gemm(m + 9, n + 8, 200, BF16, out=BF16, alpha=0.5, beta=-1.25), point)
    right(Gemm(m - 1, n + 3, 71, BF16, out=BF16, lda=72, ldb=n + 8, ldc=n + 3, beta=1.0), point)
    right(Gemm(9, 8, 9, F16, out=F16, lda=16), point)


@pytest.mark.cross_section("a", "b", "c", every=3)
@pytest.mark.parametrize("c", Order)
@pytest.mark.parametrize(("a", "b"), list(product(Order, Order)))
def test_orders(a: Order, b: Order, c: Order) -> None:
    ways = (persistent(128, 128, 2, subtile=0, ping_pong=True), clustered(one_tile(64, 128, 1)), skinny(16, 128))
    for point in (*ways, one_tile(64, 64, 1), one_tile(64, 128, 1, subtile=128), one_tile(256, 128, 2)):
        right(Gemm(72, 136, 88, BF16, out=BF16, a=a, b=b, c=c, beta=0.5), replace(point, stages=2))


@pytest.mark.cross_section("bias", every=2)
@pytest.mark.parametrize("bias", ["m", "n"])
def test_epilogues(bias: Any) -> None:
    for point in (p.values[0] for p in small()):
        if point.m == 64:
            epilogue = Epilogue(bias, True, Activation.RELU)
            right(Gemm(40, 72, 72, BF16, out=BF16, beta=0.5, epilogue=epilogue), point)


ONE_TILE = [one_tile(*tile) for tile in NARROW] + [clustered(one_tile(64, 128, 1)), skinny(16, 64), skinny(48, 128)]


@pytest.mark.cross_section("point", every=3)
@pytest.mark.parametrize("point", ONE_TILE)
def test_kernels_with_a_block_a_tile_share_out_k(point: WgmmaConfig) -> None:
    gemm = Gemm(72, 72, 200, BF16, out=F32)
    built = replace(build(gemm, schedule_at(gemm, point)), split_k=SplitK.PARTIALS)
    operands = make_operands(gemm)
    stacked = Operands(gemm, operands.a, operands.b, np.full(2 * gemm.m * gemm.ldc, np.nan, np.float32))
    run = built.simulate(stacked, part_of_k=128, listeners=())
    assert check(operands, run.c.reshape(2, gemm.m, gemm.ldc).sum(axis=0, dtype=np.float32)).ok
    assert_waits(built)


@pytest.mark.cross_section("point", every=3)
@pytest.mark.parametrize("point", [point for point in ONE_TILE if point.cluster == (1, 1)])
def test_kernels_with_a_block_a_tile_take_batches(point: WgmmaConfig) -> None:
    gemm = Gemm(72, 72, 200, BF16, out=BF16, epilogue=Epilogue("n", True), beta=1.0)
    built = replace(build(gemm, schedule_at(gemm, point)), problems=Problems.STRIDED)
    operands = make_operands(gemm)
    run = built.simulate(operands, listeners=())
    assert check(operands, BF16.decode(run.c.reshape(gemm.m, gemm.ldc)[:, : gemm.n])).ok
    assert_waits(built)


# -- skinny C ----------------------------------------------------------------------------------------------------------


def test_tiles_of_few_rows_multiply_and_load_nothing_in_vain() -> None:
    gemm = Gemm(16, 256, 256, BF16, out=BF16)
    few, plain = (
        build(gemm, schedule_at(gemm, point)).simulate(make_operands(gemm)).counters
        for point in (skinny(16, 64), one_tile(64, 64, 1))
    )
    each = 64 * 16 * 16  # multiply-adds of an instruction, which four warps run together
    assert few.instructions["HGMMA"] * each == 4 * gemm.m * gemm.n * gemm.k
    assert few.bulk_loads.size_bytes * 128 == plain.bulk_loads.size_bytes * 80


def test_rows_along_n_are_not_for_opaque_fragments() -> None:
    gemm = Gemm(64, 64, 64, F16)
    loops = (Split("m", 16, into=("mb", "mm")), Split("n", 16, into=("nb", "nn")), Split("k", 16, into=("kb", "kk")))
    order = Reorder("mb", "nb", "kb", "mm", "nn", "kk")
    with pytest.raises(ScheduleError, match=r"rows of wmma\.m16n16k16.* run along m"):
        Schedule(*loops, order, Tensorize("nn", "mm", "kk", using="wmma.m16n16k16")).apply(gemm)


# -- pairs of blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [one_tile(64, 128, 1), persistent(128, 128, 2, subtile=64), skinny(16, 64)])
def test_a_cluster_asks_for_half_of_what_it_shares(point: WgmmaConfig) -> None:
    gemm = Gemm(256, 256, 128, BF16, out=BF16)
    cluster = (1, 2) if point.swap_ab else None
    alone, pair = (
        build(gemm, schedule_at(gemm, one)).simulate(make_operands(gemm)).counters.bulk_loads
        for one in (point, clustered(point, cluster))
    )
    tile = point.m if cluster else point.n
    whole = point.m + point.n
    assert pair.bytes_moved * 2 * whole == alone.bytes_moved * (2 * whole - tile)


def test_blocks_of_a_cluster_meet_without_a_fence_of_memory() -> None:
    """A fence in front of their last meeting would wait for every store of C: a microsecond of 8 on the H200."""
    pytest.importorskip("nvidia")
    from tilewright.runtime.sass import disassemble

    gemm = Gemm(1000, 1000, 1000, BF16, out=BF16)
    code = disassemble(build(gemm, schedule_at(gemm, clustered(persistent(64, 128, 1, subtile=128)))).compile("sm_90a"))
    assert "UCGABAR_ARV" in code and "MEMBAR.ALL.GPU" not in code


def test_a_kernel_that_does_not_start_early_has_no_waits() -> None:
    gemm = Gemm(512, 512, 512, BF16, out=BF16)
    assert not build(gemm, schedule_at(gemm, replace(one_tile(64, 128, 1), dependent_launch=False))).source.overlapped


# -- starting under the kernel before ----------------------------------------------------------------------------------


def assert_waits(built: Build) -> None:
    """On every way through the kernel the wait comes before the first access of global memory, and the next kernel is
    told before either that it may start."""
    assert built.source.overlapped
    top = [type(stmt) for stmt in built.kernel.body]
    started = built.kernel.body[top.index(StartNextGrid) + 1 :]
    assert not any(touches(stmt) for stmt in built.kernel.body[: top.index(StartNextGrid)])
    assert list(accesses(started, waited=False)), "the kernel touches nothing"
    assert all(waited for _, waited in accesses(started, waited=False))


def accesses(body: Body, *, waited: bool) -> Iterator[tuple[Stmt, bool]]:
    """Statements that access global memory, and whether the thread has certainly waited when it comes there."""
    for stmt in body:
        waited = waited or isinstance(stmt, WaitPreviousGrid)
        if touches(stmt):
            yield stmt, waited
        for _, inner in bodies(stmt):
            assert isinstance(stmt, (For, If))
            yield from accesses(inner, waited=waited)


def touches(stmt: Stmt) -> bool:
    if isinstance(stmt, (TmaLoad, TmaStore)):
        return True
    return any(place.buffer.space is Space.GLOBAL for place in (*written(stmt), *moved_from(stmt)))


@pytest.mark.cross_section("point", every=3)
@pytest.mark.parametrize("point", [one for one in small() if one.values[0].dependent_launch])
def test_nothing_is_touched_before_the_kernels_before_have_ended(point: Any) -> None:
    gemm = Gemm(512, 512, 512, BF16, out=BF16, beta=1.0, epilogue=Epilogue("n", True))
    assert_waits(build(gemm, schedule_at(gemm, point)))
    assert_waits(build(replace(gemm, n=511, ldb=512), schedule_at(gemm, point)))


@pytest.mark.cross_section("point", every=2, at=1)
@pytest.mark.parametrize("point", [COOPERATIVE, one_tile(128, 128, 2), one_tile(64, 64, 1, subtile=64)])
def test_the_compiler_moves_no_load_before_the_wait(point: Any) -> None:
    pytest.importorskip("nvidia")
    from tilewright.runtime.sass import disassemble

    gemm = Gemm(512, 512, 512, BF16, out=BF16, beta=1.0, epilogue=Epilogue("n", True))
    code = disassemble(build(gemm, schedule_at(gemm, point)).compile("sm_90a")).splitlines()
    assert not any("LDG" in line and "CONSTANT" in line for line in code)
    first = next(i for i, line in enumerate(code) if "ACQBULK" in line)
    assert not any("LDG" in line or "UTMALDG" in line for line in code[:first])


# -- room on an SM -----------------------------------------------------------------------------------------------------


def test_every_point_fits_and_small_ones_beside_the_next_kernels() -> None:
    pairs = 0
    for point in OWN:
        assert fits(point)
        if point.m * point.n <= SMALL_TILE and fits(point, 2):
            gemm = Gemm(1024, 1024, 1024, BF16, out=BF16)
            built = build(gemm, schedule_at(gemm, point))
            assert built.occupancy(H200, built.compile("sm_90a")).blocks_per_sm == 2, point
            pairs += 1
    assert pairs >= 6


def test_the_budgets_of_two_blocks_are_those_that_an_sm_has() -> None:
    """A warpgroup that asks for more registers than the others gave back waits for ever."""
    gemm = Gemm(1024, 1024, 1024, product=TF32, b=Order.COL)
    for point in (*OWN, COOPERATIVE, PING_PONG):
        built = build(gemm, schedule_at(gemm, point))
        threads, blocks = map(int, re.findall(r"__launch_bounds__\((\d+), (\d+)\)", built.cuda)[0])
        assert built.program.specialized is not None
        copies, multiplies = built.program.specialized.registers
        wanted = 128 * (copies + (threads // 128 - 1) * multiplies)
        assert wanted <= 65536 // blocks // threads // 8 * 8 * threads, point
        assert blocks == (2 if point.m * point.n <= SMALL_TILE else 1)


@pytest.mark.parametrize(
    ("rung", "sizes", "apart"),
    [("best", (4096, 4096, 4096), 3), ("best", (8192, 8192, 512), 0), ("6", (4096, 4096, 4096), 0)],
)
def test_cooperative_warpgroups_of_the_top_rung_end_one_after_the_other(
    rung: str, sizes: tuple[int, int, int], apart: int
) -> None:
    """Ping-pong has a tile for each of them."""
    schedule = find_rung(f"hopper/{rung}").schedule(Gemm(*sizes, BF16, out=BF16))
    assert [one.apart for one in schedule.steps if isinstance(one, Specialize)] == [apart]
