"""What every rung uses on each architecture, and what it costs in shared memory: a generated page.

Registers depend on the compiler, so the page names its version, and a check on another version compares the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pages.markdown import table
from tilewright.artifacts import Resources
from tilewright.device.arch import arch as known_arch
from tilewright.errors import TilewrightError
from tilewright.ladders import LADDERS
from tilewright.ladders.rung import Rung
from tilewright.problem.reference import make_operands
from tilewright.report.collect import compile_all
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.nvrtc import compiler_version
from tilewright.toolchain import build

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a")
SIZE = (256, 256, 64)


@dataclass(frozen=True, slots=True)
class Row:
    """One rung: resources by architecture that has what it needs and, simulated, conflicts (excess over all wavefronts)
    and barriers a k step."""

    rung: Rung
    resources: dict[str, Resources]
    load_conflicts: float
    store_conflicts: float
    barriers: float
    shared_bytes: int


def rows(ladder: str) -> list[Row]:
    """Every rung of a ladder, compiled for each architecture and simulated."""
    rungs = LADDERS[ladder]
    builds = [build(rung.gemm(*_size(rung)), rung) for rung in rungs]
    compiled: dict[tuple[int, str], Resources] = {}
    for arch in ARCHS:
        able = [number for number, built in enumerate(builds) if not known_arch(arch).missing(built.kernel.needs)]
        for number, cubin in zip(able, compile_all([builds[one] for one in able], arch, CubinCache()), strict=True):
            if isinstance(cubin, TilewrightError):
                raise cubin
            compiled[number, arch] = cubin.resources
    found = []
    for number, (rung, built) in enumerate(zip(rungs, builds, strict=True)):
        counters = built.simulate(make_operands(built.gemm), detectors=False).counters
        loads, stores = counters.shared_loads, counters.shared_stores
        found.append(
            Row(
                rung,
                {arch: compiled[number, arch] for arch in ARCHS if (number, arch) in compiled},
                loads.conflict_share,
                stores.conflict_share,
                counters.barriers_per_k_step,
                built.kernel.shared_bytes,
            )
        )
    return found


def _size(rung: Rung) -> tuple[int, int, int]:
    return (64, 1024, 32) if rung.name == "te/0" else SIZE


def page() -> str:
    """The page for every ladder, as Markdown."""
    lines = [
        "# What every rung uses",
        "",
        f"Written by `benchmarks/write_page.py resources` with {compiler_version()}. By architecture:",
        "registers a thread, and bytes spilled if any; - where the architecture lacks an instruction of the rung. Then",
        "shared memory a block; bank conflicts, as share of the wavefronts of shared loads, and of shared stores;",
        "barriers in each step over k.",
    ]
    for ladder in LADDERS:
        lines += ["", f"## {ladder}", "", *table(_COLUMNS, [_cells(row) for row in rows(ladder)])]
    return "\n".join(lines) + "\n"


_COLUMNS = ("rung", *(f"{arch}:" for arch in ARCHS), "shared KiB:", "load conflicts:", "store conflicts:", "barriers:")


def _cells(row: Row) -> list[str]:
    cells = [row.rung.title]
    for arch in ARCHS:
        used = row.resources.get(arch)
        if used is None:
            cells.append("-")
            continue
        spilled = f" (spills {used.spill_load_bytes})" if used.spill_load_bytes else ""
        cells.append(f"{used.registers}{spilled}")
    conflicts = (f"{100 * share:.0f} %" for share in (row.load_conflicts, row.store_conflicts))
    return [*cells, f"{row.shared_bytes / 1024:.4g}", *conflicts, f"{row.barriers:g}"]


def same(written: str, fresh: str) -> bool:
    """Whether two pages say the same; registers are left out where they come from different compilers."""
    compiler = re.compile(r"with (NVRTC [\d.]+)\.")
    told, now = compiler.search(written), compiler.search(fresh)
    if told is not None and now is not None and told[1] != now[1]:
        return _without_registers(written) == _without_registers(fresh)
    return written == fresh


def _without_registers(text: str) -> list[list[str]]:
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    return [[*row[:2], *row[2 + len(ARCHS) :]] for row in cells]
