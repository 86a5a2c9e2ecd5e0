"""Names of the IR as C++ identifiers: kept where they can be, changed where C++ would read something else.

A loop or a buffer may be called anything in a schedule (`m.in`, `new`, `lda`). The text keeps the name if it is an
identifier that nothing visible has taken; else it is cleaned and numbered (`m_in`, `new_2`). Nothing in the text
ever hides an outer name, so a name means one thing wherever it can be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from tilewright.codegen.prelude import PRELUDE
from tilewright.dtypes import I64
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.kernel import BUILTINS, C_ODD, Kernel
from tilewright.problem.gemm import Gemm

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class compl
    co_await co_return co_yield concept const const_cast consteval constexpr constinit continue decltype default
    delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
    this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq
"""

_CUDA = """
    threadIdx blockIdx blockDim gridDim warpSize problem min max fma fmaf float2 float4 uint2 uint4 shared_memory
    NULL assert linux main unix
"""
"""What the emitted text itself uses, and macros that some compiler defines for every text."""

RESERVED = frozenset((*_KEYWORDS.split(), *_CUDA.split(), *PRELUDE))


TABLE = "place_in_row"
"""Tables say at which column of its row an element lies."""


def identifier(name: str) -> str:
    """`name` with everything C++ does not allow in an identifier replaced.

    >>> identifier("m.in"), identifier("4th"), identifier("__A"), identifier("")
    ('m_in', 'x4th', 'x__A', 'x')
    """
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", name)
    plain = re.match(r"[A-Za-z]|_[a-z0-9]", cleaned)  # an underscore before a capital or another one is the compiler's
    return cleaned if plain else f"x{cleaned}"


class Names:
    """The identifiers visible at one place of the text.

    Variables and buffers have names of their own in the IR and share one name space in C++. tables: those of constants
    that stand in the text already, by their entries.
    """

    def __init__(self, kernel: Kernel, tables: Mapping[tuple[int, ...], str] = MappingProxyType({})) -> None:
        self._vars: dict[str, str] = {name: name for name in BUILTINS}
        if isinstance(kernel.problem, Gemm):
            self._vars[C_ODD.name] = f"int(reinterpret_cast<size_t>(C) / {kernel.problem.out.bytes} % 2)"
        self._buffers: dict[tuple[str, Space], str] = {}
        self._tables = dict(tables)
        self._taken: set[str] = {*RESERVED, *tables.values()}
        self._wide: set[str] = set()
        self.entry = self._take(kernel.name)
        for parameter in dict.fromkeys((*kernel.arguments, *kernel.parameters)):
            self._taken.add(parameter.name)
            if parameter.is_pointer:
                self._buffers[parameter.name, Space.GLOBAL] = parameter.name
            else:
                self._vars[parameter.name] = parameter.name
                if parameter.dtype is I64:
                    self._wide.add(parameter.name)

    def is_wide(self, name: str) -> bool:
        """Whether a parameter of the kernel has 64 bits, whatever an expression that reads it takes it for."""
        return name in self._wide

    def bind_var(self, name: str) -> str:
        """A new variable `name`: the identifier it has from here on, until its scope ends."""
        self._vars[name] = self._take(name)
        return self._vars[name]

    def bind_buffer(self, buffer: Buffer) -> str:
        """A new buffer: the identifier it has from here on, until its scope ends."""
        key = (buffer.name, buffer.space)
        self._buffers[key] = self._take(buffer.name)
        return self._buffers[key]

    def bind_table(self, table: tuple[int, ...]) -> str:
        """A new table of constants, which the whole text can see."""
        self._tables[table] = self._take(TABLE)
        return self._tables[table]

    @property
    def tables(self) -> Mapping[tuple[int, ...], str]:
        """The tables of constants so far."""
        return self._tables

    def table(self, table: tuple[int, ...]) -> str:
        return self._tables[table]

    def var(self, name: str) -> str:
        return self._vars[name]

    def buffer(self, buffer: Buffer) -> str:
        return self._buffers[buffer.name, buffer.space]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is bound inside ends with it."""
        saved = self._vars, self._buffers, self._taken
        self._vars, self._buffers, self._taken = dict(self._vars), dict(self._buffers), set(self._taken)
        try:
            yield
        finally:
            self._vars, self._buffers, self._taken = saved

    def _take(self, name: str) -> str:
        plain = candidate = identifier(name)
        number = 2
        while candidate in self._taken:
            candidate, number = f"{plain}_{number}", number + 1
        self._taken.add(candidate)
        return candidate
