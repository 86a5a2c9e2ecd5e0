"""What dispatch is told: exact winners, neighbours, nothing stale; and nothing looked up twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_winners import a_winner

from tilewright.kernels.configuration import KernelConfig, described
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.on_paper import version_of
from tilewright.problem.gemm import Gemm, Order
from tilewright.winners.database import Database, shipped_winners
from tilewright.winners.lookup import Lookup, is_current
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner

SMALL = PlanConfig(SimtConfig((64, 64, 16), (32, 32), unroll=8))
H200 = "NVIDIA H200"


def a_lookup(folder: Path, *shipped: Winner) -> Lookup:
    return Lookup(version_of, Database(folder / "winners.sqlite", shipped=shipped))


def test_the_winner_of_a_problem_is_found_by_the_name_that_the_driver_gives(tmp_path: Path) -> None:
    lookup = a_lookup(tmp_path, a_winner())
    assert lookup.winner(H200, Gemm(4096, 4096, 4096), 16) == a_winner()
    assert lookup.winner("NVIDIA H100", Gemm(4096, 4096, 4096), 16) is None


@pytest.mark.parametrize(
    ("size", "is_near"),
    [
        ((4095, 4097, 4093), True),
        ((4096, 4096, 8192), True),
        ((4200, 4000, 2048), True),
        ((4096, 4096, 8193), False),
        ((4500, 4096, 4096), False),
        ((4096, 2048, 4096), False),
    ],
)
def test_neighbours_may_take_the_winner_of_a_shape(tmp_path: Path, size: tuple[int, int, int], is_near: bool) -> None:
    found = a_lookup(tmp_path, a_winner()).winner(H200, Gemm(*size), 16)
    assert (found is not None) == is_near


@pytest.mark.parametrize(
    ("measured", "asked", "tile", "is_near"),
    [
        ((16, 8192), (17, 8192), (16, 64, 64), False),  # two rows of tiles
        ((16, 8192), (16, 8100), (16, 64, 64), True),
        ((2048, 2048), (2049, 2048), (128, 256, 64), False),  # 136 tiles, and 132 SMs
        ((4096, 4096), (4097, 4096), (128, 256, 64), True),  # 528 tiles: four waves, as 512
    ],
)
def test_a_neighbour_has_about_as_many_tiles_and_no_more_waves(
    tmp_path: Path, measured: tuple[int, int], asked: tuple[int, int], tile: tuple[int, int, int], is_near: bool
) -> None:
    (m, n), config = measured, PlanConfig(WgmmaConfig(tile))
    found = a_lookup(tmp_path, a_winner(m=m, n=n, config=config)).winner(H200, Gemm(*asked, 4096), 16)
    assert (found is not None) == is_near


def test_the_nearest_of_several_is_taken(tmp_path: Path) -> None:
    near, exact = a_winner(m=4100, config=SMALL, median_us=1.0), a_winner()
    lookup = a_lookup(tmp_path, near, exact)
    assert lookup.winner(H200, Gemm(4099, 4096, 4096), 16) == near
    assert lookup.winner(H200, Gemm(4096, 4096, 4096), 16) == exact


def test_other_formats_orders_and_alignments_are_other_classes(tmp_path: Path) -> None:
    lookup = a_lookup(tmp_path, a_winner())
    assert lookup.winner(H200, Gemm(4096, 4096, 4096), 4) is None
    assert lookup.winner(H200, Gemm(4096, 4096, 4096, b=Order.COL), 16) is None


def test_of_a_reduction_order_only_its_own_winner_is_given(tmp_path: Path) -> None:
    other = a_winner(order="pairs", median_us=50.0, config=SMALL)
    lookup = a_lookup(tmp_path, a_winner(), other)
    gemm = Gemm(4096, 4096, 4096)
    assert lookup.winner(H200, gemm, 16) == other
    assert lookup.winner(H200, gemm, 16, "ascending") == a_winner()
    assert lookup.winner(H200, gemm, 16, "backwards") is None


def measured_elsewhere(text_is_same: bool) -> Winner:
    """A winner from other sources, whose kernel has the same text as today's, or not."""
    config = SMALL
    found = a_winner(m=512, n=512, k=512, config=config, sources="of another commit")
    kernel = version_of(found.key, config) if text_is_same else "0" * 16
    return a_winner(m=512, n=512, k=512, config=config, sources="of another commit", kernel=kernel)


def test_a_winner_of_other_sources_counts_only_while_its_kernel_has_the_same_text(tmp_path: Path) -> None:
    assert is_current(measured_elsewhere(text_is_same=True), version_of)
    stale = measured_elsewhere(text_is_same=False)
    assert not is_current(stale, version_of)
    assert a_lookup(tmp_path, stale).winner(H200, Gemm(512, 512, 512), 16) is None


@pytest.mark.parametrize(
    "kernel",
    [SimtConfig((64, 64, 16), (48, 32)), WgmmaConfig((128, 256, 64)), SimtConfig((64, 64, 16), (32, 32), lanes_m=16)],
    ids=described,
)
def test_a_winner_whose_parameters_are_not_legal_any_more_is_passed_over(kernel: KernelConfig) -> None:
    assert not is_current(a_winner(config=PlanConfig(kernel), sources="of another commit"), version_of)


def test_a_file_that_cannot_be_used_is_told_once_and_the_shipped_winners_stay(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "winners.sqlite").write_bytes(b"no database" * 100)
    lookup = Lookup(version_of, Database(tmp_path / "winners.sqlite", shipped=(a_winner(),)), said.append)
    for k in (4096, 4097):
        assert lookup.winner(H200, Gemm(4096, 4096, k), 16) is not None
    assert len(said) == 1 and "was damaged" in said[0]


def test_a_question_asked_before_reads_and_compares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = a_lookup(tmp_path, *(a_winner(m=m) for m in range(4000, 4100)))
    gemm = Gemm(4096, 4096, 4096)
    first = lookup.winner(H200, gemm, 16)
    for forbidden in ("lookup.ProblemKey.of", "lookup.distance", "lookup.is_current", "database.Database.winners"):
        monkeypatch.setattr(f"tilewright.winners.{forbidden}", None)
    assert first is not None and lookup.winner(H200, gemm, 16) is first


def test_of_a_plan_of_several_launches_each_text_counts(tmp_path: Path) -> None:
    key = a_winner(m=512, n=512, k=8192).key
    alone, shared = (version_of(key, SMALL.with_split_k(parts)) for parts in (1, 4))
    assert alone != shared
    won = a_winner(m=512, n=512, k=8192, sources="of another commit", kernel=shared, config=SMALL.with_split_k(4))
    assert is_current(won, version_of)


def test_shipped_winners_name_the_kernels_of_their_own_problems() -> None:
    """One whose text is another is passed over in silence, and `matmul` takes its estimate."""
    winners = list(shipped_winners())
    for winner in winners[:: len(winners) // 12]:
        assert winner.kernel == version_of(winner.key, winner.config), winner.key.problem
