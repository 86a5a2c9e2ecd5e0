"""Which blocks of a grid run."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tilewright.errors import SimulationError
from tilewright.simulator.launch import all_blocks, some_blocks

GRID = (4, 3, 2)


def test_all_blocks_in_the_order_of_a_launch() -> None:
    found = [tuple(one) for one in all_blocks(GRID).tolist()]
    assert found == [(x, y, z) for z, y, x in product(range(2), range(3), range(4))]


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_chosen_blocks_bring_those_of_their_clusters(cluster: int) -> None:
    whole = [(x, y, z) for x, y, z in product(range(4), range(3), range(2))]
    for seed in range(20):
        chosen = Random(seed).sample(whole, 1 + seed % 5)
        found = [tuple(one) for one in some_blocks(GRID, chosen, cluster).tolist()]
        if cluster == 1:
            assert found == chosen
            continue
        firsts = sorted({(x // cluster * cluster, y, z) for x, y, z in chosen})
        assert found == [(x + member, y, z) for x, y, z in firsts for member in range(cluster)]


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("beyond", [-1, 0])
def test_a_block_lies_in_the_grid(axis: int, beyond: int) -> None:
    outside = [0, 0, 0]
    outside[axis] = -1 if beyond else GRID[axis]
    with pytest.raises(SimulationError, match="is not in the grid") as caught:
        some_blocks(GRID, [(0, 0, 0), tuple(outside), (9, 9, 9)])  # type: ignore[list-item]
    assert f"Block {tuple(outside)} is" in str(caught.value)
