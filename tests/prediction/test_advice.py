"""Edits that `advise` tells: built, right, and faster by the model."""

from __future__ import annotations

from itertools import count
from math import inf
from typing import Any

import pytest

from tilewright.ladders import find_rung
from tilewright.prediction.advice import Advice, _conflicts, advise
from tilewright.prediction.counting import work_of
from tilewright.prediction.edits import edits
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.schedule import Relayout
from tilewright.toolchain import Build, build


def built(name: str, size: int = 4096) -> Build:
    rung = find_rung(name)
    return build(rung.gemm(size, size, size), rung)


def advice(name: str, device: str = "h200", **options: Any) -> tuple[Advice, ...]:
    """Whatever time it takes, but where a test limits it by a clock of its own."""
    return advise(built(name), device, cache=CubinCache(), most=3, **{"seconds": inf, **options})


@pytest.mark.slow
def test_a_pad_that_breaks_wide_stores_is_answered_with_one_that_does_not() -> None:
    told = next(one for one in advice("worklog/8") if one.what.startswith("pad"))
    assert told.what == "pad the B tile by 4"
    assert (
        Relayout("B_tile", rows="k", pad=4) in told.schedule.steps or Relayout("B_tile", pad=4) in told.schedule.steps
    )
    assert told.after.tflops > 1.1 * told.before.tflops


def test_the_sentence_has_counts_before_and_after() -> None:
    told = {one.what: one.sentence for one in advice("swizzle/opt")}
    runs = told["deal each thread's 8 columns out in 2 runs of 4"]
    assert "8 -> 4 wavefronts a load of B_frag, predicted " in runs and runs.endswith(" TFLOP/s")


def test_loads_that_are_waited_for_are_answered_with_a_pipeline() -> None:
    (first, *_) = advice("ampere/3", "a100")
    assert "pipeline" in first.what and first.counted.startswith("latency")


def test_the_naive_rung_is_told_to_stage_tiles() -> None:
    (first, *_) = advice("worklog/1")
    assert first.what == "stage tiles of A and B in shared memory, 32 deep"
    assert first.after.tflops > 3 * first.before.tflops


def test_products_that_all_wait_for_are_answered_with_a_warpgroup_that_copies() -> None:
    found = advice("hopper/2")
    assert [one.what for one in found] == ["let a warpgroup of its own copy"]
    assert found[0].counted == "MMAs awaited 26% -> 0% of the time"
    assert found[0].after.tflops > 1.4 * found[0].before.tflops  # measured, hopper/3 by hopper/2: 1.58


def test_a_searched_rung_is_left_alone() -> None:
    assert advice("worklog/best", seconds=2, now=count().__next__) == ()  # its first 2 edits


@pytest.mark.parametrize("seconds", [0, 3])
def test_no_edit_is_begun_after_the_time_is_spent(seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second, and there is one before each edit."""
    begun: list[object] = []

    def counted(*asked: Any, **options: Any) -> Build:
        begun.append(asked)
        return build(*asked, **options)

    monkeypatch.setattr("tilewright.prediction.advice.build", counted)
    monkeypatch.setattr("tilewright.prediction.advice._confirmed", lambda *asked: None)
    assert advice("worklog/5", seconds=seconds, now=count().__next__) == ()
    assert len(begun) == seconds


@pytest.mark.parametrize("name", ["worklog/4", "worklog/10", "te/3", "ampere/4", "hopper/2", "hopper/4"])
def test_edits_differ_from_the_schedule_and_from_each_other(name: str) -> None:
    one = built(name, 256)
    found = [edit.schedule for edit in edits(one, conflicts={"A", "B"})]
    assert one.schedule not in found and len(set(found)) == len(found)


def test_another_layout_is_tried_of_tiles_with_conflicts_alone() -> None:
    """B_frag of worklog/5 loads in 8 wavefronts where 4 would do; the accesses of A_tile are as few as they can be."""
    one = built("worklog/5", 256)
    assert _conflicts(one, work_of(one)) == {"B"}
    layouts = {edit.family for edit in edits(one, {"B"}) if edit.family.startswith("layout")}
    assert layouts == {"layout of B_tile"}
