"""Every other tile of a persistent block may be summed from the end of k: what the tile before has left in the L2."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.test_ordered_sums import KINDS, schedule_at
from tests.lowering.work_items import check_batch, check_groups_along_m
from tilewright.dtypes import BF16, E4M3, Array
from tilewright.errors import LoweringError
from tilewright.ir.program_text import program_text
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem import Gemm, Order, make_operands
from tilewright.problem.reference import Operands
from tilewright.schedule import Persist, Raster, Schedule
from tilewright.toolchain import build, run_on_simulator
from tilewright.winners.order import order_of


def alternating(schedule: Schedule) -> Schedule:
    return Schedule(*(replace(one, alternating_k=True) if isinstance(one, Raster) else one for one in schedule))


def computed(gemm: Gemm, schedule: Schedule, operands: Operands, blocks: int) -> Array:
    found, run = run_on_simulator(build(gemm, schedule), operands, resident_blocks=blocks, schedule="warps")
    assert not run.errors
    return found


def from_the_end(operands: Operands, tile: int) -> Operands:
    """The same products, tiles of k in the opposite order."""
    k = operands.gemm.k
    order = np.arange(k).reshape(-1, tile)[::-1].reshape(-1)
    a = operands.a.reshape(-1, k)[:, order].reshape(-1)
    b = operands.b.reshape(-1, k)[:, order].reshape(-1)
    return replace(operands, a=a, b=b)


@pytest.mark.parametrize("name", ["cooperative", "ping-pong", "cluster", "from registers"])
def test_every_other_tile_of_a_block_is_summed_from_the_end(name: str) -> None:
    """Bits tell: those of the tile's own order, and of no other. k is whole tiles, which each order has."""
    gemm = Gemm(512, 256, 320, BF16, out=BF16, b=Order.COL)
    operands = make_operands(gemm)
    plain = schedule_at(gemm, KINDS[name])
    blocks = 2
    forward = computed(gemm, plain, operands, blocks)
    backward = computed(gemm, plain, from_the_end(operands, 64), blocks)
    found = computed(gemm, alternating(plain), operands, blocks)
    assert not np.array_equal(forward, backward)
    rows, columns = KINDS[name].m * KINDS[name].cluster_m, KINDS[name].n
    group = next(one.group for one in plain if isinstance(one, Raster))
    at_once = blocks // KINDS[name].cluster_m
    order = [
        (row, column)
        for first in range(0, 512 // rows, group)
        for column in range(256 // columns)
        for row in range(first, min(first + group, 512 // rows))
    ]
    for number, (row, column) in enumerate(order):
        tile = np.s_[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
        expected = backward if number // at_once % 2 else forward
        np.testing.assert_array_equal(found[tile], expected[tile])


@pytest.mark.parametrize("k", [0, 8, 200])
@pytest.mark.parametrize("name", ["cooperative", "ping-pong"])
def test_batches_groups_and_ends_of_k(name: str, k: int) -> None:
    gemm = Gemm(200, 136, k, BF16, out=BF16, lda=max(k, 8), ldb=136)
    schedule = alternating(schedule_at(gemm, KINDS[name]))
    check_batch(gemm, schedule, 3, resident_blocks=2)
    check_batch(gemm, schedule, 3, stream_k=True, whole_waves=True, resident_blocks=3)
    groups = replace(gemm, m=300)
    check_groups_along_m(groups, schedule, [70, 0, 200, 5], part_of_k=0, resident_blocks=2, schedule="warps")


def test_sums_that_are_promoted() -> None:
    gemm = Gemm(300, 136, 640, E4M3, out=BF16, b=Order.COL)
    config = WgmmaConfig((64, 128, 128), 1, stages=3, raster_rows=2, promote_every=128)
    check_batch(gemm, alternating(config.schedule(gemm)), 1, resident_blocks=2)


def test_it_is_an_order_of_its_own() -> None:
    gemm = Gemm(512, 256, 320, BF16, out=BF16, b=Order.COL)
    plain = schedule_at(gemm, KINDS["cooperative"])
    orders = {order_of(build(gemm, one)).name for one in (plain, alternating(plain))}
    other = alternating(schedule_at(gemm, replace(KINDS["cooperative"], tile=(64, 128, 64), consumers=1)))
    assert len(orders | {order_of(build(gemm, other)).name}) == 3


def test_the_text_of_a_program_tells() -> None:
    gemm = Gemm(512, 256, 320, BF16, out=BF16, b=Order.COL)
    config = WgmmaConfig((64, 128, 64), 1, stages=3, raster_rows=4, serpentine=True)
    told = "blocks visit tiles in serpentine order, 4 rows a group, every other tile of a block from the end of k"
    assert told in program_text(build(gemm, config.schedule(gemm)).program)


def test_a_block_with_one_tile_has_no_other() -> None:
    gemm = Gemm(512, 256, 320, BF16, out=BF16, b=Order.COL)
    schedule = alternating(schedule_at(gemm, KINDS["cooperative"]))
    alone = Schedule(*(one for one in schedule if not isinstance(one, Persist)))
    with pytest.raises(LoweringError, match="Only persistent blocks with a producer"):
        _ = build(gemm, alone).kernel
