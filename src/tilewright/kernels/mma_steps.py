"""The steps that kernels for mma.sync share: the nest of blocks, warps and fragments, and what the formats allow.

FP8 takes mma.m16n8k32, formats of 2 bytes mma.m16n8k16, tf32 mma.m16n8k8: an instruction is 32 bytes of k deep, so
tiles are as deep in bytes whatever they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Route
from tilewright.layout.arrangement import Xor
from tilewright.layout.fragment import TRANSPOSED_BYTES
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Relayout,
    Reorder,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Vectorize,
)

DEPTH_BYTES = 32
"""Bytes of k that one instruction multiplies."""

CHUNK_BYTES = 16
"""What one lane copies at once, and one row of a matrix of ldmatrix."""


@dataclass(frozen=True, slots=True)
class MmaTile:
    """Elements of m and n of a block and of a warp, and bytes of k of a block."""

    m: int = 128
    n: int = 128
    k_bytes: int = 64
    warp_m: int = 64
    warp_n: int = 32


def nest(
    gemm: Gemm, tile: MmaTile, *, paired: bool = False, outer: str = "m_frag", promote_every: int = 0
) -> tuple[Step, ...]:
    """Blocks, warps and fragments, the innermost of which one instruction runs.

    outer: m_frag or n_frag, which of them is counted around the other. promote_every: of `Accumulate`.
    paired: an operand whose fragments ldmatrix cannot load gives the instruction its rows, and those in pairs, so that
    a lane loads two neighbours at once. Rows of the instruction are columns of C where that operand is B.
    """
    depth = DEPTH_BYTES // gemm.dtype.bytes
    using = f"mma.m16n8k{depth}"
    pairs = paired_operand(gemm) if paired else None
    using += ".paired" if pairs else ""
    rows, columns, inner = (8, 16, ("n_mma", "m_mma")) if pairs == "B" else (16, 8, ("m_mma", "n_mma"))
    return (
        Split("m", tile.m, into=("m_block", "m_in")),
        Split("n", tile.n, into=("n_block", "n_in")),
        Split("m_in", tile.warp_m, into=("m_warp", "m_own")),
        Split("n_in", tile.warp_n, into=("n_warp", "n_own")),
        Split("m_own", rows, into=("m_frag", "m_mma")),
        Split("n_own", columns, into=("n_frag", "n_mma")),
        Split("k", tile.k_bytes // gemm.dtype.bytes, into=("k_tile", "k_in")),
        Split("k_in", depth, into=("k_step", "k_mma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step", outer, inner_of(outer)),
            *inner,
            "k_mma",
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Tensorize(*inner, "k_mma", using=using),
        Accumulate(over="k_tile", promote_every=promote_every),
    )


def inner_of(outer: str) -> str:
    """The loop over fragments that runs inside `outer`."""
    return "m_frag" if outer == "n_frag" else "n_frag"


def staged(gemm: Gemm, tile: MmaTile, *, row_threads: int = 0) -> tuple[Step, ...]:
    """MmaTile in shared memory, copied 16 bytes at once, fragments of them in registers, and the result stored.

    row_threads: so many threads copy along a row that has more chunks; 0: as many as it has.
    """
    vector = CHUNK_BYTES // gemm.dtype.bytes

    def along(name: OperandName) -> int:
        return row_threads if chunks_of_row(gemm, name, tile) > row_threads else 0

    return (
        *(Stage(name, Space.SHARED, under="k_tile") for name in gemm.factors),
        *(Distribute(f"{name}_tile", vector=vector, row_threads=along(name)) for name in gemm.factors),
        *(Stage(name, Space.REGISTER, under="k_step") for name in gemm.factors),
        Epilogue(),
        *((Vectorize("C", 2),) if gemm.c is Order.ROW else ()),  # a lane holds pairs along n
    )


def pairs(gemm: Gemm) -> tuple[Step, ...]:
    """Fragments loaded by lanes, two neighbours along k at once where a lane holds them and they lie side by side."""
    return tuple(
        Vectorize(f"{name}_frag", 2)
        for name in gemm.factors
        if gemm.dtype.bytes == 2 and gemm.operand(name).contiguous == "k"
    )


def matrices(gemm: Gemm) -> tuple[Step, ...]:
    """Fragments loaded by ldmatrix, four matrices at once; where it cannot turn a tile, by lanes as before."""
    steps: list[Step] = []
    for name in gemm.factors:
        if takes_matrices(gemm, name):
            steps += [Transfer(f"{name}_frag", Route.MATRICES), Vectorize(f"{name}_frag", 4)]
    return tuple(steps)


def takes_matrices(gemm: Gemm, name: OperandName) -> bool:
    """Whether ldmatrix can load an operand's fragments: its rows run along k, or it turns them, 2 bytes each."""
    return gemm.dtype.bytes == TRANSPOSED_BYTES or gemm.operand(name).contiguous == "k"


def by_lanes(gemm: Gemm) -> tuple[OperandName, ...]:
    """The operands whose fragments lanes load by ordinary loads, as ldmatrix cannot."""
    return tuple(name for name in gemm.factors if not takes_matrices(gemm, name))


def paired_operand(gemm: Gemm) -> OperandName | None:
    """The operand of which a lane is to hold two neighbours, as lanes load its fragments; B before A."""
    return next(reversed(by_lanes(gemm)), None)


def in_pairs(gemm: Gemm) -> tuple[Step, ...]:
    """Two neighbours of an operand loaded at once, where rows of the instruction are in pairs: then a lane
    holds pairs of a column-major C, too."""
    name = paired_operand(gemm)
    if name is None:
        return ()
    return Vectorize(f"{name}_frag", 2), *((Vectorize("C", 2),) if gemm.c is Order.COL else ())


def swizzled(gemm: Gemm, tile: MmaTile) -> tuple[Step, ...]:
    """Shared tiles without bank conflicts: an XOR of 16-byte chunks where ldmatrix reads them, else a pad of 8 words.

    Lanes that load elements of 4 bytes one by one read four rows, eight neighbours of each: a pad of 8 words keeps the
    rows apart, and leaves addresses that differ by constants.
    """
    return tuple(
        Relayout(f"{name}_tile", arrangement=swizzle(gemm, name, tile))
        if takes_matrices(gemm, name)
        else Relayout(f"{name}_tile", pad=8)
        for name in gemm.factors
    )


def chunks_of_row(gemm: Gemm, name: OperandName, tile: MmaTile) -> int:
    """Chunks of 16 bytes in a row of an operand's tile."""
    row = {"m": tile.m, "n": tile.n, "k": tile.k_bytes // gemm.dtype.bytes}[gemm.operand(name).contiguous]
    return row * gemm.dtype.bytes // CHUNK_BYTES


def swizzle(gemm: Gemm, name: OperandName, tile: MmaTile) -> Xor:
    """The XOR of chunks with which the eight rows of each matrix lie in different banks.

    A row of 8 chunks passes all banks, so each row needs a permutation of its own; of shorter rows several share one.

    >>> swizzle(Gemm(8, 8, 8), "A", MmaTile(k_bytes=64))
    Xor(bits=2, base=2, shift=1)
    """
    chunks = chunks_of_row(gemm, name, tile)
    bits = next(bits for bits in (3, 2, 1, 0) if chunks % (1 << bits) == 0)
    per_chunk = CHUNK_BYTES // gemm.dtype.bytes
    return Xor(bits=bits, base=per_chunk.bit_length() - 1, shift=3 - bits)
