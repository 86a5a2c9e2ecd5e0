"""Which plans a problem has, ranked by the cost model and compiled in processes of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tuning_fakes import OnPaper, url_of

from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.errors import ProblemError, TilewrightError, UnknownName
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.on_paper import version_of
from tilewright.problem.gemm import Gemm, Order
from tilewright.tuner.compiling import Compilers
from tilewright.tuner.processes import Processes
from tilewright.tuner.session import SEEDS, begun, seeds, tune
from tilewright.tuner.space import Candidate, Space, make_space, todays_plan
from tilewright.tuner.study import Encoding
from tilewright.winners.database import ShippedWinners
from tilewright.winners.lookup import Lookup
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
WIDE = Gemm(512, 512, 512, BF16, out=BF16, b=Order.COL)


@cache
def space_of(gemm: Gemm, family: str | None = None) -> Space:
    """On an H200; several tests look at one."""
    return make_space(gemm, H200, family=family)


def test_a_family_that_is_none_is_refused() -> None:
    with pytest.raises(UnknownName, match="There is no family of kernels 'cutlass'"):
        make_space(Gemm(64, 64, 64), H200, family="cutlass")


def test_a_family_that_the_device_cannot_run_is_refused() -> None:
    with pytest.raises(ProblemError, match="No kernel of family wgmma can multiply"):
        make_space(WIDE, device("RTX 3090"), family="wgmma")


def test_tensor_cores_are_used_where_they_multiply_the_formats() -> None:
    def families(gemm: Gemm) -> set[str]:
        return {config.kernel.kind for config in make_space(gemm, H200).candidates}

    assert families(Gemm(512, 512, 512)) == {"simt"}
    assert families(WIDE) == {"mma", "wgmma"}
    assert families(Gemm(4, 4096, 4096)) == {"simt", "gemv"}


def test_tiles_of_every_width_are_candidates_each_legal() -> None:
    space = make_space(replace(WIDE, m=1000, n=1280, k=5120, lda=0, ldb=0, ldc=0), H200)
    kernels = [config.kernel for config in space.candidates if isinstance(config.kernel, WgmmaConfig)]
    assert {64, 80, 128, 160} <= {kernel.n for kernel in kernels}
    one_way = {(1, 1), (2, 1), (1, 2), (4, 1), (1, 4)}
    assert one_way | {(2, 2), (4, 2), (2, 4)} == {kernel.cluster for kernel in kernels}
    assert {True, False} == {kernel.swap_ab for kernel in kernels} == {kernel.ping_pong for kernel in kernels}
    for config in space.candidates[:: len(space.candidates) // 20]:
        assert not space.reasons(config), config


def test_candidates_are_ranked_by_their_prices_few_of_a_kind_first() -> None:
    space = space_of(WIDE)
    times = [one.predicted_us for one in space.ranked]
    assert times == sorted(times) and len(set(space.candidates)) == len(space.candidates)
    first = seeds(space)
    kinds = {one.config: one.kind for one in space.ranked}
    assert len(first) == len(set(first)) == SEEDS
    assert max(Counter(kinds[config] for config in first).values()) <= 2
    assert first[0] == space.candidates[0]


def test_families_that_come_near_alternate_among_the_first() -> None:
    """However far apart their prices put them in the ranking."""
    tiles = [(128, 64 * n, 64) for n in range(1, 5)]
    kinds = ((MmaConfig, 10.0), (WgmmaConfig, 14.9), (SimtConfig, 15.1))
    looks = [Candidate(PlanConfig(kind(tile)), us + n) for kind, us in kinds for n, tile in enumerate(tiles)]
    first = seeds(Space(WIDE, H200, looks))
    assert [one.kernel.kind for one in first] == ["mma", "wgmma"] * 4
    assert [one.kernel.n for one in first if isinstance(one.kernel, MmaConfig)] == [64, 128, 192, 256]


@pytest.mark.parametrize("shape", [(100, 8192, 28672), (1, 5120, 27648), (128, 5120, 27648), (4096, 4096, 4096)])
def test_a_space_is_priced_without_building_a_kernel(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a look at whether anything is legal: the first measurement does not wait for thousands."""
    built: list[PlanConfig] = []
    look = Space._looked

    def counted(space: Space, config: PlanConfig) -> tuple[str, ...]:
        built.append(config)
        return look(space, config)

    monkeypatch.setattr(Space, "_looked", counted)
    space = make_space(Gemm(*shape, BF16, out=BF16, b=Order.COL), H200)
    assert len(space.candidates) > 100 and len(built) <= 6


