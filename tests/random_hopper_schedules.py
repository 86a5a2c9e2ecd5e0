"""Random legal schedules for wgmma and TMA: tiles, swizzle atoms, stages, roles, clusters, stores.

As in `random_schedules`, every step that refuses is dropped; what wgmma needs is always there.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.random_schedules import FACTORS, Drawing
from tilewright.dtypes import F32
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, RasterOrder, Route
from tilewright.kernels.wgmma_steps import rows_fit_tma
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import subtile_layout
from tilewright.problem.formats import FORMATS, format_options
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Cluster,
    DependentLaunch,
    Distribute,
    Epilogue,
    Persist,
    Pipeline,
    Raster,
    Relayout,
    Reorder,
    Specialize,
    Split,
    Stage,
    Tensorize,
    Transfer,
    Unroll,
    Vectorize,
)
from tilewright.units import round_up

SIZES = (1, 3, 8, 16, 17, 31, 64, 65, 96, 127, 128, 130, 192, 200, 256, 300)
DEPTHS = (0, 1, 8, 15, 16, 40, 63, 64, 65, 128, 136, 200, 257)
FORMAT_NAMES = tuple(name for name in FORMATS if name != "f32")
MAX_HOPPER_TILE, MAX_HOPPER_THREADS = 256, 384
ROW_BYTES = 16
"""Rows begin at multiples of this, as TMA asks."""


def random_hopper_gemm(rng: random.Random) -> Gemm:
    """A problem of a few tiles; operands of 4 bytes lie with k contiguous, since wgmma transposes only those of 2."""
    name = rng.choice(FORMAT_NAMES)
    options = dict(format_options(name))
    orders = {name: rng.choice((Order.ROW, Order.COL)) for name in ("a", "b", "c")}
    if options["dtype"] is F32:
        orders |= {"a": Order.ROW, "b": Order.COL}
    elif rng.random() < 0.2:
        options["out"] = F32
    sizes = (rng.choice(SIZES), rng.choice(SIZES), rng.choice(DEPTHS))
    gemm = Gemm(*sizes, **orders, alpha=rng.choice(FACTORS), beta=rng.choice(FACTORS), **options)  # type: ignore[arg-type]
    leading = {}
    for operand in gemm.operands:
        each = ROW_BYTES // operand.dtype.bytes
        leading[operand.leading] = round_up(gemm.leading(operand.name), each) + rng.choice((0, 0, each))
    if rng.random() < 0.3:
        leading["ldc"] += rng.choice((1, 3))
    return replace(gemm, **leading)


def random_hopper_schedule(rng: random.Random, gemm: Gemm) -> Drawing:
    """A schedule that ends in a kernel, with what was refused on the way."""
    d = Drawing(rng, gemm, max_tile=MAX_HOPPER_TILE, max_threads=MAX_HOPPER_THREADS)
    parted, columns = _nest(d)
    by_tma = d.chance(0.8) or (gemm.product is not None and gemm.product.name == "tf32")
    _stage(d, by_tma)
    if d.chance(0.5):
        d.attempt(Unroll("k_step"))
    if by_tma:
        _roles(d, parted)
    else:
        d.attempt(Raster(rng.choice((RasterOrder.GROUPED, RasterOrder.SNAKE)), 2))
    if by_tma and _shares_k(d):
        d.attempt(Vectorize("C", 2))
    else:
        _store(d, by_tma, columns)
    if d.chance(0.3):
        d.attempt(DependentLaunch())
    return d


def _nest(d: Drawing) -> tuple[bool, int]:
    """Blocks, warpgroups and instructions. Answers whether several warpgroups share a tile, and its columns."""
    rng, size = d.rng, d.gemm.dtype.bytes
    narrow = (8,) if d.gemm.b is Order.COL else ()  # row-major, a atom has 16 columns at least
    columns = rng.choice((*narrow, 16, 32, 64, 64, 80, 96, 112, 128, 192, *((40, 72, 104) if narrow else ())))
    groups, frags = rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
    depth = 32 // size
    deep = depth * rng.choice((1, 2, 4, 4, 8))
    order = ["m_block", "n_block", "k_tile", "k_step", "m_frag", "m_mma", "n_mma", "k_mma"]
    steps = [Split("m", 64 * groups * frags, into=("m_block", "m_in" if groups > 1 else "m_own"))]
    if groups > 1:
        steps.append(Split("m_in", 64 * frags, into=("m_group", "m_own")))
        order.insert(2, "m_group")
    steps += [
        Split("m_own", 64, into=("m_frag", "m_mma")),
        Split("n", columns, into=("n_block", "n_mma")),
        Split("k", deep, into=("k_tile", "k_in")),
        Split("k_in", depth, into=("k_step", "k_mma")),
    ]
    grid = rng.choice(((Level.GRID_X, Level.GRID_Y), (Level.GRID_Y, Level.GRID_X)))
    binds = [Bind("m_block", grid[0]), Bind("n_block", grid[1])]
    group = [Bind("m_group", Level.WARPGROUP)] if groups > 1 else []
    tensorize = Tensorize("m_mma", "n_mma", "k_mma", using=f"wgmma.m64n{columns}k{depth}")
    for step in (*steps, Reorder(*order), *binds, *group, tensorize, Accumulate("k_tile"), Epilogue()):
        assert d.attempt(step), (step, d.refused)
    return groups > 1, columns


def _stage(d: Drawing, by_tma: bool) -> None:
    """Tiles in swizzle atoms of the widest rows that they fill, brought by TMA or by all threads."""
    for name in ("A", "B"):
        assert d.attempt(Stage(name, Space.SHARED, under="k_tile"))
        size = d.gemm.dtype.bytes
        widths = [128, 64, 32] if d.chance(0.8) else [32, 64, 128]
        swizzle_atoms = (Relayout(f"{name}_tile", arrangement=SwizzleAtoms(width // size, width)) for width in widths)
        _ = any(d.attempt(step) for step in swizzle_atoms)
        if by_tma:
            d.attempt(Transfer(f"{name}_tile", Route.TMA))
        else:
            _ = d.attempt(Distribute(f"{name}_tile", vector=16 // size)) or d.attempt(Distribute(f"{name}_tile"))


def _roles(d: Drawing, parted: bool) -> None:
    """A ring, and perhaps a warpgroup that fills it, resident blocks and clusters."""
    rng = d.rng
    assert d.attempt(Pipeline("k_tile", rng.choice((2, 3, 4)))), d.refused
    if not d.chance(0.7):
        return
    d.attempt(Specialize(ping_pong=1 if parted else rng.choice((1, 1, 2)), apart=rng.choice((0, 1, 2))))
    order = rng.choice((RasterOrder.GROUPED, RasterOrder.GROUPED, RasterOrder.SNAKE, RasterOrder.ROW))
    d.attempt(Raster(order, 1 if order is RasterOrder.ROW else rng.choice((1, 2, 3))))
    turns = d.program.specialized is not None and d.program.specialized.ping_pong > 1
    if turns or d.chance(0.6):
        d.attempt(Persist())
    if d.chance(0.4):
        d.attempt(Cluster(rng.choice(("m_block", "n_block")), rng.choice((2, 2, 4))))


def _shares_k(d: Drawing) -> bool:
    """Perhaps a cluster whose blocks share out k, which stores C from registers."""
    program = d.program
    alone = program.specialized is not None and program.specialized.ping_pong == 1 and program.clustered is None
    if not alone or program.persistent or d.gemm.accumulate is not F32 or not d.chance(0.4):
        return False
    return d.attempt(Cluster("k_tile", d.rng.choice((2, 4))))


def _store(d: Drawing, by_tma: bool, columns: int) -> None:
    """C from registers, or in epilogue subtiles, by TMA where it would not write behind rows of C, else by warps."""
    if by_tma and d.chance(0.6):
        transposed = d.gemm.c is Order.COL
        subtile = 64 if transposed else 8 * d.rng.randint(1, columns // 8)
        d.attempt(Stage("C", Space.SHARED, subtile=subtile, stages=d.rng.choice((1, 2, 2, 3))))
        layout = subtile_layout(subtile, d.gemm.out.bytes, transposed=transposed)
        if layout is not None:
            d.attempt(Relayout("C_tile", arrangement=layout))
        d.attempt(Transfer("C_tile", Route.TMA if rows_fit_tma(d.gemm) and d.chance(0.7) else Route.MATRICES))
    elif d.chance(0.6):
        d.attempt(Vectorize("C", 2))
