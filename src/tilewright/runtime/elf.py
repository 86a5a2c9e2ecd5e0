"""What a compiled kernel uses: from the log of ptxas, and from the sections of its cubin; no NVIDIA tool and no driver.

A cubin is an ELF64 image of machine 190. Its sections hold

    .text.<entry>            machine code
    .nv.constant<i>.<entry>  constant banks: parameters in bank 0, literals in bank 2

The log of ptxas (-v) has the rest, and spills, which are in no section. The tests hold it to the sections of .nv.info.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.artifacts import Resources
from tilewright.errors import CompileError

_ELF64_MAGIC = b"\x7fELF\x02"
_MACHINE_CUDA = 190
_NO_BYTES_IN_FILE = 8  # SHT_NOBITS: the section has a size and no content, as .nv.shared has

_FUNCTION = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    size_bytes: int
    content: bytes


def resources_of(image: bytes, entry: str, log: str) -> Resources:
    """What kernel `entry` of the cubin `image` uses; `log` is what ptxas said under `-v`.

    Spills are summed over the kernel and the functions that were not inlined into it. Raises CompileError
    if the image is not a cubin, has no such kernel, or the log has no figures.
    """
    sections = _sections_of(image, entry)
    code = _code(sections, entry)
    _, _, of_kernel = log.partition(f"Compiling entry function {entry!r}")
    frames, used = _FUNCTION.findall(log), _USED.search(of_kernel)
    if not frames or used is None:
        raise CompileError(
            f"The compiler's log for kernel {entry!r} has no figures of registers and spills.",
            note="spills are in no section of a cubin; ptxas prints them under -v.",
            hint="compile with --ptxas-options=-v, as compile_cuda does.",
        )

    def told(what: str, otherwise: str = "0") -> int:
        return int((re.search(rf"(\d+) {what}", used[2]) or [otherwise, otherwise])[1])

    return Resources(
        registers=int(used[1]),
        spill_store_bytes=sum(int(stored) for _, stored, _ in frames),
        spill_load_bytes=sum(int(loaded) for _, _, loaded in frames),
        stack_bytes=told("bytes cumulative stack size", frames[0][0]),
        shared_bytes=told("bytes smem"),
        constant_bytes=sum(
            section.size_bytes
            for name, section in sections.items()
            if re.fullmatch(rf"\.nv\.constant\d+\.{re.escape(entry)}", name)
        ),
        barriers=told("barriers"),
        code_bytes=code.size_bytes,
    )


def code_of(image: bytes, entry: str) -> bytes:
    """The machine code of kernel `entry` of a cubin. Raises CompileError if it has no such kernel."""
    return _code(_sections_of(image, entry), entry).content


def _sections_of(image: bytes, entry: str) -> dict[str, _Section]:
    try:
        return {section.name: section for section in _sections(image)}
    except (struct.error, IndexError, ValueError, KeyError) as damage:
        raise CompileError(
            f"The {len(image)} bytes given as the code of kernel {entry!r} are a damaged cubin ({damage}).",
            hint="compile it again; if it came from a file, the file is cut short.",
        ) from damage


def _code(sections: dict[str, _Section], entry: str) -> _Section:
    code = sections.get(f".text.{entry}")
    if code is None:
        kernels = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
        raise CompileError(
            f"The cubin has no kernel {entry!r}; it has {', '.join(map(repr, kernels)) or 'none'}.",
            hint='declare it extern "C", so that its name is kept as written.',
        )
    return code


def _sections(image: bytes) -> Iterator[_Section]:
    """The sections of an ELF64 image of machine CUDA, in the order of its table."""
    if image[:5] != _ELF64_MAGIC or struct.unpack_from("<H", image, 0x12)[0] != _MACHINE_CUDA:
        raise CompileError(
            f"{len(image)} bytes that begin with {bytes(image[:8])!r} are not a cubin.",
            note="a cubin is an ELF64 image of machine 190; PTX is text and a fatbin begins with 50 ed 55 ba.",
        )
    segments, table = struct.unpack_from("<QQ", image, 0x20)
    segment_bytes, segment_count, entry_bytes, count, names_index = struct.unpack_from("<5H", image, 0x36)
    if segments + segment_bytes * segment_count > len(image):
        raise ValueError("its segment table, the last thing in it, is cut short")
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + entry_bytes * i) for i in range(count)]
    names_offset = headers[names_index][4]
    for name, kind, _, _, offset, size, *_ in headers:
        if kind != _NO_BYTES_IN_FILE and offset + size > len(image):
            raise ValueError(f"section at {offset} of {size} bytes ends past the image")
        content = b"" if kind == _NO_BYTES_IN_FILE else image[offset : offset + size]
        yield _Section(_text_at(image, names_offset + name), size, content)


def _text_at(image: bytes, offset: int) -> str:
    return image[offset : image.index(b"\0", offset)].decode()
