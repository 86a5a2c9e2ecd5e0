"""The counts of one line of the kernel."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from tilewright.ir import async_stmt
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Ref
from tilewright.ir.stmt import (
    Assign,
    Barrier,
    For,
    If,
    LoadFragment,
    LoadMatrices,
    Move,
    MultiplyTiles,
    QuadTranspose,
    RoundPair,
    ShuffleAdd,
    StoreFragment,
    UnpackCodes,
)
from tilewright.ir.visit import Path
from tilewright.layout.fragment import MATRIX_ROW_BYTES
from tilewright.simulator.assigns import ROUND_PAIR, UNPACK, operations_of
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS
from tilewright.simulator.collective import TRANSPOSE_QUAD, multiply_opcodes, shuffle_opcodes
from tilewright.simulator.findings import Site
from tilewright.simulator.opaque_tiles import access_opcodes, load_access, store_access

LineKind = Literal["load", "store", "arithmetic", "barrier", "branch", "loop", "unit", "bulk load", "bulk store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What is counted, of a line or of several. What each count means is said where it is counted, in
    `simulator.listeners`: executions (warps), lane_executions; requests, lanes, bytes_asked; bytes_used, sectors,
    fewest_sectors, cache_lines (global); wavefronts, ideal_wavefronts (shared); partial, guarded_off, split
    (divergence); boxes, bulk_bytes, bulk_sectors, bulk_elements (TMA).
    """

    executions: int = 0
    lane_executions: int = 0
    requests: int = 0
    lanes: int = 0
    bytes_asked: int = 0
    bytes_used: int = 0
    sectors: int = 0
    fewest_sectors: int = 0
    cache_lines: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    partial: int = 0
    guarded_off: int = 0
    split: int = 0
    boxes: int = 0
    bulk_bytes: int = 0
    bulk_sectors: int = 0
    bulk_elements: int = 0

    @property
    def excess_wavefronts(self) -> int:
        """Wavefronts that bank conflicts cost."""
        return self.wavefronts - self.ideal_wavefronts


COUNTED = tuple(field.name for field in fields(Amounts))


