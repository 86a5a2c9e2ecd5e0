"""Random legal schedules for tensor cores: instructions, warp tiles, arrangements, rings, fragments ahead, orders.

As in `random_schedules`, every step that refuses is dropped; what an instruction needs is always there.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

from tests.random_schedules import FACTORS, Drawing
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Pattern, RasterOrder, Route
from tilewright.layout.arrangement import Xor
from tilewright.problem.formats import FORMATS, format_options
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Persist,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Snake,
    Split,
    Stage,
    Tensorize,
    Transfer,
    Unroll,
    Vectorize,
)

SIZES = (1, 3, 8, 15, 16, 17, 24, 31, 32, 40, 47, 48, 63, 64, 65, 72, 96, 130)
MAX_TENSOR_TILE = 96
FORMAT_NAMES = tuple(name for name in FORMATS if name != "f32")
_OPERANDS: tuple[Literal["A", "B"], ...] = ("A", "B")


def random_tensor_gemm(rng: random.Random) -> Gemm:
    """A small problem of formats that tensor cores multiply, its rows sometimes padded."""
    orders = {name: rng.choice((Order.ROW, Order.COL)) for name in ("a", "b", "c")}
    factors = {"alpha": rng.choice(FACTORS), "beta": rng.choice(FACTORS)}
    sizes = [rng.choice(SIZES) for _ in range(3)]
    tight = Gemm(*sizes, **orders, **factors, **format_options(rng.choice(FORMAT_NAMES)))  # type: ignore[arg-type]
    pads = [rng.choice((0, 0, 1, 2, 4, 8)) for _ in range(3)]
    return replace(tight, lda=tight.lda + pads[0], ldb=tight.ldb + pads[1], ldc=tight.ldc + pads[2])


def random_tensor_schedule(rng: random.Random, gemm: Gemm) -> Drawing:
    """A schedule that ends in a kernel, with what was refused on the way."""
    d = Drawing(rng, gemm, max_tile=MAX_TENSOR_TILE)
    whole = rng.random() < 0.3
    _nest(d, whole)
    _stage(d, whole)
    _travel(d, whole)
    _store(d, whole)
    if d.chance(0.4):
        order = rng.choice(tuple(RasterOrder))
        grouped = order in (RasterOrder.GROUPED, RasterOrder.SNAKE, RasterOrder.LAYERS)
        d.attempt(Raster(order, rng.choice((1, 2)) if grouped else 1))
    if d.chance(0.3):
        d.attempt(Snake(rng.choice(("m_frag", "n_frag"))))
    if d.chance(0.3):
        d.attempt(Unroll("k_step"))
    if d.chance(0.7):
        d.attempt(Persist())
    return d


def _nest(d: Drawing, whole: bool) -> None:
    """Blocks, warps and fragments, the innermost one an instruction."""
    rng, tf32 = d.rng, d.gemm.multiplies_tf32
    depth = 8 if tf32 else 16
    using, wide = (f"wmma.m16n16k{depth}", 16) if whole else (f"mma.m16n8k{depth}", 8)
    using += ".paired" if tf32 and not whole and d.chance(0.4) else ""
    turned = not whole and d.chance(0.3)
    rows, columns = (wide, 16) if turned else (16, wide)
    own_m, own_n = (each * rng.choice((1, 2, 4) if each == 8 else (1, 2, 3)) for each in (rows, columns))
    warps_m, warps_n = rng.choice((1, 2)), rng.choice((1, 2))
    steps = (
        *(Split("m", own_m * warps_m, into=("m_block", "m_in")), Split("n", own_n * warps_n, into=("n_block", "n_in"))),
        *(Split("m_in", own_m, into=("m_warp", "m_own")), Split("n_in", own_n, into=("n_warp", "n_own"))),
        *(Split("m_own", rows, into=("m_frag", "m_mma")), Split("n_own", columns, into=("n_frag", "n_mma"))),
        Split("k", depth * rng.choice((1, 2, 2, 4)), into=("k_tile", "k_in")),
        Split("k_in", depth, into=("k_step", "k_mma")),
    )
    frags = rng.choice((("m_frag", "n_frag"), ("n_frag", "m_frag")))
    inner = ("n_mma", "m_mma", "k_mma") if turned else ("m_mma", "n_mma", "k_mma")
    order = ("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step", *frags, *inner)
    binds = [Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X)]
    fused = (Fuse("m_warp", "n_warp", into="warp"), Bind("warp", Level.WARP))
    tensorize = Tensorize(*inner, using=using)
    for step in (*steps, Reorder(*order), *binds, *fused, tensorize, Accumulate("k_tile"), Epilogue()):
        assert d.attempt(step), (step, d.refused)


def _stage(d: Drawing, whole: bool) -> None:
    """Tiles in shared memory (mma can do without), shared out and laid out; fragments in registers."""
    for name in _OPERANDS:
        if whole or d.chance(0.9):
            d.attempt(Stage(name, Space.SHARED, under="k_tile"))
            width = 16 // d.gemm.dtype.bytes
            pattern = d.rng.choice(tuple(Pattern))
            row_threads = d.rng.choice((2, 4, 8)) if d.chance(0.3) else 0
            wide = Distribute(f"{name}_tile", d.rng.choice((1, 2, width, width)), pattern, row_threads)
            _ = d.attempt(wide) or d.attempt(Distribute(f"{name}_tile"))
            if d.chance(0.6):
                d.attempt(_layout(d, name, whole))
        d.attempt(Stage(name, Space.REGISTER, under="k_step"))
        if d.chance(0.6):
            d.attempt(Transfer(f"{name}_frag", Route.MATRICES))
        if d.chance(0.6):
            d.attempt(Vectorize(f"{name}_frag", d.rng.choice((1, 2, 4))))


def _layout(d: Drawing, name: Literal["A", "B"], whole: bool) -> Relayout:
    turned = d.rng.choice(("", "", "k"))
    if whole:
        return Relayout(f"{name}_tile", rows=turned, pad=d.rng.choice((0, 32, 64)) // d.gemm.dtype.bytes)
    if d.chance(0.5):
        return Relayout(f"{name}_tile", rows=turned, pad=d.rng.choice((0, 1, 4, 8, 16)))
    per_chunk = {2: 3, 4: 2}[d.gemm.dtype.bytes]
    xor = Xor(d.rng.choice((1, 2, 3)), d.rng.choice((per_chunk, per_chunk, 1)), d.rng.choice((0, 1, 2)))
    return Relayout(f"{name}_tile", rows=turned, arrangement=xor)


def _travel(d: Drawing, whole: bool) -> None:
    """How tiles come, and how far ahead."""
    flows = d.chance(0.4)  # all that the steps need which only rings of asynchronous copies allow
    for name in _OPERANDS:
        way = "async" if flows else d.rng.choice(("plain", "prefetch", "async", "async"))
        if way == "prefetch":
            d.attempt(Prefetch(f"{name}_tile"))
        elif way == "async":
            d.attempt(Transfer(f"{name}_tile", Route.ASYNC))
    if flows or d.chance(0.7):
        spread = "k_step" if d.chance(0.7 if flows else 0.4) else ""
        alternating = d.chance(0.1)
        stages = 2 if alternating else d.rng.choice((2, 3, 4))
        behind = d.rng.choice((1, 2, 3)) if spread and d.chance(0.5) else 0
        _ = d.attempt(Pipeline("k_tile", stages, alternating, spread, behind)) or d.attempt(Pipeline("k_tile", stages))
        if d.chance(0.6):
            for name in _OPERANDS:
                in_place = Prefetch(f"{name}_frag", in_place=True)
                _ = (d.chance(0.5) and d.attempt(in_place)) or d.attempt(Prefetch(f"{name}_frag"))


def _store(d: Drawing, whole: bool) -> None:
    """Results from registers, or through shared memory."""
    if whole or d.chance(0.2):
        d.attempt(Stage("C", Space.SHARED, under=d.rng.choice(("", "", "m_frag", "n_frag"))))
        _ = d.attempt(Distribute("C_tile", vector=d.rng.choice((1, 2, 4)))) or d.attempt(Distribute("C_tile"))
    elif d.chance(0.6):
        d.attempt(Vectorize("C", 2))
