"""What the sections of a cubin say of a kernel's resources: the tests hold what ptxas logs to it.

    .nv.info               per function: registers, stack frame, stack with all callees
    .nv.info.<entry>       of the kernel: barriers
    .nv.shared.<entry>     static shared memory

Source of the attribute codes: NVIDIA publishes no table. Registers, stack and shared memory agreed with
`cuobjdump -res-usage` for 63 kernels on sm_75 to sm_120 (NVRTC 13.0, 13.5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tilewright.runtime.elf import _Section, _sections, _text_at
from tilewright.units import KIB

_FRAME_SIZE = 0x11
_MIN_STACK_SIZE = 0x12
_REGISTER_COUNT = 0x2F
_BARRIER_COUNT = 0x4C
_SIZED_PAYLOAD = 0x04  # format byte of an attribute: 2 bytes of length and a payload; else 2 bytes of value

# From sm_90 on ptxas counts 1 KiB of the system into .nv.shared.<entry>; its log does not.
_SYSTEM_SHARED_BYTES = 1 * KIB
_FIRST_SM_WITH_SYSTEM_SHARED = 90


def in_sections(image: bytes, entry: str) -> dict[str, int]:
    """Fields of `Resources` that the sections tell, by name."""
    sections = {section.name: section for section in _sections(image)}
    facts = _function_facts(sections, entry)
    return {
        "registers": facts[_REGISTER_COUNT],
        "stack_bytes": facts.get(_MIN_STACK_SIZE, facts.get(_FRAME_SIZE, 0)),
        "shared_bytes": _shared_bytes(sections, _sm(image), entry),
        "barriers": _barriers(sections, entry),
    }


def _sm(image: bytes) -> int:
    """The architecture as 10 * major + minor, in bits 8 to 15 of the flags."""
    return int(struct.unpack_from("<I", image, 0x30)[0]) >> 8 & 0xFF


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


def _shared_bytes(sections: dict[str, _Section], sm: int, entry: str) -> int:
    shared = sections.get(f".nv.shared.{entry}")
    if shared is None:
        return 0
    of_system = _SYSTEM_SHARED_BYTES if sm >= _FIRST_SM_WITH_SYSTEM_SHARED else 0
    return max(0, shared.size_bytes - of_system)


def _barriers(sections: dict[str, _Section], entry: str) -> int:
    """Named barriers, numbered from 0: the highest in use plus one."""
    info = sections.get(f".nv.info.{entry}")
    found = (payload[0] for code, payload in _attributes(info.content) if code == _BARRIER_COUNT) if info else ()
    return next(iter(found), 0)
