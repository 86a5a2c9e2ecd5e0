"""Whole recordings, word for word: moments, copies under way, barriers, accesses, and where each fault leads."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hopper_kernels import ring
from simulated_kernels import register_tiled, tiled

from tilewright.dtypes import BF16
from tilewright.ir.async_stmt import AsyncStmt
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Barrier, WaitCopies
from tilewright.ir.text import stmt_text
from tilewright.ir.visit import edited, walk
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, make_operands
from tilewright.simulator.recorder import record
from tilewright.toolchain import build

Block = tuple[int, int, int]
PACKED = ("runs_first", "runs_start", "runs_length", "values")
LONG = ("moments", "pictures")
"""Of which only as many are written out as a reader looks at; a checksum stands for the rest."""
SHOWN = 12


def of_rung(name: str, m: int, n: int, k: int) -> tuple[Kernel, Gemm]:
    rung = find_rung(name)
    gemm = rung.gemm(m, n, k)
    return build(gemm, rung).kernel, gemm


KERNELS: dict[str, tuple[Callable[[], tuple[Kernel, Gemm]], Block]] = {
    "tiled": (lambda: (tiled(8), Gemm(9, 11, 10)), (1, 1, 0)),
    "register tiled": (lambda: (register_tiled(), Gemm(20, 132, 12)), (1, 0, 0)),
    "ring": (lambda: (ring(), Gemm(72, 64, 192, dtype=BF16, out=BF16)), (0, 0, 0)),
    "ring of a cluster": (lambda: (ring(cluster=2), Gemm(128, 64, 320, dtype=BF16, out=BF16)), (1, 0, 0)),
    "cp.async": (lambda: of_rung("swizzle/async_copy", 20, 130, 36), (1, 0, 0)),
    "two warpgroups": (lambda: of_rung("hopper/4", 128, 256, 192), (0, 0, 0)),
    "mma": (lambda: of_rung("ampere/4", 132, 40, 96), (0, 0, 0)),
}


def lines_of(data: dict[str, Any]) -> Iterator[str]:
    for key, value in data.items():
        if key in PACKED:
            yield f"{key}: {zlib.crc32(gzip.decompress(base64.b64decode(value))):08x}"
        elif isinstance(value, list) and key != "block":
            yield f"{key}: {len(value)}, {zlib.crc32(json.dumps(value).encode()):08x}"
            shown = value[:SHOWN] if key in LONG else [] if key == "lines" else value
            yield from (f"  {json.dumps(one)}" for one in shown)
        else:
            yield f"{key}: {value}"


@pytest.mark.parametrize("name", KERNELS)
def test_a_whole_recording(name: str, golden: Callable[[str, str], None]) -> None:
    make, block = KERNELS[name]
    kernel, gemm = make()
    recording = record(kernel, make_operands(gemm), block=block)
    golden(f"recordings/{name.replace(' ', '_')}.txt", "\n".join(lines_of(recording.to_data())) + "\n")


@pytest.mark.parametrize("name", KERNELS)
def test_where_faults_lead(name: str, golden: Callable[[str, str], None]) -> None:
    """Of the kernel without each of its barriers, waits and statements of units."""
    make, block = KERNELS[name]
    kernel, gemm = make()
    text: list[str] = []
    for path, stmt in walk(kernel.body):
        if isinstance(stmt, AsyncStmt | Barrier | WaitCopies):
            broken = replace(kernel, body=edited(kernel.body, path, lambda _: ()))
            data = record(broken, make_operands(gemm), block=block).to_data()
            text.append(f"== without {stmt_text(stmt)}")
            text += [f"  {json.dumps(fault)}" for fault in data["faults"][:3]]
            text.append(f"  {len(data['faults'])} faults, {len(data['stalls'])} stalls, ends {data['ends']}")
    golden(f"recordings/{name.replace(' ', '_')}_faults.txt", "\n".join(text) + "\n")
