"""Exported projects that several tests look at, and the tools that build them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilewright.export import bundle, write
from tilewright.export.chosen import of_rung
from tilewright.ladders import find_rung
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.formats import format_options
from tilewright.problem.functions import Activation
from tilewright.problem.gemm import Order
from tilewright.runtime.cubin_cache import CubinCache

HERE = Path(__file__).parent

KINDS: dict[str, dict[str, Any]] = {
    "simt": {"rung": "worklog/best", "arch": "sm_80", "dtype": "f32"},
    "ampere": {
        "rung": "ampere/full",
        "arch": "sm_80",
        "dtype": "bf16",
        "b": Order.COL,
        "epilogue": Epilogue("n", True, Activation.GELU),
    },
    "hopper": {"rung": "hopper/best", "arch": "sm_90a", "dtype": "bf16"},
}
"""One of each way to multiply: CUDA cores, mma.sync with an epilogue, wgmma with TMA."""


@dataclass(frozen=True)
class Project:
    """kind: of KINDS. name: of the C function."""

    kind: str
    name: str
    folder: Path

    @property
    def description(self) -> Any:
        return json.loads((self.folder / f"{self.name}.json").read_text())


def project(kind: str, folder: Path, cache: CubinCache, *, arch: str = "", **options: Any) -> Project:
    """One of KINDS, written. arch: in place of its own."""
    rung, own, dtype = (KINDS[kind][key] for key in ("rung", "arch", "dtype"))
    chosen = {key: value for key, value in KINDS[kind].items() if key in ("b", "epilogue")}
    gemm = find_rung(rung).gemm(1024, 1024, 1024, **format_options(dtype), **chosen)
    made = bundle(gemm, of_rung(find_rung(rung), gemm).schedule, [arch or own], origin=rung, **options)
    write(made, folder, cache=cache)
    return Project(kind, made.name, folder)


def compiled(exported: Project) -> Path:
    """The folder with a project's programs."""
    needs("nvcc", "cmake")
    folder = exported.folder / "build"
    ran("cmake", "-S", exported.folder, "-B", folder)
    said = ran("cmake", "--build", folder)
    assert "warning" not in said
    return folder


def needs(*programs: str) -> None:
    """Skip where a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed here")


def ran(*words: object, **options: Any) -> str:
    """What a program printed; it must have ended well."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout
