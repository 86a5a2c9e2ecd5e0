"""What a loop costs that is longer than the instruction caches of a GPU, with one, two and four warps to a scheduler.

    python benchmarks/probes/instruction_fetch.py --out benchmarks/results/instruction_fetch_h100.json

A kernel runs so many FFMAs in a loop, written out, and reads the clock around it. The pattern of registers stays the
same, so that what differs by the length of the loop is the fetch of its instructions, of 16 bytes each.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ffma_loop
import numpy as np
from ffma_loop import SUMS, WARPS_A_SCHEDULER

from tilewright.artifacts import Cubin, CudaSource
from tilewright.bench.records import this_run
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda

LENGTHS = (512, 1024, 1536, 1792, 1984, 2048, 2176, 2304, 2560, 3072, 4096)
FFMAS = 1 << 18
"""That each warp runs in all."""
FACTORS = 8


def source(length: int, warps: int) -> CudaSource:
    return ffma_loop.source(length, warps, FACTORS, lambda i: (i // SUMS % FACTORS, i // 8 % FACTORS))


def clocks(gpu: Gpu, made: CudaSource, cubin: Cubin, length: int, warps: int) -> float:
    """Of a scheduler for each FFMA of each warp: 1 is the peak."""
    kernel, blocks, rounds = load(gpu, cubin, made), gpu.attributes["MULTIPROCESSOR_COUNT"], FFMAS // length
    values = DeviceArray.of(gpu, np.random.default_rng(0).standard_normal(SUMS * 32).astype(np.float32))
    out = DeviceArray.of(gpu, np.zeros(blocks * 1024, np.float32))
    told = DeviceArray.of(gpu, np.zeros(blocks, np.int32))
    for _ in range(3):
        pointers = (values.pointer, out.pointer, told.pointer)
        kernel.launch(gpu.stream, (blocks, 1, 1), (made.threads_per_block, 1, 1), (*pointers, rounds))
    gpu.synchronize()
    return round(float(np.median(told.download())) / (length * rounds * warps), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    cases = [(length, warps) for length in LENGTHS for warps in WARPS_A_SCHEDULER]
    sources = [source(length, 4 * warps) for length, warps in cases]
    with ThreadPoolExecutor() as pool:
        cubins = list(pool.map(lambda made: compile_cuda(made, gpu.arch), sources))
    found: dict[int, dict[str, float]] = {}
    for (length, warps), made, cubin in zip(cases, sources, cubins, strict=True):
        found.setdefault(length, {})[str(warps)] = clocks(gpu, made, cubin, length, warps)
    rows = [{"ffmas": length, "clocks_a_ffma": by_warps} for length, by_warps in found.items()]
    for row in rows:
        print(row, flush=True)
    record = {"device": gpu.name, **this_run()}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    given.out.write_text(json.dumps(record)[:-1] + ',"rows":[\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
