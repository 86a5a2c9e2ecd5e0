"""How networks of estimates learn: rows of problems, what plans have in common, and that what is written says what was
learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fit_choice
import networks
import numpy as np
import pytest
from networks import OfProblem, Problems, Rows, School, knots_of

from tilewright.planning.cost.correction import Network


def of_problem(plans: int, seed: int) -> OfProblem:
    """Two plans or more, whose second feature makes them slower; the third is that of the problem."""
    rng = np.random.default_rng(seed)
    level = rng.normal()
    x = np.column_stack([rng.normal(size=plans), rng.uniform(0, 3, plans), np.full(plans, level), np.full(plans, 7.0)])
    return OfProblem(x, 0.1 * np.maximum(x[:, 1] - 1, 0) + 0.2 * level, np.ones(plans), np.array([[level, 1.0]]))


SWEEP = Path(__file__).parents[2] / "benchmarks" / "sweeps" / "h100.jsonl.xz"

ROWS = Rows.of([of_problem(2 + number % 4, number) for number in range(40)])


def test_rows_of_problems_stand_one_behind_the_other() -> None:
    assert [(ROWS.problem == number).sum() for number in range(5)] == [2, 3, 4, 5, 2]
    assert len(ROWS.about) == 40 and ROWS.about[3, 0] == ROWS.x[ROWS.problem == 3][0, 2]


def test_others_beside_them_have_problems_of_their_own_and_weigh_less() -> None:
    both = ROWS.beside(Rows.of([of_problem(3, 99)]), 0.25)
    assert (both.problem == 40).sum() == 3 and both.w[-3:].tolist() == [0.25] * 3 and len(both.about) == 41
    assert (np.diff(both.problem) >= 0).all()


def test_what_is_left_together_is_the_weighted_mean_of_each_problem_that_has_rows() -> None:
    rows = Rows(ROWS.x, ROWS.y, np.where(np.arange(len(ROWS.y)) % 2, 1.0, 0.5), ROWS.problem, ROWS.about)
    seen = rows.where(rows.problem % 3 > 0)
    about, left, weights = seen.left_together(np.full(len(seen.y), 0.125))
    numbers = [number for number in range(40) if number % 3]
    assert np.array_equal(about, ROWS.about[numbers])
    for number, one, weight in zip(numbers, left, weights, strict=True):
        own = rows.problem == number
        assert one == pytest.approx(np.average(rows.y[own] - 0.125, weights=rows.w[own]))
        assert weight == rows.w[own].max()


def test_knots_lie_at_values_or_between_equal_shares_of_them() -> None:
    column = np.arange(1000.0) ** 2
    (knots,) = knots_of(column[:, None])
    assert len(knots) == networks._RAMPS + 1 and (knots[0], knots[-1]) == (0.0, 999.0**2 // 10 * 10)
    shares = np.diff(np.searchsorted(column, knots))
    assert shares.max() - shares.min() <= 1


def test_few_plans_of_each_drawn_problem_are_remembered() -> None:
    drawn = Rows.of([of_problem(plans, plans) for plans in (3, 40, 16, 17)])
    kept = fit_choice.remembered(drawn, np.random.default_rng(1))
    assert np.bincount(kept.problem).tolist() == [3, 16, 16, 16]
    other = fit_choice.remembered(drawn, np.random.default_rng(2))
    assert not np.array_equal(kept.x, other.x)


@pytest.mark.parametrize("fit", fit_choice.FAMILY)
def test_drawn_problems_have_names_that_problems_have(fit: str) -> None:
    rng = fit_choice.random.Random(5)
    names = [fit_choice.drawn_problem(fit, rng) for _ in range(60)]
    for name in names:
        assert str(fit_choice.problem_named(name)) == name
    assert len({*names}) == 60


def test_problems_of_the_same_sizes_are_judged_together() -> None:
    names = ("8x64x16 bf16 NT", "8x64x16 tf32 TN", "7 x 8x64x16 f16", "7 x 8x64x16 bf16", "8x64x16 e4m3 NT row fast")
    assert [fit_choice.sizes_of(name) for name in names] == ["8x64x16"] * 2 + ["7 x 8x64x16"] * 2 + ["8x64x16"]


def test_a_choice_that_knows_what_estimates_lack_is_the_best_measured_plan() -> None:
    rows = [row for row in fit_choice.rows_of_sweep(SWEEP) if row.get("plans")][:40]
    assert len(rows) == 40
    data = [one for one in fit_choice.measured("wgmma", [SWEEP]) if one.name in {row["p"] for row in rows}]
    of = [fit_choice.rows_of_plans(one) for one in data]
    knowing = [fit_choice.with_added(one, rows.y) for one, rows in zip(data, of, strict=True)]
    assert fit_choice.judged(data, knowing).startswith("1.0000 of the best")
    plain = [fit_choice.with_added(one, 0 * rows.y) for one, rows in zip(data, of, strict=True)]
    assert not fit_choice.judged(data, plain).startswith("1.00")


def test_plans_of_one_problem_are_learned_beside_each_other_whatever_packs_before_them() -> None:
    """Of each the whole time, as a user meets it."""
    several = [one for one in fit_choice.measured("wgmma", [SWEEP]) if len(one.tables) > 1]
    assert len(several) > 5
    rows = {row["p"]: row for row in fit_choice.rows_of_sweep(SWEEP) if row.get("plans")}
    for one in several:
        told = fit_choice.rows_of_plans(one)
        assert len(told.y) == len(told.x) == len(one.us) and len(told.about) == 1
        assert np.exp(told.y) * one.seconds * 1e6 == pytest.approx(one.us)
        assert sorted({us for *_, us in rows[one.name]["plans"]} & {*one.us.tolist()}) == sorted({*one.us.tolist()})
        before = np.concatenate([np.broadcast_to(of.packing, len(of.columns)) for of in one.estimates])
        assert (before > 0).any()


# -- with PyTorch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_each_problem_is_drawn_once_before_any_comes_again(torch: Any) -> None:
    several, rng = Problems(torch, ROWS), np.random.default_rng(0)
    drawn = np.concatenate([several.drawn(rng, 16).numpy() for _ in range(5)])
    assert sorted(drawn[:40]) == sorted(drawn[40:]) == list(range(40))
    first = several.places[3][several.there[3] > 0].numpy()
    assert np.array_equal(first, np.flatnonzero(ROWS.problem == 3))


def test_what_is_written_says_what_was_learned(torch: Any) -> None:
    school = School(knots_of(ROWS.x))
    torch.manual_seed(3)
    network = school.network(5)
    told = Network.from_json(networks.ramps_and_layers(school.knots, network))
    assert told.logarithms(ROWS.x) == pytest.approx(school.said([network], school.ramps(ROWS.x)).numpy(), abs=1e-3)


def test_networks_learn_what_tells_plans_apart_and_what_they_share(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "TEACHERS", 2)
    monkeypatch.setattr(networks, "_SHARED_STEPS", 300)
    monkeypatch.setattr(networks, "_EPOCHS", 30)
    rows = Rows.of([of_problem(6, number) for number in range(200)])
    drawn = Rows.of([of_problem(9, 1000 + number) for number in range(200)])
    drawn = Rows(drawn.x, np.full(len(drawn.y), 99.0), drawn.w, drawn.problem, drawn.about)  # nobody measured them
    told = networks.fit_of(rows, drawn)
    apart, shared = (Network.from_json(told[name]) for name in ("network", "shared"))
    fresh = Rows.of([of_problem(6, 5000 + number) for number in range(50)])
    said = apart.logarithms(fresh.x)
    assert np.abs(fresh.left_together(0 * said)[1]).max() > 0.3  # so much is what plans share
    for number in range(50):
        own = fresh.problem == number
        beside = (said - fresh.y)[own]
        assert np.ptp(beside) < 0.06
        level = shared.logarithms(fresh.about[[number]])[0]
        assert abs(level - np.mean((fresh.y - said)[own])) < 0.1
