"""What one block of a configuration does, in arithmetic: the counts that `prediction.counting` finds by simulating it.

Simulating takes a tenth of a second and choosing must not. All numbers may be NumPy columns with an entry for each of
many configurations of one family. `tests/kernels/test_block_work.py` holds them to the simulator. Edges are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Column
from tilewright.kernels.mma import paired_operand
from tilewright.kernels.simt import copied_together, in_short_rows
from tilewright.kernels.tile_sizes import exchanged_bytes, warps_of
from tilewright.kernels.wgmma_steps import INSTRUCTION_ROWS, tma_stores
from tilewright.kernels.work import Access, Phase, Work, asked_rows
from tilewright.problem.gemm import Gemm, OperandName
from tilewright.units import ceil_div

_WIDE = 16
"""Bytes of the widest access of a thread."""

_LINE_BYTES, _SECTOR_BYTES, _BANKS_BYTES = 128, 32, 128

_PAIR = 4
"""Bytes that a lane stores of unaligned rows of C."""

_MISALIGNED = 1.35
"""Lines that a request of narrow accesses touches, by those of a wide one of as many bytes: rows lie across lines."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a block meets beside its configuration.

    blocks: of the grid. k_tiles: of each block. aligned_bytes: that rows of A and B are multiples of, at most 16; loads
    of kernels for tensor cores are counted as wide ones whatever it is. result_bytes: the same of what is written.
    out_bytes: of an element of what the blocks write, by default C's; split-K writes f32.
    """

    blocks: Column
    k_tiles: Column
    aligned_bytes: int = _WIDE
    result_bytes: Column = _WIDE
    out_bytes: Column = 0


def work_of(kind: str, config: Any, gemm: Gemm, setting: Setting) -> Work:
    """What a block does for a problem. config: one of the family `kind`, or columns of many."""
    setting = Setting(
        setting.blocks,
        setting.k_tiles,
        min(setting.aligned_bytes, _WIDE),
        np.minimum(setting.result_bytes, _WIDE),
        np.where(setting.out_bytes, setting.out_bytes, gemm.out.bytes)[()],
    )
    return _FAMILIES[kind](config, gemm, setting)


def _simt(c: Any, gemm: Gemm, setting: Setting) -> Work:
    """Threads of 4 x 8 in a warp, each with pieces of 4 x 4; A is transposed on its way to shared memory."""
    warps = warps_of(c)
    async_a, async_b = c.a_transport == "cp_async", c.b_transport == "cp_async"
    copies = (*_simt_copies(c, gemm, "A", setting, async_a), *_simt_copies(c, gemm, "B", setting, async_b))
    fragments = (
        _shared("A_frag", "load", warps * c.k * c.warp_m / 16, conflicts=0.5),  # neighbours' loads merge in pairs
        _times(_shared("B_frag", "load", warps * c.k * c.warp_n / 32, conflicts=0.5), c.columns_together == 4),
        _times(_shared("B_frag", "load", warps * c.k * c.warp_n / 8, width=4), c.columns_together == 1),
    )
    sums = c.m * c.n / WARP_THREADS
    step = Phase(fp32=sums * c.k, other=4.0 * warps, accesses=(*copies, *fragments), barriers=1.0 * warps)
    alone = c.columns_together == 1
    width: Column = np.where(alone, setting.out_bytes, np.maximum(setting.result_bytes, setting.out_bytes))
    size_bytes = c.m * c.n * setting.out_bytes
    requests = size_bytes / (WARP_THREADS * width)
    lines = np.where(width == _WIDE, size_bytes / _LINE_BYTES, np.where(alone, c.lanes_m, 8) * requests)
    through = (c.store == "shared") & (setting.result_bytes < _WIDE)
    # Of the rows that a narrow request touches it stores 32 bytes, or every fourth element of 128 bytes.
    sectors = np.where(width == _WIDE, size_bytes / _SECTOR_BYTES, np.where(alone, 2 * c.lanes_m, 18) * requests)
    stored = Access("C", "store", "global", width, requests, lines=lines, sectors=sectors)
    stored = _times(stored, np.logical_not(through) / c.cluster_k)
    rows = tuple(_times(one, through) for one in _coalesced(c, setting))
    rest = Phase(fp32=2.0 * sums, other=sums * (1.0 + through), accesses=(*copies, stored, *rows, _exchanged(c)))
    return Work(
        step=step,
        rest=rest,
        steps=setting.k_tiles,
        warps=warps,
        blocks=setting.blocks,
        strip_bytes=(c.m + c.n) * c.k * gemm.dtype.bytes,
        flops=gemm.flops,
        steps_ahead=np.where(async_a & async_b, c.stages - 1, 1)[()],
    )


def _simt_copies(
    c: Any, gemm: Gemm, name: Literal["A", "B"], setting: Setting, by_async: Column
) -> tuple[Access, Access, Access, Access]:
    """A tile through registers, or by cp.async."""
    loaded, stored = _through_registers(c, gemm, name, setting)
    sent, arrived = _by_elements(c, gemm, name, setting)
    by_registers = np.logical_not(by_async)
    return _times(loaded, by_registers), _times(stored, by_registers), _times(sent, by_async), _times(arrived, by_async)


def _mma(c: Any, gemm: Gemm, setting: Setting) -> Work:
    """Fragments by ldmatrix, which transposes elements of 2 bytes; of others a thread then loads two, or one."""
    warps = warps_of(c)
    depth = 2 * _WIDE // gemm.dtype.bytes  # of m16n8k16 for 2-byte elements
    copies = tuple(part for name in ("A", "B") for part in _by_cp_async(c, gemm, name))
    fragments = (_fragment(c, gemm, "A"), _fragment(c, gemm, "B"))
    rounded = gemm.multiplied is not gemm.dtype
    conversions = warps * (c.warp_m + c.warp_n) * c.k / WARP_THREADS * rounded
    step = Phase(
        matrix_flops=2.0 * c.m * c.n * c.k,
        matrix_instructions=c.m * c.n * c.k / (16 * 8 * depth),
        conversions=conversions,
        fp32=c.m * c.n / WARP_THREADS * (c.k / np.where(c.promote_every > 0, c.promote_every, np.inf)),
        other=2.0 * warps + conversions,
        accesses=(*copies, *fragments),
        barriers=1.0 * warps,
    )
    first = tuple(_times(one, c.stages - 1) for one in copies)
    return Work(
        step=step,
        rest=_epilogue(c, setting, (*first, _times(_per_thread(c, setting), 1 / c.cluster_k), _exchanged(c))),
        steps=setting.k_tiles,
        warps=warps,
        blocks=setting.blocks,
        strip_bytes=(c.m + c.n) * c.k * gemm.dtype.bytes,
        flops=gemm.flops,
        steps_ahead=c.stages - 1,
        inputs=gemm.multiplied.rate,
        sums=gemm.accumulate.name,
    )


def _fragment(c: Any, gemm: Gemm, name: OperandName) -> Access:
    rows = c.warp_m if name == "A" else c.warp_n
    single = 8 if name == paired_operand(gemm) else 4
    width = _WIDE if gemm.dtype.bytes == 2 or _along_k(gemm, name) else single
    size_bytes = warps_of(c) * rows * c.k * gemm.dtype.bytes
    return _shared(f"{name}_frag", "load", size_bytes / (WARP_THREADS * width), width=width)


def _multiplied_together(c: Any) -> Column:
    """Tiles of B by which an instruction of wgmma multiplies at once, as `ir.joined`."""
    joined = np.logical_not(c.swap_ab) & (c.accumulators * c.n <= wgmma.MAX_COLUMNS)
    return np.where(joined, c.accumulators, 1)


def _wgmma(c: Any, gemm: Gemm, setting: Setting) -> Work:
    """Each instruction takes 64 rows, all columns of the tile, or of those of all B that it multiplies together, and 32
    bytes of k, and reads both from shared memory."""
    rows, columns = np.where(c.swap_ab, c.n, c.m), np.where(c.swap_ab, c.m, c.n)
    k_bytes = c.k * gemm.dtype.bytes
    products, together = len(gemm.products), _multiplied_together(c)
    instructions = products / together * rows / INSTRUCTION_ROWS * (k_bytes / 32)
    held = c.left_in_registers
    fragments = _shared("left_frag", "load", held * rows * k_bytes / (WARP_THREADS * 8), width=8)
    step = Phase(
        matrix_flops=products * 2.0 * c.m * c.n * c.k,
        matrix_instructions=4.0 * instructions,
        other=8.0 * instructions,
        operand_bytes=instructions * (INSTRUCTION_ROWS * (1 - held) + together * columns) * 32,
        accesses=(fragments,),
        tma_bytes=wgmma.stage_rows(c) * k_bytes,
        fp32=c.m * c.n / WARP_THREADS * wgmma.promotions(c),
    )
    asked = asked_rows(gemm, "A", c.m, c.cluster_n) + asked_rows(gemm, "B", c.n, c.cluster_m)
    return Work(
        step=step,
        rest=_wgmma_epilogue(c, gemm, setting),
        steps=setting.k_tiles,
        warps=wgmma.threads_of(c) / WARP_THREADS,
        blocks=setting.blocks,
        strip_bytes=c.pieces * asked * k_bytes,
        flops=gemm.flops,
        resident=c.persistent,
        ends_overlap=c.ping_pong,
        steps_ahead=c.stages - 1,
        warpgroups=True,
        inputs=gemm.multiplied.rate,
        sums=gemm.accumulate.name,
    )


def _wgmma_epilogue(c: Any, gemm: Gemm, setting: Setting) -> Phase:
    """C per thread; or through shared memory and TMA; or through shared memory and by threads along its rows."""
    staged = wgmma.stages_result(c, gemm) & (setting.out_bytes == gemm.out.bytes)
    by_tma = staged & tma_stores(gemm)
    size_bytes = c.m * c.n * setting.out_bytes
    through = _times(_shared("C_tile", "store", size_bytes / (WARP_THREADS * _WIDE)), staged)
    vectors = tuple(_times(one, staged & np.logical_not(by_tma)) for one in _along_rows(c, size_bytes, setting))
    per_thread = _times(_per_thread(c, setting), np.logical_not(staged) / c.cluster_k)
    rest = _epilogue(c, setting, (through, *vectors, per_thread, _exchanged(c)))
    return Phase(rest.fp32, 0.0, 0.0, rest.conversions, rest.other, rest.accesses, tma_bytes=size_bytes * by_tma)


def _exchanged(c: Any) -> Access:
    """Sums of a block's slice that the blocks of its cluster have sent."""
    return _shared("cluster_sums", "load", exchanged_bytes(c) / (WARP_THREADS * _WIDE))


def _along_rows(c: Any, size_bytes: Column, setting: Setting) -> tuple[Access, ...]:
    """C from shared memory, from where each warp stores neighbours of a row. Where every other row begins in the middle
    of a pair, two loads bring it; its ends, two of each row of a subtile, are stored by another request."""
    requests = size_bytes / (WARP_THREADS * _PAIR)
    rows = requests / np.maximum(1, c.subtile * setting.out_bytes / (WARP_THREADS * _PAIR))
    odd = np.where(setting.result_bytes >= _PAIR, 0.0, 1.0)
    ends = odd * rows
    return (
        _shared("C_tile", "load", requests, width=_PAIR),
        _shared("C_tile", "load", odd * requests / 2, width=_PAIR),
        Access("C", "store", "global", _PAIR, requests, lines=2 * requests + ends, sectors=5 * requests + ends),
    )


def _coalesced(c: Any, setting: Setting) -> tuple[Access, ...]:
    """Unaligned rows of C of SIMT kernels from shared memory, neighbours by lanes, which begin inside a sector."""
    requests = c.m * c.n / WARP_THREADS
    sectors = requests * (1 + WARP_THREADS * setting.out_bytes / _SECTOR_BYTES)
    return (
        _shared("C_tile", "store", requests / 4),
        _shared("C_tile", "load", requests, width=4),
        Access("C", "store", "global", setting.out_bytes, requests, lines=2 * requests, sectors=sectors),
    )


