"""SASS, the machine code of the GPU, as text and as counts, through NVIDIA's nvdisasm.

nvdisasm takes about 0.4 s to start, so this is for a kernel that somebody looks at, not for a sweep.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tilewright.artifacts import Cubin
from tilewright.errors import CompileError, MissingExtra


def disassemble(cubin: Cubin) -> str:
    """The kernel as SASS text, one instruction a line with its address. Raises MissingExtra without nvdisasm."""
    return _nvdisasm(cubin, "--print-code")


def instruction_mix(cubin: Cubin) -> dict[str, int]:
    """How often each instruction stands in the code ("FFMA", "LDS.128"), most frequent first.

    A count of the text, not of what runs: a loop's body counts once. The idle loop and the padding behind the
    last exit are left out.
    """
    _, functions = json.loads(_nvdisasm(cubin, "--emit-json"))
    counts: Counter[str] = Counter()
    for function in functions:
        counts.update(_without_padding([code["opcode"] for code in function["sass-instructions"]]))
    return dict(counts.most_common())


def _without_padding(opcodes: list[str]) -> list[str]:
    """ptxas ends a function with a branch to itself and NOPs up to a multiple of 128 bytes."""
    end = len(opcodes)
    while end and opcodes[end - 1] == "NOP":
        end -= 1
    if end and opcodes[end - 1] == "BRA":
        end -= 1
    return opcodes[:end]


def _nvdisasm(cubin: Cubin, option: str) -> str:
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        file = Path(folder) / f"{cubin.entry}.cubin"
        file.write_bytes(cubin.image)
        ran = subprocess.run([_path_of_nvdisasm(), option, str(file)], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise CompileError(
            f"nvdisasm cannot read the code of kernel {cubin.entry!r} for {cubin.arch}.",
            place=ran.stderr.strip().replace(f"{folder}/", ""),
            hint="it must be at least as new as the compiler: python -m pip install -U nvidia-cuda-nvdisasm",
        )
    return ran.stdout


def _path_of_nvdisasm() -> str:
    from cuda import pathfinder

    path: Any = pathfinder.find_nvidia_binary_utility("nvdisasm")
    if path is None:
        raise MissingExtra("nvidia-cuda-nvdisasm", "sass", "Disassembling a kernel")
    return str(path)
