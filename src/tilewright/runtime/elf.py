"""What a compiled kernel uses, read from the sections of its cubin; no NVIDIA tool and no driver is needed.

A cubin is an ELF64 image of machine 190. The facts lie in

    .nv.info               per function: registers, stack frame, stack with all callees
    .nv.info.<entry>       of the kernel: barriers (ABI 8)
    .text.<entry>          machine code; its flags and info hold barriers and registers in ABI 7
    .nv.shared.<entry>     static shared memory
    .nv.constant<i>.<entry>  constant banks: parameters in bank 0, literals in bank 2

ABI 7 is written by CUDA 12, ABI 8 by CUDA 13. Spills are in no section: they come from the log of ptxas.

Source of the attribute codes and bit fields: NVIDIA publishes no table. Registers, stack and shared memory
agreed with `cuobjdump -res-usage` for 63 kernels on sm_75 to sm_120 (NVRTC 12.8, 13.0, 13.5); the tests hold
them, and the barriers, to the log of ptxas.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.artifacts import Resources
from tilewright.errors import CompileError
from tilewright.units import KIB

_ELF64_MAGIC = b"\x7fELF\x02"
_MACHINE_CUDA = 190
_OSABI_OF_ABI_8 = 0x41
_NO_BYTES_IN_FILE = 8  # SHT_NOBITS: the section has a size and no content, as .nv.shared has

_FRAME_SIZE = 0x11
_MIN_STACK_SIZE = 0x12
_REGISTER_COUNT = 0x2F
_BARRIER_COUNT = 0x4C
_SIZED_PAYLOAD = 0x04  # format byte of an attribute: 2 bytes of length and a payload; else 2 bytes of value
_UNBOUNDED = 0xFFFFFFFF  # the stack of a function that may call itself

# From sm_90 on ptxas counts 1 KiB of the system into .nv.shared.<entry>; its log does not.
_SYSTEM_SHARED_BYTES = 1 * KIB
_FIRST_SM_WITH_SYSTEM_SHARED = 90

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    link: int
    info: int
    size_bytes: int
    content: bytes


def resources_of(image: bytes, entry: str, log: str) -> Resources:
    """What kernel `entry` of the cubin `image` uses; `log` is what ptxas said under `-v`.

    Spills are summed over the kernel and the functions that were not inlined into it. Raises CompileError
    if the image is not a cubin, has no such kernel, or the log has no spill figures.
    """
    try:
        sections = {section.name: section for section in _sections(image)}
        sm = _sm(image)
        return _resources(sections, sm, entry, log)
    except (struct.error, IndexError, ValueError, KeyError) as damage:
        raise CompileError(
            f"The {len(image)} bytes given as the code of kernel {entry!r} are a damaged cubin ({damage}).",
            hint="compile it again; if it came from a file, the file is cut short.",
        ) from damage


def code_of(image: bytes, entry: str) -> bytes:
    """The machine code of kernel `entry` of a cubin. Raises CompileError if it has no such kernel."""
    sections = {section.name: section for section in _sections(image)}
    return _code(sections, entry).content


def _resources(sections: dict[str, _Section], sm: int, entry: str, log: str) -> Resources:
    code = _code(sections, entry)
    facts = _function_facts(sections, entry)
    spill_store_bytes, spill_load_bytes = _spills(log, entry)
    return Resources(
        registers=facts.get(_REGISTER_COUNT, code.info >> 24),
        spill_store_bytes=spill_store_bytes,
        spill_load_bytes=spill_load_bytes,
        stack_bytes=_stack_bytes(facts),
        shared_bytes=_shared_bytes(sections, sm, entry),
        constant_bytes=sum(
            section.size_bytes
            for name, section in sections.items()
            if re.fullmatch(rf"\.nv\.constant\d+\.{re.escape(entry)}", name)
        ),
        barriers=_barriers(sections, code, entry),
        code_bytes=code.size_bytes,
    )


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
    for name, kind, flags, _, offset, size, link, info, _, _ in headers:
        if kind != _NO_BYTES_IN_FILE and offset + size > len(image):
            raise ValueError(f"section at {offset} of {size} bytes ends past the image")
        content = b"" if kind == _NO_BYTES_IN_FILE else image[offset : offset + size]
        yield _Section(_text_at(image, names_offset + name), kind, flags, link, info, size, content)


def _text_at(image: bytes, offset: int) -> str:
    return image[offset : image.index(b"\0", offset)].decode()


def _sm(image: bytes) -> int:
    """The architecture as 10 * major + minor. ABI 7 keeps it in bits 0 to 7 of the flags, ABI 8 in 8 to 15."""
    flags: int = struct.unpack_from("<I", image, 0x30)[0]
    return (flags >> 8 if image[7] == _OSABI_OF_ABI_8 else flags) & 0xFF


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(code, payload) of every attribute in a .nv.info section."""
    at = 0
    while at + 4 <= len(content):
        form, code, length = struct.unpack_from("<BBH", content, at)
        payload_bytes = length if form == _SIZED_PAYLOAD else 0
        yield code, content[at + 4 : at + 4 + payload_bytes] if payload_bytes else content[at + 2 : at + 4]
        at += 4 + payload_bytes