@dataclass(frozen=True, slots=True)
class LineCounts(Amounts):
    """The counts of one line of the kernel, over all simulated blocks.

    line: from 1, in `ir.text.kernel_text`; path: of the statement. loops: paths of the enclosing loops, outermost
    first. width_bytes: that a lane moves, element_bytes of each element (0 for what is not a memory access).
    opcodes: instructions that one execution stands for. tile_multiply_adds: of one execution by a warp, where the warp
    multiplies tiles; tile_wavefronts: in which a warpgroup, in one execution, reads its operands from shared memory.
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
    tile_multiply_adds: int
    tile_wavefronts: int

    @property
    def instructions(self) -> int:
        """Warp instructions of this line."""
        return self.executions * sum(count for _, count in self.opcodes)

    @property
    def fmas(self) -> int:
        """Multiply-adds, by lanes and by tensor cores."""
        return self.lane_executions * dict(self.opcodes).get("FFMA", 0) + self.executions * self.tile_multiply_adds


@dataclass(frozen=True, slots=True)
class _Described:
    """What a statement is, apart from its counts. element_bytes, width: of what a lane moves."""

    kind: LineKind
    opcodes: Mapping[str, int]
    buffer: str = ""
    space: Space | None = None
    width: int = 0
    element_bytes: int = 0
    tile_multiply_adds: int = 0
    tile_wavefronts: int = 0


def line_counts(site: Site, loops: Container[Path], counts: Mapping[str, int]) -> LineCounts | None:
    """The row of a site; None for a statement that is not an instruction. loops: the paths of all loops of the
    kernel."""
    what = _described(site)
    if what is None:
        return None
    around = tuple(site.path[:depth] for depth in range(1, len(site.path)) if site.path[:depth] in loops)
    return LineCounts(
        site.line,
        site.path,
        site.text,
        site.origin,
        what.kind,
        what.buffer,
        what.space,
        what.width * what.element_bytes,
        what.element_bytes,
        around,
        tuple(sorted(what.opcodes.items())),
        what.tile_multiply_adds,
        what.tile_wavefronts,
        **counts,
    )


def _described(site: Site) -> _Described | None:
    stmt = site.stmt
    match stmt:
        case Move():
            return _described_move(stmt, site.memory)
        case LoadMatrices():
            return _access("load", {"LDSM": 1}, stmt.src.buffer, MATRIX_ROW_BYTES // stmt.src.buffer.dtype.bytes)
        case LoadFragment():
            touched, memory = load_access(stmt.instruction, stmt.role, stmt.order), stmt.src.buffer
            return _access("load", access_opcodes(touched, memory.dtype, store=False), memory, touched.width)
        case StoreFragment():
            touched, memory = store_access(stmt.instruction, stmt.order), stmt.dst.buffer
            return _access("store", access_opcodes(touched, memory.dtype, store=True), memory, touched.width)
        case MultiplyTiles(instruction=instruction):
            adds, opcodes = instruction.multiply_adds, multiply_opcodes(instruction)
            return _Described("arithmetic", opcodes, stmt.d.buffer.name, tile_multiply_adds=adds)
        case RoundPair():
            return _Described("arithmetic", ROUND_PAIR, stmt.first.buffer.name)
        case UnpackCodes():
            return _Described("arithmetic", UNPACK[stmt.codes], stmt.dst.buffer.name)
        case QuadTranspose():
            return _Described("arithmetic", TRANSPOSE_QUAD, stmt.place.buffer.name)
        case ShuffleAdd():
            return _Described("arithmetic", shuffle_opcodes(stmt), stmt.place.buffer.name)
        case Assign():
            return _Described("arithmetic", operations_of(stmt.value), stmt.dst.buffer.name)
        case Barrier():
            return _Described("barrier", {"BAR": 1})
        case If():
            return _Described("branch", {"BRA": 1})
        case For():
            return _Described("loop", {} if stmt.unroll else {"BRA": 1})
        case async_stmt.StoreMatrices():
            return _access("store", {"STSM": 1}, stmt.dst.buffer, MATRIX_ROW_BYTES // stmt.dst.buffer.dtype.bytes)
        case async_stmt.Wgmma(instruction=instruction):
            # Of one warp: four share the instruction.
            adds = instruction.multiply_adds // GROUP_WARPS
            return _Described(
                "arithmetic",
                {instruction.opcode: 1},
                stmt.d.buffer.name,
                tile_multiply_adds=adds,
                tile_wavefronts=instruction.operand_wavefronts(a_in_registers=isinstance(stmt.a, Ref)),
            )
        case async_stmt.ArriveBarrier(behind_copies=True):
            return _Described("unit", {"ARRIVES.LDGSTSBAR": 1})
        case async_stmt.TeamBarrier():
            return _Described("barrier", {"BAR": 1})
        case async_stmt.ClusterBarrier():
            return _Described("barrier", {"UCGABAR": 1})
        case async_stmt.TmaLoad():
            return _described_box("bulk load", "UTMALDG", stmt.dst.buffer)
        case async_stmt.TmaStore():
            return _described_box("bulk store", "UTMASTG", stmt.src.buffer)
        case _:
            opcode = _UNIT_OPCODES.get(type(stmt))
            return None if opcode is None else _Described("unit", {opcode: 1})


_UNIT_OPCODES: dict[type, str] = {
    async_stmt.InitBarrier: "SYNCS",
    async_stmt.ExpectBytes: "SYNCS",
    async_stmt.ArriveBarrier: "SYNCS",
    async_stmt.WaitBarrier: "SYNCS",
    async_stmt.StoreAsync: "STAS",
    async_stmt.TmaPrefetch: "UTMAPF",
    async_stmt.BulkPrefetch: "UBLKPF",
    async_stmt.L2Prefetch: "CCTL",
    async_stmt.FenceBarriers: "FENCE",
    async_stmt.FenceProxy: "FENCE",
    async_stmt.CommitStores: "UTMACMDFLUSH",
    async_stmt.WaitStores: "DEPBAR",
    async_stmt.SetRegisters: "USETMAXREG",
    async_stmt.WgmmaFence: "WARPGROUP.ARRIVE",
    async_stmt.WgmmaCommit: "WARPGROUP.COMMIT",
    async_stmt.WgmmaWait: "WARPGROUP.DEPBAR",
}


def _described_box(kind: LineKind, opcode: str, shared: Buffer) -> _Described:
    return _Described(kind, {opcode: 1}, shared.name, Space.SHARED, element_bytes=shared.dtype.bytes)


def _described_move(stmt: Move, side: Buffer | None) -> _Described:
    """side: which of the two buffers of an asynchronous copy the row is about."""
    if stmt.asynchronous:
        memory = side or stmt.src.buffer
        is_store = memory is stmt.dst.buffer
        width_bytes = stmt.width * memory.dtype.bytes
        # One instruction with two sides: it is counted where it reads.
        opcodes = {} if is_store else {"LDGSTS" if width_bytes == 4 else f"LDGSTS.{width_bytes * 8}": 1}
        return _access("store" if is_store else "load", opcodes, memory, stmt.width)
    is_store = stmt.src.buffer.space is Space.REGISTER
    memory = stmt.dst.buffer if is_store else stmt.src.buffer
    if memory.space is Space.REGISTER:
        return _access("arithmetic", {"MOV": stmt.width}, memory, stmt.width)
    opcode = _opcode(is_store, memory.space, stmt.width * memory.dtype.bytes)
    return _access("store" if is_store else "load", {opcode: 1}, memory, stmt.width)


def _access(kind: LineKind, opcodes: Mapping[str, int], memory: Buffer, width: int) -> _Described:
    return _Described(kind, opcodes, memory.name, memory.space, width, memory.dtype.bytes)


def _opcode(is_store: bool, space: Space, width_bytes: int) -> str:
    """The SASS opcode of a memory access: LDG, STG, LDS, STS, with its bits where they are not 32."""
    letters = ("ST" if is_store else "LD") + ("S" if space is Space.SHARED else "G")
    return letters if width_bytes == 4 else f"{letters}.{width_bytes * 8}"
