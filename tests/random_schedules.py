"""Random legal schedules, drawn from a plain `random.Random`: for the properties, the fuzzer and the GPU.

A drawing follows a plausible order of steps (split, fuse, bind, reorder, stage, decorate) and drops every step that
refuses, so that what remains is legal; a last part in any order looks for combinations that nobody writes by hand.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Variant
from tilewright.ir.program import Level, Loop, Pattern, Program, RasterOrder, Route, naive_program
from tilewright.layout.arrangement import Arrangement, Interleaved, Permuted, Xor
from tilewright.problem.gemm import Dim, Gemm, Order
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
    Schedule,
    Snake,
    Split,
    Stage,
    Step,
    Transfer,
    Unroll,
    Vectorize,
)
from tilewright.toolchain import variant_for

MAX_THREADS = 128
MAX_TILE = 40
"""Elements of m or n that one block covers: larger ones cost simulated time and find nothing new."""

SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 19, 20, 23, 24, 29, 31, 32, 37, 40)
FACTORS = (0.0, 1.0, 1.0, -1.0, 0.5)
DIMENSIONS: tuple[Dim, ...] = ("m", "n", "k")


def random_gemm(rng: random.Random, *, whole_factors: bool = False) -> Gemm:
    """A small problem of any storage orders and factors, its rows sometimes padded."""
    factors = tuple(f for f in FACTORS if not whole_factors or f == int(f))
    orders = [rng.choice((Order.ROW, Order.COL)) for _ in range(3)]
    sizes = [rng.choice(SIZES) for _ in DIMENSIONS]
    if rng.random() < 0.03:
        sizes[2] = 0
    tight = Gemm(*sizes, a=orders[0], b=orders[1], c=orders[2], alpha=rng.choice(factors), beta=rng.choice(factors))
    if rng.random() < 0.5:
        return tight
    pads = [rng.choice((0, 1, 3, 4)) for _ in range(3)]
    return replace(tight, lda=tight.lda + pads[0], ldb=tight.ldb + pads[1], ldc=tight.ldc + pads[2])


def random_variant(rng: random.Random, program: Program, gemm: Gemm) -> Variant:
    """Assumptions that are true of a problem, mostly not all of them."""
    true = variant_for(program, gemm)
    exact = frozenset(dim for dim in sorted(true.exact) if rng.random() < 0.6)
    alignment_bytes = rng.choice([size for size in (16, 8, 4, 1) if size <= true.alignment_bytes])
    result_bytes = min(alignment_bytes, true.aligned_bytes("C"))
    return Variant(exact, alignment_bytes, true.near and rng.random() < 0.7, result_bytes)


@dataclass
class Drawing:
    """A schedule while it is drawn: the steps that were taken, the program after them, and what was refused."""

    rng: random.Random
    gemm: Gemm
    steps: list[Step] = field(default_factory=list)
    refused: list[tuple[Step, TilewrightError]] = field(default_factory=list)
    max_tile: int = MAX_TILE
    max_threads: int = MAX_THREADS

    def __post_init__(self) -> None:
        self.program = naive_program(self.gemm)
        self.names = 0

    @property
    def schedule(self) -> Schedule:
        return Schedule(*self.steps)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def attempt(self, step: Step) -> bool:
        """Take a step if it is legal and keeps the block small."""
        try:
            program = step.apply(self.program)
        except TilewrightError as error:
            self.refused.append((step, error))
            return False
        tiles = [program.block_tile(dim) for dim in ("m", "n")]
        if program.threads_per_block > self.max_threads or max(tiles) > self.max_tile:
            return False
        self.steps.append(step)
        self.program = program
        return True

    def name(self, base: str) -> str:
        """`base`, or another where that is taken; now and then one that the kernel may want for itself."""
        if self.chance(0.02):
            base = self.rng.choice(
                ("element", "band", "sum", "k_tile_stage", "A_tile_m", "m_blocks", "m", "n_register_vec")
            )
        taken = {*self.program.loop_names, *(axis.name for loop in self.program.loops for axis in loop.axes)}
        while base in taken:
            self.names += 1
            base = f"{base}{self.names}"
        return base

    def loop(self, *, serial: bool = False, reduction: bool | None = None) -> str | None:
        """Some loop of the nest."""
        loops = [
            loop.name
            for loop in self.program.loops
            if (not serial or loop.level is None) and (reduction is None or loop.is_reduction is reduction)
        ]
        return self.rng.choice(loops) if loops else None


def random_schedule(rng: random.Random, gemm: Gemm) -> Drawing:
    """A legal schedule of `gemm`, with what was refused on the way."""
    drawing = Drawing(rng, gemm)
    parts = _shape(drawing)
    _fuse_and_bind(drawing, parts)
    _order(drawing)
    _declare(drawing)
    for _ in range(rng.choice((0, 0, 0, 2, 5, 12))):
        drawing.attempt(_any_step(drawing))
    return drawing


# -- loops ------------------------------------------------------------------------------------------------------------


def _shape(d: Drawing) -> dict[str, list[str]]:
    """Split m, n and k; the loops that came of it, by the part that each is to play."""
    parts: dict[str, list[str]] = {"grid": [], "warp": [], "thread": [], "virtual": []}
    lanes = d.rng.choice(({"m": 4, "n": 8}, {"m": 8, "n": 4})) if d.chance(0.35) else {}
    for dim in ("m", "n"):
        roles = [role for role in ("warp", "thread", "virtual", "register") if d.chance(0.6)]
        d.rng.shuffle(roles)
        extents = [d.rng.choice(_EXTENTS[role]) for role in roles]
        if lanes and "thread" in roles:
            extents[roles.index("thread")] = lanes[dim]
        rest = dim
        for place, role in enumerate(roles):
            inside = 1
            for extent in extents[place:]:
                inside *= extent
            outer = d.name(f"{dim}_block" if place == 0 else f"{dim}_{roles[place - 1]}")
            inner = d.name(f"{dim}_in{place}" if place + 1 < len(roles) else f"{dim}_{role}")
            if not d.attempt(Split(rest, inside, into=(outer, inner))):
                break
            parts.setdefault("grid" if place == 0 else roles[place - 1], []).append(outer)
            rest = inner
        parts.setdefault(roles[-1] if roles else "grid", []).append(rest)
    rest = "k"
    for outer, inner in (("k_tile", "k_in"), ("k_mid", "k_last"))[: d.rng.choice((0, 1, 1, 1, 2))]:
        by = d.rng.choice((1, 2, 3, 4, 4, 6, 8, 8))
        if d.attempt(Split(rest, by, into=(outer, inner))):
            rest = inner
    if d.chance(0.05):
        d.attempt(Fuse("k_tile", "k_mid", into="k_fused"))
    return parts


_EXTENTS = {"warp": (1, 2, 2), "thread": (1, 2, 3, 4, 4, 8, 8), "virtual": (1, 2, 3), "register": (1, 2, 3, 4, 4, 4, 8)}


def _fuse_and_bind(d: Drawing, parts: dict[str, list[str]]) -> None:
    blocks = [Level.BLOCK_X, Level.BLOCK_Y, Level.BLOCK_Z]
    grids = [Level.GRID_X, Level.GRID_Y, Level.GRID_Z]
    d.rng.shuffle(blocks)
    d.rng.shuffle(grids)
    if d.chance(0.5):
        _fuse(d, parts, "thread", "thread")
    if d.chance(0.4):
        _fuse(d, parts, "warp", "warp")
    if d.chance(0.15):
        _fuse(d, parts, "grid", "block")
    for loop in parts["grid"]:
        if d.chance(0.9):
            d.attempt(Bind(loop, grids.pop()))
    lanes = [name for name in parts["thread"] if d.program.loop(name).extent == 32]
    by_warps = bool(lanes) and d.chance(0.6)
    if by_warps:
        d.attempt(Bind(lanes[0], Level.LANE))
        for loop in parts["warp"][:1]:
            d.attempt(Bind(loop, Level.WARP))
    else:
        for loop in (*parts["thread"], *parts["warp"]):
            if blocks and d.chance(0.85):
                d.attempt(Bind(loop, blocks.pop()))
    for loop in parts["virtual"]:
        if d.chance(0.8):
            d.attempt(Bind(loop, Level.VTHREAD))


def _fuse(d: Drawing, parts: dict[str, list[str]], role: str, into: str) -> None:
    """Bring the loops of one part side by side and make one of them."""
    loops = list(parts[role])
    if len(loops) != 2:
        return
    d.rng.shuffle(loops)
    others = [name for name in d.program.loop_names if name not in loops]
    at = d.rng.randrange(len(others) + 1)
    d.attempt(Reorder(*others[:at], *loops, *others[at:]))
    if d.attempt(Fuse(*loops, into=d.name(into))):
        parts[role] = [d.program.loop_names[at]]


def _order(d: Drawing) -> None:
    """A new order of the loops: the usual one (k, then registers), or any."""
    names = list(d.program.loop_names)
    d.rng.shuffle(names)
    usual = d.chance(0.75)

    def rank(name: str) -> int:
        loop = d.program.loop(name)
        if not usual:
            return 0
        if loop.level is not None:
            return 0 if loop.level.is_grid else 1
        return 2 if loop.is_reduction else 3

    names.sort(key=rank)
    if usual:  # the loops over k stay in the order in which they were split
        reductions = iter([name for name in d.program.loop_names if d.program.loop(name).is_reduction])
        names = [next(reductions) if d.program.loop(name).is_reduction else name for name in names]
    if d.chance(0.9):
        d.attempt(Reorder(*names))


# -- declarations -----------------------------------------------------------------------------------------------------


def _declare(d: Drawing) -> None:
    reductions = [loop.name for loop in d.program.loops if loop.is_reduction]
    usual = d.chance(0.85)
    if d.chance(0.9):
        d.attempt(Accumulate(reductions[0] if usual else d.rng.choice(reductions), **_named(d, "acc")))
    for operand in ("A", "B"):
        if d.chance(0.75):
            _stage_shared(d, operand, reductions[0] if usual else d.loop())
    if d.chance(0.3) and d.attempt(Stage("C", Space.SHARED, **_named(d, "Cs"))):
        _decorate_shared(d, d.program.staged[-1].name)
    if d.chance(0.6):
        d.attempt(Epilogue(alpha=d.chance(0.5), beta=d.chance(0.5)))
    if d.chance(0.5):
        d.attempt(Vectorize("C", d.rng.choice((2, 4)))) or d.attempt(Vectorize("C", 2))
    if d.chance(0.5):
        _pipeline(d, reductions[0])
    for operand in ("A", "B"):
        if d.chance(0.5) and d.attempt(
            Stage(operand, Space.REGISTER, under=reductions[-1] if usual else d.loop(), **_named(d, f"{operand}r"))
        ):
            if d.chance(0.6):
                d.attempt(Vectorize(d.program.staged[-1].name, d.rng.choice((2, 4))))
            if d.chance(0.4):
                d.attempt(Prefetch(d.program.staged[-1].name))
    if d.chance(0.5):
        order = d.rng.choice(tuple(RasterOrder))
        grouped = order in (RasterOrder.GROUPED, RasterOrder.SNAKE, RasterOrder.LAYERS)
        d.attempt(Raster(order, d.rng.choice((1, 2, 3)) if grouped else 1))
        if d.chance(0.5):
            d.attempt(Persist())
    for loop in d.program.loops:
        if d.chance(0.25):
            d.attempt(Unroll(loop.name))
    if d.chance(0.2):
        d.attempt(_snake(d))


def _named(d: Drawing, name: str) -> dict[str, str]:
    return {"name": name} if d.chance(0.2) else {}


def _stage_shared(d: Drawing, operand: Any, under: str | None) -> None:
    if under is not None and d.attempt(Stage(operand, Space.SHARED, under=under, **_named(d, f"{operand}s"))):
        _decorate_shared(d, d.program.staged[-1].name)


def _decorate_shared(d: Drawing, tile: str) -> None:
    if d.chance(0.5):
        d.attempt(_relayout(d, tile))
    if d.chance(0.8):
        d.attempt(_distribute(d, tile)) or d.attempt(Distribute(tile))
    if d.chance(0.25):
        d.attempt(Prefetch(tile))
    elif d.chance(0.3):
        d.attempt(Transfer(tile, Route.ASYNC))


def _distribute(d: Drawing, tile: str) -> Step:
    return Distribute(tile, vector=d.rng.choice((1, 2, 4, 4)), pattern=d.rng.choice(tuple(Pattern)))


def _relayout(d: Drawing, tile: str) -> Step:
    rows = d.rng.choice(("", *DIMENSIONS))
    return Relayout(tile, rows=rows, pad=d.rng.choice((0, 0, 1, 2, 4)), arrangement=_arrangement(d))


def _arrangement(d: Drawing) -> Arrangement | None:
    xor = Xor(d.rng.choice((1, 2)), d.rng.choice((0, 1, 2)), d.rng.choice((0, 1)))
    return d.rng.choice((None, None, Interleaved(d.rng.choice((2, 4))), xor, _table(d)))


def _table(d: Drawing) -> Arrangement:
    """Columns permuted at random, alone or in pairs, in each of one or two rows."""
    run, columns = d.rng.choice((1, 1, 2)), d.rng.choice((2, 3, 4, 6, 8))
    rows = [d.rng.sample(range(columns), columns) for _ in range(d.rng.choice((1, 1, 2)))]
    return Permuted(tuple(place * run + step for row in rows for place in row for step in range(run)))


def _pipeline(d: Drawing, loop: str) -> None:
    if d.chance(0.3):
        d.attempt(Pipeline(loop, 2, alternating=True))
    else:
        d.attempt(Pipeline(loop, d.rng.choice((2, 3, 4))))


def _snake(d: Drawing) -> Step:
    loops = [loop.name for loop in d.program.loops if _may_turn(loop)]
    d.rng.shuffle(loops)
    return Snake(*loops[: d.rng.choice((1, 1, 2))])


def _may_turn(loop: Loop) -> bool:
    return loop.level in (None, Level.VTHREAD) and not loop.is_reduction


def _levels(program: Program) -> list[Level]:
    """Warps want lanes, and warpgroups an instruction, as only the finished program can be asked."""
    warps = [Level.WARP] if program.at_level(Level.LANE) else []
    return [level for level in Level if level not in (Level.WARP, Level.WARPGROUP)] + warps


def _any_step(d: Drawing) -> Step:
    """Any step at all, at any moment, of any loop or tile."""
    rng, names = d.rng, list(d.program.loop_names)
    loop = rng.choice(names)
    some = rng.sample(names, rng.randint(1, len(names)))
    at = rng.randrange(len(names))
    tile = rng.choice([staged.name for staged in d.program.staged] or ["A_tile"])
    operand = rng.choice(("A", "B", "C"))
    space = rng.choice((Space.SHARED, Space.REGISTER))
    choices: tuple[Step, ...] = (
        Split(loop, rng.choice((1, 2, 3, 4, 8)), into=(d.name(f"{loop}_o"), d.name(f"{loop}_i"))),
        Fuse(*names[at : at + 2], into=d.name(f"{loop}_f")),
        Reorder(*some),
        Bind(loop, rng.choice(_levels(d.program))),
        Unroll(loop),
        Accumulate(loop),
        Stage(operand, space, under="" if operand == "C" else loop),
        _distribute(d, tile),
        _relayout(d, tile),
        Vectorize(rng.choice((tile, "C")), rng.choice((1, 2, 4))),
        Epilogue(alpha=d.chance(0.5), beta=d.chance(0.5)),
        Raster(rng.choice(tuple(RasterOrder)), rng.choice((1, 1, 2))),
        Prefetch(tile),
        Pipeline(loop, rng.choice((2, 3, 4)), alternating=d.chance(0.3)),
        Transfer(tile, rng.choice(tuple(Route))),
        Snake(*some[:2]),
    )
    return rng.choice(choices)