def _epilogue(c: Any, setting: Setting, accesses: tuple[Access, ...]) -> Phase:
    """The end of a tile on tensor cores: results are scaled, rounded and stored."""
    sums = c.m * c.n / WARP_THREADS
    rounded = sums * (setting.out_bytes != 4)
    return Phase(fp32=sums, conversions=rounded, other=sums + rounded, accesses=accesses)


def _per_thread(c: Any, setting: Setting) -> Access:
    """Each thread its own accumulators, in pairs where that may be; a request of 8 rows."""
    width = np.minimum(np.maximum(setting.result_bytes, setting.out_bytes), 2 * setting.out_bytes)
    size_bytes = c.m * c.n * setting.out_bytes
    requests = size_bytes / (WARP_THREADS * width)
    sectors = size_bytes / _SECTOR_BYTES
    return Access("C", "store", "global", width, requests, lines=8 * requests, sectors=sectors)


def _through_registers(c: Any, gemm: Gemm, name: OperandName, setting: Setting) -> tuple[Access, Access]:
    """A tile through registers. In shared memory its rows run along m or n: one that lies along k is transposed."""
    width = np.minimum(setting.aligned_bytes, c.copied * gemm.dtype.bytes)
    size_bytes, lines = _size(c, gemm, name)
    short = in_short_rows(c, gemm, name)
    more = np.where(c.copied == 1, 1, _WIDE // width)
    loaded = Access(
        f"{name}_tile",
        "load",
        "global",
        width,
        size_bytes / (WARP_THREADS * width),
        lines=lines * more * np.where(short, c.k / 8.0, 1.0) * np.where(width < _WIDE, _MISALIGNED, 1.0),
        sectors=size_bytes / _SECTOR_BYTES * more,
    )
    if _along_k(gemm, name):
        # Its rows in shared memory are padded, by as much as keeps a k of 8 to one wavefront.
        conflicts = np.where(short, 1.0, c.k / 8.0)
        return loaded, _shared(f"{name}_tile", "store", size_bytes / (WARP_THREADS * 4), width=4, conflicts=conflicts)
    stored = np.where(c.copied == 1, gemm.dtype.bytes, _WIDE)
    return loaded, _shared(f"{name}_tile", "store", size_bytes / (WARP_THREADS * stored), width=stored)


def _by_elements(c: Any, gemm: Gemm, name: OperandName, setting: Setting) -> tuple[Access, Access]:
    """A tile of SIMT kernels by cp.async. One whose rows lie along k is transposed, one element after another: those of
    a warp are neighbours, and lie apart by a row with its pad in shared memory."""
    together = copied_together(c, gemm, name)
    width = np.minimum(setting.aligned_bytes, together * gemm.dtype.bytes)
    size_bytes, lines = _size(c, gemm, name)
    requests = size_bytes / (WARP_THREADS * width)
    apart = np.where(together == 1, 1, _WIDE // width)
    loaded = Access(
        f"{name}_tile",
        "load",
        "global",
        width,
        requests,
        lines=lines * apart * (1.0 if setting.aligned_bytes == _WIDE else _MISALIGNED),
        sectors=size_bytes / _SECTOR_BYTES * apart,
        copies=True,
    )
    conflicts = c.k / 8.0 + WARP_THREADS / c.k - 1 if _along_k(gemm, name) else 1.0
    return loaded, _shared(f"{name}_tile", "store", requests, width=width, conflicts=conflicts, copies=True)


def _by_cp_async(c: Any, gemm: Gemm, name: OperandName) -> tuple[Access, Access]:
    size_bytes, lines = _size(c, gemm, name)
    requests = size_bytes / (WARP_THREADS * _WIDE)
    sectors = size_bytes / _SECTOR_BYTES
    loaded = Access(f"{name}_tile", "load", "global", _WIDE, requests, lines=lines, sectors=sectors, copies=True)
    # Padded rows shorter than the banks, of elements too wide for ldmatrix, begin on the same banks in pairs.
    across = c.m if name == "A" else c.n
    short = (across * gemm.dtype.bytes < _BANKS_BYTES) & (gemm.dtype.bytes == 4) & (not _along_k(gemm, name))
    return loaded, _shared(f"{name}_tile", "store", requests, conflicts=np.where(short, 2.0, 1.0), copies=True)


def _size(c: Any, gemm: Gemm, name: OperandName) -> tuple[Column, Column]:
    """Bytes of a tile of A or B, and lines of global memory that they lie in."""
    across = c.m if name == "A" else c.n
    length, count = (c.k, across) if _along_k(gemm, name) else (across, c.k)
    row_bytes = length * gemm.dtype.bytes
    return row_bytes * count, count * ceil_div(row_bytes, _LINE_BYTES)


def _shared(
    name: str,
    kind: Literal["load", "store"],
    requests: Column,
    *,
    width: Column = _WIDE,
    conflicts: Column = 1.0,
    copies: bool = False,
) -> Access:
    """Accesses of shared memory; conflicts: wavefronts, by those that their bytes take. Below 1
    threads read the same."""
    least = requests * WARP_THREADS * width / _BANKS_BYTES
    return Access(
        name, kind, "shared", width, requests, least * conflicts, least * np.minimum(conflicts, 1.0), copies=copies
    )


def _times(access: Access, factor: Column) -> Access:
    """An access so many times; none at all where that is False."""
    return Access(
        access.name,
        access.kind,
        access.space,
        access.width_bytes,
        access.requests * factor,
        access.wavefronts * factor,
        access.ideal * factor,
        access.lines * factor,
        access.sectors * factor,
        access.copies,
    )


def _along_k(gemm: Gemm, name: OperandName) -> bool:
    return gemm.operand(name).contiguous == "k"


_FAMILIES: Mapping[str, Callable[[Any, Gemm, Setting], Work]] = {"simt": _simt, "mma": _mma, "wgmma": _wgmma}
