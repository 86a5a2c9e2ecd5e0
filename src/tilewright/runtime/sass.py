"""SASS, the machine code of the GPU, as text, through NVIDIA's nvdisasm.

nvdisasm takes about 0.4 s to start, so this is for a kernel that somebody looks at, not for a sweep.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tilewright.artifacts import Cubin
from tilewright.errors import CompileError, MissingExtra


def disassemble(cubin: Cubin, option: str = "--print-code") -> str:
    """The kernel as SASS text, one instruction a line with its address. Raises MissingExtra without nvdisasm."""
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
