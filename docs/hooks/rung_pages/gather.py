"""What a page tells of a rung, gathered: simulated at a small size, compiled for one architecture."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tilewright.artifacts import Cubin
from tilewright.device.catalog import H200
from tilewright.errors import TilewrightError
from tilewright.ladders.rung import Rung
from tilewright.model.occupancy import Occupancy
from tilewright.report.collect import Progress, compile_all
from tilewright.report.costs import Cost, costs_of
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.simulator import Counters
from tilewright.toolchain import Build, build

SPEC = H200
"""The GPU whose occupancy the pages tell: the one on which figures were recorded."""

_SIZE, _SKINNY = (256, 256, 64), (64, 1024, 32)


@dataclass(frozen=True, slots=True)
class Told:
    """One rung: its build at the size of the page, counts and costs, and what one compiler made of it."""

    rung: Rung
    built: Build
    counters: Counters
    costs: tuple[Cost, ...]
    cubin: Cubin
    occupancy: Occupancy


def gather(rungs: Sequence[Rung], progress: Progress = lambda what, done, total: None) -> list[Told]:
    """Everything that pages need of rungs. Raises what the compiler or the simulator raises."""
    builds = [build(rung.gemm(*_size(rung)), rung) for rung in rungs]
    with ThreadPoolExecutor(1) as background:
        compiling = background.submit(compile_all, builds, SPEC.arch, CubinCache())
        counted = []
        for at, built in enumerate(builds):
            progress(f"simulating {built.name}", at, len(builds))
            counted.append(costs_of(built))
        cubins = compiling.result()
    found = []
    for rung, built, (counters, costs), cubin in zip(rungs, builds, counted, cubins, strict=True):
        if isinstance(cubin, TilewrightError):
            raise cubin
        found.append(Told(rung, built, counters, tuple(costs), cubin, built.occupancy(SPEC, cubin)))
    return found


def _size(rung: Rung) -> tuple[int, int, int]:
    """Small, and a multiple of every tile; te/0 has one thread, which takes its time."""
    return _SKINNY if rung.name == "te/0" else _SIZE
