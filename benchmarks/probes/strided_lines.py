"""Clocks of a request of global memory whose lanes read rows that lie so many elements apart, all of them in L1.

    python benchmarks/probes/strided_lines.py --out FILE

16 warps of a block, alone on its SM, read 4 bytes a lane, element after element of 32 rows, all warps the same, as the
naive rungs read A. Rows that lie a multiple of four lines apart need their lines of one bank of tags.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from tilewright.artifacts import CudaSource, Parameter
from tilewright.bench.records import this_run
from tilewright.dtypes import F32, I32
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda

WARPS, ROUNDS, IN_A_LINE = 16, 16, 32
APART = (32, 64, 96, 128, 160, 256, 512, 640, 768, 896, 960, 992, 1000, 1008, 1016, 1020, 1022, 1023, 1024, 1025, 1026)
APART += (1028, 1032, 1040, 1056, 1088, 1090, 1111, 1120, 1152, 1184, 1216, 1280, 1408, 1536, 1984, 2048, 2304, 4096)

TEXT = f"""
extern "C" __global__ void __launch_bounds__({WARPS * 32}, 1)
strided(const float* __restrict__ data, float* __restrict__ out, int* __restrict__ told, int apart)
{{
    const float* row = data + (threadIdx.x % 32) * apart;
    float sum = 0;
    int start = 0;
    for (int round = 0; round < {ROUNDS} + 1; ++round) {{
        if (round == 1) {{ __syncthreads(); start = clock(); }}
        #pragma unroll
        for (int i = 0; i < {IN_A_LINE}; ++i) {{
            float value;
            asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(row + i));
            sum += value;
        }}
    }}
    __syncthreads();
    if (threadIdx.x == 0) told[blockIdx.x] = clock() - start;
    out[threadIdx.x] = sum;
}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    pointers = tuple(Parameter(n, d, is_pointer=True) for n, d in (("data", F32), ("out", F32), ("told", I32)))
    source = CudaSource(TEXT, "strided", (*pointers, Parameter("apart", I32)), WARPS * 32)
    kernel = load(gpu, compile_cuda(source, gpu.arch), source)
    data = DeviceArray.of(gpu, np.zeros(max(APART) * 33, np.float32))
    out, told = DeviceArray.of(gpu, np.zeros(WARPS * 32, np.float32)), DeviceArray.of(gpu, np.zeros(4, np.int32))
    found = {}
    for apart in APART:
        for _ in range(2):
            arguments = (data.pointer, out.pointer, told.pointer, apart)
            kernel.launch(gpu.stream, (1, 1, 1), (WARPS * 32, 1, 1), arguments)
        gpu.synchronize()
        found[apart] = round(int(told.download()[0]) / (ROUNDS * IN_A_LINE * WARPS), 2)
    record = {"device": gpu.name, **this_run()}
    given.out.write_text(json.dumps(record | {"clocks_by_elements_apart": found}) + "\n", encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
