"""Whole waves have a tile per block; the k tiles of those that fill no wave are shared out in equal parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.test_ordered_sums import KINDS, checked, ordered, schedule_at
from tests.lowering.work_items import check_batch, check_counted_groups, check_groups_along_m
from tilewright.dtypes import BF16
from tilewright.problem import Gemm
from tilewright.toolchain import Build

STREAMED = {"stream_k": True, "whole_waves": True}


def hybrid(gemm: Gemm, name: str) -> Build:
    return replace(ordered(gemm, schedule_at(gemm, KINDS[name])), stream_k=True, whole_waves=True)


@pytest.mark.cross_section("k", "name", every=4)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("k", [0, 8, 328])
def test_tiles_that_fill_no_wave_are_shared_out_along_k(name: str, k: int) -> None:
    """Of 8 tiles, or 14 of 64 rows: fewer than blocks, whole waves, some tiles more than one or several waves."""
    gemm = Gemm(392, 136, k, BF16, out=BF16, beta=0.5, lda=max(k, 8), ldb=136)
    for blocks in (2, 3, 5, 20):
        some = checked(hybrid(gemm, name), 64, blocks)
        np.testing.assert_array_equal(some, checked(hybrid(gemm, name), 64, blocks, "warps"))


def test_one_tile() -> None:
    gemm = Gemm(100, 104, 456, BF16, out=BF16)
    for name in ("cooperative", "ping-pong"):
        np.testing.assert_array_equal(checked(hybrid(gemm, name), 64, 3), checked(hybrid(gemm, name), 64, 3, "warps"))


@pytest.mark.cross_section("name", "blocks", every=3)
@pytest.mark.parametrize("name", ["cooperative", "ping-pong"])
@pytest.mark.parametrize("blocks", [2, 4, 5, 12, 40])
def test_of_a_strided_batch(name: str, blocks: int) -> None:
    gemm = Gemm(136, 136, 200, BF16, out=BF16)
    check_batch(gemm, schedule_at(gemm, KINDS[name]), 3, **STREAMED, resident_blocks=blocks)


@pytest.mark.cross_section("name", "rows", "blocks", every=5)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [[70, 0, 200, 5], [0, 0], [300], [0, 130, 0, 1]])
@pytest.mark.parametrize("blocks", [2, 4, 5, 20])
def test_of_groups(name: str, rows: list[int], blocks: int) -> None:
    gemm = Gemm(max(sum(rows), 300), 200, 200, BF16, out=BF16)
    check_groups_along_m(
        gemm, schedule_at(gemm, KINDS[name]), rows, **STREAMED, part_of_k=64, resident_blocks=blocks, schedule="warps"
    )


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_of_counted_groups(blocks: int) -> None:
    gemm = Gemm(3 * 144, 200, 200, BF16, out=BF16)
    check_counted_groups(
        gemm, schedule_at(gemm, KINDS["ping-pong"]), [144, 0, 70], 144, **STREAMED, part_of_k=64, resident_blocks=blocks
    )
