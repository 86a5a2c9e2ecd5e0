"""The wavefront rule: published measurements, hand counts, and a slow obvious version on random accesses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tilewright.errors import SimulationError
from tilewright.layout.banks import (
    BankRules,
    copy_turns,
    copy_wavefronts,
    ideal_wavefronts,
    lines,
    matrix_wavefronts,
    passes,
    sectors,
    wavefronts,
)

LANE = np.arange(32)
ALL = np.ones(32, dtype=bool)
HALF_3 = (LANE // 8) * 2 + ((LANE % 8) // 2) % 2
HALF_4 = (LANE // 8) * 2 + (LANE % 8) % 2

# ncu on an A100, zhihu 690052715 (quoted in the module docstring): name, width, vector index of each lane, active
# lanes, measured wavefronts and conflicts of a load.
MEASURED = [
    ("64-1", 8, LANE, ALL, 2, 0),
    ("64-2", 8, LANE // 2, ALL, 1, 0),
    ("128-1", 16, np.full(32, 4), np.isin(LANE, (15, 16)), 2, 0),
    ("128-2", 16, np.full(32, 4), np.isin(LANE, (0, 15)), 1, 0),
    ("128-3", 16, HALF_3, ALL, 2, 0),
    ("128-4", 16, np.where(LANE < 16, HALF_3, HALF_4), ALL, 4, 0),
    ("128-5", 16, (LANE // 16) * 4 + (LANE % 16) // 8 + (LANE % 8) // 4 * 8, ALL, 4, 2),
]


@pytest.mark.parametrize(
    ("width", "index", "active", "expected", "conflicts"),
    [row[1:] for row in MEASURED],
    ids=[row[0] for row in MEASURED],
)
def test_measured_on_an_a100(width: int, index, active, expected: int, conflicts: int) -> None:
    access = (index[None] * width, width, active[None])
    assert wavefronts(*access, store=False).tolist() == [expected]
    assert (wavefronts(*access, store=False) - ideal_wavefronts(*access, store=False)).tolist() == [conflicts]


@pytest.mark.parametrize(
    ("what", "addresses", "width", "store", "expected", "ideal"),
    [
        ("LDS.32 along a row", LANE * 4, 4, False, 1, 1),
        ("LDS.32 of one word", LANE * 0, 4, False, 1, 1),
        ("LDS.32 down a column of 32 floats", LANE * 128, 4, False, 32, 1),
        ("LDS.32 down a column padded to 33", LANE * 132, 4, False, 1, 1),
        ("LDS.U16 along a row", LANE * 2, 2, False, 1, 1),
        ("LDS.128 along a row", LANE * 16, 16, False, 4, 4),
        ("LDS.128 of one vector: 2 on an A6000", LANE * 0, 16, False, 2, 2),
        ("warp-tiled kernel without vectors, A tile", LANE // 16 * 32, 16, False, 2, 2),
        ("vectorised kernel, B tile", LANE % 16 * 32, 16, False, 8, 4),
        ("warp-tiled kernel, A tile", LANE // 4 * 32, 16, False, 2, 2),
        ("warp-tiled kernel, B tile", LANE % 4 * 16, 16, False, 4, 4),
        ("transposing store, BK 8", ((LANE % 2) * 4 * 128 + LANE // 2) * 4, 4, True, 2, 1),
        ("transposing store, BK 16", ((LANE % 4) * 4 * 128 + LANE // 4) * 4, 4, True, 4, 1),
        ("scalar transposing store, BK 16", ((LANE % 16) * 128 + LANE // 16) * 4, 4, True, 16, 1),
        ("STS.128 of one vector does not merge", LANE * 0, 16, True, 4, 4),
    ],
)
def test_by_hand(what: str, addresses, width: int, store: bool, expected: int, ideal: int) -> None:
    assert wavefronts(addresses[None], width, store=store).tolist() == [expected], what
    assert ideal_wavefronts(addresses[None], width, store=store).tolist() == [ideal], what


def test_ways_and_groups() -> None:
    access = (LANE[None] % 16 * 32, 16)
    assert passes(*access, store=False).tolist() == [[2, 2, 2, 2]]
    assert passes(LANE[None] * 128, 4, store=False).max() == 32


def test_rules_are_a_value() -> None:
    uniform = np.zeros((1, 32), dtype=int)
    assert wavefronts(uniform, 16, store=False, rules=BankRules(load_pair_distances=())).tolist() == [4]
    assert wavefronts(uniform, 16, store=True, rules=BankRules(store_pair_distances=(1, 2))).tolist() == [2]


def test_ldmatrix() -> None:
    row = np.arange(32)
    unpadded, padded, swizzled = row * 128, row * 144, row * 128 + (row % 8) * 16
    rows = np.stack([unpadded, padded, swizzled])
    assert matrix_wavefronts(rows, 4).tolist() == [32, 4, 4]
    assert matrix_wavefronts(rows, 1).tolist() == [8, 1, 1]


def test_global_tiles() -> None:
    """A 128 x BK tile read as float4: BK = 8 touches 16 rows of 32 bytes, BK = 16 touches 8 of 64."""
    bk8 = (LANE // 2) * 16384 + (LANE % 2) * 16
    bk16 = (LANE // 4) * 16384 + (LANE % 4) * 16
    addresses = np.stack([bk8, bk16, LANE * 16, LANE * 0])
    assert sectors(addresses, 16).tolist() == [16, 16, 16, 1]
    assert lines(addresses, 16).tolist() == [16, 8, 4, 1]


def test_only_lanes_that_read_wait_for_a_bank_that_is_read() -> None:
    """Copies of 4 bytes from one bank to 32 banks: lanes that only write zeros, or do nothing, wait for nobody."""
    lane = np.arange(32)[None]
    targets, sources = lane * 4, lane * 128

    def turns(active: list[int], reading: list[int]) -> list[int]:
        masks = (np.isin(lane, some) for some in (active, reading))
        return copy_turns(targets, sources, 4, *masks)[0].tolist()

    every = list(range(32))
    assert turns(every, every) == list(range(1, 33))
    assert turns(every, [2, 5, 9]) == [{2: 1, 5: 2, 9: 3}.get(at, 1) for at in every]
    assert turns([5, 9], [2, 5, 9]) == [{5: 1, 9: 2}.get(at, 0) for at in every]
    assert turns([2, 5, 9], [5]) == [{2: 1, 5: 1, 9: 1}.get(at, 0) for at in every]
    assert copy_wavefronts(targets, sources, 4, reading=np.isin(lane, [2, 5, 9])).tolist() == [3]


def test_nothing_active_costs_nothing() -> None:
    addresses, nobody = np.zeros((3, 32), dtype=int), np.zeros((3, 32), dtype=bool)
    for width in (4, 8, 16):
        assert wavefronts(addresses, width, nobody, store=False).tolist() == [0, 0, 0]
        assert not passes(addresses, width, nobody, store=True).any()
    assert sectors(addresses, 4, nobody).tolist() == [0, 0, 0]
    assert wavefronts(addresses[:0], 4, store=False).shape == (0,)
    assert sectors(addresses[:0], 4).shape == (0,)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(SimulationError, match="A lane cannot access 12 bytes at once"):
        wavefronts(LANE[None] * 12, 12, store=False)


# The slow, obvious version: one request, a Python set of words for each bank.


def slow_passes(lanes: list[int], width: int) -> int:
    words: dict[int, set[int]] = {}
    for address in lanes:
        for word in range(address // 4, (address + width - 1) // 4 + 1):
            words.setdefault(word % 32, set()).add(word)
    return max((len(distinct) for distinct in words.values()), default=0)


def slow_wavefronts(addresses: list[int], active: list[bool], width: int, store: bool) -> tuple[int, int]:
    """Wavefronts of one request, and ideal ones."""

    def agree(distance: int) -> bool:
        return all(
            not active[i] or not active[i ^ distance] or addresses[i] == addresses[i ^ distance] for i in range(32)
        )

    lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    if width > 4 and not store and (agree(1) or agree(2)):
        lanes *= 2
    groups = [[addresses[i] for i in range(k, k + lanes) if active[i]] for k in range(0, 32, lanes)]
    counts = [slow_passes(group, width) for group in groups]
    return sum(counts), sum(1 for group in groups if group)


requests = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        # Few distinct units, so that broadcasts, merges and conflicts all happen often.
        hnp.arrays(np.int64, (n, 32), elements=st.one_of(st.integers(0, 3), st.integers(0, 200))),
        st.one_of(st.none(), hnp.arrays(np.bool_, (n, 32))),
        st.sampled_from([1, 2, 4, 8, 16]),
        st.sampled_from([0, 1, 2]),
    )
)


@settings(max_examples=300, deadline=None)
@given(requests, st.booleans())
def test_agrees_with_the_slow_version(request, store: bool) -> None:
    units, active, width, repeat = request
    units = units[:, LANE >> repeat]  # lanes in groups of 1, 2 or 4 agree: the merging cases
    addresses = units * width
    mask = np.ones(addresses.shape, dtype=bool) if active is None else active
    slow = [slow_wavefronts(a.tolist(), m.tolist(), width, store) for a, m in zip(addresses, mask, strict=True)]
    assert wavefronts(addresses, width, active, store=store).tolist() == [row[0] for row in slow]
    assert ideal_wavefronts(addresses, width, active, store=store).tolist() == [row[1] for row in slow]
    for count, piece in ((sectors, 32), (lines, 128)):
        distinct = [len(set((a[m] // piece).tolist())) for a, m in zip(addresses, mask, strict=True)]
        assert count(addresses, width, active).tolist() == distinct


@settings(max_examples=100, deadline=None)
@given(requests, st.booleans(), st.integers(0, 63))
def test_laws(request, store: bool, rows: int) -> None:
    units, active, width, _ = request
    addresses = units * width
    counts = wavefronts(addresses, width, active, store=store)
    ideal = ideal_wavefronts(addresses, width, active, store=store)
    assert (counts >= ideal).all()
    # A shift by whole rows of banks changes nothing.
    assert (wavefronts(addresses + 128 * rows, width, active, store=store) == counts).all()
    assert (lines(addresses, width, active) <= sectors(addresses, width, active)).all()


def test_many_requests_are_counted_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    addresses = rng.integers(0, 512, (600, 32)) * 16
    addresses[::3] = addresses[::3, LANE // 2]
    active = rng.random((600, 32)) < 0.8
    together = wavefronts(addresses, 16, active, store=False)
    alone = [wavefronts(addresses[i : i + 1], 16, active[i : i + 1], store=False)[0] for i in range(600)]
    assert together.tolist() == alone
