"""Promoted accumulation: the sum of every n of k goes to registers of f32, whatever else a kernel does."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.work_items import check_batch
from tests.mutations.broken import run_of, without
from tests.random_hopper_schedules import random_hopper_gemm, random_hopper_schedule
from tilewright.dtypes import BF16, F16, F32, Array
from tilewright.errors import LoweringError, ScheduleError
from tilewright.ir.accumulators import accumulator_of
from tilewright.ir.async_stmt import WgmmaFence, WgmmaWait
from tilewright.ir.stmt import For
from tilewright.ir.visit import walk
from tilewright.ir.work import SplitK
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent
from tilewright.ladders import find_rung
from tilewright.prediction.counting import work_of as simulated
from tilewright.problem import Gemm, Operands, check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Accumulate, Epilogue, Schedule
from tilewright.toolchain import Build, build
from tilewright.winners.order import order_of

KINDS: dict[str, WgmmaConfig] = {
    "one tile": one_tile(64, 128, 1),
    "persistent": persistent(128, 128, 2, subtile=64),
    "cluster": clustered(persistent(64, 128, 1, subtile=64)),
    "ping-pong": replace(PING_PONG, tile=(128, 128, 64), subtile=64, stages=3),
    "swap-AB": WgmmaConfig((64, 128, 64), 2, swap_ab=True, subtile=64),
}
EVERY = (16, 32, 64, 128, 256)
"""Of k: one and several instructions of a tile, a tile, and several tiles."""

THREADS = ("te/2", "te/5", "worklog/9", "worklog/11", "worklog/best", "hierarchy/v06_double_buffered", "swizzle/layers")
MATRICES = (*(f"ampere/{number}" for number in range(1, 7)), "hopper/1", "hopper/2", "hopper/3")


def promoted(schedule: Schedule, every: int) -> Schedule:
    """The same steps, the sum promoted every so many of k."""
    steps = (replace(step, promote_every=every) if isinstance(step, Accumulate) else step for step in schedule)
    return Schedule(*steps)


def promoted_at(gemm: Gemm, config: WgmmaConfig, every: int) -> Schedule:
    return replace(at_depth(config, gemm), promote_every=every).schedule(gemm)


def result(built: Build, operands: Operands, **options: object) -> Array:
    """C of a run with every detector."""
    run = built.simulate(operands, **options)  # type: ignore[arg-type]
    return built.gemm.out.decode(view(built.gemm, "C", run.c))


def assert_right(built: Build, **options: object) -> None:
    operands = make_operands(built.gemm)
    verdict = check(operands, result(built, operands, **options))
    assert verdict.ok, verdict.message


@pytest.mark.cross_section("name", "every", "k", every=8)
@pytest.mark.parametrize("k", [0, 72, 200, 520])
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("name", KINDS)
def test_wgmma_kernels_of_every_kind(name: str, every: int, k: int) -> None:
    gemm = Gemm(200, 136, k, BF16, out=BF16, lda=max(k, 8))
    assert_right(build(gemm, promoted_at(gemm, KINDS[name], every)), resident_blocks=4)


def stagnating(gemm: Gemm) -> Operands:
    """Sums whose first product is 1, and each other 2**-28: too small for f32 to add one by one, or 16 at a time."""
    operands = make_operands(gemm)
    a, b = np.full((gemm.m, gemm.k), 2.0**-14), np.full((gemm.k, gemm.n), 2.0**-14)
    a[:, 0], b[0] = 1, 1
    for name, matrix in (("A", a), ("B", b)):
        view(gemm, name, operands.storage(name))[...] = gemm.dtype.encode(matrix.astype(np.float32))  # type: ignore[arg-type]
    return operands


def sum_of_groups(k: int, every: int) -> float:
    """What `stagnating` sums to where each group of so many products is summed first: only the first one stagnates."""
    total = np.float32(1)
    for first in range(every, k, every):
        total += np.float32(min(every, k - first) * 2.0**-28)
    return float(total)


def assert_sums_groups(built: Build, every: int) -> None:
    gemm = built.gemm
    computed = result(built, stagnating(gemm))
    np.testing.assert_array_equal(computed, np.full((gemm.m, gemm.n), sum_of_groups(gemm.k, every)))


@pytest.mark.cross_section("name", "every", every=6)
@pytest.mark.parametrize("every", [32, 64, 192])
@pytest.mark.parametrize("name", KINDS)
def test_what_a_sum_loses_depends_on_a_group_and_not_on_k(name: str, every: int) -> None:
    gemm = Gemm(136, 136, 320, BF16, out=F32)
    config = replace(KINDS[name], subtile=0)
    assert_sums_groups(build(gemm, promoted_at(gemm, config, every)), every)
    plain = result(build(gemm, at_depth(config, gemm).schedule(gemm)), stagnating(gemm))
    assert (plain == 1).all()


@pytest.mark.cross_section("rung", "every", every=6, at=1)
@pytest.mark.parametrize("every", [32, 64, 192])
@pytest.mark.parametrize("rung", MATRICES)
def test_rungs_for_tensor_cores(rung: str, every: int) -> None:
    """Fragments loaded ahead, copies interleaved, persistent blocks: a group ends where its last MMA has ended."""
    gemm = replace(find_rung(rung).gemm(72, 72, 328), out=F32)
    assert_sums_groups(build(gemm, promoted(find_rung(rung).schedule(gemm), every)), every)


@pytest.mark.cross_section("rung", "every", every=6, at=1)
@pytest.mark.parametrize("every", [32, 192])
@pytest.mark.parametrize("rung", THREADS)
def test_rungs_for_cuda_cores_and_wmma(rung: str, every: int) -> None:
    gemm = find_rung(rung).gemm(70, 66, 231)
    assert_sums_groups(build(gemm, promoted(find_rung(rung).schedule(gemm), every)), every)


def test_c_is_added_once_where_the_sum_begins_with_it() -> None:
    rung = find_rung("worklog/6")
    gemm = rung.gemm(40, 40, 70, beta=0.5)
    early = Schedule(*(step for step in promoted(rung.schedule(gemm), 32) if not isinstance(step, Epilogue)))
    built = build(gemm, early)
    assert not built.program.late_beta
    assert_right(built)


@pytest.mark.parametrize("name", ["one tile", "cluster"])
def test_partial_sums_of_split_k_are_promoted(name: str) -> None:
    gemm = Gemm(136, 136, 328, BF16, out=F32)
    check_batch(gemm, promoted_at(gemm, replace(KINDS[name], subtile=0), 128), 2, part_of_k=192, resident_blocks=3)


@pytest.mark.cross_section("name", "every", every=5)
@pytest.mark.parametrize("every", [32, 128])
@pytest.mark.parametrize("name", ["persistent", "cluster", "ping-pong"])
def test_promoted_sums_add_up_in_order(name: str, every: int) -> None:
    """Each item starts its own groups; flags, stream-K and numbers of blocks do not move the bits."""
    gemm = Gemm(200, 136, 456, BF16, out=BF16, beta=0.5)
    built = replace(build(gemm, promoted_at(gemm, KINDS[name], every)), split_k=SplitK.ORDERED)
    options = {"listeners": (), "part_of_k": 192}
    operands = make_operands(gemm)
    few, many = (result(built, operands, resident_blocks=blocks, **options) for blocks in (2, 9))
    assert check(operands, few).ok
    np.testing.assert_array_equal(few, many)
    check_batch(gemm, promoted_at(gemm, KINDS[name], every), 2, stream_k=True, resident_blocks=4)


@pytest.mark.cross_section("rung", every=2)
@pytest.mark.parametrize("rung", ["hopper/3", "ampere/5"])
def test_the_sum_of_groups_is_f32_where_mmas_sum_in_f16(rung: str) -> None:
    """What f16 rounds away is of one group: less than a third of the error here, and no sum is too large for it."""
    gemm = Gemm(72, 72, 1024, F16, out=F32, accumulate=F16)
    schedule = find_rung(rung).schedule(gemm)
    operands = make_operands(gemm)
    plain, better = (build(gemm, one) for one in (schedule, promoted(schedule, 64)))
    assert accumulator_of(better.program).result_dtype is F32
    errors = [check(operands, result(one, operands)).relative_error for one in (plain, better)]
    assert errors[1] < errors[0] / 3
    ones = replace(operands, **{name: F16.encode(np.full(72 * 1024, 8, np.float32)) for name in "ab"})
    assert (result(better, ones) == 64 * 1024).all()  # more than 65504


def test_opaque_fragments_are_promoted_in_their_own_format_only() -> None:
    gemm = Gemm(72, 72, 256, F16, out=F16, accumulate=F16)
    with pytest.raises(LoweringError, match=r"wmma.* in f16 cannot be promoted to f32"):
        _ = build(gemm, promoted(find_rung("hierarchy/v07").schedule(gemm), 64)).kernel


@pytest.mark.cross_section("seed", every=2)
@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_of_hopper(seed: int) -> None:
    rng = random.Random(seed)
    gemm = random_hopper_gemm(rng)
    drawn = random_hopper_schedule(rng, gemm).schedule
    depth = 32 // gemm.dtype.bytes
    for every in (depth * rng.choice((1, 2, 4)), depth * 8):
        try:
            built = build(gemm, promoted(drawn, every))
            _ = built.kernel
        except (ScheduleError, LoweringError) as error:
            assert "cannot be promoted" in str(error) or "shared tiles take" in str(error), error
            continue
        assert_right(built, resident_blocks=None if built.kernel.cluster > 1 else 2)


@pytest.mark.parametrize("every", [32, 64, 128])
def test_registers_are_read_when_the_mmas_have_ended(every: int) -> None:
    """A kernel without the wait before a promotion, or without the fence behind it, is found out."""
    gemm = Gemm(64, 128, 256, BF16, out=BF16)
    built = build(gemm, promoted_at(gemm, KINDS["one tile"], every))
    kernel, operands = built.kernel, make_operands(gemm)
    loops = [path for path, stmt in walk(kernel.body) if isinstance(stmt, For) and stmt.var == "k_tile"]
    for kind in (WgmmaWait, WgmmaFence):
        inside = [
            path
            for path, stmt in walk(kernel.body)
            if isinstance(stmt, kind) and path[: len(loops[-1])] == loops[-1] and getattr(stmt, "pending", 0) == 0
        ]
        assert inside
        broken = kernel
        for path in reversed(inside):
            broken = without(broken, path)
        assert run_of(broken, operands) is None


def test_the_program_and_the_order_of_the_sum_say_so() -> None:
    gemm = Gemm(512, 512, 512, BF16, out=BF16)
    config = replace(KINDS["persistent"], promote_every=128)
    built = build(gemm, config.schedule(gemm))
    assert "sum += sum_group    in f32, every 128 of k, 2 iterations; sum_group starts anew" in built.text
    order = order_of(built)
    assert order.sum_in == "f32 in registers, promoted to f32 every 128 of k"
    assert order.name != order_of(build(gemm, replace(config, promote_every=64).schedule(gemm))).name
    assert "float sum_group[1][64];  // (m_frag, fragment): 128 of k, then added to sum" in built.cuda


@pytest.mark.cross_section("every", every=2)
@pytest.mark.parametrize("every", [32, 128])
def test_additions_are_counted(every: int) -> None:
    """One addition for each accumulator and group, in the counters and in the closed form."""
    gemm = Gemm(256, 256, 512, BF16, out=BF16)
    plain = replace(KINDS["persistent"], promote_every=0)
    both = (build(gemm, one.schedule(gemm)) for one in (plain, replace(plain, promote_every=every)))
    counts = [built.simulate(make_operands(gemm)).counters for built in both]
    more = counts[1].instructions["FADD"] - counts[0].instructions.get("FADD", 0)
    assert more == gemm.m * gemm.n // 32 * (gemm.k // every)
    config = replace(plain, promote_every=every)
    counted = simulated(build(gemm, config.schedule(gemm)))
    setting = Setting(np.array([counted.blocks]), np.array([int(counted.steps)]))
    formed = work_of("wgmma", Columns.of([config], config.columns), gemm, setting)
    assert np.max(formed.step.fp32) == pytest.approx(counted.step.fp32, rel=0.01)


def test_a_family_says_what_does_not_fit() -> None:
    gemm = Gemm(512, 512, 512, BF16, out=BF16)
    wide = WgmmaConfig((128, 256, 64), subtile=64)
    assert not wide.reasons_against(gemm)
    (reason,) = replace(wide, promote_every=64).reasons_against(gemm)
    assert reason.startswith("128 accumulators of a thread, twice,")
    for every, legal in ((16, True), (32, True), (64, True), (192, True), (48, False), (96, False), (8, False)):
        config = WgmmaConfig((128, 192, 64), subtile=64, promote_every=every)
        assert (config.reasons_against(gemm) == ()) is legal


@pytest.mark.parametrize("every", [32, 64, 128])
def test_promoted_kernels_compile_without_spills(every: int) -> None:
    gemm = Gemm(4096, 4096, 4096, BF16, out=BF16)
    for config in (WgmmaConfig((128, 192, 64), subtile=64), WgmmaConfig((128, 96, 64), ping_pong=True, subtile=48)):
        cubin = build(gemm, replace(config, promote_every=every).schedule(gemm)).compile("sm_90a")
        assert cubin.resources.spill_store_bytes == 0
        assert "serialized" not in cubin.log
