"""What the tests of kernels without a schedule share."""

from __future__ import annotations

import re

import numpy as np
from cpu_gpu import STATE, CpuKernel

from tilewright.artifacts import Cubin
from tilewright.codegen import print_cuda
from tilewright.dtypes import Array
from tilewright.ir.kernel import Kernel
from tilewright.problem.problem import Stored
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.sass import disassemble
from tilewright.toolchain import arguments, grid_of


def compiled(kernel: Kernel, arch: str) -> Cubin:
    return compile_cuda(print_cuda(kernel), arch)


def run_on_cpu(kernel: Kernel, stored: Stored, *, part_of_k: int = 0) -> dict[str, Array]:
    """The emitted text as a program of the CPU, threads in a scattered order: what it leaves in each result.

    Matrices begin at 16 bytes, right in front of poison.
    """
    problem, arrays = stored.problem, {}
    for matrix in problem.matrices:
        values = stored.storage(matrix.name)
        room = np.zeros(values.nbytes + 64, np.uint8)
        start = -room.ctypes.data % 16
        arrays[matrix.name] = room[start : start + values.nbytes].view(values.dtype)
        arrays[matrix.name][:] = values
        room[start + values.nbytes :] = 0x99
    STATE.order = 2
    given = arguments(problem, [array.ctypes.data for array in arrays.values()], part_of_k=part_of_k)
    launch = CpuKernel(print_cuda(kernel)).prepare(grid_of(kernel, problem, part_of_k=part_of_k), kernel.block, given)
    launch.launch(0, *(array.ctypes.data for array in arrays.values()))
    return {name: arrays[name] for name in problem.results}


def assert_nothing_moves_before_the_wait(kernel: Kernel, *, has_tables: bool = False) -> None:
    """Nor does the compiler move anything there; and no load takes for constant what grids before may still write.
    has_tables: of addresses, 64 bits each, which are constant."""
    code = [line for line in disassemble(compiled(kernel, "sm_90a")).splitlines() if "/*" in line]
    waits = next(i for i, line in enumerate(code) if "ACQBULK" in line)
    touched = [i for i, line in enumerate(code) if re.search(r"\b(LDG|LDGSTS|STG|LD|ST|RED|ATOM)\b", line)]
    assert kernel.overlapped and touched and waits < touched[0]
    assert any("PREEXIT" in line for line in code[:waits]), "the next kernel is not told that it may start"
    constant = [code[i] for i in touched if "CONSTANT" in code[i]]
    assert all(has_tables and ".64.CONSTANT" in line for line in constant)
