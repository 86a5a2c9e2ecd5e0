"""What an instruction costs that stands between products of mma.sync: the registers it touches, not its issue.

    python benchmarks/probes/beside_products.py --out benchmarks/results/beside_products_h200.json

Two warps of each scheduler multiply 4 x 8 fragments in registers, over and over, and read the clock around it. Between
the products stand LOP3s, which are rewritten in the machine code: so many of one instruction, spread evenly, with the
stall counts that ptxas gives them. Nothing reads what they write, so what is measured is that they are there. `ROUND`
is what rounds operands to tf32: a test of two values for NaN, and an addition to each.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.artifacts import Cubin, CudaSource, Parameter
from tilewright.bench.records import this_run
from tilewright.codegen.matrix_prelude import load_matrices_name, multiply_name
from tilewright.codegen.prelude import prelude_text
from tilewright.dtypes import F32, I32
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda

NAMES = ("mma.m16n8k16.f32.f16", "mma.m16n8k8.f32.tf32")
WARPS = 8
ROWS, COLUMNS = 4, 8
PRODUCTS = 2 * ROWS * COLUMNS
ROUNDS = 256
SPARE = 8
COUNTS = (8, 16, 32, 64, 96, 128)
"""Placeholders between the `PRODUCTS` of a round."""

LAUNCHES = 3

_HMMA, _LOP3, _LDSM = 0x23C, 0x212, 0x83B
_ISSUE = 6
"""Clocks that ptxas leaves between two products of a warp."""

_PLAIN = 0x000FE20000000000
_HALF_OF_LAST_BIT = 0x1000


@dataclass(frozen=True, slots=True)
class Word:
    """One instruction of 16 bytes. Where its fields are was found with nvdisasm."""

    low: int
    high: int

    @property
    def opcode(self) -> int:
        return self.low & 0xFFF

    @property
    def registers(self) -> tuple[int, int, int]:
        """The result, and the first two sources."""
        return self.low >> 16 & 0xFF, self.low >> 24 & 0xFF, self.low >> 32 & 0xFF

    def stalling(self, clocks: int, *, waits: bool = True) -> Word:
        """The same, before the warp issues again; not waits: whatever its operands are waiting for."""
        control = self.high >> 41
        control = control & ~0xF | clocks
        if not waits:
            control = control & 0x1F | 0x7E0  # no barrier is set, none waited for
        return replace(self, high=self.high & (1 << 41) - 1 | control << 41)

    def packed(self) -> bytes:
        return struct.pack("<QQ", self.low, self.high)


BESIDE = ("NOP", "MOV", "VIADD", "FSETP", "LOP3", "ROUND", "LDSM")
"""What may stand beside products. Registers that each reads and writes: none; none and 1; 1 and 1; 2 and none; 3 and 1;
as the instructions of which it is; 1 and 4."""


def beside(name: str, place: Word, number: int, matrices: Word) -> Word:
    """One of `BESIDE` where a placeholder stood. number: of the placeholder; matrices: an ldmatrix of the kernel."""
    to, left, right = place.registers
    match name:
        case "NOP":
            return Word(0x7918, _PLAIN)
        case "MOV":
            return Word(1 << 32 | to << 16 | 0x7802, _PLAIN | 0xF00)
        case "VIADD":
            return Word(_HALF_OF_LAST_BIT << 32 | to << 24 | to << 16 | 0x7836, _PLAIN)
        case "FSETP":
            return Word(right << 32 | left << 24 | 0x720B, _PLAIN | 0x3F68000)
        case "ROUND":
            return beside("VIADD" if number % 3 else "FSETP", place, number, matrices)
        case "LDSM":
            return matrices
        case _:
            return place


def source(instruction: MatrixInstruction, placeholders: int) -> CudaSource:
    """The loop: products written out twice, and between them LOP3s of registers that nothing else uses."""
    multiply, matrices = multiply_name(instruction, None), load_matrices_name(4, transposed=False)
    a, b = (part.registers * instruction.product.bytes // 4 for part in (instruction.a, instruction.b))
    element = instruction.product.cuda
    lines = []
    for number in range(PRODUCTS):
        i, turn = number // COLUMNS % ROWS, number % COLUMNS
        j = COLUMNS - 1 - turn if i % 2 else turn
        left, right = (f"reinterpret_cast<const {element}*>({name})" for name in (f"left[{i}]", f"right[{j}]"))
        lines.append(f"        {multiply}(sums[{i * COLUMNS + j}], {left}, {right});")
        for k in range(number * placeholders // PRODUCTS, (number + 1) * placeholders // PRODUCTS):
            w = [f"spare[{(k + offset) % SPARE}]" for offset in range(4)]
            operands = f'"=r"({w[0]}) : "r"({w[1]}), "r"({w[2]}), "r"({w[3]})'
            lines.append(f'        asm volatile("lop3.b32 %0, %1, %2, %3, 0x96;" : {operands});')
    body = "\n".join(lines)
    text = f"""{prelude_text({multiply, matrices, element})}
