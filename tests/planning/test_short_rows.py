"""What estimates say of operands several rows of which lie in one line of the L2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from test_dispatch import problem

from tilewright.device.catalog import H200
from tilewright.kernels.columns import Columns
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.cost import wgmma_terms
from tilewright.planning.cost.short_rows import line_seconds
from tilewright.problem import Gemm

TILE = WgmmaConfig((64, 64, 64), consumers=1, stages=8, persistent=False)
BY_M, BY_N = replace(TILE, cluster=(4, 1)), replace(TILE, cluster=(1, 4))


def told(gemm: Gemm, *kernels: WgmmaConfig) -> tuple[Any, Any] | None:
    """Seconds of all k tiles and of the first."""
    c = wgmma_terms.with_clocks(Columns.of(kernels, WgmmaConfig.columns), gemm, H200)
    tiles = np.ceil(gemm.m / c.m), np.ceil(gemm.n / c.n)
    return line_seconds(c, gemm, tiles, np.full(len(c), np.ceil(gemm.k / 64)))


def test_blocks_that_share_a_tile_of_short_rows_ask_for_the_same_lines() -> None:
    """Rows of 8 elements of 2 bytes: eight lie in a line. A cluster along m asks for B once; one along n does not."""
    found = told(problem(6400, 64, 8, "bf16", "NT"), TILE, BY_M, BY_N)
    assert found is not None
    for seconds in found:
        alone, by_m, by_n = seconds
        assert alone == by_n == 4 * by_m > 0


def test_each_k_tile_asks_again() -> None:
    short, long = (told(problem(8, 4096, k, "bf16", "TN"), TILE) for k in (64, 640))  # A lies in rows of 8
    assert short is not None and long is not None
    assert long[0] == 10 * short[0]
    assert long[1] == short[1]


def test_rows_of_half_a_line_or_more_do_not_count() -> None:
    assert told(problem(6400, 64, 32, "bf16", "NT"), TILE) is None
    assert told(problem(6400, 64, 16, "tf32", "NT"), TILE) is None
    assert told(problem(6400, 64, 16, "bf16", "NT"), TILE) is not None


def test_a_short_product_is_estimated_to_take_longer_without_clusters() -> None:
    c = Columns.of([TILE, BY_M], WgmmaConfig.columns)
    alone, together = wgmma_terms.timed(c, problem(6400, 64, 8, "bf16", "NT"), H200).seconds
    assert alone > 1.2 * together
