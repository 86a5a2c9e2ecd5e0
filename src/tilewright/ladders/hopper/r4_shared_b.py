"""4: tiles of 128 x 256. Two warpgroups multiply, 64 rows each, and share the tile of B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import BF16
from tilewright.kernels.wgmma_steps import loaded_by_tma, nest, staged, stored_per_thread
from tilewright.ladders.hopper.claims import NO_BARRIER, brought, tensor_cores
from tilewright.ladders.hopper.points import point_fits, tile_at
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Schedule, Specialize

BEST: Point = {"m": 128, "n": 256, "consumers": 2, "stages": 4}
"""consumers: warpgroups, which share out the rows of a tile. stages: of the ring."""


def points() -> Iterator[Point]:
    for (m, n), stages in product(((128, 128), (128, 192), (128, 256), (256, 128)), (3, 4, 5, 6)):
        point = {**BEST, "m": m, "n": n, "stages": stages}
        if point_fits(point):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return Schedule(
        *nest(gemm, tile_at(point)),
        *staged(gemm),
        *loaded_by_tma(gemm),
        Pipeline("k_tile", point["stages"]),
        Specialize(),
        *stored_per_thread(gemm),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


SHARED_B = Rung(
    ladder="hopper",
    number=4,
    slug="shared_b",
    idea="tiles of 128 x 256: two warpgroups multiply 64 rows each by the same tile of B",
    schedule=schedule,
    claims=(tensor_cores(tile_at(BEST)), brought(tile_at(BEST)), NO_BARRIER),
    builds_on="3",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
