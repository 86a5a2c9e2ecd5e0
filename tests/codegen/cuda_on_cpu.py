"""Compiles emitted CUDA text with g++ and runs it in a process of its own (see cuda_on_cpu.h)."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.artifacts import CudaSource
from tilewright.codegen.prelude import PRELUDE
from tilewright.dtypes import Array
from tilewright.ir.kernel import Kernel
from tilewright.ir.text import ExprText
from tilewright.problem import Gemm, Operands, Verdict, check, make_operands
from tilewright.problem.reference import view

HERE = Path(__file__).parent
GXX = shutil.which("g++")

# Most programs run for less time than they are compiled for. The sanitizers end the program at an index outside its
# array, a misaligned vector and an overflow of int.
OPTIONS = ("-std=c++17", "-O0", "-w", "-ffp-contract=off", "-fno-strict-aliasing")
_CHECKED = (*OPTIONS, "-O1", "-fsanitize=bounds,alignment,signed-integer-overflow,shift", "-fno-sanitize-recover=all")


PTX_FUNCTIONS = [name for name, snippet in PRELUDE.items() if "asm" in snippet and "#else" not in snippet]
"""What only a GPU can run. A snippet with another way for older architectures takes that one here."""


@dataclass(frozen=True)
class CpuKernel:
    """Emitted text as a program."""

    program: Path
    kernel: Kernel

    def run(self, operands: Operands, *, order: int = 0) -> Array:
        """The storage of C after one launch; raises AssertionError if the program crashed."""
        gemm = operands.gemm
        sizes = [gemm.m, gemm.n, gemm.k, gemm.lda, gemm.ldb, gemm.ldc]
        arrays = [operands.a, operands.b, operands.c]
        arguments = [*sizes, gemm.alpha, gemm.beta, *(array.nbytes for array in arrays), order]
        done = subprocess.run(
            [self.program, *map(str, arguments)],
            input=b"".join(array.tobytes() for array in arrays),
            capture_output=True,
        )
        assert done.returncode == 0, f"exit {done.returncode}: {done.stderr.decode()[-2000:]}"
        return np.frombuffer(done.stdout, operands.c.dtype)

    def verdict(self, gemm: Gemm, *, order: int = 0) -> Verdict:
        """The result of `gemm` on random operands against float64; what lies between the rows of C must not change."""
        operands = make_operands(gemm, seed=gemm.m + gemm.n + gemm.k)
        after = self.run(operands, order=order).copy()
        result = gemm.operand("C").dtype.decode(view(gemm, "C", after)).copy()
        before = operands.c.copy()
        for storage in (before, after):  # blank the elements, keep the gaps
            view(gemm, "C", storage)[...] = 0
        assert before.tobytes() == after.tobytes(), "the kernel wrote between the rows of C"
        return check(operands, result)


def build(kernel: Kernel, source: CudaSource, folder: Path) -> CpuKernel:
    """`source`, the text of `kernel`, as a program in `folder`."""
    text = source.text.replace("extern __shared__", "extern")
    for name in PTX_FUNCTIONS:  # the header has its own
        text = text.replace(PRELUDE[name], "")
    return CpuKernel(compile_text(f"{text}\n{_main(kernel, source)}", folder), kernel)


def compile_text(text: str, folder: Path) -> Path:
    """The program that g++ makes of `text` with the shim in front."""
    path = folder / "kernel.cpp"
    path.write_text(f'#include "cuda_on_cpu.h"\n{text}\n')
    program = path.with_suffix("")
    gxx(_CHECKED, path, "-o", program)
    return program


def gxx(options: tuple[str, ...], *files: object) -> None:
    """Compiles what includes the shim, whose header is compiled once for the same options."""
    assert GXX is not None
    folders = (f"-I{folder}" for folder in (_precompiled(options), HERE))
    done = subprocess.run([GXX, *options, *folders, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@cache
def _precompiled(options: tuple[str, ...]) -> Path:
    """A third of the time of a program is that of its header."""
    folder = Path(tempfile.mkdtemp(prefix="cuda_on_cpu_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = HERE / "cuda_on_cpu.h"
    subprocess.run([str(GXX), *options, "-x", "c++-header", header, "-o", folder / "cuda_on_cpu.h.gch"], check=True)
    return folder


def run_text(text: str, given: bytes, folder: Path) -> bytes:
    """What the program that `text` is writes to standard output."""
    return subprocess.run([compile_text(text, folder)], input=given, stdout=subprocess.PIPE, check=True).stdout


def _main(kernel: Kernel, source: CudaSource) -> str:
    """Scalars come as arguments, operands on standard input, C goes to standard output."""
    values = []
    scalars = [p for p in source.parameters if not p.is_pointer]
    pointers = [p for p in source.parameters if p.is_pointer]
    for argument, parameter in enumerate(scalars, start=1):
        values.append(f"{parameter.name} = {'atof' if parameter.dtype.is_float else 'atoll'}(argv[{argument}]);")
    for argument, parameter in enumerate(pointers, start=len(scalars) + 1):
        values.append(f"{parameter.name} = cpu::read_operand<{parameter.dtype.cuda}>(atoll(argv[{argument}]));")
    order = len(source.parameters) + 1
    grid = ", ".join(f"unsigned({ExprText()(extent)})" for extent in kernel.grid)
    block = ", ".join(str(extent) for extent in kernel.block)
    return "\n".join(
        [
            *(f"{p.dtype.cuda}{'*' * p.is_pointer} {p.name};" for p in source.parameters),
            f"void call() {{ {source.entry}({', '.join(p.name for p in source.parameters)}); }}",
            "int main(int argc, char** argv) {",
            *values,
            f"cpu::launch({{{grid}}}, {{{block}}}, atoi(argv[{order}]), call);",
            f"fwrite(C, 1, atoll(argv[{order - 1}]), stdout);",
            "}",
        ]
    )
