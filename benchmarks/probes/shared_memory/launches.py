"""What is launched and in which order, and the GPU that it is launched on."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import access_patterns as ap

from shared_memory.accesses import GLOBAL_BYTES, REPEAT, ROUNDS, Access, accesses
from shared_memory.machine_code import ok


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: str
    access: str
    pattern: str
    offsets: ap.Pattern
    source: ap.Pattern  # of a copy: where it reads


GROUPS = ("shared", "global", "wide")
NO_LANE = "no lane"


def _contiguous(width: int) -> ap.Pattern:
    return ap.pattern(lambda t: t, width)


def patterns_of(access: Access) -> Iterator[tuple[str, ap.Pattern, ap.Pattern]]:
    """Name, offsets, and offsets read: a copy has both a side that it writes, varied first, and one it reads."""
    for name, offsets in access.patterns.items():
        yield name, offsets, _contiguous(access.width)
    if access.is_copy:
        for name in ("uniform", "t/2 (64-2)", "stride 2", "stride 8", "stride 32", "shuffled 1"):
            source = ap.pattern(ap.CHUNKS[name], access.width)
            yield f"from {name}", _contiguous(access.width), source


def launches(group: str) -> list[Launch]:
    """The launches of a group, in order: the baselines, then the first pattern of each access, the second, ...

    shared: shared loads, stores and matrices. global: cp.async and global memory. wide: a few of each, for a run
    with many counters. The baselines are a kernel without accesses and, since the compiler adds idle LDS around
    cp.async, each copy with no lane taking part.
    """
    nothing, none = _contiguous(4), (None,) * ap.LANES
    chosen = [a for a in accesses() if group == "wide" or (a.is_copy or a.is_global) == (group == "global")]
    found = [Launch("baseline", "baseline", "", nothing, nothing)]
    found += [Launch(a.name, a.name, NO_LANE, none, _contiguous(a.width)) for a in chosen if a.is_copy]
    columns = [list(patterns_of(access)) for access in chosen]
    if group == "wide":
        wanted = ("contiguous (64-1)", "uniform", "stride 4")
        columns = [[entry for entry in column if entry[0] in wanted] for column in columns]
    for row in range(max(map(len, columns))):
        for access, column in zip(chosen, columns, strict=True):
            if row < len(column):
                found.append(Launch(access.name, access.name, *column[row]))
    return found


def patterned(group: str) -> list[Launch]:
    """The launches of a group without the baselines."""
    return [launch for launch in launches(group) if launch.pattern not in ("", NO_LANE)]


class Gpu:
    """The primary context of device 0, the loaded module, and buffers for the launches."""

    def __init__(self, cubin: bytes) -> None:
        from cuda.bindings import driver

        self.driver = driver
        ok(driver.cuInit(0))
        device = ok(driver.cuDeviceGet(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
        self.name = ok(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode()
        self.module = ok(driver.cuModuleLoadData(cubin))
        self.offsets = self.allocate(256)
        self.memory = self.allocate(GLOBAL_BYTES)
        self.sink = self.allocate(8192)
        self.clocks = self.allocate(1024)
        ok(driver.cuMemsetD8(self.memory, 0, GLOBAL_BYTES))

    def allocate(self, size_bytes: int) -> int:
        return int(ok(self.driver.cuMemAlloc(size_bytes)))

    def write(self, address: int, values: ctypes.Array[Any]) -> None:
        ok(self.driver.cuMemcpyHtoD(address, ctypes.addressof(values), ctypes.sizeof(values)))

    def read_clocks(self, warps: int = 1) -> list[int]:
        host = (ctypes.c_longlong * (2 * warps))()
        ok(self.driver.cuMemcpyDtoH(ctypes.addressof(host), self.clocks, ctypes.sizeof(host)))
        return list(host)

    def place(self, launch: Launch) -> None:
        both = (-1 if offset is None else offset for offset in (*launch.offsets, *launch.source))
        self.write(self.offsets, (ctypes.c_int * 64)(*both))

    def launch(self, kernel: str, arguments: Sequence[tuple[int, Any]], *, threads: int, blocks: int = 1) -> None:
        function = ok(self.driver.cuModuleGetFunction(self.module, kernel.encode()))
        packed = (tuple(value for value, _ in arguments), tuple(kind for _, kind in arguments))
        ok(self.driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, packed, 0))
        ok(self.driver.cuCtxSynchronize())

    def count(self, launch: Launch) -> None:
        """One launch to be seen by ncu: one warp, REPEAT accesses."""
        self.place(launch)
        places = [(self.offsets, ctypes.c_void_p), (self.memory, ctypes.c_void_p), (self.sink, ctypes.c_void_p)]
        self.launch(launch.kernel, places, threads=32)

    def cycles(self, launch: Launch, warps: int) -> float:
        """Cycles an access, `warps` warps together: from the first start to the last stop, over all accesses."""
        self.place(launch)
        arguments = [
            (self.offsets, ctypes.c_void_p), (self.memory, ctypes.c_void_p), (self.sink, ctypes.c_void_p),
            (self.clocks, ctypes.c_void_p), (ROUNDS, ctypes.c_int), (0, ctypes.c_int),
        ]  # fmt: skip
        self.launch(f"{launch.kernel}_timed", arguments, threads=32 * warps)
        clocks = self.read_clocks(warps)
        return (max(clocks[1::2]) - min(clocks[0::2])) / (warps * ROUNDS * REPEAT)


def run(cubin: Path, group: str, deadline_s: float, order: Path) -> None:
    """Under ncu: the launches of a group, until the deadline. The order file tells which were made."""
    started = time.monotonic()
    gpu = Gpu(cubin.read_bytes())
    made = []
    for launch in launches(group):
        if time.monotonic() - started > deadline_s:
            break
        gpu.count(launch)
        made.append({"kernel": launch.kernel, "access": launch.access, "pattern": launch.pattern})
    seconds = round(time.monotonic() - started, 2)
    order.write_text(json.dumps({"made": made, "planned": len(launches(group)), "seconds": seconds}))
