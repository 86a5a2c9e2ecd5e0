"""Finding rungs and ladders by name, and what a misspelling is told."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from rung_runs import rungs
from tilewright.errors import TilewrightError, UnknownName
from tilewright.ladders import LADDERS, Rung, find_ladder, find_rung


@pytest.mark.parametrize("rung", rungs())
def test_every_rung_has_two_names(rung: Rung) -> None:
    assert find_rung(rung.name) is find_rung(f"{rung.ladder}/{rung.slug}") is rung
    assert find_rung(f" {rung.name.upper()} ") is rung and find_rung(rung.name.replace("/", " ")) is rung


@pytest.mark.parametrize("ladder", LADDERS)
def test_every_ladder_is_found(ladder: str) -> None:
    assert find_ladder(ladder) is LADDERS[ladder]


def test_a_slug_of_several_ladders_must_say_which() -> None:
    with pytest.raises(TilewrightError) as refused:
        find_rung("thread_tile_2d")
    assert str(refused.value) == ("'thread_tile_2d' is a rung of 2 ladders.\n  Hint: say worklog/5 or hierarchy/v04.")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("worklog/vectorized", "worklog/vectorised"),
        ("te/9", "te/"),
        ("hierarchy/v6_warp_tiles", "hierarchy/warp_tiles"),
    ],
)
def test_a_misspelt_rung_is_told_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownName) as refused:
        find_rung(wrong)
    text = str(refused.value)
    assert text.startswith(f"There is no rung {wrong!r}.\n  Hint: did you mean '{near}") and "Known: worklog/1" in text


def test_a_misspelt_ladder_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName) as refused:
        find_ladder("worklogs")
    assert str(refused.value) == (
        "There is no ladder 'worklogs'.\n"
        "  Hint: did you mean 'worklog'? Known: worklog, hierarchy, swizzle, te, ampere, hopper."
    )


@pytest.mark.parametrize("wrong", ["", "/", "worklog/", "worklog/0", "0", "te//4"])
def test_what_is_no_name_is_refused(wrong: str) -> None:
    with pytest.raises(UnknownName):
        find_rung(wrong)


def test_a_rung_is_pickled_by_its_name() -> None:
    """What it claims are lambdas."""
    for rung in (rung for ladder in LADDERS.values() for rung in ladder):
        assert pickle.loads(pickle.dumps(rung)) is rung and copy.deepcopy(rung) is rung
    mine = replace(find_rung("worklog/1"), ladder="mine", claims=())
    assert copy.deepcopy(mine) == mine and copy.deepcopy(mine) is not mine
