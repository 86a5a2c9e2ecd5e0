"""NVRTC: CUDA C++ text to machine code, on a machine with or without a GPU.

Only `cuda.bindings.nvrtc` is used: it needs no driver, while an object of `cuda.core` made without one can
hang the process. The output is always a cubin for a real architecture, because a driver older than the
compiler refuses its PTX (CUDA_ERROR_UNSUPPORTED_PTX_VERSION) and loads its cubins.
"""

from __future__ import annotations

import functools
import os
import re
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tilewright.artifacts import Cubin, CudaSource, Resources
from tilewright.errors import CompileError, CompilerMissing, RegistersExceeded, UnknownName
from tilewright.runtime.cubin_cache import CubinCache, cache_key
from tilewright.runtime.elf import resources_of

_ALWAYS = (
    "--std=c++17",
    "-lineinfo",  # free at run time, and profilers and SASS listings then name lines of the source
    "--ptxas-options=-v",  # the log is the only place where spills are told
    "--no-cache",  # with a driver NVRTC keeps a cache of its own, whose hits would falsify compile_seconds
)
# `-default-device` is left out on purpose: the text must also compile with nvcc, which lacks that leniency.

# The line information holds the path of the source. A relative one would be completed with the working
# folder, and the same kernel would have other bytes in every folder.
_SOURCE_FOLDER = "/tilewright"

# From sm_90 on, features such as wgmma, setmaxnreg and tcgen05 exist only in the target with an 'a'.
# Source: PTX ISA, "Target Architecture: .target", arch-specific features.
_FIRST_ARCH_SPECIFIC = 90

_HINT_INSTALL = "python -m pip install 'tilewright[cuda]'"

_FRONT_END_ERROR = re.compile(r"^[^\n]*?\((\d+)\): (?:catastrophic )?error[^:]*: (.*)$", re.MULTILINE)
_PTXAS_ERROR = re.compile(r"^ptxas[^\n]*?, line (\d+); error\s*: (.*)$", re.MULTILINE)
_OTHER_ERROR = re.compile(r"^[^\n]*?\b(?:error|fatal)\s*: (.*)$", re.MULTILINE)
# What ptxas says of wgmma that it serialises (C7510 and its neighbours) and of a setmaxnreg that it ignores (C7508).
_LOSS = re.compile(r"\(C75\d\d\) (?:Potential Performance Loss: )?(.*?)(?: in the function .*)?$", re.MULTILINE)
_PTX_LOCATION = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)")


def compiler_version() -> str:
    """The compiler as reports name it: "NVRTC 13.5". Raises CompileError if it cannot be loaded."""
    major, minor = _checked(_nvrtc().nvrtcVersion())
    return f"NVRTC {major}.{minor}"


@functools.cache
def supported_architectures() -> tuple[str, ...]:
    """What this compiler builds for, oldest first: ("sm_75", ..., "sm_90", "sm_90a", ...)."""
    names: list[str] = []
    for sm in _checked(_nvrtc().nvrtcGetSupportedArchs()):
        names.append(f"sm_{sm}")
        if sm >= _FIRST_ARCH_SPECIFIC:
            names.append(f"sm_{sm}a")
    return tuple(names)


def compile_cuda(
    source: CudaSource, arch: str, *, options: tuple[str, ...] = (), cache: CubinCache | None = None
) -> Cubin:
    """`source` as machine code for `arch` ("sm_90a"), from `cache` if it is there.

    options: further NVRTC options, after those that are always given. Raises UnknownName for an architecture
    that this compiler does not build, and CompileError, with the line of the source, where it refuses the text.
    """
    _check_architecture(arch)
    compiler = compiler_version()
    options = (*_ALWAYS, *options)
    if cache is None:
        return _compiled(source, arch, options, compiler)
    key = cache_key(source, arch, options, f"{compiler} of {_library_bytes()} bytes")
    if (hit := cache.load(key, source.entry, arch)) is not None:
        return hit
    cubin = _compiled(source, arch, options, compiler)
    cache.store(key, cubin)
    return cubin


def _compiled(source: CudaSource, arch: str, options: tuple[str, ...], compiler: str) -> Cubin:
    began = time.perf_counter()
    built = _build(source, (f"--gpu-architecture={arch}", *options))
    if built.failed or not built.image:
        raise _refusal(source, arch, built)
    resources = resources_of(built.image, source.entry, built.log)
    if source.must_fit:
        _check_fit(source, arch, resources, built.log)
    return Cubin(
        image=built.image,
        entry=source.entry,
        arch=arch,
        resources=resources,
        log=built.log,
        compiler=compiler,
        compile_seconds=time.perf_counter() - began,
        from_cache=False,
    )