def _function_facts(sections: dict[str, _Section], entry: str) -> dict[int, int]:
    """Attribute code -> value of `entry` in .nv.info, whose payload is (symbol index, value)."""
    info = sections.get(".nv.info")
    if info is None:
        return {}
    symbol = _symbol_index(sections, entry)
    facts: dict[int, int] = {}
    for code, payload in _attributes(info.content):
        if len(payload) == 8:
            index, value = struct.unpack("<II", payload)
            if index == symbol:
                facts[code] = value
    return facts


def _symbol_index(sections: dict[str, _Section], entry: str) -> int:
    """Where `entry` stands in the symbol table. Each symbol is 24 bytes and begins with the offset of its name."""
    symbols = sections[".symtab"].content
    names = sections[".strtab"].content
    for index in range(len(symbols) // 24):
        (name,) = struct.unpack_from("<I", symbols, 24 * index)
        if _text_at(names, name) == entry:
            return index
    raise ValueError(f"no symbol {entry!r}")


def _stack_bytes(facts: dict[int, int]) -> int:
    """The stack of the kernel with all its callees; its own frame where that has no bound (recursion)."""
    frame = facts.get(_FRAME_SIZE, 0)
    with_callees = facts.get(_MIN_STACK_SIZE, frame)
    return frame if with_callees == _UNBOUNDED else with_callees


def _shared_bytes(sections: dict[str, _Section], sm: int, entry: str) -> int:
    shared = sections.get(f".nv.shared.{entry}")
    if shared is None:
        return 0
    of_system = _SYSTEM_SHARED_BYTES if sm >= _FIRST_SM_WITH_SYSTEM_SHARED else 0
    return max(0, shared.size_bytes - of_system)


def _barriers(sections: dict[str, _Section], code: _Section, entry: str) -> int:
    """Named barriers, numbered from 0: the highest in use plus one."""
    info = sections.get(f".nv.info.{entry}")
    for attribute, payload in _attributes(info.content) if info else ():
        if attribute == _BARRIER_COUNT:
            return payload[0]
    return code.flags >> 20 & 0x7F  # ABI 7


def _spills(log: str, entry: str) -> tuple[int, int]:
    found = _SPILLS.findall(log)
    if not found:
        raise CompileError(
            f"The compiler's log for kernel {entry!r} has no spill figures.",
            note="spills are in no section of a cubin; ptxas prints them under -v.",
            hint="compile with --ptxas-options=-v, as compile_cuda does.",
        )
    return sum(int(stored) for stored, _ in found), sum(int(loaded) for _, loaded in found)
