"""What estimates of SIMT kernels know beside the work of a block: GPCs, registers, and what packing may take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import F32
from tilewright.kernels.columns import Columns
from tilewright.kernels.simt import SimtConfig, copied_by_registers, registers_of
from tilewright.kernels.spaces import simt_core
from tilewright.kernels.tile_sizes import warps_of
from tilewright.planning.cost import launches, plans, simt_features, warp_terms
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.exchange import filled_sms
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.packing import Packing
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm, Order

H100 = device("H100")


def seconds(config: SimtConfig, gemm: Gemm) -> float:
    """Of the kernel, as the terms say."""
    around = launches.Around(Packing(), 16, 16, 16, 1)
    c = Columns.of([config], config.columns)
    found, _ = warp_terms.kernels_timed("simt", c, gemm, H100, around, launches.Sizes.of(gemm, c, Packing()))
    return float(found[0])


@pytest.mark.parametrize(("size", "clusters"), [(4, 30), (8, 15)])
def test_a_cluster_more_than_the_gpcs_hold_doubles_the_blocks_of_some_sms(size: int, clusters: int) -> None:
    config = SimtConfig((64, 64, 16), (32, 32), unroll=8, cluster_k=size)
    assert filled_sms(config, H100) == size * clusters < filled_sms(replace(config, cluster_k=2), H100) == 132
    room, full, over = (seconds(config, Gemm(64, 64 * (clusters + more), 8192, b=Order.COL)) for more in (-1, 0, 1))
    assert full < 1.05 * room and over > 1.25 * full


def test_blocks_of_stream_k_that_share_a_tile_add_up_one_after_the_other() -> None:
    """300 x 1024 x 2816 has 40 tiles of 64 x 128 and room for 396 blocks, ten of a tile. Nine times as many tiles with
    a ninth of k have hardly one block more each than there is."""
    streamed = SimtConfig((64, 128, 16), (32, 64), raster_rows=8, persistent=True, stream_k=True)
    few, many = (Gemm(300, n, 1024 * 2816 // n, b=Order.COL) for n in (1024, 9 * 1024))
    waits_us = 1e6 * (seconds(streamed, few) - seconds(streamed, many))
    assert 4 < waits_us < 16


@pytest.mark.parametrize(
    ("config", "registers"),
    [
        (SimtConfig((16, 64, 16), (16, 32)), 80),
        (SimtConfig((256, 32, 16), (64, 32), unroll=8), 159),
        (SimtConfig((128, 128, 8), (64, 64), a_transport="cp_async", b_transport="cp_async", stages=4), 168),
    ],
    ids=["small", "tall", "large"],
)
def test_registers_are_about_those_that_ptxas_gives(config: SimtConfig, registers: int) -> None:
    """registers: of NVRTC 13 for sm_90, operands as NN or NT."""
    assert int(registers_of(config)) == pytest.approx(registers, rel=0.2)


def test_what_comes_through_registers_and_what_clusters_do_take_registers() -> None:
    through = SimtConfig((32, 128, 16), (32, 64))
    around = replace(through, a_transport="cp_async", b_transport="cp_async")
    assert (copied_by_registers(through), copied_by_registers(around)) == (40, 0)
    assert registers_of(through) >= registers_of(around) + 30
    assert registers_of(replace(around, cluster_k=2)) > registers_of(around)
    c = Columns.of([through, around], through.columns)
    gemm = Gemm(64, 4096, 4096, b=Order.COL)
    fewer, more = blocks_per_sm("simt", c, gemm, H100).tolist()
    assert fewer < more


@pytest.mark.parametrize(("m", "packs"), [(16, False), (300, False), (6000, True)])
def test_operands_of_fmas_are_packed_where_the_product_takes_long(m: int, packs: bool) -> None:
    gemm = Gemm(m, 4096, 7168, b=Order.COL)
    found = {bool(config.packed) for _, config in ranked(gemm, H100, alignment_of_rows(gemm))}
    assert found == ({False, True} if packs else {False})


def test_rows_along_k_that_begin_inside_of_a_sector_touch_another_one() -> None:
    c = Columns.of([SimtConfig((128, 64, 16), (32, 32))], SimtConfig.columns)
    lie = (0, 0, 4, 4, 4)  # A and B in rows: A runs along k, and B does not
    assert simt_features._asked(c, lie, 4, "A").tolist() == [128 * (64 + 28)]
    assert simt_features._asked(c, lie, 4, "B").tolist() == [64 * 64]
    assert simt_features._asked(c, (0, 1, 16, 8, 4), 4, "A").tolist() == [128 * 64]
    assert simt_features._asked(c, (0, 1, 16, 8, 4), 4, "B").tolist() == [64 * (64 + 24)]


def test_the_choice_looks_at_blocks_of_warps_that_won() -> None:
    warps = set(np.unique(warps_of(simt_core(Gemm(128, 1024, 1024, F32, b=Order.COL)))).tolist())
    assert warps == {2, 3, 4, 5, 6, 8, 10}


def l1_features(config: SimtConfig, gemm: Gemm, together: int) -> tuple[float, float]:
    """KiB of the L1 beside so many blocks, and of the lines that their loads wait for."""
    c, lie = Columns.of([config], config.columns), plans._how_operands_lie(gemm)
    left = simt_features._left_of_l1(c, gemm, H100, np.array([together]))
    lines = sum(simt_features._in_flight(c, lie, F32.bytes, name) for name in ("A", "B"))  # type: ignore[arg-type]
    return float(left[0]) / 1024, together * float(np.broadcast_to(lines, 1)[0]) / 1024


@pytest.mark.parametrize(
    ("together", "left"),
    [(1, 256 - 32), (2, 256 - 64), (3, 256 - 100), (4, 256 - 132), (7, 256 - 228)],  # of 29 and 1 KiB each
)
def test_blocks_leave_the_l1_what_their_carve_out_does_not_take(together: int, left: int) -> None:
    """Carve-outs of 8, 16, 32, 64, 100, 132, 164, 196 and 228 KiB."""
    config = SimtConfig((96, 128, 16), (48, 64), unroll=16)
    assert l1_features(config, Gemm(512, 512, 512, b=Order.COL), together)[0] == left


def test_loads_wait_for_whole_lines_but_for_copies_around_the_l1() -> None:
    through = SimtConfig((96, 128, 16), (48, 64), unroll=16)
    around = replace(through, a_transport="cp_async", b_transport="cp_async", stages=4)
    along_k, across = Gemm(512, 512, 512, b=Order.COL), Gemm(512, 512, 512, a=Order.COL)
    odd = Gemm(510, 510, 512, a=Order.COL)
    assert l1_features(through, along_k, 2)[1] == 2 * (96 + 128) * 128 / 1024  # a line of each row
    assert l1_features(through, across, 1)[1] == (96 + 128) * 16 * 4 / 1024
    assert l1_features(around, along_k, 1)[1] == (96 + 128) * 2 * 128 / 1024  # 4 bytes each, three tiles ahead
    assert l1_features(around, across, 1)[1] == 0
    assert l1_features(around, odd, 1)[1] == (96 + 128) * 3 * 16 * 4 / 1024
