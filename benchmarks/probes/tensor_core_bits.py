"""What tensor cores compute, bit by bit beside the rule by which the simulator sums (`tilewright.isa.summation`).

    python benchmarks/probes/tensor_core_bits.py --bits bits_h200.npz --out tensor_core_bits_h200.json
    python benchmarks/probes/tensor_core_bits.py --judge bits_h200.npz --out tensor_core_bits_h200.json     (no GPU)
    python benchmarks/probes/tensor_core_bits.py --compile                                                  (no GPU)

Each instruction computes 16 tiles of each kind of random and adversarial operands (`tensor_core/operands.py`). --bits
keeps all results, some 4 MB, by which another rule can be judged later; they tell on what and when they were computed.
--sample tests/isa/bits_of_h200.npz keeps two of each kind with their operands, for a test that needs no GPU.
Written: of each instruction the results compared and how many differ, by kind of operands where any does; NaN counts
as equal to NaN. The exit status is 1 where one differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from tensor_core.kernels import INSTRUCTIONS, Instruction, source
from tensor_core.operands import KINDS, operands

from tilewright import dtypes
from tilewright.bench.records import command, commit, now
from tilewright.isa.catalog import instruction
from tilewright.isa.summation import BlockSum
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda

FORMATS = {str(one): one for one in dtypes.ALL}
TOLD = "told"
"""Of a file of bits: what computed them and when."""


def expected(of: Instruction, matrices: tuple[Any, Any, Any]) -> Any:
    """D by the simulator's rule, float32."""
    a, b, c = (
        np.asarray(how.value(bits), np.float32)
        for how, bits in zip((of.product, of.product, of.sum), matrices, strict=True)
    )
    b = b.transpose(0, 2, 1)
    product, total = FORMATS[of.product.name], FORMATS[of.sum.name]
    if of.kind == "wgmma" and of.product.bytes == 1 and total is not dtypes.F32:
        return BlockSum(of.k, 13, 13).of(a, b, c, product, total)
    return instruction(of.family, product, total).meaning(a, b, c)


def key_of(of: Instruction, kind: str) -> str:
    return f"{of.name}/{kind}"


def kinds_of(of: Instruction) -> list[str]:
    return [kind for kind in KINDS if of.product.name == "tf32" or kind != "tf32 low bits"]


def checksum(matrices: tuple[Any, Any, Any]) -> int:
    return zlib.crc32(b"".join(np.ascontiguousarray(bits).tobytes() for bits in matrices))


def computed(gpu: Gpu) -> dict[str, Any]:
    """Bits of D of every instruction and kind, with the checksums of their operands."""
    found: dict[str, Any] = {}
    checks: dict[str, int] = {}
    for of in INSTRUCTIONS:
        made = source(of)
        kernel = load(gpu, compile_cuda(made, gpu.arch), made)
        for kind in kinds_of(of):
            a, b, c = operands(of, kind)
            given = [DeviceArray.of(gpu, np.ascontiguousarray(bits).view(np.uint32).reshape(-1)) for bits in (a, b)]
            added, d = DeviceArray.of(gpu, np.ascontiguousarray(c).reshape(-1)), DeviceArray(gpu, (c.size,), c.dtype)
            d.poison()
            arguments = tuple(array.pointer for array in (*given, added, d))
            kernel.launch(gpu.stream, (len(a), 1, 1), (of.threads, 1, 1), arguments)
            gpu.synchronize()
            found[key_of(of, kind)] = d.download().reshape(c.shape)
            checks[key_of(of, kind)] = checksum((a, b, c))
    told = {"device": gpu.name, "date": now(), "command": command(), "operands_crc32": checks}
    return {**found, TOLD: np.array(json.dumps(told))}


def sampled(bits: dict[str, Any]) -> dict[str, Any]:
    """Of each instruction the rows of A and B, the elements of C and D, of two results of each kind."""
    found, rng = {}, np.random.default_rng(0)
    for of in INSTRUCTIONS:
        rows = []
        for kind in kinds_of(of):
            (a, b, c), d = operands(of, kind), bits[key_of(of, kind)]
            for _ in range(2):
                tile, m, n = (int(rng.integers(extent)) for extent in c.shape)
                rows.append((a[tile, m], b[tile, n], c[tile, m, n], d[tile, m, n]))
        for name, column in zip("abcd", zip(*rows, strict=True), strict=True):
            found[f"{of.family}/{of.product.name}/{of.sum.name}/{name}"] = np.array(column)
    return found


def judged(bits: dict[str, Any]) -> dict[str, Any]:
    """Of each instruction how many results differ from the rule's."""
    told = json.loads(str(bits[TOLD]))
    checks, rows = told.pop("operands_crc32"), []
    for of in INSTRUCTIONS:
        compared, differ = 0, {}
        for kind in kinds_of(of):
            matrices, got = operands(of, kind), bits[key_of(of, kind)]
            if checksum(matrices) != checks[key_of(of, kind)]:
                raise SystemExit(f"{key_of(of, kind)}: these bits are of other operands than are drawn today.")
            wanted = expected(of, matrices)
            bare = wanted.astype(np.float16).view(np.uint16) if of.sum.bytes == 2 else wanted.view(np.uint32)
            wrong = (bare != got) & ~(np.isnan(wanted) & np.isnan(of.sum.value(got)))
            compared += wrong.size
            if wrong.any():
                differ[kind] = int(wrong.sum())
        rows.append({"instruction": of.name, "compared": compared, "differ": sum(differ.values()), "by_kind": differ})
    return {**told, "judged": {"commit": commit(), "command": command()}, "instructions": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=Path, help="where to keep all results")
    parser.add_argument("--judge", type=Path, help="results that were kept")
    parser.add_argument("--sample", type=Path, help="where to keep a few with their operands")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compile", action="store_true", help="only compile every kernel for sm_90a")
    asked = parser.parse_args()
    if asked.compile:
        for of in INSTRUCTIONS:
            compile_cuda(source(of), "sm_90a")
        print(f"{len(INSTRUCTIONS)} kernels compile")
        return 0
    bits = dict(np.load(asked.judge)) if asked.judge else computed(open_gpu())
    if asked.bits:
        np.savez_compressed(asked.bits, **bits)
    if asked.sample:
        np.savez_compressed(asked.sample, **sampled(bits))
    found = judged(bits)
    differ = any(row["differ"] for row in found["instructions"])
    rows = ",\n  ".join(json.dumps(row) for row in found.pop("instructions"))
    text = f'{json.dumps(found)[:-1]},\n "instructions": [\n  {rows}]}}'
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
