"""What dispatch is told: exact winners, neighbours, nothing stale; and how fast."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tuning_fakes import a_winner

from tilewright.ladders import find_rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.winners.database import Database
from tilewright.winners.keys import kernel_version
from tilewright.winners.lookup import Lookup, gemm_of, is_current
from tilewright.tuner.space import Candidate, build_of
from tilewright.winners.winner import Winner

POINT = {"bm": 64, "bn": 64, "bk": 8, "tm": 4, "tn": 4}
H200 = "NVIDIA H200"


def a_lookup(folder: Path, *shipped: Winner) -> Lookup:
    return Lookup(Database(folder / "winners.sqlite", shipped=shipped))


def test_the_winner_of_a_problem_is_found_by_the_name_that_the_driver_gives(tmp_path: Path) -> None:
    lookup = a_lookup(tmp_path, a_winner())
    assert lookup.best_choice(H200, Gemm(4096, 4096, 4096), 16) == ("worklog/9", a_winner().candidate.point)
    assert lookup.best_choice("NVIDIA H100", Gemm(4096, 4096, 4096), 16) is None


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
    found = a_lookup(tmp_path, a_winner()).best_choice(H200, Gemm(*size), 16)
    assert (found is not None) == is_near


def test_the_nearest_of_several_is_taken(tmp_path: Path) -> None:
    near, exact = Candidate("worklog/9", POINT), a_winner().candidate
    lookup = a_lookup(tmp_path, a_winner(), a_winner(m=4100, candidate=near, median_us=1.0))
    assert lookup.best_choice(H200, Gemm(4099, 4096, 4096), 16) == (near.rung, near.point)
    assert lookup.best_choice(H200, Gemm(4096, 4096, 4096), 16) == (exact.rung, exact.point)


def test_other_formats_orders_and_alignments_are_other_classes(tmp_path: Path) -> None:
    lookup = a_lookup(tmp_path, a_winner())
    assert lookup.best_choice(H200, Gemm(4096, 4096, 4096), 4) is None
    assert lookup.best_choice(H200, Gemm(4096, 4096, 4096, b=Order.COL), 16) is None


def test_of_a_reduction_order_only_its_own_winner_is_given(tmp_path: Path) -> None:
    other = a_winner(order="pairs", median_us=50.0, candidate=Candidate("worklog/9", POINT))
    lookup = a_lookup(tmp_path, a_winner(), other)
    gemm = Gemm(4096, 4096, 4096)
    assert lookup.best_choice(H200, gemm, 16) == ("worklog/9", POINT)
    assert lookup.best_choice(H200, gemm, 16, "ascending") == ("worklog/9", a_winner().candidate.point)
    assert lookup.best_choice(H200, gemm, 16, "backwards") is None


def measured_elsewhere(text_is_same: bool) -> Winner:
    """A winner from other sources, whose kernel has the same text as today's, or not."""
    candidate = Candidate("worklog/9", POINT)
    found = a_winner(m=512, n=512, k=512, candidate=candidate, sources="of another commit")
    built = build_of(gemm_of(found.key), find_rung("worklog/9"), POINT)
    kernel = kernel_version(built.source) if text_is_same else "0" * 16
    return a_winner(m=512, n=512, k=512, candidate=candidate, sources="of another commit", kernel=kernel)


def test_a_winner_of_other_sources_counts_only_while_its_kernel_has_the_same_text(tmp_path: Path) -> None:
    assert is_current(measured_elsewhere(text_is_same=True))
    stale = measured_elsewhere(text_is_same=False)
    assert not is_current(stale)
    assert a_lookup(tmp_path, stale).best_choice(H200, Gemm(512, 512, 512), 16) is None


@pytest.mark.parametrize(
    "candidate", [Candidate("worklog/99", {}), Candidate("worklog/9", {"tiles": 3}), Candidate("worklog/1", {"bm": 1})]
)
def test_a_winner_whose_rung_or_parameters_are_gone_is_passed_over(candidate: Candidate) -> None:
    assert not is_current(a_winner(candidate=candidate, sources="of another commit"))


def test_a_file_that_cannot_be_used_is_told_once_and_the_shipped_winners_stay(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "winners.sqlite").write_bytes(b"no database" * 100)
    lookup = Lookup(Database(tmp_path / "winners.sqlite", shipped=(a_winner(),)), said.append)
    for k in (4096, 4097):
        assert lookup.best_choice(H200, Gemm(4096, 4096, k), 16) is not None
    assert len(said) == 1 and "was damaged" in said[0]


def test_a_question_asked_before_costs_a_few_microseconds(tmp_path: Path) -> None:
    lookup = a_lookup(tmp_path, *(a_winner(m=m) for m in range(1, 500)))
    gemm = Gemm(4096, 4096, 4096)
    lookup.best_choice(H200, gemm, 16)
    times = []
    for _ in range(200):
        start = time.perf_counter()
        lookup.best_choice(H200, gemm, 16)
        times.append(time.perf_counter() - start)
    assert sorted(times)[100] < 50e-6
