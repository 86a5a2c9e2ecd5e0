"""Which rungs and points a problem has, ranked and compiled in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tuning_fakes import OnPaper, url_of

from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.errors import ProblemError, TilewrightError
from tilewright.planning.on_paper import version_of
from tilewright.problem.gemm import Gemm
from tilewright.tuner.compiling import Compilers
from tilewright.tuner.rank import Look, ranked, seeds, spread
from tilewright.tuner.session import rank, tune
from tilewright.tuner.space import make_space
from tilewright.tuner.today import todays_choice
from tilewright.winners.choice import Choice
from tilewright.winners.lookup import Lookup

H200 = device("H200")


def test_a_rung_without_choices_has_nothing_to_tune() -> None:
    with pytest.raises(ProblemError, match=r"worklog/3 has no choices to tune\."):
        make_space(Gemm(64, 64, 64), H200, rung="worklog/3")


def test_a_ladder_that_the_device_cannot_run_is_refused_with_the_reasons() -> None:
    with pytest.raises(ProblemError, match="No rung with choices can multiply") as refusal:
        make_space(Gemm(512, 512, 512, BF16, out=BF16), device("RTX 3090"), ladder="hopper")
    assert "hopper/best: " in refusal.value.place


def test_without_a_ladder_tensor_cores_are_used_where_they_multiply_the_formats() -> None:
    assert {name.partition("/")[0] for name in make_space(Gemm(512, 512, 512), H200).rungs} == {"worklog"}
    tensor = make_space(Gemm(512, 512, 512, BF16, out=BF16), H200).rungs
    assert {name.partition("/")[0] for name in tensor} == {"ampere", "hopper"}


def test_with_an_order_to_keep_other_orders_are_illegal() -> None:
    gemm = Gemm(512, 512, 512, BF16, out=BF16)
    free = make_space(gemm, H200)
    hopper = next(candidate for candidate in free.candidates if candidate.rung == "hopper/5")
    kept = make_space(gemm, H200, like=free.order(hopper))
    ampere = next(candidate for candidate in kept.candidates if candidate.rung == "ampere/6")
    assert kept.is_legal(hopper)
    assert kept.reasons(ampere)[0].startswith("it sums in another order: unit 'mma bf16'")
    assert kept.digest != free.digest


def test_a_winner_of_a_rung_leaves_the_study_of_that_rung_the_same() -> None:
    gemm, before = Gemm(640, 640, 640), todays_choice(Gemm(640, 640, 640), H200, Lookup(version_of))
    first = make_space(gemm, H200, rung="worklog/9", today=before)
    winner = next(candidate for candidate in first.candidates if candidate.rung == "worklog/9")
    assert before.rung != winner.rung
    assert make_space(gemm, H200, rung="worklog/9", today=winner).digest == first.digest


def test_a_large_rung_is_looked_at_evenly_and_a_small_one_whole() -> None:
    large = [Choice("large", {"a": a}) for a in range(1000)]
    small = [Choice("small", {"a": a}) for a in range(5)]
    found = spread([*large, *small], 100)
    assert [one for one in found if one.rung == "small"] == small
    assert 80 <= len(found) <= 100
    assert found[1].point["a"] - found[0].point["a"] == found[2].point["a"] - found[1].point["a"]


def test_the_first_to_be_measured_are_the_best_of_different_kinds() -> None:
    space = make_space(Gemm(512, 512, 512), H200, rung="worklog/9")
    looks = [
        Look(candidate, float(at), kind="alike" if at < 20 else f"kind {at}")
        for at, candidate in enumerate(space.candidates)
    ]
    first = seeds(space, ranked(looks), 8)
    kinds = {look.candidate: look.kind for look in looks}
    assert len(first) == len(set(first)) == 8
    assert sum(kinds[candidate] == "alike" for candidate in first) <= 3


def test_a_whole_search_compiles_in_other_processes_what_it_measures(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cubins"))
    space = make_space(Gemm(512, 512, 512), H200, rung="worklog/9")
    measurer: Any = OnPaper()
    options = {"seconds": 8, "workers": 2, "now": measurer.clock}
    outcome = tune(space, measurer, storage=url_of(tmp_path), **options)
    assert outcome.here + len(outcome.failures) == len(measurer.log) == 7  # a second each, and one for the finalists
    assert {candidate.point["bm"] for candidate in outcome.failures} <= {128}
    assert outcome.best.candidate.point["bm"] != 128
    assert outcome.time.median_us == min(result.measured.median_us for result in outcome.results)


def test_what_cannot_be_built_is_an_error_of_its_own_candidate() -> None:
    space = make_space(Gemm(512, 512, 512), H200, rung="worklog/9")
    with Compilers(space, "sm_90a", 1) as compilers:
        bad = compilers.submit(Choice("worklog/9", {"bm": 100, "bn": 100, "bk": 8, "tm": 7, "tn": 4}))
        odd = compilers.submit(Choice("worklog/9", {"unknown": 1}))
        good = compilers.submit(space.candidates[0])
        with pytest.raises(TilewrightError):
            bad.result()
        with pytest.raises(TilewrightError, match="a bug in tilewright: KeyError"):
            odd.result()
        assert good.result().candidate == space.candidates[0]


class Unhurried:
    """Compilers that have looked at the first candidates when time is up, three at a time, and never at the others."""

    workers = 1

    def __init__(self, looked_at: int) -> None:
        self.looked_at = looked_at

    def looks(self, candidates: Sequence[Choice]) -> list[Future[list[Look]]]:
        futures = []
        for at in range(0, len(candidates), 3):
            futures.append(future := Future[list[Look]]())
            if at < self.looked_at:
                parts = enumerate(candidates[at : at + 3])
                future.set_result([Look(one, 100.0 - at - i, "" if i < 2 else "too large") for i, one in parts])
        return futures


@pytest.mark.parametrize("looked_at", [3, 12])
def test_a_ranking_says_what_there_was_no_time_to_look_at(looked_at: int) -> None:
    space = make_space(Gemm(512, 512, 512), H200, rung="worklog/best")
    compilers: Any = Unhurried(looked_at)
    ranking = rank(space, compilers, seconds=0.0)
    assert (len(ranking.order), len(ranking.refused)) == (2 * looked_at // 3, looked_at // 3)
    assert len(ranking.order) + len(ranking.refused) + len(ranking.unseen) == len(space.candidates)
    assert [one.predicted_us for one in ranking.order] == sorted(one.predicted_us for one in ranking.order)
