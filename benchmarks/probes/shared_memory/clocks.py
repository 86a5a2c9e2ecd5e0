"""The clock as a witness: cycles of patterns, issue rates, latencies."""

from __future__ import annotations

import ctypes
import json
import random
import time
from pathlib import Path
from typing import Any

import access_patterns as ap

from shared_memory.accesses import WARPS
from shared_memory.launches import Gpu, patterned
from shared_memory.machine_code import SHARED_CHASES, ok


def time_all(cubin: Path, output: Path) -> None:
    """Clocks of every pattern, issue rates by number of warps, latencies. Written after each part."""
    gpu = Gpu(cubin.read_bytes())
    result: dict[str, Any] = {"device": gpu.name}
    for title, part in (
        ("latency_cycles", latencies),
        ("rates", rates),
        ("patterns", clocks_of_patterns),
    ):
        began = time.monotonic()
        try:
            result[title] = part(gpu)
        except SystemExit as failed:
            result[title] = {}
            result.setdefault("errors", []).append(f"{title}: {failed}")
        result[f"{title}_seconds"] = round(time.monotonic() - began, 2)
        output.write_text(json.dumps(result))


def clocks_of_patterns(gpu: Gpu) -> dict[str, dict[str, dict[str, float]]]:
    """access -> pattern -> cycles an access with WARPS warps (the better of two) and with one."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for group in ("shared", "global"):
        for launch in patterned(group):
            full = min(gpu.cycles(launch, WARPS) for _ in range(2))
            alone = gpu.cycles(launch, 1)
            of_access = result.setdefault(launch.access, {})
            of_access[launch.pattern] = {"clk": round(full, 3), "clk_one_warp": round(alone, 3)}
    return result


def rates(gpu: Gpu) -> dict[str, dict[int, float]]:
    """access -> number of warps -> cycles an access on one SM, for the conflict-free pattern."""
    result: dict[str, dict[int, float]] = {}
    for group in ("shared", "global"):
        for launch in patterned(group):
            if launch.pattern.startswith("contiguous ("):
                by_warps = {w: round(min(gpu.cycles(launch, w) for _ in range(3)), 3) for w in (1, 2, 4, 8, 16, 32)}
                result[launch.access] = by_warps
    return result


def latencies(gpu: Gpu) -> dict[str, float]:
    """Cycles from a load to the next that needs its result."""
    result = {}
    for title, (kind, _, _) in SHARED_CHASES.items():
        arguments = [(16, ctypes.c_int), (gpu.clocks, ctypes.c_void_p), (gpu.sink, ctypes.c_void_p)]
        for _ in range(2):
            gpu.launch(f"chase_{kind}", arguments, threads=32)
        start, stop = gpu.read_clocks()
        result[title] = round((stop - start) / 256, 2)
    flush_bytes, arena_bytes = 256 << 20, 1 << 30
    flush, arena = gpu.allocate(flush_bytes), gpu.allocate(arena_bytes)
    ok(gpu.driver.cuMemsetD8(arena, 0, arena_bytes))
    for kind, spread_mib in (("ca", 1 / 64), ("cg", 1), ("cg", 8), ("cg", 32)):
        cached = _chase(gpu, kind, arena, spread_mib, phases=2)
        result[f"{'L1' if kind == 'ca' else 'L2'} hit, lines within {spread_mib:g} MiB"] = cached
    for spread_mib in (8, 32, 256, 1024):
        _link(gpu, arena, spread_mib)
        ok(gpu.driver.cuMemsetD8(flush, 1, flush_bytes))
        ok(gpu.driver.cuCtxSynchronize())
        result[f"DRAM, lines within {spread_mib} MiB"] = _chase(gpu, "cg", arena, spread_mib, phases=1, linked=True)
    return result


def _nodes(arena: int, spread_mib: float) -> list[int]:
    """Up to 4096 distinct 128-byte lines of the arena's first part, in random order; a multiple of 16."""
    places = int(spread_mib * (1 << 20)) // ap.LINE_BYTES
    count = min(4096, places)
    return [arena + ap.LINE_BYTES * place for place in random.Random(1).sample(range(places), count)]


def _link(gpu: Gpu, arena: int, spread_mib: float) -> list[int]:
    """Make the nodes a ring in the GPU's memory."""
    nodes = _nodes(arena, spread_mib)
    table = gpu.allocate(8 * len(nodes))
    gpu.write(table, (ctypes.c_ulonglong * len(nodes))(*nodes))
    arguments = [(table, ctypes.c_void_p), (len(nodes), ctypes.c_int)]
    gpu.launch("link", arguments, threads=256, blocks=-(-len(nodes) // 256))
    return nodes


def _chase(gpu: Gpu, kind: str, arena: int, spread_mib: float, *, phases: int, linked: bool = False) -> float:
    nodes = _nodes(arena, spread_mib) if linked else _link(gpu, arena, spread_mib)
    arguments = [
        (nodes[0], ctypes.c_ulonglong), (len(nodes) // 16, ctypes.c_int), (phases, ctypes.c_int),
        (gpu.clocks, ctypes.c_void_p), (gpu.sink, ctypes.c_void_p),
    ]  # fmt: skip
    gpu.launch(f"chase_{kind}", arguments, threads=1)
    start, stop = gpu.read_clocks()
    return round((stop - start) / len(nodes), 1)
