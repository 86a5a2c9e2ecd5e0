"""How the register file of a GPU serves multiply-adds: what its banks, the reuse cache and a second warp cost.

    python benchmarks/probes/register_banks.py --out benchmarks/results/register_banks_h200.json

A kernel runs 2048 FFMAs in a loop and reads the clock around it. Registers and reuse flags of the FFMAs are written
into its machine code, pattern by pattern, so that nothing but them differs: three sources of every combination of the
remainders by 4 of their numbers, with and without a source kept in the reuse cache, for 1, 2 and 4 warps to a
scheduler. The FFMAs of worklog/best, and of its points in `--points`, are replayed too: in their order and registers of
the same remainders, with nothing between them.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import ffma_loop
import numpy as np
from ffma_loop import SUMS, WARPS_A_SCHEDULER

from tilewright.artifacts import Cubin, CudaSource
from tilewright.bench.records import this_run
from tilewright.ladders import find_rung
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.toolchain import build

FFMAS = 2048
ROUNDS = 64
FACTORS = 16
REUSE_BIT = 122
"""Of the first source; the other two follow. Found with nvdisasm, as are the places of the registers."""

_FFMA = 0x223
_SOURCES = (24, 32, 64)
_RESULT = 16


@dataclass(frozen=True, slots=True)
class Multiply:
    """One FFMA: the registers of its two factors and of the sum, which it also writes, and which sources are kept."""

    sources: tuple[int, int, int]
    kept: tuple[bool, bool, bool] = (False, False, False)


def source(warps: int) -> CudaSource:
    return ffma_loop.source(
        FFMAS, warps, FACTORS, lambda i: ((i + i // SUMS) % FACTORS, (i // 8 + i // SUMS) % FACTORS)
    )


def multiplies(image: bytes) -> list[tuple[int, Multiply]]:
    """Every FFMA of registers alone in machine code: where it stands, and what it reads."""
    found = []
    for at in range(0, len(image) - 15, 16):
        low, high = struct.unpack_from("<QQ", image, at)
        word = low | high << 64
        if word & 0xFFF == _FFMA and word >> 12 & 0xF == 7:
            sources = tuple(word >> bit & 0xFF for bit in _SOURCES)
            kept = tuple(bool(word >> REUSE_BIT + slot & 1) for slot in range(3))
            found.append((at, Multiply(sources, kept)))  # type: ignore[arg-type]
    return found


def written(image: bytes, at: int, multiply: Multiply) -> bytes:
    """The 16 bytes of an FFMA with other registers and reuse flags."""
    low, high = struct.unpack_from("<QQ", image, at)
    word = low | high << 64
    for bit, register in zip((*_SOURCES, _RESULT), (*multiply.sources, multiply.sources[2]), strict=True):
        word = word & ~(0xFF << bit) | register << bit
    for slot, kept in enumerate(multiply.kept):
        word = word & ~(1 << REUSE_BIT + slot) | kept << REUSE_BIT + slot
    return struct.pack("<QQ", word & (1 << 64) - 1, word >> 64)


def _registers(image: bytes) -> set[int]:
    return {register for _, each in multiplies(image) for register in each.sources}


class Bench:
    """Times patterns of FFMAs on one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._values = DeviceArray.of(gpu, np.random.default_rng(0).standard_normal(SUMS * 32).astype(np.float32))
        blocks = gpu.attributes["MULTIPROCESSOR_COUNT"]
        self._out = DeviceArray.of(gpu, np.zeros(blocks * 1024, np.float32))
        self._clocks = DeviceArray.of(gpu, np.zeros(blocks, np.int32))
        self._kernels: dict[int, tuple[CudaSource, Cubin, list[int]]] = {}
        for warps in WARPS_A_SCHEDULER:
            made = source(4 * warps)
            cubin = compile_cuda(made, gpu.arch)
            places = [at for at, _ in multiplies(cubin.image)]
            if len(places) != FFMAS:
                raise SystemExit(f"{len(places)} FFMAs in the loop, not {FFMAS}: the compiler changed it")
            self._kernels[warps] = made, cubin, places
        # What no kernel uses for anything but factors and sums.
        free = set.intersection(*(_registers(cubin.image) for _, cubin, _ in self._kernels.values()))
        self.registers = [sorted(each for each in free if each % 4 == rest) for rest in range(4)]

    def clocks(self, pattern: list[Multiply], warps: int) -> float:
        """Clocks of a scheduler for each FFMA of each warp: 1 is the peak."""
        made, cubin, places = self._kernels[warps]
        image = bytearray(cubin.image)
        for at, multiply in zip(places, pattern, strict=True):
            image[at : at + 16] = written(cubin.image, at, multiply)
        kernel = load(self._gpu, replace(cubin, image=bytes(image)), made)
        blocks = self._gpu.attributes["MULTIPROCESSOR_COUNT"]
        pointers = (self._values.pointer, self._out.pointer, self._clocks.pointer)
        for _ in range(2):
            kernel.launch(self._gpu.stream, (blocks, 1, 1), (made.threads_per_block, 1, 1), (*pointers, ROUNDS))
        self._gpu.synchronize()
        return float(np.median(self._clocks.download())) / (FFMAS * ROUNDS * warps)


