"""How long a block waits for tiles of global memory, and how long scattered stores of C take.

    python benchmarks/probes/load_waits.py --out benchmarks/results/load_waits_h100.json

Loads: blocks of 256 threads, one an SM, load a tile to registers again and again, with a barrier before and after, as
kernels do that copy through registers. A tile is of rows of so many bytes, `pitch` apart; it comes from L2 (a second
reading) or from DRAM (memory that nobody has read), of its own or shared by groups of 8 blocks. Stores: warps write
lines of 4-byte elements, so many lines a request.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifacts import Cubin, CudaSource, Parameter
from tilewright.bench.records import this_run
from tilewright.dtypes import F32, I32
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda

THREADS, ROUNDS = 256, 24
PITCH_BYTES = 4096 * 4
TOTAL_BYTES = 3 << 30
POINTERS = tuple(
    Parameter(name, dtype, is_pointer=True) for name, dtype in (("data", F32), ("out", F32), ("told", I32))
)


def loads(tile_bytes: int, row_bytes: int) -> CudaSource:
    """A tile an iteration. Each thread loads 16 bytes at a time, neighbours of a row side by side."""
    each, lanes = tile_bytes // (THREADS * 16), row_bytes // 16
    text = f"""
extern "C" __global__ void __launch_bounds__({THREADS}, 1)
waits(const float* __restrict__ data, float* __restrict__ out, int* __restrict__ told, int sharers, int step, int rows)
{{
    __shared__ float kept[{THREADS}];
    const long long group = blockIdx.x / sharers;
    const float* base = data + group * rows * {PITCH_BYTES // 4}LL;
    float sum = 0;
    int clocks = 0;
    for (int round = 0; round < {ROUNDS}; ++round) {{
        float4 values[{each}];
        __syncthreads();
        const int start = clock();
        #pragma unroll
        for (int i = 0; i < {each}; ++i) {{
            const int at = i * {THREADS} + threadIdx.x;
            values[i] = __ldcg(reinterpret_cast<const float4*>(
                base + (at / {lanes}) * {PITCH_BYTES // 4}LL + round * step + (at % {lanes}) * 4));
        }}
        #pragma unroll
        for (int i = 0; i < {each}; ++i) sum += values[i].x + values[i].y + values[i].z + values[i].w;
        kept[threadIdx.x] = sum;
        __syncthreads();
        if (round > 3) clocks += clock() - start;
    }}
    out[blockIdx.x * {THREADS} + threadIdx.x] = kept[threadIdx.x ^ 1];
    if (threadIdx.x == 0) told[blockIdx.x] = clocks;
}}
"""
    more = tuple(Parameter(name, I32) for name in ("sharers", "step", "rows"))
    return CudaSource(text, "waits", (*POINTERS, *more), THREADS)


def stores(lines: int, warps: int) -> CudaSource:
    """256 requests of each warp, each of 32 elements over so many rows."""
    lanes = 32 // lines
    text = f"""
extern "C" __global__ void __launch_bounds__({warps * 32}, 1)
stores(float* __restrict__ data, float* __restrict__ out, int* __restrict__ told, int rows)
{{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long row = (blockIdx.x * {warps}LL + warp) * 32 + lane / {lanes};
    float* base = data + row * {PITCH_BYTES // 4} + lane % {lanes};
    __syncthreads();
    const int start = clock();
    #pragma unroll 8
    for (int i = 0; i < 256; ++i) __stcg(base + i * {lanes}, float(rows + i));
    __syncthreads();
    const int issued = clock();
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {{ told[2 * blockIdx.x] = issued - start; told[2 * blockIdx.x + 1] = clock() - start; }}
    out[blockIdx.x] = issued;
}}
"""
    return CudaSource(text, "stores", (*POINTERS, Parameter("rows", I32)), warps * 32)


class Memory:
    """The buffers that all cases use. other: 256 MiB, whose writing leaves nothing else in L2."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.data = DeviceArray(gpu, (TOTAL_BYTES // 4,), np.float32)
        self.other = DeviceArray(gpu, (1 << 26,), np.float32)
        self.out = DeviceArray.of(gpu, np.zeros(1 << 18, np.float32))
        self.told = DeviceArray.of(gpu, np.zeros(1024, np.int32))

    @property
    def pointers(self) -> tuple[int, int, int]:
        return self.data.pointer, self.out.pointer, self.told.pointer


def load_case(memory: Memory, made: CudaSource, cubin: Cubin, case: dict[str, Any]) -> float:
    """Clocks of a round. The first launch reads from DRAM, the second what the first has left in L2."""
    kernel, gpu = load(memory.gpu, cubin, made), memory.gpu
    rows, step = case["tile_bytes"] // case["row_bytes"], case["row_bytes"] // 4
    memory.other.fill_bytes(0)
    for _ in range(1 if case["from"] == "dram" else 2):
        arguments = (*memory.pointers, case["sharers"], step, rows)
        kernel.launch(gpu.stream, (case["blocks"], 1, 1), (THREADS, 1, 1), arguments)
    gpu.synchronize()
    told = memory.told.download()[: case["blocks"]]
    return round(float(np.median(told)) / (ROUNDS - 4), 1)


def store_case(memory: Memory, made: CudaSource, cubin: Cubin, case: dict[str, Any]) -> tuple[float, float]:
    """Clocks of a request of the SM until they are issued, and until they are seen."""
    kernel, gpu = load(memory.gpu, cubin, made), memory.gpu
    for _ in range(2):
        kernel.launch(gpu.stream, (case["blocks"], 1, 1), (made.threads_per_block, 1, 1), (*memory.pointers, 1))
    gpu.synchronize()
    told = memory.told.download()[: 2 * case["blocks"]].reshape(-1, 2)
    issued, seen = np.median(told, axis=0) / (256 * case["warps"])
    return round(float(issued), 3), round(float(seen), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    memory = Memory(gpu)
    tiles = [{"tile_bytes": size, "row_bytes": row} for size, row in product((4096, 8192, 16384), (32, 64, 512))]
    sources = [loads(**tile) for tile in tiles]
    scattered = [{"lines": lines, "warps": warps} for lines in (1, 2, 4, 8, 16, 32) for warps in (4, 8)]
    written = [stores(**one) for one in scattered]
    with ThreadPoolExecutor() as pool:
        cubins = list(pool.map(lambda made: compile_cuda(made, gpu.arch), [*sources, *written]))
    found: dict[str, list[Any]] = {"loads": [], "stores": []}
    for one, made, cubin in zip(scattered, written, cubins[len(sources) :], strict=True):
        clocks = {blocks: store_case(memory, made, cubin, {**one, "blocks": blocks}) for blocks in (1, 66, 132)}
        found["stores"].append({**one, "clocks_issued_and_seen_by_blocks": clocks})
    timed = zip(tiles, sources, cubins, strict=False)
    for (tile, made, cubin), origin, sharers in product(timed, ("dram", "l2"), (1, 8)):
        case = {"from": origin, **tile, "sharers": sharers}
        clocks = {
            blocks: load_case(memory, made, cubin, {**case, "blocks": blocks})
            for blocks in (1, 32, 64, 128)
            if blocks >= sharers and (origin == "dram" or _stays(blocks // sharers * tile["tile_bytes"]))
        }
        found["loads"].append({**case, "clocks_by_blocks": clocks})
    record = {"device": gpu.name, **this_run()}
    lines = [",\n".join(json.dumps(row, separators=(",", ":")) for row in found[name]) for name in found]
    text = f'{json.dumps(record)[:-1]},"loads":[\n{lines[0]}\n],"stores":[\n{lines[1]}\n]}}\n'
    given.out.write_text(text, encoding="utf-8")


def _stays(bytes_a_round: int) -> bool:
    """Whether what all rounds read stays in L2 until it is read again."""
    return bytes_a_round * ROUNDS < 30_000_000


if __name__ == "__main__":
    main()
