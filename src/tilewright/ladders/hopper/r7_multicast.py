"""7: clusters. Two blocks with the same columns start together; each loads half of B's tile, for both at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import BF16
from tilewright.ladders.hopper import r6_tma_store
from tilewright.ladders.hopper.claims import BY_TMA, NO_STORE_CONFLICTS, tensor_cores
from tilewright.ladders.hopper.points import point_fits, tile_at
from tilewright.ladders.rung import Choices, Claim, Counts, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Cluster, Persist, Schedule

BEST: Point = {
    "m": 128, "n": 256, "consumers": 2, "stages": 4, "raster_rows": 8, "subtiles": 4, "along": "m_block", "blocks": 2,
}  # fmt: skip
"""rows: tile rows of a raster group. along, blocks: neighbours in a cluster."""


def points() -> Iterator[Point]:
    shapes = ((128, 192), (128, 256), (256, 128))
    for (m, n), stages, rows, along in product(shapes, (3, 4), (4, 8, 16), ("m_block", "n_block")):
        point = {**BEST, "m": m, "n": n, "stages": stages, "raster_rows": rows, "along": along}
        if n % (4 * 64):
            point["subtiles"] = n // 64
        if point_fits(point):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return r6_tma_store.schedule_at(gemm, point).insert(Cluster(point["along"], point["blocks"]), after=Persist())


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


def _read_once(counts: Counts, gemm: Gemm) -> bool:
    """A cluster of two along m reads each tile of B once: half of what its blocks would by themselves."""
    tiles = tile_at(BEST)
    a_bytes = gemm.m * gemm.k * (gemm.n // tiles.n) * gemm.dtype.bytes
    b_bytes = gemm.n * gemm.k * (gemm.m // tiles.m // 2) * gemm.dtype.bytes
    return counts.bulk_loads.bytes_moved == a_bytes + b_bytes


MULTICAST = Rung(
    ladder="hopper",
    number=7,
    slug="multicast",
    idea="clusters of two blocks: each loads half of their tile of B, and TMA multicast writes it to both",
    schedule=schedule,
    claims=(
        tensor_cores(tile_at(BEST)),
        BY_TMA,
        NO_STORE_CONFLICTS,
        Claim("a cluster reads its tile of B once", _read_once),
    ),
    builds_on="6",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