def test_with_an_order_to_keep_other_orders_are_no_candidates() -> None:
    free = space_of(WIDE)
    hopper = next(config for config in free.candidates if config.kernel.kind == "wgmma" and config.split_k == 1)
    kept = make_space(WIDE, H200, like=free.order(hopper))
    assert kept.is_legal(hopper) and kept.digest != free.digest
    assert {(config.kernel.kind, config.split_k) for config in kept.candidates} == {("wgmma", 1)}
    ampere = next(config for config in free.candidates if config.kernel.kind == "mma")
    assert kept.reasons(ampere)[0].startswith("it sums in another order: unit 'mma bf16'")


def test_a_winner_that_becomes_todays_plan_leaves_the_study_the_same() -> None:
    gemm = Gemm(640, 640, 640)
    before = todays_plan(gemm, H200, Lookup(version_of))
    first = make_space(gemm, H200, today=before)
    assert make_space(gemm, H200, today=first.candidates[5]).digest == first.digest


def test_a_winner_in_place_of_a_shipped_one_leaves_the_study_of_a_family_the_same() -> None:
    gemm = Gemm(512, 512, 512)
    shipped = todays_plan(gemm, H200, Lookup(version_of, ShippedWinners()))
    first = make_space(gemm, H200, family="simt", today=shipped)
    found = next(one for one in first.candidates if one != shipped)
    second = make_space(gemm, H200, family="simt", today=found)
    assert shipped in second and second.digest == first.digest


def test_where_rows_are_narrow_packing_is_held_against_narrow_copies() -> None:
    space = make_space(Gemm(512, 512, 511, BF16, out=BF16), H200)  # C's rows are wide: what is narrow is A
    packed = {(config.kernel.kind, config.packed) for config in space.candidates}
    assert packed == {("mma", frozenset()), ("mma", frozenset("A")), ("wgmma", frozenset("A"))}


def test_column_major_b_is_tried_as_it_lies_and_transposed() -> None:
    space = make_space(Gemm(512, 512, 512, b=Order.COL), H200, family="simt")
    ways = {(config.packed, config.transposed) for config in space.candidates}
    assert ways == {(frozenset(), frozenset()), (frozenset("B"), frozenset("B"))}
    both = [next(one for one in space.ranked if bool(one.config.transposed) is way) for way in (True, False)]
    assert both[0].kind != both[1].kind
    assert len({tuple(Encoding.of(space.candidates).params(one.config).values()) for one in both}) == 2


def test_persistent_kernels_are_never_split() -> None:
    candidates = make_space(Gemm(512, 512, 16384, BF16, out=BF16), H200).candidates
    split = [config.kernel for config in candidates if config.split_k > 1]
    assert split and not any(getattr(kernel, "persistent", False) for kernel in split)


def test_the_kernel_for_few_rows_is_tried_with_every_split_k_that_may_pay() -> None:
    found = make_space(Gemm(16, 2048, 4096), H200).candidates
    assert {config.split_k for config in found if isinstance(config.kernel, GemvConfig)} >= {1, 2, 16}


def test_a_whole_search_compiles_in_other_processes_what_it_measures(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cubins"))
    whole = space_of(Gemm(512, 512, 512), "simt")
    kinds = {one.kind: one for one in whole.ranked}
    space = Space(whole.gemm, H200, list(kinds.values())[:6])
    measurer: Any = OnPaper(gemm=space.gemm)
    ticks = count()
    with Processes(2) as processes:
        builds = begun(measurer, H200, Compilers(processes))
        outcome = tune(space, builds, measurer, storage=url_of(tmp_path), seconds=60, now=lambda: next(ticks) * 0.1)
    assert outcome.here + len(outcome.failures) == len(measurer.log) > 0
    assert all(getattr(config.kernel, "m", 0) == 128 for config in outcome.failures)
    assert outcome.time.median_us == min(result.measured.median_us for result in outcome.results)


def test_what_cannot_be_built_is_an_error_of_its_own_candidate() -> None:
    space = space_of(Gemm(512, 512, 512), "simt")
    with Processes(1) as processes:
        builds = Compilers(processes).of(space.gemm, H200, "sm_90a")
        bad = builds.submit(PlanConfig(SimtConfig((100, 100, 16), (50, 50))))
        odd: Any = PlanConfig(None)  # type: ignore[arg-type]
        odd = builds.submit(odd)
        good = builds.submit(space.candidates[0])
        with pytest.raises(TilewrightError, match="lanes of 4 x 4 do not divide warps"):
            bad.result()
        with pytest.raises(TilewrightError, match="a bug in tilewright: AttributeError"):
            odd.result()
        assert good.result().candidate == space.candidates[0]
