"""The counts of one line of the kernel."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from tilewright.ir.buffer import Space
from tilewright.ir.stmt import Assign, Barrier, For, If, Move
from tilewright.ir.visit import Path
from tilewright.simulator.assigns import operations_of
from tilewright.simulator.sites import Site

LineKind = Literal["load", "store", "arithmetic", "barrier", "branch", "loop"]


@dataclass(frozen=True, slots=True)
class LineCounts:
    """The counts of one line of the kernel, over all simulated blocks.

    line: from 1, in `ir.text.kernel_text`; path: of the statement. loops: paths of the enclosing loops, outermost
    first. width_bytes: that a lane moves, element_bytes of each element (0 for what is no memory access).
    opcodes: instructions that one execution stands for. What each count means is said where it is counted, in
    `simulator.listeners`: executions (warps), lane_executions; requests, lanes, bytes_asked; sectors, cache_lines
    (global); wavefronts, ideal_wavefronts (shared); partial, guarded_off, split (divergence).
    """

    line: int
    path: Path
    text: str
    origin: str
    kind: LineKind
    buffer: str
    space: Space | None
    width_bytes: int
    element_bytes: int
    loops: tuple[Path, ...]
    opcodes: tuple[tuple[str, int], ...]
    executions: int = 0
    lane_executions: int = 0
    requests: int = 0
    lanes: int = 0
    bytes_asked: int = 0
    sectors: int = 0
    cache_lines: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    partial: int = 0
    guarded_off: int = 0
    split: int = 0

    @property
    def excess_wavefronts(self) -> int:
        """Wavefronts that bank conflicts cost."""
        return self.wavefronts - self.ideal_wavefronts

    @property
    def instructions(self) -> int:
        """Warp instructions of this line."""
        return self.executions * sum(count for _, count in self.opcodes)

    @property
    def fmas(self) -> int:
        """Multiply-adds of all lanes."""
        return self.lane_executions * dict(self.opcodes).get("FFMA", 0)


COUNTED = tuple(field.name for field in fields(LineCounts) if field.default == 0)
"""The fields of `LineCounts` that are counts."""


def line_counts(site: Site, loops: Container[Path], counts: Mapping[str, int]) -> LineCounts | None:
    """The row of a site; None for a statement that is no instruction. loops: the paths of all loops of the kernel."""
    stmt = site.stmt
    buffer, space, width_bytes, element_bytes = "", None, 0, 0
    kind: LineKind = "arithmetic"
    opcodes: Mapping[str, int] = {}
    match stmt:
        case Move(asynchronous=True):
            memory = site.memory or stmt.src.buffer
            buffer, space, kind = memory.name, memory.space, "store" if memory is stmt.dst.buffer else "load"
            width_bytes, element_bytes = stmt.width * memory.dtype.bytes, memory.dtype.bytes
            # One instruction with two sides: it is counted where it reads.
            opcodes = {"LDGSTS" if width_bytes == 4 else f"LDGSTS.{width_bytes * 8}": 1} if kind == "load" else {}
        case Move():
            is_store = stmt.src.buffer.space is Space.REGISTER
            memory = stmt.dst.buffer if is_store else stmt.src.buffer
            buffer, space = memory.name, memory.space
            width_bytes, element_bytes = stmt.width * memory.dtype.bytes, memory.dtype.bytes
            if space is Space.REGISTER:
                opcodes = {"MOV": stmt.width}
            else:
                kind = "store" if is_store else "load"
                opcodes = {_opcode(is_store, space, width_bytes): 1}
        case Assign():
            buffer, opcodes = stmt.dst.buffer.name, operations_of(stmt.value)
        case Barrier():
            kind, opcodes = "barrier", {"BAR": 1}
        case If():
            kind, opcodes = "branch", {"BRA": 1}
        case For():
            kind, opcodes = "loop", {} if stmt.unroll else {"BRA": 1}
        case _:
            return None
    around = tuple(site.path[:depth] for depth in range(1, len(site.path)) if site.path[:depth] in loops)
    return LineCounts(
        site.line,
        site.path,
        site.text,
        site.origin,
        kind,
        buffer,
        space,
        width_bytes,
        element_bytes,
        around,
        tuple(sorted(opcodes.items())),
        **counts,
    )


def _opcode(is_store: bool, space: Space, width_bytes: int) -> str:
    """The SASS opcode of a memory access: LDG, STG, LDS, STS, with its bits where they are not 32."""
    letters = ("ST" if is_store else "LD") + ("S" if space is Space.SHARED else "G")
    return letters if width_bytes == 4 else f"{letters}.{width_bytes * 8}"
