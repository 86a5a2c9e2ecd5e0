"""The JSON beside the cubins says of each what its ELF sections say."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cubin_sections import in_sections
from exports import Project

from tilewright.runtime import elf
from tilewright.schedule.codec import from_data

PARAMETER = 0x17  # EIATTR_KPARAM_INFO: ordinal and, in the upper 14 bits, the size of one parameter


def cubins(project: Project) -> Iterator[tuple[dict[str, Any], dict[str, Any], Path]]:
    for kernel in project.description["kernels"]:
        for cubin in kernel["cubins"]:
            yield kernel, cubin, project.folder / cubin["file"]


def parameters_in(image: bytes, entry: str) -> list[int]:
    """Bytes of each parameter, in order."""
    content = next(s.content for s in elf._sections(image) if s.name == f".nv.info.{entry}")
    found: dict[int, int] = {}
    at = 0
    while at < len(content):
        kind, code, size = struct.unpack_from("<BBH", content, at)
        if kind == 4 and code == PARAMETER:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", content, at + 4)
            found[ordinal] = packed >> 18
        at += 4 + (size if kind == 4 else 0)
    return [found[ordinal] for ordinal in sorted(found)]


def test_parameters_are_those_of_the_file(exported: Project) -> None:
    for kernel, _, path in cubins(exported):
        assert [p["bytes"] for p in kernel["parameters"]] == parameters_in(path.read_bytes(), kernel["entry"])


def test_resources_are_those_of_the_file(exported: Project) -> None:
    for kernel, cubin, path in cubins(exported):
        told = cubin["resources"]
        found = in_sections(path.read_bytes(), kernel["entry"])
        assert found == {name: told[name] for name in found}


def test_every_file_is_the_one_described(exported: Project) -> None:
    described = {cubin["file"]: cubin["sha256"] for _, cubin, _ in cubins(exported)}
    lying = (exported.folder / "cubin").iterdir()
    assert described == {f"cubin/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in lying}


def test_the_grid_is_a_formula_of_the_sizes(exported: Project) -> None:
    kernel = exported.description["kernels"][-1]
    x, y, z = (eval(text.replace("/", "//"), {"M": 1000, "N": 500, "K": 70}) for text in kernel["grid"])
    tile = kernel["tile"]
    assert x * y * z == -(-1000 // tile["M"]) * -(-500 // tile["N"])


def test_the_schedule_can_be_read_back(exported: Project) -> None:
    assert len(from_data(exported.description["schedule"])) > 5
