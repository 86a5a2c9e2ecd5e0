"""How fast a GPU runs mma.sync from registers alone: the ceiling of every kernel that uses it.

    python benchmarks/probes/matrix_rate.py --out benchmarks/results/matrix_rate_h200.json

Each warp multiplies fragments that it never loads again, into independent sums; nothing else is in the loop. For each
instruction a few counts of warps and sums are recorded, the fastest first, in a burst (the first milliseconds) and
sustained for a second, with random normal operands: zeros would draw less power and run at a higher clock.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np

from tilewright.artifacts import CudaSource, Parameter
from tilewright.bench.records import command, commit, now
from tilewright.codegen.matrix_prelude import multiply_name
from tilewright.codegen.prelude import prelude_text
from tilewright.dtypes import F32, I32
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.timer import time_launches

ROUNDS = 2048
SUSTAINED_S = 1.0


def source(instruction: MatrixInstruction, warps: int, sums: int) -> CudaSource:
    """A kernel whose warps each keep `sums` fragments and add to all of them in turn."""
    a, b = (part.registers * instruction.product.bytes // 4 for part in (instruction.a, instruction.b))
    c = instruction.c.registers * instruction.accumulate.bytes // 4
    element, total = instruction.product.cuda, instruction.accumulate.cuda
    name = multiply_name(instruction, None)
    left, right = f"reinterpret_cast<const {element}*>(left)", f"reinterpret_cast<const {element}*>(right[i % 4])"
    text = f"""{prelude_text({name, instruction.product.cuda, instruction.accumulate.cuda})}
extern "C" __global__ void __launch_bounds__({warps * 32})
matrix_rate(const unsigned* __restrict__ values, float* __restrict__ out, int rounds)
{{
    unsigned left[{a}], right[4][{b}], sums[{sums}][{c}];
    const unsigned* own = values + threadIdx.x * 32;
    for (int i = 0; i < {a}; ++i) left[i] = own[i];
    for (int j = 0; j < 4; ++j) for (int i = 0; i < {b}; ++i) right[j][i] = own[4 * j + i + {a}];
    #pragma unroll
    for (int j = 0; j < {sums}; ++j) for (int i = 0; i < {c}; ++i) sums[j][i] = 0;
    for (int round = 0; round < rounds; ++round) {{
        #pragma unroll
        for (int i = 0; i < {sums}; ++i) {name}(reinterpret_cast<{total}*>(sums[i]), {left}, {right});
    }}
    unsigned all = 0;
    #pragma unroll
    for (int j = 0; j < {sums}; ++j) for (int i = 0; i < {c}; ++i) all ^= sums[j][i];
    if (all == 0x12345678u) out[threadIdx.x] = 1.0f;
}}
"""
    parameters = (Parameter("values", F32, is_pointer=True), Parameter("out", F32, is_pointer=True))
    return CudaSource(text, "matrix_rate", (*parameters, Parameter("rounds", I32)), warps * 32, 0)


def rate(gpu: Gpu, instruction: MatrixInstruction, warps: int, sums: int, blocks_per_sm: int) -> tuple[float, float]:
    """TFLOP/s in a burst and sustained."""
    made = source(instruction, warps, sums)
    kernel: LoadedKernel = load(gpu, compile_cuda(made, gpu.arch), made)
    normal = np.random.default_rng(0).standard_normal(warps * 32 * 32 * 4 // instruction.product.bytes, np.float32)
    values = DeviceArray.of(gpu, instruction.product.encode(normal))
    out = DeviceArray.of(gpu, np.zeros(1024, np.float32))
    blocks = gpu.attributes["MULTIPROCESSOR_COUNT"] * blocks_per_sm
    flops = 2 * instruction.multiply_adds * sums * warps * blocks * ROUNDS

    def step() -> None:
        kernel.launch(gpu.stream, (blocks, 1, 1), (warps * 32, 1, 1), (values.pointer, out.pointer, ROUNDS))

    step()
    gpu.synchronize()
    time.sleep(0.3)  # let the card cool down to its burst clock
    once = time_launches(gpu.stream, step, launches=4)
    sustained = time_launches(gpu.stream, step, launches=max(4, int(SUSTAINED_S * 1e6 / once)))
    for array in (values, out):
        array.close()
    return flops / once / 1e6, flops / sustained / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    gpu = open_gpu()
    rows = []
    for instruction in (known for known in INSTRUCTIONS if not known.is_opaque and not known.reads_shared):
        found = [
            (*rate(gpu, instruction, warps, sums, blocks), warps, sums, blocks)
            for warps, sums, blocks in product((4, 8), (8, 16), (1, 2))
        ]
        for burst, sustained, warps, sums, blocks in sorted(found, reverse=True):
            rows.append(
                {
                    "instruction": instruction.name,
                    "burst_tflops": round(burst, 1),
                    "sustained_tflops": round(sustained, 1),
                    "warps_per_block": warps,
                    "sums_per_warp": sums,
                    "blocks_per_sm": blocks,
                }
            )
            print(rows[-1], flush=True)
    record = {"device": gpu.name, "command": command(), "commit": commit(), "date": now(), "rates": rows}
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
