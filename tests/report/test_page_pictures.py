"""Pictures of the page show what the simulator saw: held against its counters, and what rungs are known to do."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.device.catalog import H200
from tilewright.ladders import LADDERS, find_rung
from tilewright.layout.banks import ideal_wavefronts, wavefronts
from tilewright.problem.reference import make_operands
from tilewright.report.page.banks import bank_maps, waves_of
from tilewright.report.page.loads import loads
from tilewright.report.page.owners import NOBODY, owners_of
from tilewright.report.page.speed import block_order
from tilewright.report.page.timeline import timeline
from tilewright.report.page.watch import FIRST_BLOCK, Watched, watch
from tilewright.toolchain import Build, build

RUNGS = [rung.name for rungs in LADDERS.values() for rung in rungs if rung.name not in ("te/0", "te/2")]
"""Those two run one thread for a row, and take long; nothing about them is special here."""


@cache
def built(name: str, size: int = 256) -> Build:
    rung = find_rung(name)
    return build(rung.gemm(size, size, size), rung)


@cache
def watched(name: str) -> Watched:
    return watch(built(name))


# -- who computes what -------------------------------------------------------------------------------------------------


@pytest.mark.cross_section("name", every=6)
@pytest.mark.parametrize("name", RUNGS)
def test_every_element_of_the_tile_has_an_owner_and_all_owners_have_equally_many(name: str) -> None:
    owners = owners_of(watched(name))
    assert owners.shape == (built(name).kernel.tile["m"], built(name).kernel.tile["n"])
    assert (owners != NOBODY).all()
    _, counts = np.unique(owners, return_counts=True)
    assert len(set(counts.tolist())) == 1


def test_a_thread_of_rung_6_owns_eight_by_eight_neighbours() -> None:
    rows, columns = np.nonzero(owners_of(watched("worklog/6")) == 37)
    assert (len(rows), np.ptp(rows), np.ptp(columns)) == (64, 7, 7)


def test_results_that_leave_by_tma_belong_to_the_lanes_of_the_fragment() -> None:
    """hopper/5 stores its fragments directly, hopper/6 through stmatrix and a box: the same lanes own the same."""
    assert (owners_of(watched("hopper/5")) == owners_of(watched("hopper/6"))).all()


# -- who loads what ----------------------------------------------------------------------------------------------------


def test_a_warp_of_the_naive_rung_moves_a_sector_for_each_lane() -> None:
    a, b = loads(watched("worklog/1"))
    assert (a["requests"][0]["sectors"], a["requests"][0]["fewest"]) == (32, 4)
    assert b["requests"][0]["sectors"] == 1  # all lanes want the same


@pytest.mark.cross_section("name", every=5)
@pytest.mark.parametrize("name", RUNGS)
def test_loads_of_one_step_cover_the_tile(name: str) -> None:
    for operand in loads(watched(name)):
        seen = np.zeros((operand["rows"], operand["columns"]), bool)
        along = (0, 1) if operand["rowsContiguous"] else (1, 0)
        for request in operand["requests"]:
            for at in (at for at in request["at"] if at >= 0):
                row, column = divmod(at, operand["columns"])
                for step in range(request["width"]):
                    seen[row + step * along[0], column + step * along[1]] = True
        for box in operand["boxes"]:
            rows = slice(box["row"], box["row"] + box["rows"])
            seen[rows, box["column"] : box["column"] + box["columns"]] = True
        if operand["count"] == len(operand["requests"]):  # a picture keeps some requests of many
            assert seen.all()


# -- bank conflicts ----------------------------------------------------------------------------------------------------


@given(
    words=st.lists(st.integers(0, 255), min_size=32, max_size=32),
    width=st.sampled_from([1, 2, 4, 8, 16]),
    active=st.lists(st.booleans(), min_size=32, max_size=32).filter(any),
    store=st.booleans(),
    pairs=st.booleans(),
)
def test_the_waves_of_lanes_are_as_many_as_the_banks_count(
    words: list[int], width: int, active: list[bool], store: bool, pairs: bool
) -> None:
    addresses, lanes = np.array(words) * width, np.array(active)
    if pairs:  # lanes that agree in pairs merge two groups into one
        addresses = np.repeat(addresses[::2], 2)
    waves, firsts = waves_of(addresses, width, lanes, store=store)
    assert set(waves[lanes].tolist()) == set(range(wavefronts(addresses[None], width, lanes[None], store=store)[0]))
    assert len(firsts) == ideal_wavefronts(addresses[None], width, lanes[None], store=store)[0]


@given(words=st.lists(st.integers(0, 255), min_size=32, max_size=32), width=st.sampled_from([4, 8, 16]))
def test_a_bank_gives_one_word_in_a_wave(words: list[int], width: int) -> None:
    addresses = np.array(words) * width
    waves, _ = waves_of(addresses, width, np.ones(32, bool), store=False)
    given_words: dict[tuple[int, int], int] = {}
    for address, wave in zip(addresses.tolist(), waves.tolist(), strict=True):
        for word in range(address // 4, (address + width) // 4):
            assert given_words.setdefault((wave, word % 32), word) == word


@pytest.mark.parametrize("name", ["worklog/5", "worklog/8", "worklog/12", "ampere/3", "hierarchy/v07", "hopper/6"])
def test_maps_hold_the_wavefronts_that_the_simulator_counts(name: str) -> None:
    counted = built(name).simulate(
        make_operands(watched(name).gemm),
        blocks=[FIRST_BLOCK],
        resident_blocks=built(name).kernel.cluster if built(name).kernel.resident else None,
    )
    loaded, stored = counted.counters.shared_loads, counted.counters.shared_stores
    maps = bank_maps(watched(name))
    assert sum(one["waves"] for one in maps) == loaded.wavefronts + stored.wavefronts
    assert sum(one["excess"] for one in maps) == loaded.excess_wavefronts + stored.excess_wavefronts


# -- the pipeline ------------------------------------------------------------------------------------------------------


def _ahead(drawn: dict[str, Any]) -> int:
    """By how many steps what is fetched runs ahead of what is multiplied."""
    fetched = [cell for cell in drawn["cells"] if cell["kind"] in ("load", "copy")]
    multiplied = [cell for cell in drawn["cells"] if cell["kind"] == "multiply"]
    return max(one["step"] - cell["step"] for cell in multiplied for one in fetched if one["from"] < cell["to"])


@pytest.mark.parametrize(
    ("name", "ahead"), [("worklog/3", 0), ("worklog/6", 0), ("worklog/12", 1), ("ampere/4", 2), ("hopper/best", 3)]
)
def test_loads_run_ahead_by_as_many_steps_as_there_are_slots_to_spare(name: str, ahead: int) -> None:
    assert _ahead(timeline(watched(name))) == ahead


@pytest.mark.cross_section("name", every=6, at=1)
@pytest.mark.parametrize("name", [name for name in RUNGS if not name.startswith("hopper/")])
def test_steps_are_multiplied_in_order_and_none_past_the_end(name: str) -> None:
    drawn = timeline(watched(name))
    for role in drawn["roles"]:
        cells = [one for one in drawn["cells"] if one["kind"] == "multiply" and one["role"] == role["number"]]
        steps = [cell["step"] for cell in cells]
        assert steps == sorted(steps)
        assert set(steps) <= set(range(watched(name).gemm.k // built(name).kernel.tile["k"]))


def test_ping_pong_warpgroups_are_roles_beside_the_producer() -> None:
    drawn = timeline(watched("hopper/best"))
    assert [role["name"] for role in drawn["roles"]] == ["warps 0 to 3", "warps 4 to 7", "warp 8"]
    assert "A_tile stage 3" in drawn["rows"]
    busy = [{cell["role"] for cell in drawn["cells"] if cell["step"] == step} for step in (0, 4)]
    assert busy == [{0, 2}, {1, 2}]


def test_one_half_of_rung_11_loads_while_the_other_multiplies() -> None:
    cells = timeline(watched("worklog/11"))["cells"]
    first = next(cell for cell in cells if cell["kind"] == "multiply")
    beside = [cell for cell in cells if cell["role"] != first["role"] and cell["kind"] == "load"]
    assert beside[0]["step"] == first["step"] + 1


@pytest.mark.cross_section("name", every=5)
@pytest.mark.parametrize("name", RUNGS)
def test_a_slot_is_not_filled_before_it_has_been_read(name: str) -> None:
    drawn = timeline(watched(name))
    for row in drawn["rows"]:
        bars = [bar for bar in drawn["bars"] if bar["row"] == row and "registers" not in row]
        for one, following in pairwise(bars):
            assert one["read"] is not None and one["read"][1] <= following["from"]
            assert one["from"] < one["ready"] <= one["read"][0]


# -- the order of blocks -----------------------------------------------------------------------------------------------


@pytest.mark.cross_section("name", every=3)
@pytest.mark.parametrize("name", RUNGS)
def test_the_order_has_every_tile_once(name: str) -> None:
    order = block_order(built(name, 1024), H200, 1)
    assert order is not None
    runs = np.array(order["runs"]).reshape(-1, 3)
    tiles = [first + step * at for first, step, count in runs.tolist() for at in range(count)]
    assert sorted(tiles) == list(range(order["rows"] * order["columns"]))
    assert order["blocks"] == len(tiles)


def test_layers_keep_a_wave_in_few_columns() -> None:
    plain, layered = (block_order(built(name, 4096), H200, 1) for name in ("swizzle/async_copy", "swizzle/block_order"))
    assert plain is not None and layered is not None
    assert plain["runs"] == [0, 1, 1024]
    assert len(layered["runs"]) > 3
