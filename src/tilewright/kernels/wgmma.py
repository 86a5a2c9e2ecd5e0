"""The family of kernels for wgmma (sm_90a): TMA loads by a producer warpgroup, MMAs by one or two consumers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from tilewright.ir.program import GROUP_LANES
from tilewright.isa.wgmma import transposes
from tilewright.kernels.columns import Column, Law, reasons_against
from tilewright.kernels.tile_sizes import ACCUMULATORS_AGREE, WALKS, Tiled, clusters_along_k, exchanged_bytes
from tilewright.kernels.wgmma_registers import registers_beside
from tilewright.kernels.wgmma_scales import (
    blocks_fit,
    columns_of,
    fragments_of,
    producer_registers,
    promotes_in_turn,
    rows_of,
    scale_bytes,
    scale_registers,
    sharing,
    slot_bytes,
)
from tilewright.kernels.wgmma_steps import (
    ACCUMULATORS_BESIDE_ADDRESSES,
    DEPTH_BYTES,
    INSTRUCTION_ROWS,
    SWIZZLE_ATOM_BYTES,
    WgmmaTile,
    in_roles,
    loaded_by_tma,
    nest,
    staged,
    stages_c,
    stored_in_subtiles,
    stored_per_thread,
    through_registers,
    tma_stores,
    visits,
)
from tilewright.layout.epilogue import default_subtile
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import DependentLaunch, Pipeline, Schedule, Step
from tilewright.schedule.steps.blocks import MAX_CLUSTER
from tilewright.units import ceil_div

MAX_STAGES = 16
MAX_COLUMNS = 256
"""Columns of an instruction. Source: PTX ISA 9.0, wgmma.mma_async."""

SMALL_TILE = 64 * 128
"""Elements of C up to which an SM has registers for two blocks: the next kernel's then start beside this one's."""

MAX_CONSUMER_REGISTERS = 240

_START_REGISTERS = 248
"""Of a thread when a kernel starts, at most, in steps of 8. Source: CUDA C++ Programming Guide, sm_90."""

_BESIDE_INSTRUCTION = 26
"""Registers of a thread beside an instruction's accumulators, without which ptxas 13.0 refuses to compile (C7602)."""

_BESIDE_PROMOTED = 16
"""Registers of a thread in the loop over k beside both sums: with fewer NVRTC 13.5 spills. Found by compiling 190 drawn
kernels."""

_REGISTERS_PER_SM = 65536
_SHARED_BYTES_PER_SM = 233_472
_RESERVED_BYTES = 1024
"""Shared memory of an SM, and what the system takes of it for a block. Source: CUDA C++ Programming Guide, sm_90."""

_MBARRIER_BYTES = 1024
"""More than the mbarriers of any ring take."""

_STAGED_BYTES = 2
"""Bytes of an element of C that goes through shared memory, where no problem says: what stmatrix moves."""

CLUSTER_SIZES = (1, 2, 4)
"""Blocks of a cluster along m and along n: each loads its share of the tiles that others read as well."""


