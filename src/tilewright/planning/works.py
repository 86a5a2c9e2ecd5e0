"""What one block of a candidate does, in closed form: the counts that `prediction.counting` finds by simulating it.

Simulating takes a tenth of a second and choosing must not. The forms hold for the kernels of `candidates` alone, and
`tests/frontend/test_works.py` holds them to the simulator. Edges are left out, as there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tilewright.dtypes import F32, DType
from tilewright.ladders.ampere.tiles import paired_operand
from tilewright.ladders.hopper.tiles import engine_stores, goes_in_parts
from tilewright.model.work import Access, Phase, Work, asked_rows
from tilewright.planning.candidates import Candidate
from tilewright.problem.gemm import Gemm, OperandName
from tilewright.units import ceil_div

_WARP = 32
_WIDE = 16  # bytes of the widest access of a lane
_LINE_BYTES, _SECTOR_BYTES, _BANKS_BYTES = 128, 32, 128

_PAIR = 4  # bytes of two neighbours in C

_ASTRIDE = 1.35
"""Lines that a request of narrow accesses touches, by those of a wide one of as many bytes: rows lie astride lines."""


def work_of(
    tile: Candidate,
    gemm: Gemm,
    *,
    blocks: int,
    steps: int,
    aligned_bytes: int = _WIDE,
    result_bytes: int = _WIDE,
    out: DType | None = None,
) -> Work:
    """What a block does for a problem. blocks: of the grid. steps: over k, of each block. out: the format of what the
    blocks write, by default C's.

    aligned_bytes: what rows of A and B are multiples of. It tells how wide operands of FFMA kernels are loaded; loads
    of the others are counted as wide ones. result_bytes: the same of what is written.
    """
    out = out or gemm.out
    phases = {"FFMA": _ffma, "mma.sync": _mma, "wgmma": _wgmma}[tile.unit]
    step, rest = phases(tile, gemm, min(aligned_bytes, _WIDE), min(result_bytes, _WIDE), out)
    return Work(
        step=step,
        rest=rest,
        steps=steps,
        warps=tile.warps,
        blocks=blocks,
        strip_bytes=_strip_rows(tile, gemm) * tile.k * gemm.dtype.bytes,
        flops=gemm.flops,
        load_groups=0.0 if tile.ahead else 1.0,
        resident=tile.walks,
        ends_overlap=tile.turns > 1,
        steps_ahead=0 if not tile.ahead else 1 if tile.unit == "FFMA" else tile.stages - 1,
        warpgroups=tile.by_engine,
        inputs="" if tile.unit == "FFMA" else gemm.multiplied.rate,
    )


def _strip_rows(tile: Candidate, gemm: Gemm) -> float:
    """Rows of A and B that the L2 is asked for in each step of k."""
    if not tile.by_engine:
        return tile.m + tile.n
    sides: tuple[tuple[OperandName, int], ...] = (("A", tile.m), ("B", tile.n))
    return sum(asked_rows(gemm, name, rows, tile.readers(name)) for name, rows in sides)


def _ffma(tile: Candidate, gemm: Gemm, width: int, results: int, out: DType) -> tuple[Phase, Phase]:
    """Lanes of 4 x 8 in a warp, each with pieces of 4 x 4; A is turned on its way to shared memory."""
    per_k = tile.warps * tile.k
    copies = (*_copied(tile, gemm, "A", width), *_copied(tile, gemm, "B", width))
    fragments = (
        _shared("A_frag", "load", per_k * tile.warp_m // 16, conflicts=0.5),  # neighbours' loads merge in pairs
        _shared("B_frag", "load", per_k * tile.warp_n // 32, conflicts=0.5),
    )
    sums = tile.m * tile.n // _WARP
    step = Phase(
        fp32=float(sums * tile.k), other=4.0 * tile.warps, accesses=(*copies, *fragments), barriers=float(tile.warps)
    )
    stored = _stored(tile, out, max(results, out.bytes))
    return step, Phase(fp32=2.0 * sums, other=float(sums), accesses=(*copies, stored))


def _mma(tile: Candidate, gemm: Gemm, width: int, results: int, out: DType) -> tuple[Phase, Phase]:
    """Fragments by ldmatrix, which does not turn elements of 4 bytes: of those a lane then loads two, or one."""
    depth = 2 * _WIDE // gemm.dtype.bytes  # of m16n8k16 for 2-byte elements
    copies = tuple(part for name in ("A", "B") for part in _copied_async(tile, gemm, name))
    fragments = (_fragment(tile, gemm, "A"), _fragment(tile, gemm, "B"))
    rounded = tile.warps * (tile.warp_m + tile.warp_n) * tile.k / _WARP if gemm.multiplied is not gemm.dtype else 0.0
    step = Phase(
        matrix_flops=2.0 * tile.m * tile.n * tile.k,
        matrix_instructions=tile.m * tile.n * tile.k / (16 * 8 * depth),
        conversions=rounded,
        other=2.0 * tile.warps + rounded,
        accesses=(*copies, *fragments),
        barriers=float(tile.warps),
    )
    first = tuple(one for _ in range(max(1, tile.stages - 1)) for one in copies)
    return step, _written(tile, out, results, first)


def _fragment(tile: Candidate, gemm: Gemm, name: OperandName) -> Access:
    size_bytes = tile.warps * (tile.warp_m if name == "A" else tile.warp_n) * tile.k * gemm.dtype.bytes
    single = 8 if name == paired_operand(gemm) else 4
    width = _WIDE if gemm.dtype.bytes == 2 or _along_k(gemm, name) else single
    return _shared(f"{name}_frag", "load", size_bytes // (_WARP * width), width=width)


def _wgmma(tile: Candidate, gemm: Gemm, width: int, results: int, out: DType) -> tuple[Phase, Phase]:
    """Each instruction takes 64 rows, all columns of the tile and 32 bytes of k, and reads both from shared memory."""
    rows, columns = (tile.n, tile.m) if tile.is_turned else (tile.m, tile.n)
    instructions = rows // 64 * (tile.k * gemm.dtype.bytes // 32)
    step = Phase(
        matrix_flops=2.0 * tile.m * tile.n * tile.k,
        matrix_instructions=4.0 * instructions,
        other=8.0 * instructions,
        operand_bytes=float(instructions * (64 + columns) * 32),
        engine_bytes=float((tile.m + tile.n) * tile.k * gemm.dtype.bytes),
    )
    rest = _written(tile, out, results, ())
    if tile.walks and engine_stores(replace(gemm, out=out)):  # C leaves through shared memory and the copy engine
        size_bytes = tile.m * tile.n * out.bytes
        through = _shared("C_tile", "store", size_bytes // (_WARP * _WIDE))
        rest = Phase(rest.fp32, 0.0, 0.0, rest.conversions, rest.other, (through,), engine_bytes=float(size_bytes))
    elif tile.walks and tile.point.get("parts") and goes_in_parts(replace(gemm, out=out)):
        rest = replace(rest, accesses=_by_lanes(tile.m * tile.n * out.bytes, paired=results >= _PAIR))
    return step, rest


def _by_lanes(size_bytes: int, *, paired: bool) -> tuple[Access, ...]:
    """C through shared memory, from where each warp stores 64 neighbours of a row. Not paired: every other row begins
    in the middle of a pair, which two loads bring; its ends, two of 64, are stored by another request."""
    pairs = size_bytes / (_WARP * _PAIR)
    ends = 0.0 if paired else pairs
    through = _shared("C_tile", "store", size_bytes // (_WARP * _WIDE))
    loads = (_shared("C_tile", "load", pairs, width=_PAIR), _shared("C_tile", "load", ends / 2, width=_PAIR))
    stored = Access("C", "store", "global", _PAIR, pairs, lines=2 * pairs + ends, sectors=5 * pairs + ends)
    return (through, *loads, stored)


def _written(tile: Candidate, out: DType, width: int, first: tuple[Access, ...]) -> Phase:
    """The end of a tile on tensor cores: results are scaled, rounded and stored, in pairs where that may be."""
    sums = tile.m * tile.n / _WARP
    rounded = sums if out is not F32 else 0.0
    stored = _stored(tile, out, min(max(width, out.bytes), 2 * out.bytes))
    return Phase(fp32=sums, conversions=rounded, other=sums + rounded, accesses=(*first, stored))


def _stored(tile: Candidate, out: DType, width: int) -> Access:
    """C, each lane its own results; a request of 8 rows of pairs, or of whole lines."""
    size_bytes = tile.m * tile.n * out.bytes
    requests = size_bytes / (_WARP * width)
    lines = size_bytes / _LINE_BYTES if tile.unit == "FFMA" and width == _WIDE else 8 * requests
    return Access("C", "store", "global", width, requests, lines=lines, sectors=size_bytes / _SECTOR_BYTES)


def _copied(tile: Candidate, gemm: Gemm, name: OperandName, width: int) -> tuple[Access, Access]:
    """A tile through registers. In shared memory its rows run along m or n, so that one that lies along k is turned."""
    size_bytes, lines = _size(tile, gemm, name)
    more = _WIDE // width
    requests = size_bytes / (_WARP * width)
    loaded = Access(
        f"{name}_tile", "load", "global", width, requests,
        lines=lines * more * (_ASTRIDE if more > 1 else 1.0), sectors=size_bytes / _SECTOR_BYTES * more,
    )  # fmt: skip
    if _along_k(gemm, name):
        # Its rows in shared memory are padded.
        return loaded, _shared(f"{name}_tile", "store", size_bytes / (_WARP * 4), width=4, conflicts=2.0)
    return loaded, _shared(f"{name}_tile", "store", size_bytes / (_WARP * _WIDE))


def _copied_async(tile: Candidate, gemm: Gemm, name: OperandName) -> tuple[Access, Access]:
    size_bytes, lines = _size(tile, gemm, name)
    requests = size_bytes / (_WARP * _WIDE)
    sectors = size_bytes / _SECTOR_BYTES
    loaded = Access(f"{name}_tile", "load", "global", _WIDE, requests, lines=lines, sectors=sectors, copies=tile.ahead)
    return loaded, _shared(f"{name}_tile", "store", requests, copies=tile.ahead)


def _size(tile: Candidate, gemm: Gemm, name: OperandName) -> tuple[int, int]:
    """Bytes of a tile of A or B, and lines of global memory that they lie in."""
    across = tile.m if name == "A" else tile.n
    length, count = (tile.k, across) if _along_k(gemm, name) else (across, tile.k)
    row_bytes = length * gemm.dtype.bytes
    return row_bytes * count, count * ceil_div(row_bytes, _LINE_BYTES)


def _shared(
    name: str,
    kind: Literal["load", "store"],
    requests: float,
    *,
    width: int = _WIDE,
    conflicts: float = 1.0,
    copies: bool = False,
) -> Access:
    """Accesses of shared memory; conflicts: wavefronts, by those that their bytes take. Below 1 lanes read the same."""
    least = requests * _WARP * width / _BANKS_BYTES
    return Access(name, kind, "shared", width, requests, least * conflicts, least * min(conflicts, 1.0), copies=copies)


def _along_k(gemm: Gemm, name: OperandName) -> bool:
    return gemm.operand(name).contiguous == "k"
