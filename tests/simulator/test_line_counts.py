"""What each line of a kernel is and how often it runs: a fault of the counters moves a number of the golden file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hopper_kernels import ring

from tilewright.dtypes import BF16
from tilewright.ir.kernel import Kernel
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.gemv_body import gemv_kernel
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import simulate, standard_listeners
from tilewright.simulator.line_counts import COUNTED, LineCounts
from tilewright.toolchain import build

RUNGS = ("worklog/2", "worklog/9", "swizzle/async_copy", "te/4", "ampere/1", "ampere/6", "hopper/best")
OTHERS = ("ring of a cluster", "gemv")


def kernel_of(name: str) -> tuple[Kernel, Gemm]:
    if name == "ring of a cluster":
        return ring(cluster=2), Gemm(256, 64, 192, dtype=BF16, out=BF16)
    if name == "gemv":
        gemm = Gemm(1, 200, 520, BF16, out=BF16)
        return gemv_kernel(GemvConfig(), gemm), gemm
    rung = find_rung(name)
    gemm = rung.gemm(136, 72, 40)
    return build(gemm, rung).kernel, gemm


def told(line: LineCounts) -> str:
    opcodes = ", ".join(f"{count} {name}" for name, count in line.opcodes)
    counts = ", ".join(f"{name} {getattr(line, name)}" for name in COUNTED if getattr(line, name))
    moved = f" {line.width_bytes} of {line.element_bytes} bytes of {line.buffer}," if line.width_bytes else ""
    tiles = f" {line.tile_multiply_adds} multiply-adds," if line.tile_multiply_adds else ""
    return f"{line.line} {line.kind} in {len(line.loops)} loops:{moved}{tiles} {opcodes}: {counts}"


@pytest.mark.parametrize("name", [*RUNGS, *OTHERS])
def test_lines_of_a_kernel(name: str, golden: Callable[[str, str], None]) -> None:
    kernel, gemm = kernel_of(name)
    run = simulate(kernel, make_operands(gemm), listeners=standard_listeners(), resident_blocks=kernel.cluster)
    lines = [told(line) for line in run.counters.lines]
    golden(f"counts/{name.replace('/', '_').replace(' ', '_')}.txt", "\n".join(lines) + "\n")
