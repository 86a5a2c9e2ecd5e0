"""Clusters share tiles of any rows: parts where a tile divides, else whole tiles in alternate k iterations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.dtypes import BF16
from tilewright.ir.async_stmt import TmaLoad
from tilewright.ir.expr import Const
from tilewright.ir.program import RasterOrder
from tilewright.ir.stmt import Body, For, If, Stmt
from tilewright.ir.visit import rewrite, walk
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_steps import WgmmaTile, loaded_by_tma, nest, staged, stored_in_subtiles
from tilewright.lowering.products import Multicast, multicast
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.schedule import Cluster, Persist, Pipeline, Raster, Schedule, Specialize
from tilewright.simulator import simulate
from tilewright.toolchain import build, run_on_simulator


def schedule(gemm: Gemm, tiles: WgmmaTile, along: str, size: int) -> Schedule:
    return Schedule(
        *nest(gemm, tiles),
        *staged(gemm, tiles),
        *loaded_by_tma(gemm),
        Pipeline("k_tile", 3),
        Specialize((24, 240)),
        Raster(RasterOrder.GROUPED, group=4),
        Persist(),
        Cluster(along, size),
        *stored_in_subtiles(gemm, tiles, subtile=0, stages=2, owners=1),
    )


@pytest.mark.parametrize(
    ("m", "n", "swap", "along", "size", "share"),
    [
        (128, 128, False, "n_block", 2, Multicast(2, 1, 64, rows_apart=64)),
        (128, 128, False, "n_block", 4, Multicast(4, 1, 32, rows_apart=32)),
        (128, 80, False, "m_block", 4, Multicast(4, 1, 80, alternating=True)),
        (104, 128, True, "n_block", 4, Multicast(4, 1, 104, alternating=True)),
        (40, 64, True, "n_block", 4, Multicast(4, 1, 40, alternating=True)),
        (8, 64, True, "n_block", 2, Multicast(2, 1, 8, alternating=True)),
    ],
)
def test_a_cluster_multiplies_right_and_clean(
    m: int, n: int, swap: bool, along: str, size: int, share: Multicast
) -> None:
    gemm = Gemm(2 * m - 3, 2 * n + 8, 264, BF16, out=BF16, b=Order.COL)
    tiles = WgmmaTile(m, n, 1 if n == 64 else 2, swap_ab=swap)
    built = build(gemm, schedule(gemm, tiles, along, size))
    operand = "A" if along == "n_block" else "B"
    shared = next(s for s in built.program.staged if s.operand == operand)
    assert multicast(built.program, shared) == share
    result, run = run_on_simulator(built, make_operands(gemm), on_finding="collect")
    assert run.errors == ()
    assert check(make_operands(gemm), result).ok


def test_each_block_loads_the_whole_tile_in_its_own_iterations() -> None:
    gemm = Gemm(256, 256, 256, BF16, out=BF16, b=Order.COL)
    built = build(gemm, schedule(gemm, WgmmaTile(104, 128, 2, swap_ab=True), "n_block", 4))
    guarded = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, If) and _loads(stmt.then) == {"A"}]
    assert len(guarded) == 1
    masks = [s.mask for _, s in walk(guarded[0].then) if isinstance(s, TmaLoad)]
    assert masks == [Const(0b1111)]


def _loads(body: tuple[object, ...]) -> set[str]:
    return {stmt.map.operand for _, stmt in walk(body) if isinstance(stmt, TmaLoad)}  # type: ignore[arg-type]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_block_stays_until_the_others_have_given_back_its_stages(persistent: bool) -> None:
    """Without the wait behind the last load, an arrival may come to a block that has ended."""
    gemm = Gemm(64, 128, 192, BF16, out=BF16, b=Order.COL)
    config = WgmmaConfig((64, 64, 64), 1, cluster=(1, 2), stages=2, persistent=persistent, raster_rows=4)
    kernel = build(gemm, config.schedule(gemm)).kernel

    def change(stmt: Stmt) -> Body | None:
        return () if isinstance(stmt, For) and stmt.var.endswith("_last") else None

    operands = make_operands(gemm)
    assert simulate(kernel, operands).errors == ()
    hasty = simulate(replace(kernel, body=rewrite(kernel.body, change)), operands, on_finding="collect")
    assert any("may end before another block" in str(error) for error in hasty.errors)