def _check_fit(source: CudaSource, arch: str, resources: Resources, log: str) -> None:
    """Refuse machine code whose warpgroups have too few registers: it is right, and several times slower."""
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    loss = _LOSS.search(log)
    if not spilled and loss is None:
        return
    raise RegistersExceeded(
        f"Kernel {source.entry!r} does not fit into the registers of {arch}.",
        note=loss[1] if loss else f"{spilled} bytes a thread are spilled to local memory and read back.",
        hint="use smaller tiles, more warpgroups to share them, or another budget in Specialize(registers=...).",
    )


def compile_ptx(source: CudaSource, arch: str) -> str:
    """`source` as PTX text for `arch`, to be read by people; what runs is the cubin. Raises as `compile_cuda`."""
    _check_architecture(arch)
    virtual = arch.replace("sm_", "compute_")
    built = _build(source, (f"--gpu-architecture={virtual}", *_ALWAYS))
    if built.failed:
        raise _refusal(source, arch, built)
    return built.ptx


@dataclass(frozen=True, slots=True)
class _Built:
    """What one run of the compiler left; `image` and `ptx` are empty where it did not get that far."""

    failed: bool
    log: str
    ptx: str
    image: bytes


def _build(source: CudaSource, options: tuple[str, ...]) -> _Built:
    nvrtc = _nvrtc()
    name = f"{_SOURCE_FOLDER}/{source.entry}.cu"
    program = _checked(nvrtc.nvrtcCreateProgram(source.text.encode(), name.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        return _Built(
            failed=status != nvrtc.nvrtcResult.NVRTC_SUCCESS,
            log=_output_text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program),
            ptx=_output_text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program),
            image=_output(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program),
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _output(size_of: Any, write_into: Any, program: object) -> bytes:
    """One output of a program, empty if there is none.

    The buffer is a bytearray and not `b" " * size`, as NVIDIA's samples have it: NVRTC writes into it, and
    a bytes object of length 1 is shared by the whole interpreter.
    """
    status, size = size_of(program)
    if int(status) != 0 or size == 0:
        return b""
    buffer = bytearray(size)
    (status,) = write_into(program, buffer)
    return bytes(buffer) if int(status) == 0 else b""


def _output_text(size_of: Any, write_into: Any, program: object) -> str:
    return _output(size_of, write_into, program).decode(errors="replace").rstrip("\0\n ")


@functools.cache
def _nvrtc() -> ModuleType:
    """`cuda.bindings.nvrtc`, whose library was seen to load."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as missing:
        raise CompilerMissing(
            "The CUDA compiler NVRTC cannot be loaded, so no kernel can be compiled.",
            place=str(missing).partition("\n")[0],
            hint=_HINT_INSTALL,
        ) from missing
    module: ModuleType = nvrtc
    return module


@functools.cache
def _library_bytes() -> int:
    """The size of the NVRTC library. It stands in for the patch level, which nvrtcVersion does not tell."""
    from cuda import pathfinder

    path = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    return os.stat(path).st_size if path else 0


def _checked(answer: tuple[Any, ...]) -> Any:
    """The value of an NVRTC call; (status, value) or (status, value, value)."""
    status, *values = answer
    if int(status) != 0:
        raise CompileError(f"NVRTC failed: {status.name}.")
    return values[0] if len(values) == 1 else values


def _check_architecture(arch: str) -> None:
    known = supported_architectures()
    if arch not in known:
        raise UnknownName("architecture", arch, known)


def _refusal(source: CudaSource, arch: str, built: _Built) -> CompileError:
    """The first error in the log, with the line of the source that it points at."""
    if found := _FRONT_END_ERROR.search(built.log):
        line, reason = int(found[1]), found[2]
        place = _source_line(source, line)
    elif found := _PTXAS_ERROR.search(built.log):
        line, reason = int(found[1]), found[2]
        place = _ptx_line(source, built.ptx, line)
    else:
        found = _OTHER_ERROR.search(built.log)
        reason = found[1] if found else built.log or "it gave no reason"
        place = ""
    others = len(_FRONT_END_ERROR.findall(built.log)) + len(_PTXAS_ERROR.findall(built.log)) - 1
    return CompileError(
        f"{compiler_version()} refused kernel {source.entry!r} for {arch}: {reason.strip()}",
        place=place,
        note=f"{others} more error{'s' if others > 1 else ''} after this one." if others > 0 else "",
    )


def _source_line(source: CudaSource, line: int) -> str:
    """ "line 12: <text>", lines counted from 1."""
    lines = source.text.split("\n")
    return f"line {line}: {lines[line - 1].strip()}" if 0 < line <= len(lines) else f"line {line}"


def _ptx_line(source: CudaSource, ptx: str, line: int) -> str:
    """The line of PTX that ptxas points at, below the line of the source it came from."""
    lines = ptx.split("\n")
    if not 0 < line <= len(lines):
        return ""
    places = [found for text in lines[:line] if (found := _PTX_LOCATION.match(text))]
    origin = [_source_line(source, int(places[-1][1]))] if places else []
    return "\n".join([*origin, f"PTX line {line}: {lines[line - 1].strip()}"])