@dataclass(frozen=True, slots=True)
class WgmmaConfig(Tiled):
    """One kernel of the family.

    tile: m, n, k of a block, elements
    consumers: warpgroups that multiply
    ping_pong: each consumer has a tile of its own, and stores it while the other multiplies; else they share a tile
    cluster: blocks along m and along n that share TMA loads by multicast
    stages: of the ring in shared memory
    swap_ab: the 64 rows of an instruction run along n; for a skinny C
    split_k: blocks that share the sum over k of a tile
    persistent: at most one block an SM, for many tiles; else a block a tile
    raster_rows: rows of tiles that blocks visit together, column by column
    subtile: columns of C that pass through shared memory at a time; 0 for per-thread stores from registers
    subtile_stages: such subtiles in shared memory
    dependent_launch: the kernel starts before the one in front of it has ended (PDL)
    evict_first: operands whose lines leave the L2 before others
    promote_every: elements of k after which the accumulators are added to others in f32; 0 for never
    pieces: tiles of A and of B in a stage: the pieces of operands that are f32
    accumulators: sums of an element of C, each with a tile of a B of its own in a stage
    cluster_k: blocks of a cluster that share the sum over k of a tile, through distributed shared memory
    left_in_registers: the operand of an instruction's rows (A; with swap_ab B) is read through registers: of tf32, as
    it lies with m or n contiguous, which wgmma cannot read from shared memory
    stream_k: blocks share out the k of tiles that fill no whole wave, with those of one wave, and add up in the kernel
    serpentine: each tile of a block begins in k, and each group of rows in its columns, where the one before has ended
    """

    consumers: int = 2
    ping_pong: bool = False
    cluster: tuple[int, int] = (1, 1)
    stages: int = 4
    swap_ab: bool = False
    split_k: int = 1
    persistent: bool = True
    raster_rows: int = 1
    subtile: int = 0
    subtile_stages: int = 2
    dependent_launch: bool = True
    evict_first: Literal["", "A", "B", "C", "AC", "BC"] = ""
    promote_every: int = 0
    pieces: int = 1
    accumulators: int = 1
    cluster_k: int = 1
    left_in_registers: bool = False
    stream_k: bool = False
    serpentine: bool = False

    kind: ClassVar[str] = "wgmma"
    columns: ClassVar[tuple[str, ...]] = (
        *("m", "n", "k", "consumers", "ping_pong", "cluster_m", "cluster_n", "stages", "swap_ab", "split_k"),
        *("persistent", "raster_rows", "subtile", "subtile_stages", "dependent_launch", "promote_every", "pieces"),
        *("accumulators", "evict_first", "cluster_k", "left_in_registers", "stream_k", "serpentine"),
    )

    @property
    def cluster_m(self) -> int:
        return self.cluster[0]

    @property
    def cluster_n(self) -> int:
        return self.cluster[1]

    @property
    def steps_tile(self) -> WgmmaTile:
        sharing = 1 if self.ping_pong else self.consumers
        return WgmmaTile(self.m, self.n, sharing, swap_ab=self.swap_ab, left_in_registers=self.left_in_registers)

    def reasons_against(self, gemm: Gemm) -> tuple[str, ...]:
        """Why this kernel cannot compute a problem as its operands lie, in words; empty if it can."""
        return reasons_against(LAWS, self, self.columns, gemm)

    def schedule(self, gemm: Gemm) -> Schedule:
        """The steps. The parts of split-K are added up by a launch of their own."""
        tile = self.steps_tile
        return Schedule(
            *nest(gemm, tile, promote_every=self.promote_every),
            *staged(gemm, tile),
            *loaded_by_tma(gemm, self.evict_first),
            Pipeline("k_tile", self.stages),
            *through_registers(tile),
            in_roles(self, self.register_budget(gemm)),
            *visits(self),
            *((DependentLaunch(),) if self.dependent_launch else ()),
            *self._store(gemm),
        )

    def register_budget(self, gemm: Gemm) -> tuple[int, int]:
        """Registers of a thread of the producer and of a consumer: what a block starts with, shared out anew."""
        return producer_registers(gemm), int(consumer_registers(self, gemm))

    def _store(self, gemm: Gemm) -> tuple[Step, ...]:
        if not stages_result(self, gemm):
            return stored_per_thread(gemm, self.steps_tile)
        owners = self.consumers if self.ping_pong else 1
        first = "C" in self.evict_first
        return stored_in_subtiles(
            gemm, self.steps_tile, subtile=self.subtile, stages=self.subtile_stages, owners=owners, evict_first=first
        )


# -- arithmetic, of a configuration or of columns ----------------------------------------------------------------------


def threads_of(config: Any) -> Column:
    """Threads of a block: the consumers', and those of the producer."""
    return GROUP_LANES * (config.consumers + 1)