def remainders(bench: Bench) -> Iterator[tuple[str, list[Multiply]]]:
    """Sources whose numbers leave these remainders by 4; `*` marks one that stays the same and is kept."""
    registers = bench.registers

    def pick(rest: int, number: int) -> int:
        return registers[rest][number % len(registers[rest])]

    for left, right, total in product(range(4), range(4), range(4)):
        # Sums come back after as many FFMAs as there are registers of a remainder: more than the latency.
        plain = [Multiply((pick(left, i), pick(right, i + 3), pick(total, i + 7))) for i in range(FFMAS)]
        yield f"{left} {right} {total}", plain
    for left, right, total in product(range(2), range(2), range(2)):
        for length in (2, 4, 8, 16):
            kept = [
                Multiply(
                    (pick(left, i // length), pick(right, i + 3), pick(total, i + 7)),
                    (i % length < length - 1, False, False),
                )
                for i in range(FFMAS)
            ]
            yield f"{left}*{length} {right} {total}", kept


def replayed(bench: Bench, image: bytes) -> list[Multiply]:
    """The first FFMAs of a kernel in their order, in registers of the same remainders."""
    rows = [multiply for _, multiply in multiplies(image)][:FFMAS]

    def here(register: int) -> int:
        same = bench.registers[register % 4]
        return same[register // 4 % len(same)]

    return [Multiply(tuple(here(register) for register in row.sources), row.kept) for row in rows]  # type: ignore[arg-type]


def unkept(pattern: list[Multiply]) -> list[Multiply]:
    return [Multiply(each.sources) for each in pattern]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--points", type=Path, help="a JSON list of points of worklog/best to replay")
    given = parser.parse_args()
    gpu = open_gpu()
    bench = Bench(gpu)
    rows: list[dict[str, Any]] = []

    def measured(name: str, pattern: list[Multiply], **more: object) -> None:
        taken = {str(warps): round(bench.clocks(pattern, warps), 4) for warps in WARPS_A_SCHEDULER}
        rows.append({"pattern": name, "clocks_a_ffma": taken, **more})

    for name, pattern in remainders(bench):
        measured(name, pattern)
    rung = find_rung("worklog/best")
    gemm = rung.gemm(4096, 4096, 4096)
    schedules = {"worklog/best": rung.schedule(gemm)}
    if given.points and rung.choices:
        points = json.loads(given.points.read_text())
        schedules |= {json.dumps(point): rung.choices.schedule_at(gemm, point) for point in points}
    for name, schedule in schedules.items():
        pattern = replayed(bench, build(gemm, schedule).compile(gpu.arch).image)
        if len(pattern) == FFMAS:
            measured(name, pattern, replayed=True)
            measured(name, unkept(pattern), replayed=True, without_reuse=True)
    record = {"device": gpu.name, **this_run(), "rows": rows}
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
