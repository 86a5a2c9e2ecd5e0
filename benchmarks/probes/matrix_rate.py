"""How fast a GPU runs mma.sync from registers alone: the ceiling of every kernel that uses it.

    python benchmarks/probes/matrix_rate.py --rung ampere/6 --out benchmarks/results/matrix_rate_h200.json

Each warp multiplies fragments that it never loads again, each of A by each of B as kernels do, into independent sums;
nothing else is in the loop. For each instruction a few counts of warps and fragments are recorded, the fastest first:
in bursts of some 4 ms on a card that has rested for 30 ms, and sustained for a second, with random normal operands:
zeros would draw less power and run at a higher clock. With --rung, that rung multiplies 4096^3 in the formats of each
16-bit instruction, its bursts in turn with those of the fastest loop: the share that it reaches of the ceiling. So
does the same loop in launches of as many products as the rung's own: the ceiling of launches that short.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifacts import CudaSource, Parameter
from tilewright.bench.records import this_run
from tilewright.codegen.matrix_prelude import multiply_name
from tilewright.codegen.prelude import prelude_text
from tilewright.dtypes import BF16, F16, F32, I32
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.ladders import find_rung
from tilewright.problem.gemm import Gemm
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import LoadedKernel, load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.timer import LaunchGraph
from tilewright.toolchain import arguments, build, grid_of

ROUNDS = 4096
BURST_US = 4000.0
REST_S = 0.03
BURSTS = 9
SUSTAINED_S = 1.0
SIZE = 4096
COUNTS = ((8, 4, 8, 1), (8, 2, 8, 2), (4, 4, 8, 2), (8, 1, 8, 2))
"""Warps of a block, fragments of A and of B of each, blocks of an SM: as many as registers hold."""

OPERANDS = 3
"""Sets of operands that a rung takes in turn: more than the L2 holds."""


def source(instruction: MatrixInstruction, warps: int, rows: int, columns: int) -> CudaSource:
    """A kernel whose warps each keep `rows` fragments of A, `columns` of B, and a sum for each pair."""
    a, b = (part.registers * instruction.product.bytes // 4 for part in (instruction.a, instruction.b))
    c = instruction.c.registers * instruction.accumulate.bytes // 4
    element, total = instruction.product.cuda, instruction.accumulate.cuda
    name = multiply_name(instruction, None)
    left, right = f"reinterpret_cast<const {element}*>(left[i])", f"reinterpret_cast<const {element}*>(right[j])"
    text = f"""{prelude_text({name, instruction.product.cuda, instruction.accumulate.cuda})}
