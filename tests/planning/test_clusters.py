"""Kernels of wgmma in clusters, which are thought of when the others are few."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F32, TF32
from tilewright.kernels.configuration import row_of
from tilewright.kernels.spaces import wgmma_core
from tilewright.planning.candidates import table_of
from tilewright.planning.clusters import in_clusters, without_clusters
from tilewright.problem import Gemm, Order

H200 = device("H200")
WIDE = Gemm(8192, 8192, 4096, BF16, out=BF16, b=Order.COL)


@pytest.mark.parametrize("gemm", [WIDE, Gemm(512, 512, 4096, F32, product=TF32), Gemm(300, 4096, 512, BF16, out=BF16)])
def test_every_kernel_of_a_table_is_that_of_one_without_a_cluster(gemm: Gemm) -> None:
    core = wgmma_core(gemm).kept()
    alone = without_clusters(core).with_columns(tiles=np.full(len(without_clusters(core)), 1))
    assert 0 < len(alone) < len(core) / 4
    found = in_clusters(alone, Gemm(65536, 65536, 64, gemm.dtype, product=gemm.product), H200, 0)  # none waits
    assert sorted(found.rows.tolist()) == list(range(len(core)))


def test_they_are_alike_but_for_their_clusters() -> None:
    alone = table_of("wgmma", WIDE, H200)
    some = alone[np.arange(0, len(alone), 97)].with_columns(number=np.arange(0, len(alone), 97))
    found = in_clusters(some, WIDE, H200)
    for at in range(0, len(found), 7):
        one, other = row_of("wgmma", found, at), row_of("wgmma", alone, int(found.number[at]))
        assert one.tile == other.tile and (one.stages, one.subtile, one.ping_pong) == (
            other.stages,
            other.subtile,
            other.ping_pong,
        )
        assert found.tiles[at] == alone.tiles[found.number[at]]
    assert {*zip(found.cluster_m.tolist(), found.cluster_n.tolist(), strict=True)} >= {(1, 1), (2, 1), (1, 2)}


@pytest.mark.parametrize(("count", "both"), [(1, True), (2, False)])
def test_clusters_of_both_ways_are_for_tiles_that_do_not_wait(count: int, both: bool) -> None:
    gemm = Gemm(1024, 1024, 1024, BF16, out=BF16, b=Order.COL)
    c = table_of("wgmma", gemm, H200, count)
    c = in_clusters(c[(c.m == 128) & (c.n == 64)], gemm, H200, count)  # 128 tiles, or twice as many
    assert ((c.cluster_m > 1) & (c.cluster_n > 1)).any() == both