def start_registers(config: Any) -> Column:
    """Of a thread when a block starts; small tiles leave room for a second block."""
    together = 1 + (config.m * config.n * config.accumulators <= SMALL_TILE)
    return np.minimum(_REGISTERS_PER_SM // (together * threads_of(config)) // 8 * 8, _START_REGISTERS)


def consumer_registers(config: Any, gemm: Gemm | None = None) -> Column:
    """Of a thread of a consumer: what the producer gives up is shared out among them. gemm: as of
    `producer_registers`."""
    left = start_registers(config) * (config.consumers + 1) - producer_registers(gemm)
    return np.minimum(left // config.consumers // 8 * 8, MAX_CONSUMER_REGISTERS)


def promotions(config: Any) -> Column:
    """Times that the accumulators are promoted, on the average, in an iteration of the loop over k; 0 for never."""
    every = config.promote_every + (config.promote_every == 0) * config.k
    return config.k / every * (config.promote_every > 0)


def accumulators_of(config: Any) -> Column:
    """Accumulators of a thread of a consumer, each counted once."""
    sharing = config.consumers - (config.consumers - 1) * config.ping_pong
    return config.m * config.n * config.accumulators // (sharing * GROUP_LANES)


def stage_rows(config: Any) -> Column:
    """Rows of 128 bytes of the tiles of a stage."""
    return config.pieces * (config.m + config.accumulators * config.n)


def registers_of(config: Any, gemm: Gemm | None = None) -> Column:
    """Registers of a thread of a consumer: beside its accumulators in the epilogue; where accumulators are promoted,
    beside both sums in the loop over k."""
    once = accumulators_of(config) + registers_beside(config, gemm)
    summed = accumulators_of(config) // np.where(promotes_in_turn(config), fragments_of(config), 1)
    twice = (accumulators_of(config) + summed + _BESIDE_PROMOTED) * (config.promote_every > 0)
    return np.maximum(once, twice)


def has_registers(config: Any, gemm: Gemm) -> Column:
    """Whether a thread of a consumer has them for a problem's epilogue."""
    return registers_of(config, gemm) <= consumer_registers(config, gemm)


def stages_result(config: Any, gemm: Gemm) -> Column:
    """Whether C is stored through shared memory: not where TMA cannot store it and accumulators leave a thread no
    registers for the addresses of vector stores."""
    room = np.logical_or(accumulators_of(config) <= ACCUMULATORS_BESIDE_ADDRESSES, tma_stores(gemm))
    return np.logical_and(np.logical_and(config.subtile > 0, stages_c(gemm)), room)


def staged_c_bytes(config: Any, gemm: Gemm | None = None) -> Column:
    """Shared memory of the epilogue stages: with swap-AB and with ping-pong each consumer has its own. gemm: whose C;
    None for elements of 2 bytes."""
    width = config.n // (1 + (config.consumers - 1) * config.swap_ab)
    subtile = np.minimum(config.subtile, width)
    subtiles = ceil_div(width, subtile + (subtile == 0) * width)
    stages = np.minimum(config.subtile_stages, subtiles)
    owners = 1 + (config.consumers - 1) * np.logical_or(config.ping_pong, config.swap_ab)
    element_bytes = _STAGED_BYTES if gemm is None else gemm.out.bytes
    return config.m * subtile * element_bytes * stages * owners


def stage_bytes(config: Any, gemm: Gemm | None = None) -> Column:
    """Shared memory of a stage: its tiles, and the scales of blocks of `gemm` that come with them."""
    return stage_rows(config) * SWIZZLE_ATOM_BYTES + scale_bytes(config, gemm)


def vector_bytes(config: Any, gemm: Gemm | None = None) -> Column:
    """Shared memory of the vectors that an epilogue reads, a copy for each consumer in ping-pong: from global memory
    they come behind the sum, which takes 1.04 to 1.26 of the time of other tiles (128 x 208, FP8 by rows, H200). gemm:
    None for none."""
    vectors = () if gemm is None else gemm.epilogue.vectors
    if gemm is None or not vectors:
        return 0
    total = sum(getattr(config, one.along or "m") * (one.dtype or gemm.out).bytes for one in vectors)
    reads = np.logical_and(config.split_k == 1, config.cluster_k == 1)
    return total * (1 + (config.consumers - 1) * config.ping_pong) * reads


def plain_bytes(config: Any, gemm: Gemm | None = None) -> Column:
    """Shared memory of a block but for scales of blocks, and vectors of an epilogue. gemm: as of `staged_c_bytes`."""
    beside = staged_c_bytes(config, gemm) + exchanged_bytes(config)
    return config.stages * stage_bytes(config) + beside + _MBARRIER_BYTES


def shared_bytes(config: Any, gemm: Gemm | None = None) -> Column:
    """Shared memory of a block. gemm: as of `stage_bytes`, `staged_c_bytes` and `vector_bytes`."""
    scales = config.stages * scale_bytes(config, gemm) + slot_bytes(config, config.stages, gemm)
    return plain_bytes(config, gemm) + scales + vector_bytes(config, gemm)


def fits(config: Any, blocks: int = 1, gemm: Gemm | None = None) -> Column:
    """Whether an SM has shared memory for so many blocks. gemm: as of `shared_bytes`."""
    return blocks * (shared_bytes(config, gemm) + _RESERVED_BYTES) <= _SHARED_BYTES_PER_SM


def blocks_per_sm(config: Any, gemm: Gemm | None = None) -> Column:
    """Blocks that share an SM: a persistent kernel starts one, and one with large tiles has no registers for two. gemm:
    as of `staged_c_bytes`."""
    small = np.logical_and(config.m * config.n * config.accumulators <= SMALL_TILE, np.logical_not(config.persistent))
    most = _SHARED_BYTES_PER_SM // (plain_bytes(config, gemm) + _RESERVED_BYTES)
    return np.minimum(most, 1 + small)


def deepest_ring(config: Any, blocks: Column = 1, gemm: Gemm | None = None) -> Column:
    """The most stages of which an SM holds so many blocks. gemm: as of `stage_bytes`."""
    fixed = _RESERVED_BYTES + _MBARRIER_BYTES + staged_c_bytes(config, gemm) + exchanged_bytes(config)
    fixed = fixed + vector_bytes(config, gemm)
    room, each = _SHARED_BYTES_PER_SM // blocks - fixed, stage_bytes(config, gemm)
    most = np.clip(room // each, 1, MAX_STAGES)
    return np.minimum((room - slot_bytes(config, most, gemm)) // each, MAX_STAGES)


LEAST_RING = 3
"""Stages that a ring keeps beside more of C, and beside vectors."""


def beside_vectors(config: Any, gemm: Gemm) -> Column:
    """Stages of the ring that leave an epilogue's vectors room, as far as `LEAST_RING` are left."""
    return np.clip(deepest_ring(config, config.blocks, gemm), np.minimum(config.stages, LEAST_RING), config.stages)


def subtile_of(config: Any, gemm: Gemm) -> Column:
    """The columns of an epilogue subtile such that its stages take about 16 KiB; 0 where C cannot be staged."""
    rows = config.m * (1 + (config.consumers - 1) * config.ping_pong)
    told = np.broadcast_arrays(config.n, rows, config.subtile_stages)
    shape = tuple(int(np.max(one, initial=0)) + 1 for one in told)
    places = np.ravel_multi_index(told, shape)
    known = np.flatnonzero(np.bincount(places.reshape(-1)))
    widths = np.zeros(int(known[-1]) + 1 if len(known) else 0, dtype=np.int64)
    for place, n, m, stages in zip(known, *np.unravel_index(known, shape), strict=True):
        widths[place] = default_subtile(int(n), int(m), gemm.out.bytes, int(stages))
    found = np.where(config.swap_ab, INSTRUCTION_ROWS, widths[places])
    return found * stages_c(gemm)


def deepest(config: WgmmaConfig, blocks: int = 1, most: int = MAX_STAGES) -> WgmmaConfig | None:
    """The same with the most stages of which an SM holds so many blocks; None where it holds none."""
    stages = (replace(config, stages=stages) for stages in range(most, 1, -1))
    return next((one for one in stages if fits(one, blocks)), None)


# -- laws --------------------------------------------------------------------------------------------------------------


def _splits_atom(rows: Column, gemm: Gemm) -> Column:
    """Whether rows of a tile that runs along m or n are not a whole number of 32-byte swizzle atoms."""
    return rows * gemm.dtype.bytes % 32 != 0


def reads(c: Any, gemm: Gemm) -> Column:
    """Whether kernels read A and B as they are stored: along k; of 2 bytes in any order; along m or n one of tf32, as
    far as it is read through registers."""
    held = c.left_in_registers > 0
    if transposes(gemm.multiplied):
        return np.logical_not(held)
    a_across, b_across = gemm.a is Order.COL, gemm.b is Order.ROW
    rows, columns = np.where(c.swap_ab, b_across, a_across), np.where(c.swap_ab, a_across, b_across)
    return np.logical_not(columns) & (held == rows) & (np.logical_not(held) | (gemm.dtype.bytes == 4))


def _depth(gemm: Gemm) -> int:
    """Elements of k of an instruction."""
    return DEPTH_BYTES // gemm.dtype.bytes


def _cuts_groups(c: Any, gemm: Gemm) -> Column:
    """Whether a group of k that is promoted is neither whole tiles nor whole instructions that divide a tile."""
    every = np.maximum(c.promote_every, 1)
    inside = (every % _depth(gemm) == 0) & (c.k % every == 0)
    return (c.promote_every % c.k != 0) & np.logical_not(inside)


LAWS: tuple[Law, ...] = (
    Law(
        lambda c, g: c.k * g.dtype.bytes != SWIZZLE_ATOM_BYTES,
        lambda c, g: f"k = {c.k} of {g.dtype} is {c.k * g.dtype.bytes} bytes: a tile is {SWIZZLE_ATOM_BYTES} deep",
    ),
    Law(
        lambda c, g: (rows_of(c) % (INSTRUCTION_ROWS * sharing(c)) != 0) | (rows_of(c) == 0),
        lambda c, g: f"{rows_of(c)} rows are not {INSTRUCTION_ROWS} for each instruction of {sharing(c)} warpgroups",
    ),
    Law(
        lambda c, g: (columns_of(c) % 8 != 0) | (columns_of(c) < 8) | (columns_of(c) > MAX_COLUMNS),
        lambda c, g: f"an instruction has 8, 16, ... {MAX_COLUMNS} columns, not {columns_of(c)}",
    ),
    Law(
        lambda c, g: np.logical_not(has_registers(c, g)),
        lambda c, g: (
            f"{accumulators_of(c)} accumulators of a thread{', twice,' if c.promote_every else ''} and what stands "
            f"beside them take {registers_of(c, g)} registers, more than "
            f"{consumer_registers(c, g)}: use a smaller tile"
        ),
    ),
    Law(
        lambda c, g: columns_of(c) // 2 + _BESIDE_INSTRUCTION > start_registers(c),
        lambda c, g: (
            f"an instruction of {columns_of(c)} columns needs {columns_of(c) // 2 + _BESIDE_INSTRUCTION} registers, "
            f"and {c.consumers + 1} warpgroups start with {start_registers(c)}"
        ),
    ),
    Law(
        lambda c, g: np.logical_not(reads(c, g)),
        lambda c, g: (
            f"wgmma transposes 2-byte operands only, and those of {g} are {g.dtype}; of tf32 it reads one, that of its "
            "rows, through registers where m or n is contiguous, and only there"
        ),
    ),
    Law(
        lambda c, g: (c.left_in_registers > 0) & ((c.promote_every > 0) | (c.pieces > 1) | (c.accumulators > 1)),
        lambda c, g: "an operand is read through registers for one sum, which is not promoted",
    ),
    Law(
        lambda c, g: _splits_atom(c.m, g) if g.a is Order.COL else c.m < 0,
        lambda c, g: f"m = {c.m} of A in columns is not a multiple of a swizzle atom of 32 bytes",
    ),
    Law(
        lambda c, g: _splits_atom(c.n, g) if g.b is Order.ROW else c.n < 0,
        lambda c, g: f"n = {c.n} of B in rows is not a multiple of a swizzle atom of 32 bytes",
    ),
    Law(
        lambda c, g: (c.promote_every > 0) & _cuts_groups(c, g),
        lambda c, g: (
            f"accumulators are promoted every {c.k} of k, a multiple of it, or every "
            f"{_depth(g)}, {2 * _depth(g)} or {4 * _depth(g)}, not every {c.promote_every}"
        ),
    ),
    Law(
        lambda c, g: c.pieces != (1 if g.pieces is None else g.pieces.count),
        lambda c, g: f"a stage holds {c.pieces} pieces of an operand, and {g} has others",
    ),
    ACCUMULATORS_AGREE,
    Law(
        lambda c, g: (c.pieces > 1) & (c.promote_every != c.k),
        lambda c, g: f"products of pieces are promoted with each stage, every {c.k} of k, not every {c.promote_every}",
    ),
    Law(
        lambda c, g: c.promote_every != g.block_scales.depth if g.block_scales else c.m < 0,
        lambda c, g: f"{g.block_scales} multiply the sum of a block, not of {c.promote_every} of k",
    ),
    Law(
        lambda c, g: np.logical_not(blocks_fit(c, g)),
        lambda c, g: f"{g.block_scales} do not go with {columns_of(c)} columns of an instruction",
    ),
    Law(
        lambda c, g: (
            (scale_registers(c, g) > 0) & (registers_of(c, g) + scale_registers(c, g) > consumer_registers(c, g))
        ),
        lambda c, g: (
            f"{registers_of(c)} registers and {scale_registers(c, g)} for scales are more than "
            f"{consumer_registers(c, g)}"
        ),
    ),
    Law(
        lambda c, g: (c.stages < 2) | (c.stages > MAX_STAGES),
        lambda c, g: f"a ring has 2 to {MAX_STAGES} stages, not {c.stages}",
    ),
    Law(  # vectors that have no room are read from global memory
        lambda c, g: shared_bytes(c, g) - vector_bytes(c, g) + _RESERVED_BYTES > _SHARED_BYTES_PER_SM,
        lambda c, g: (
            f"{c.stages} stages and C take {shared_bytes(c, g)} of {_SHARED_BYTES_PER_SM} bytes of shared memory"
        ),
    ),
    Law(
        lambda c, g: (c.subtile > 0) & ((c.subtile % 8 != 0) | (c.subtile > c.n)),
        lambda c, g: f"an epilogue subtile of {c.subtile} columns is not a multiple of 8 of at most {c.n}",
    ),
    Law(
        lambda c, g: (
            tma_stores(g) & (c.subtile > 0) & ((c.n * g.out.bytes % 16 > 0) | (c.subtile * g.out.bytes % 16 > 0))
        ),
        lambda c, g: f"TMA stores rows of whole 16 bytes, and {c.n} columns, {c.subtile} at once, are of {g.out}",
    ),
    Law(
        lambda c, g: (c.subtile > 0) & (c.swap_ab > 0) & (c.subtile != INSTRUCTION_ROWS),
        lambda c, g: f"with swap-AB, an epilogue subtile has {INSTRUCTION_ROWS} columns, not {c.subtile}",
    ),
    Law(
        lambda c, g: (c.split_k > 1) & ((c.persistent > 0) | (c.subtile > 0)),
        lambda c, g: "split-K needs a block for each tile and part, and per-thread stores",
    ),
    Law(
        lambda c, g: (c.accumulators > 1) & ((c.split_k > 1) | (c.promote_every > 0)),
        lambda c, g: "one of several sums is neither split nor promoted",
    ),
    Law(
        lambda c, g: (c.ping_pong > 0) & ((c.persistent == 0) | (c.consumers != 2) | (c.swap_ab > 0)),
        lambda c, g: "ping-pong needs two consumers of persistent blocks, without swap-AB",
    ),
    Law(
        lambda c, g: (
            np.logical_not(np.isin(c.cluster_m, CLUSTER_SIZES) & np.isin(c.cluster_n, CLUSTER_SIZES))
            | (c.cluster_m * c.cluster_n > MAX_CLUSTER)
        ),
        lambda c, g: (
            f"a cluster has 1, 2 or 4 blocks along m and along n, at most {MAX_CLUSTER} in all, not "
            f"{c.cluster_m} x {c.cluster_n}"
        ),
    ),
    *clusters_along_k(lambda c: accumulators_of(c) // c.accumulators),
    Law(
        lambda c, g: (c.cluster_k > 1) & ((c.cluster_m * c.cluster_n > 1) | (c.persistent > 0) | (c.subtile > 0)),
        lambda c, g: "a cluster along k has a block for each part of one tile, and per-thread stores",
    ),
    *WALKS,
)
"""What the lowering takes today, all in this place."""
