"""Barriers of some warps, held against a count made by hand: warps arrive and end in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.simulator.asynchronous.meetings import NAMED_BARRIER, Meetings
from tilewright.simulator.convoy import Wait
from tilewright.simulator.findings import Site


class Met:
    """In place of the clocks: who met."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def meet(self, rows: np.ndarray) -> None:
        self.rows += [tuple(sorted(row)) for row in rows.tolist()]


@given(st.data(), st.integers(1, 5), st.integers(1, 3))
def test_a_barrier_of_all_warps_opens_when_those_that_are_left_are_there(
    data: st.DataObject, warps: int, keys: int
) -> None:
    """Each warp that does not wait may arrive or end; a barrier expects the warps of its key that are left."""
    met = Met()
    meetings = Meetings(keys, met, NAMED_BARRIER)  # type: ignore[arg-type]
    left = [set(range(key * warps, (key + 1) * warps)) for key in range(keys)]
    there: list[set[int]] = [set() for _ in range(keys)]
    opened, groups = [0] * keys, []
    for _ in range(data.draw(st.integers(0, 20))):
        free = [(key, row) for key in range(keys) for row in sorted(left[key] - there[key])]
        if not free:
            break
        key, row = data.draw(st.sampled_from(free))
        if there[key] and data.draw(st.booleans()):
            left[key].remove(row)
            meetings.leave(np.array([key]))
        else:
            there[key].add(row)
            awaited, wrong = meetings.arrive(np.array([key]), np.array([row]), np.array([len(left[key])]))
            assert awaited.tolist() == [opened[key] + 1] and not wrong.size
        if there[key] and there[key] == left[key]:
            groups.append(tuple(sorted(there[key])))
            opened[key] += 1
            there[key] = set()
        assert meetings.rounds.tolist() == opened
        assert [meetings.there(one) for one in range(keys)] == [len(some) for some in there]
    assert met.rows == groups


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_a_barrier_names_the_arrival_that_expects_another_number(counts: list[int]) -> None:
    """By hand: an arrival is wrong where others wait already and the last of them expected another number."""
    meetings = Meetings(1, Met(), NAMED_BARRIER)  # type: ignore[arg-type]
    waiting, expected = 0, 0
    for row, count in enumerate(counts):
        _, wrong = meetings.arrive(np.array([0]), np.array([row]), np.array([count]))
        assert wrong.tolist() == [0] * (waiting > 0 and count != expected)
        waiting, expected = waiting + 1, count
        if waiting == count:
            waiting = 0
        assert meetings.there(0) == waiting


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(1, 4))
def test_warps_that_come_at_once_wait_for_openings_of_their_own(keys: list[int], count: int) -> None:
    """By hand: of those who come to a barrier in turn, each `count` wait for one opening."""
    meetings = Meetings(3, Met(), NAMED_BARRIER)  # type: ignore[arg-type]
    awaited, _ = meetings.arrive(np.array(keys, int), np.arange(len(keys)), np.full(len(keys), count))
    assert awaited.tolist() == [keys[:at].count(key) // count + 1 for at, key in enumerate(keys)]
    assert meetings.rounds.tolist() == [keys.count(key) // count for key in range(3)]


@pytest.mark.parametrize(("round_", "ready"), [(1, True), (2, True), (3, False)])
def test_a_wait_is_over_from_the_round_on_that_it_waits_for(round_: int, ready: bool) -> None:
    meetings = Meetings(2, Met(), NAMED_BARRIER)  # type: ignore[arg-type]
    for row in range(2):
        meetings.arrive(np.array([1]), np.array([row]), np.array([1]))
    assert meetings.rounds.tolist() == [0, 2]
    wait = Wait(Site.__new__(Site), meetings, np.array([1, 0]), np.array([round_, 1]))
    assert wait.ready().tolist() == [ready, False]
    assert wait.select(np.array([True, False])).ready().tolist() == [ready]