extern "C" __global__ void __launch_bounds__({warps * 32})
matrix_rate(const unsigned* __restrict__ values, float* __restrict__ out, int rounds)
{{
    unsigned left[{rows}][{a}], right[{columns}][{b}], sums[{rows * columns * c}];
    const unsigned* own = values + threadIdx.x * 64;
    #pragma unroll
    for (int i = 0; i < {rows}; ++i) for (int r = 0; r < {a}; ++r) left[i][r] = own[i * {a} + r];
    #pragma unroll
    for (int j = 0; j < {columns}; ++j) for (int r = 0; r < {b}; ++r) right[j][r] = own[32 + j * {b} + r];
    #pragma unroll
    for (int i = 0; i < {rows * columns * c}; ++i) sums[i] = 0;
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
        #pragma unroll
        for (int i = 0; i < {rows}; ++i) {{
            #pragma unroll
            for (int turn = 0; turn < {columns}; ++turn) {{
                const int j = i % 2 ? {columns - 1} - turn : turn;
                {name}(reinterpret_cast<{total}*>(&sums[(i * {columns} + j) * {c}]), {left}, {right});
            }}
        }}
    }}
    unsigned all = 0;
    #pragma unroll
    for (int i = 0; i < {rows * columns * c}; ++i) all ^= sums[i];
    if (all == 0x12345678u) out[threadIdx.x] = 1.0f;
}}
"""
    parameters = (Parameter("values", F32, is_pointer=True), Parameter("out", F32, is_pointer=True))
    return CudaSource(text, "matrix_rate", (*parameters, Parameter("rounds", I32)), warps * 32, 0)


class Timed:
    """Launches in a graph of some 4 ms. flops: of one launch."""

    def __init__(self, gpu: Gpu, launch: Callable[[], None], flops: float) -> None:
        self.gpu, self.launch, self.flops = gpu, launch, flops  # a graph holds pointers, `launch` what lies there
        launch()
        gpu.synchronize()
        self.graph = LaunchGraph.capture(gpu.stream, launch, launches=max(1, int(BURST_US / (flops / 600e6))))
        self.bursts: list[float] = []

    def burst(self) -> None:
        time.sleep(REST_S)
        self.bursts.append(self._tflops())

    def median(self) -> float:
        return statistics.median(self.bursts)

    def sustained(self) -> float:
        begin, found = time.monotonic(), []
        while time.monotonic() - begin < SUSTAINED_S:
            found.append(self._tflops())
        return statistics.median(found[len(found) // 2 :])

    def _tflops(self) -> float:
        return self.flops / self.graph.time(self.gpu.stream) / 1e6


Counts = tuple[int, int, int, int]


def loop(gpu: Gpu, instruction: MatrixInstruction, counts: Counts, flops: float = 0) -> Timed:
    """The loop of one of `COUNTS`, ready to be timed. flops: that a launch has at least; 0: those of `ROUNDS`."""
    warps, rows, columns, blocks_per_sm = counts
    made = source(instruction, warps, rows, columns)
    kernel: LoadedKernel = load(gpu, compile_cuda(made, gpu.arch), made)
    normal = np.random.default_rng(0).standard_normal(warps * 32 * 64 * 4 // instruction.product.bytes, np.float32)
    values, out = (
        DeviceArray.of(gpu, instruction.product.encode(normal)),
        DeviceArray.of(gpu, np.zeros(1024, np.float32)),
    )
    blocks = gpu.attributes["MULTIPROCESSOR_COUNT"] * blocks_per_sm
    each = 2.0 * instruction.multiply_adds * rows * columns * warps * blocks
    rounds = math.ceil(flops / each) or ROUNDS

    def launch() -> None:
        kernel.launch(gpu.stream, (blocks, 1, 1), (warps * 32, 1, 1), (values.pointer, out.pointer, rounds))

    return Timed(gpu, launch, each * rounds)


def multiplication(gpu: Gpu, name: str, gemm: Gemm) -> Timed:
    """A rung on random normal operands, rotated."""
    built, generator = build(gemm, find_rung(name)), np.random.default_rng(0)
    kernel, grid = built.load(gpu), grid_of(built.kernel, gemm)
    normal = gemm.dtype.encode(generator.standard_normal(SIZE * SIZE, np.float32))
    sets = [[DeviceArray.of(gpu, np.roll(normal, shift + one)) for shift in (0, 7, 13)] for one in range(OPERANDS)]
    turn = count()

    def launch() -> None:
        pointers = [array.pointer for array in sets[next(turn) % OPERANDS]]
        kernel.launch(gpu.stream, grid, built.kernel.block, arguments(gemm, pointers))

    return Timed(gpu, launch, gemm.flops)


def rates(gpu: Gpu, instruction: MatrixInstruction) -> list[tuple[dict[str, Any], Timed]]:
    """All counts of one instruction, the fastest first."""
    found = []
    for counts in COUNTS:
        timed = loop(gpu, instruction, counts)
        for _ in range(BURSTS):
            timed.burst()
        warps, *fragments, blocks = counts
        row = {"warps_per_block": warps, "fragments": fragments, "blocks_per_sm": blocks}
        found.append(({"instruction": instruction.name, "burst_tflops": round(timed.median(), 1), **row}, timed))
    found.sort(key=lambda one: -one[0]["burst_tflops"])
    found[0][0]["sustained_tflops"] = round(found[0][1].sustained(), 1)
    return found


def share(gpu: Gpu, name: str, instruction: MatrixInstruction, row: dict[str, Any], fastest: Timed) -> dict[str, Any]:
    """The rung beside the ceiling, and beside the same loop in launches of as many products: their bursts in turn."""
    gemm = Gemm(SIZE, SIZE, SIZE, instruction.product, out=instruction.product)
    own = multiplication(gpu, name, gemm)
    counts = (row["warps_per_block"], *row["fragments"], row["blocks_per_sm"])
    as_long = loop(gpu, instruction, counts, flops=gemm.flops)
    fastest.bursts.clear()
    for _ in range(BURSTS):
        for one in (own, fastest, as_long):
            one.burst()
    found = {"rung": name, "shape": [SIZE, SIZE, SIZE], "dtype": str(gemm.dtype), "instruction": instruction.name}
    for label, ceiling in (("", fastest), ("_as_long", as_long)):
        found[f"ceiling_tflops{label}"] = round(ceiling.median(), 1)
        found[f"share{label}"] = round(own.median() / ceiling.median(), 4)
    return {**found, "burst_tflops": round(own.median(), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rung", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    rows, shares = [], []
    for instruction in (known for known in INSTRUCTIONS if not known.is_opaque and not known.reads_shared):
        found = rates(gpu, instruction)
        rows += [row for row, _ in found]
        print(found[0][0], flush=True)
        if given.rung and instruction.product in (F16, BF16) and instruction.accumulate is F32:
            shares.append(share(gpu, given.rung, instruction, *found[0]))
            print(shares[-1], flush=True)
    record = {"device": gpu.name, **this_run(), "rates": rows}
    given.out.write_text(json.dumps({**record, "shares": shares}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
