"""Every rung does what it says: each claim holds of the counts of a simulated run."""

from __future__ import annotations

import pytest

from rung_runs import rungs, simulated, whole_tiles
from tilewright.ladders import LADDERS, Rung, below
from tilewright.problem import check
from tilewright.simulator import Kind


@pytest.mark.cross_section("rung", every=6)
@pytest.mark.parametrize("rung", rungs())
def test_claims_hold(rung: Rung) -> None:
    gemm = rung.gemm(*whole_tiles(rung))
    operands, computed, run, built = simulated(rung, gemm)
    assert built.variant.exact == frozenset("mnk"), "claims are about multiples of the tile"
    assert check(operands, computed).ok
    assert not run.errors
    broken = [claim.sentence for claim in rung.claims if not claim.holds(run.counters, gemm)]
    assert not broken


@pytest.mark.cross_section("rung", every=6)
@pytest.mark.parametrize("rung", rungs())
def test_only_the_copy_without_cooperation_is_redundant(rung: Rung) -> None:
    gemm = rung.gemm(128, 256, 32)
    notes = {finding.kind for finding in simulated(rung, gemm)[2].findings}
    assert notes == ({Kind.SAME_VALUE} if rung.name == "te/2" else set())


@pytest.mark.parametrize("ladder", LADDERS)
def test_a_ladder_is_in_order(ladder: str) -> None:
    rungs_of = LADDERS[ladder]
    numbers = [rung.number for rung in rungs_of]
    assert numbers == sorted(numbers)
    assert all(rung.ladder == ladder and rung.idea and not rung.idea.endswith(".") for rung in rungs_of)
    seen: set[str] = set()
    for rung in rungs_of:
        foundation = below(rung)
        assert (foundation is None) == (rung.builds_on is None)
        assert foundation is None or foundation.name in seen, f"{rung.name} builds on a rung above it"
        seen.add(rung.name)


def test_names_are_unique() -> None:
    names = [rung.name for ladder in LADDERS.values() for rung in ladder]
    slugs = [f"{rung.ladder}/{rung.slug}" for ladder in LADDERS.values() for rung in ladder]
    assert len(set(names)) == len(names) and len(set(slugs)) == len(slugs)
