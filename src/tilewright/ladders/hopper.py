"""Ladder `hopper`: wgmma, TMA, warp roles and clusters, rung by rung, up to cuBLAS and beyond (sm_90a)."""

from __future__ import annotations

from tilewright.dtypes import BF16
from tilewright.ir.program import RasterOrder
from tilewright.kernels.wgmma_presets import at_depth, best_for
from tilewright.kernels.wgmma_steps import (
    DEPTH_BYTES,
    WgmmaTile,
    loaded_by_tma,
    nest,
    staged,
    stored_per_thread,
    stored_through_shared,
    tma_stores,
)
from tilewright.ladders.hopper_points import TURNS, around, choices_of, of_best, of_ping_pong, tile_at
from tilewright.ladders.rung import NO_STORE_CONFLICTS as NO_CONFLICTS
from tilewright.ladders.rung import ONE_BARRIER, TWO_BARRIERS, Claim, Counts, Ladder, Point
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Cluster, Distribute, Persist, Pipeline, Raster, Schedule, Specialize, Step

HOPPER = Ladder("hopper", dtype=BF16, out=BF16)
TILES = WgmmaTile()
WARPS = 4
"""Warps that run one wgmma together."""


def _tensor_cores(tiles: WgmmaTile) -> Claim:
    """Every multiply-add is one of wgmma's."""

    def holds(counts: Counts, gemm: Gemm) -> bool:
        each = 64 * tiles.n * (DEPTH_BYTES // gemm.dtype.bytes)
        return counts.instructions[f"{gemm.multiplied.sass}GMMA"] * each == gemm.m * gemm.n * gemm.k * WARPS

    return Claim(f"wgmma of 64 x {tiles.n} does all the multiply-adds", holds)


def _brought(tiles: WgmmaTile) -> Claim:
    """TMA loads every tile once, and no thread loads anything."""
    flops = 2 * tiles.m * tiles.n / (tiles.m + tiles.n)

    def holds(counts: Counts, gemm: Gemm) -> bool:
        copied = gemm.m * gemm.n * gemm.k * (1 / tiles.m + 1 / tiles.n) * gemm.dtype.bytes
        return counts.bulk_loads.size_bytes == copied and counts.global_loads.requests == 0

    return Claim(f"TMA loads A and B, an element for {flops:.4g} FLOP; no thread loads them", holds)


NO_BARRIER = Claim("no barrier of the block inside the loop over k", lambda c, g: c.barriers_per_k_step == 0)
BY_TMA = Claim(
    "TMA stores C where its rows allow; no thread does",
    lambda c, g: not tma_stores(g) or (c.global_stores.requests == 0 and c.bulk_stores.boxes > 0),
)
NO_STORE_CONFLICTS = Claim("no bank conflicts of stmatrix", NO_CONFLICTS.holds)


@HOPPER.rung(
    "wgmma: a warpgroup multiplies 64 x 128 tiles straight from shared memory",
    _tensor_cores(TILES),
    TWO_BARRIERS,
    NO_CONFLICTS,
    Claim("no thread loads from shared memory", lambda c, g: c.shared_loads.requests == 0),
)
def wgmma(gemm: Gemm) -> Schedule:
    """A warpgroup multiplies 64 x 128 at once, straight from shared memory; threads copy the tiles there."""
    copies = (Distribute(tile, vector=16 // gemm.dtype.bytes) for tile in ("A_tile", "B_tile"))
    return Schedule(*nest(gemm, TILES), *staged(gemm), *copies, *stored_per_thread(gemm))


def _by_tma(gemm: Gemm, tiles: WgmmaTile, *steps: Step) -> Schedule:
    return Schedule(*nest(gemm, tiles), *staged(gemm), *loaded_by_tma(gemm), *steps)


@HOPPER.rung(
    "TMA: one thread issues the tile copies; mbarriers signal their completion",
    _tensor_cores(TILES),
    _brought(TILES),
    ONE_BARRIER,
)
def tma(gemm: Gemm) -> Schedule:
    """One thread issues the tile copies, and an mbarrier signals their completion; a ring of four stages."""
    return _by_tma(gemm, TILES, Pipeline("k_tile", 4), *stored_per_thread(gemm))


@HOPPER.rung(
    "a warpgroup of its own copies, and hands its registers to the one that multiplies",
    _tensor_cores(TILES),
    _brought(TILES),
    NO_BARRIER,
)
def producer(gemm: Gemm) -> Schedule:
    """Roles. A warpgroup of its own only copies, with few registers; the other only multiplies, with many."""
    return _by_tma(gemm, TILES, Pipeline("k_tile", 6), Specialize(), *stored_per_thread(gemm))


SHARING_B: Point = {"m": 128, "n": 256, "consumers": 2, "stages": 4}
"""consumers: warpgroups, which share out the rows of a tile. stages: of the ring."""
SHARED_TILES = (_tensor_cores(tile_at(SHARING_B)), _brought(tile_at(SHARING_B)))


def _shared_b_at(gemm: Gemm, point: Point) -> Schedule:
    ring = Pipeline("k_tile", point["stages"])
    return _by_tma(gemm, tile_at(point), ring, Specialize(), *stored_per_thread(gemm))


@HOPPER.rung(
    "tiles of 128 x 256: two warpgroups multiply 64 rows each by the same tile of B",
    *SHARED_TILES,
    NO_BARRIER,
    choices=around(SHARING_B, _shared_b_at, stages=(3, 4, 5, 6)),
)
def shared_b(gemm: Gemm) -> Schedule:
    """Tiles of 128 x 256. Two warpgroups multiply, 64 rows each, and share the tile of B."""
    return _shared_b_at(gemm, SHARING_B)


STAYING: Point = {**SHARING_B, "raster_rows": 8}
"""raster_rows: tile rows of a raster group."""


def _persistent(point: Point) -> tuple[Step, ...]:
    return Raster(RasterOrder.GROUPED, group=point["raster_rows"]), Persist()


def _persistent_at(gemm: Gemm, point: Point) -> Schedule:
    return _shared_b_at(gemm, point).insert(*_persistent(point), after=Specialize())


@HOPPER.rung(
    "one persistent block on each SM; tiles are rasterised in groups of 8 rows",
    *SHARED_TILES,
    NO_BARRIER,
    choices=around(STAYING, _persistent_at, stages=(3, 4, 5, 6), raster_rows=(4, 8, 12, 16)),
)
def persistent(gemm: Gemm) -> Schedule:
    """One block on each SM computes several tiles, rasterised in groups of rows; the next is loaded while one is
    stored."""
    return _persistent_at(gemm, STAYING)


STORING: Point = {**STAYING, "subtiles": 4}
"""subtiles: of a tile of C, in two stages in shared memory."""


def _tma_store_at(gemm: Gemm, point: Point) -> Schedule:
    tiles, ring = tile_at(point), Pipeline("k_tile", point["stages"])
    stored = stored_through_shared(gemm, point["subtiles"], tile=tiles)
    return _by_tma(gemm, tiles, ring, Specialize(), *_persistent(point), *stored)


@HOPPER.rung(
    "C by stmatrix and TMA store, in four epilogue subtiles and two stages, under the next tile's loads",
    *SHARED_TILES,
    BY_TMA,
    NO_STORE_CONFLICTS,
    choices=around(STORING, _tma_store_at, stages=(3, 4, 5, 6), raster_rows=(8, 16), subtiles=(1, 2, 3, 4)),
)
def tma_store(gemm: Gemm) -> Schedule:
    """TMA stores C, too: stmatrix fills one epilogue subtile, a quarter of a tile, while the last one is stored."""
    return _tma_store_at(gemm, STORING)


CLUSTERED: Point = {**STORING, "along": "m_block", "blocks": 2}
"""along, blocks: neighbours in a cluster."""


def _multicast_at(gemm: Gemm, point: Point) -> Schedule:
    return _tma_store_at(gemm, point).insert(Cluster(point["along"], point["blocks"]), after=Persist())


def _read_once(counts: Counts, gemm: Gemm) -> bool:
    """A cluster of two along m reads each tile of B once: half of what its blocks would by themselves."""
    tiles = tile_at(CLUSTERED)
    a_bytes = gemm.m * gemm.k * (gemm.n // tiles.n) * gemm.dtype.bytes
    b_bytes = gemm.n * gemm.k * (gemm.m // tiles.m // 2) * gemm.dtype.bytes
    return counts.bulk_loads.bytes_moved == a_bytes + b_bytes


@HOPPER.rung(
    "clusters of two blocks: each loads half of their tile of B, and TMA multicast writes it to both",
    _tensor_cores(tile_at(CLUSTERED)),
    BY_TMA,
    NO_STORE_CONFLICTS,
    Claim("a cluster reads its tile of B once", _read_once),
    choices=around(
        CLUSTERED,
        _multicast_at,
        shapes=((128, 192), (128, 256), (256, 128)),
        stages=(3, 4),
        raster_rows=(4, 8, 16),
        along=("m_block", "n_block"),
    ),
)
def multicast(gemm: Gemm) -> Schedule:
    """Clusters. Two blocks with the same columns start together; each loads half of B's tile, for both at once."""
    return _multicast_at(gemm, CLUSTERED)


@HOPPER.rung(
    "two warpgroups in ping-pong: while one stores its tile, the tensor cores work for the other",
    _tensor_cores(TURNS.steps_tile),
    _brought(TURNS.steps_tile),
    BY_TMA,
    NO_STORE_CONFLICTS,
    builds_on="6",
    choices=choices_of(of_ping_pong),
)
def ping_pong(gemm: Gemm) -> Schedule:
    """Each consumer warpgroup has tiles of C of its own; while one stores, the other multiplies."""
    return at_depth(TURNS, gemm).schedule(gemm)


@HOPPER.rung(
    "cooperative or ping-pong, whichever keeps the tensor cores busier; cooperative warpgroups end one after the other",
    BY_TMA,
    NO_STORE_CONFLICTS,
    label="best",
    choices=choices_of(of_best, shares_k=lambda point: not point["persistent"] and not point["subtile"]),
)
def best(gemm: Gemm) -> Schedule:
    """Cooperative or ping-pong, whichever leaves fewer SMs idle; dependent launch of short kernels. The second of two
    cooperative warpgroups leaves its last stages to the first, and multiplies them while that one stores."""
    return best_for(gemm).schedule(gemm)
