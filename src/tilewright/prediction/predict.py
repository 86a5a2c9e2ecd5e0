"""`predict`: the whole path from a schedule to a predicted time, with no GPU."""

from __future__ import annotations

from functools import lru_cache
from math import inf, prod

from tilewright.device.arch import arch as known_arch
from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError, ProblemError
from tilewright.kernels.work import Work
from tilewright.ladders.rung import Rung
from tilewright.model.l2 import Strips, estimate_l2, strips_of
from tilewright.model.prediction import Prediction
from tilewright.model.time import predict_time
from tilewright.prediction.counting import work_of
from tilewright.prediction.waits import with_waits
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, build, check_launchable, grid_of

MOST_FOLLOWED = 4096
"""Blocks that the estimate of L2 follows; what more there are goes on like these."""


def predict(
    what: Build | tuple[Gemm, Schedule],
    spec: DeviceSpec | str,
    *,
    cache: CubinCache | None = None,
    work: Work | None = None,
    clock_mhz: float | None = None,
) -> Prediction:
    """The time of a build on a GPU. It is compiled for that GPU and simulated on one block; nothing is measured.

    work: counts that are known already, as they do not depend on the GPU. clock_mhz: by default that of the data sheet.

    Raises LaunchError with every reason why the kernel cannot run there, ProblemError for a clock that is none.
    """
    found = known_device(spec)
    given: object = clock_mhz
    if given is not None and not (isinstance(given, int | float) and 0 < given < inf):
        raise ProblemError(f"clock_mhz={clock_mhz!r} is not a clock.", hint="a number of MHz, as 1410.")
    built = what if isinstance(what, Build) else build(*what)
    check_launchable(built, found, built.gemm)
    cubin = built.compile(known_arch(found.arch).name, cache=cache)
    blocks = built.occupancy(found, cubin).blocks_per_sm
    if not blocks:
        raise LaunchError(f"{built.name} does not fit on an SM of {found.name}.", hint="use smaller tiles.")
    return predict_time(
        with_waits(work or work_of(built), built, cubin, found),
        found,
        blocks_per_sm=blocks,
        dram_bytes=dram_bytes(built, found, blocks),
        clock_mhz=clock_mhz,
    )


def predict_rung(
    rung: Rung,
    gemm: Gemm,
    spec: DeviceSpec | str,
    *,
    cache: CubinCache | None = None,
    clock_mhz: float | None = None,
) -> Prediction:
    """The time of a rung on a GPU, as `predict`, with the schedule that it has there."""
    return predict(build(gemm, rung.on(known_device(spec))), spec, cache=cache, clock_mhz=clock_mhz)


def dram_bytes(built: Build, spec: DeviceSpec, blocks_per_sm: int, *, most: int = MOST_FOLLOWED) -> float:
    """What the grid moves between L2 and DRAM: estimated where blocks stage whole strips, else each byte once.

    most: blocks that are followed.
    """
    gemm, grid = built.gemm, grid_of(built.kernel, built.gemm)
    strips, blocks = strips_of(built.program, built.kernel, grid, most=most, further=True), prod(grid)
    if strips is None:
        return float(gemm.compulsory_bytes)
    read = _read_bytes(tuple(strips.tiles), strips.a_bytes, strips.b_bytes, spec, blocks_per_sm)
    scaled = read * blocks / max(1, len(strips.tiles))
    return max(scaled + strips.c_bytes * blocks, gemm.compulsory_bytes)


@lru_cache(maxsize=64)  # many schedules ask the same of L2
def _read_bytes(
    tiles: tuple[tuple[int, int], ...], a_bytes: int, b_bytes: int, spec: DeviceSpec, blocks_per_sm: int
) -> int:
    """What blocks read from DRAM."""
    return estimate_l2(Strips(tiles, a_bytes, b_bytes, 0), spec, blocks_per_sm).dram_read_bytes