extern "C" __global__ void __launch_bounds__({WARPS * 32}, 1)
beside_products(const unsigned* __restrict__ values, float* __restrict__ out, int* __restrict__ clocks, int rounds)
{{
    __shared__ __align__(128) unsigned tile[128];
    unsigned left[{ROWS}][{a}], right[{COLUMNS}][{b}], spare[{SPARE}], before[4], after[4];
    float sums[{ROWS * COLUMNS}][4];
    const unsigned* own = values + threadIdx.x * 64;
    if (threadIdx.x < 128) tile[threadIdx.x] = own[0];
    __syncthreads();
    const void* row = &tile[threadIdx.x % 32 * 4];
    {matrices}(before, row);
    #pragma unroll
    for (int i = 0; i < {ROWS * a}; ++i) left[i / {a}][i % {a}] = own[i];
    #pragma unroll
    for (int i = 0; i < {COLUMNS * b}; ++i) right[i / {b}][i % {b}] = own[16 + i];
    #pragma unroll
    for (int i = 0; i < {SPARE}; ++i) spare[i] = own[32 + i];
    #pragma unroll
    for (int i = 0; i < {ROWS * COLUMNS * 4}; ++i) sums[i / 4][i % 4] = 0;
    __syncthreads();
    const int start = clock();
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
{body}
    }}
    const int end = clock();
    {matrices}(after, row);
    float all = 0;
    #pragma unroll
    for (int i = 0; i < {ROWS * COLUMNS * 4}; ++i) all += sums[i / 4][i % 4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) all += __uint_as_float(before[i] ^ after[i]);
    #pragma unroll
    for (int i = 0; i < {SPARE}; ++i) all += __uint_as_float(spare[i]);
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
    if (threadIdx.x % 32 == 0) atomicMax(&clocks[blockIdx.x], end - start);
}}
"""
    pointers = (
        Parameter("values", F32, is_pointer=True),
        Parameter("out", F32, is_pointer=True),
        Parameter("clocks", I32, is_pointer=True),
    )
    return CudaSource(text, "beside_products", (*pointers, Parameter("rounds", I32)), WARPS * 32)


def _words(image: bytes) -> dict[int, Word]:
    """Whatever lies in an image at multiples of 16 bytes, by its place; code is among it."""
    return {at: Word(*struct.unpack_from("<QQ", image, at)) for at in range(0, len(image) - 15, 16)}


def written(cubin: Cubin, placeholders: int, name: str) -> Cubin:
    """Machine code whose placeholders are something else, and stand evenly between the products."""
    words = _words(cubin.image)
    products = [at for at, word in words.items() if word.opcode == _HMMA]
    places = [at for at, word in words.items() if word.opcode == _LOP3 and word.high >> 8 & 0xFF == 0x96]
    if (len(products), len(places)) != (PRODUCTS, placeholders):
        raise SystemExit(f"{len(products)} products and {len(places)} LOP3s in the loop: the compiler changed it")
    spare = {words[at].registers[0] for at in places}
    quad = next((r for r in sorted(spare) if r % 4 == 0 and {r, r + 1, r + 2, r + 3} <= spare), None)
    matrices = next(word for word in words.values() if word.opcode == _LDSM)
    if quad is None:
        raise SystemExit(f"No four of the registers {sorted(spare)} that ldmatrix could load")
    matrices = replace(matrices, low=matrices.low & ~(0xFF << 16) | quad << 16)

    made: list[Word] = []
    for number, at in enumerate(products):
        mine = range(number * placeholders // PRODUCTS, (number + 1) * placeholders // PRODUCTS)
        between = [beside(name, words[places[k]], k, matrices).stalling(2, waits=False) for k in mine]
        left = max(1, _ISSUE - 1 - 2 * (len(between) - 1)) if between else _ISSUE
        made.append(words[at].stalling(1 if between else left))
        made += [*between[:-1], *(word.stalling(left) for word in between[-1:])]
    image = bytearray(cubin.image)
    among = sorted(products + places)
    for at, word in zip(among, made, strict=True):
        image[at : at + 16] = word.packed()
    for at in set(range(among[0], among[-1], 16)) - set(among):  # the loop counts: whoever reads that comes late enough
        image[at : at + 16] = words[at].stalling(_ISSUE).packed()
    return replace(cubin, image=bytes(image))


class Bench:
    """Runs loops on one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._blocks = gpu.attributes["MULTIPROCESSOR_COUNT"]
        normal = np.random.default_rng(0).standard_normal(WARPS * 32 * 64).astype(np.float32)
        self._values = DeviceArray.of(gpu, normal)
        self._out = DeviceArray.of(gpu, np.zeros(self._blocks * WARPS * 32, np.float32))

    def clocks(self, made: CudaSource, cubin: Cubin) -> float:
        """Clocks of a scheduler for each product of each of its warps."""
        kernel, taken = load(self._gpu, cubin, made), []
        for _ in range(LAUNCHES):
            clocks = DeviceArray.of(self._gpu, np.zeros(self._blocks, np.int32))
            pointers = (self._values.pointer, self._out.pointer, clocks.pointer)
            kernel.launch(self._gpu.stream, (self._blocks, 1, 1), (WARPS * 32, 1, 1), (*pointers, ROUNDS))
            self._gpu.synchronize()
            taken.append(float(np.median(clocks.download())))
        return min(taken) / (ROUNDS * PRODUCTS * WARPS / 4)


def rows(bench: Bench, arch: str) -> Iterator[dict[str, Any]]:
    for instruction in (known for known in INSTRUCTIONS if known.name in NAMES):
        bare = source(instruction, 0)
        alone = bench.clocks(bare, compile_cuda(bare, arch))
        yield {"instruction": instruction.name, "beside": "", "per_product": 0, "clocks": round(alone, 3)}
        for count in COUNTS:
            made = source(instruction, count)
            cubin = compile_cuda(made, arch)
            for name in BESIDE:
                clocks = bench.clocks(made, written(cubin, count, name))
                row = {"instruction": instruction.name, "beside": name, "per_product": count / PRODUCTS}
                yield {**row, "clocks": round(clocks, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    found = []
    for row in rows(Bench(gpu), gpu.arch):
        found.append(row)
        print(
            f"{row['instruction']:22} {row['per_product']:5.3f} {row['beside']:5} {row['clocks']:7.3f} clocks a product"
        )
    record = {"device": gpu.name, **this_run(), "rows": found}
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
