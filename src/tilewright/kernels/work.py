"""What one block of a kernel does, as plain numbers: the input of the time model.

All counts are of warp instructions and summed over the warps of one block. Where they come from (the closed forms of
a family, simulated on a sample of blocks, or made up by a test) is not a concern of the model. A number may be a NumPy
column with an entry for each of many kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from tilewright.kernels.columns import Column
from tilewright.layout.banks import LINE_BYTES, SECTOR_BYTES
from tilewright.problem.gemm import Gemm, OperandName

IN_FLIGHT_REGISTERS = 16
"""Of a thread, for values of global memory that are on their way. Machine code of hopper/1 fetches 64 registers of
values 16 at a time; of 41 kernels that copy through registers, one has clearly more on their way (worklog/10, 28)."""


@dataclass(frozen=True, slots=True)
class Access:
    """Loads or stores of one kind. name: the tile, the fragment or the operand that they are about.

    requests: warp instructions. wavefronts, ideal: of shared memory, and without bank conflicts. lines, sectors: of
    global memory. copies: from global to shared memory with no register between. passes: clocks of L1 for the lines and
    banks of loads, in the place of a clock for each line; 0: as many as lines.
    """

    name: str
    kind: Literal["load", "store"]
    space: Literal["shared", "global"]
    width_bytes: Column
    requests: Column
    wavefronts: Column = 0.0
    ideal: Column = 0.0
    lines: Column = 0.0
    sectors: Column = 0.0
    copies: bool = False
    passes: float = 0.0

    @property
    def is_far_side(self) -> bool:
        """The shared side of a cp.async copy: no instruction of its own."""
        return self.copies and self.space == "shared"

    def __add__(self, other: Access) -> Access:
        """The same accesses of further lines."""
        return replace(
            self,
            requests=self.requests + other.requests,
            wavefronts=self.wavefronts + other.wavefronts,
            ideal=self.ideal + other.ideal,
            lines=self.lines + other.lines,
            sectors=self.sectors + other.sectors,
            passes=self.passes + other.passes,
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """What a block does in one step over k, or outside the steps.

    fp32: FFMA, FMUL and FADD. matrix_flops: of the tensor cores, by `matrix_instructions`. conversions: of number
    formats. other: counted instructions of other kinds. barriers: at which each warp waits. operand_bytes: that wgmma
    reads from shared memory; tma_bytes: that TMA moves.
    """

    fp32: Column = 0.0
    matrix_flops: Column = 0.0
    matrix_instructions: Column = 0.0
    conversions: Column = 0.0
    other: Column = 0.0
    accesses: tuple[Access, ...] = ()
    barriers: Column = 0.0
    operand_bytes: Column = 0.0
    tma_bytes: Column = 0.0


@dataclass(frozen=True, slots=True)
class WarpStep:
    """What machine code says of a step of one warp, in clocks. issued: in which its scheduler issues for it, register
    banks included; covered: in which it waits for fragments and for what its instructions take, while other warps may
    issue; both 0 where loops inside of a step hide how often they run. constants: in which it waits for constants and
    special registers, right behind a barrier or before a load, so that all warps of the block wait with it.

    ffma: from one FFMA to the next, as register banks allow; 0: too few to tell. code: instructions of the loop; 0: as
    `Work.code` has it.
    """

    issued: float
    covered: float
    constants: float
    ffma: float
    code: int


@dataclass(frozen=True, slots=True)
class Work:
    """What one block does, and how many there are.

    step: one step over k, of which there are `steps`; rest: what comes before and after them. warps: of a block.
    blocks: tiles of C. strip_bytes: of A and B that one step asks the L2 for (`asked_rows`).
    load_groups: how often in a step a thread stops until values of global memory are there. products_awaited: in every
    step all warps of the block wait for its MMAs before they begin anything else.
    resident: persistent blocks whose copies run on into the next tile. ends_overlap: one tile is stored while the next
    is multiplied. steps_ahead: by which copies run ahead of their use. awaited_ahead: the same, if they are copies by
    cp.async for which each step ends in a wait; 0: not counted. warpgroups: they multiply straight from shared
    memory. inputs, sums: the formats of the tensor cores, as `TensorRates` names them; "" where none are used.
    code: instructions of a warp that a step is written out to, a rolled loop counted once; 0: not counted.
    from_dram: of the bytes that the L2 is asked for, the share that comes from DRAM; 0: not known.
    read: of a step, what machine code says of one warp; None: it was not asked.
    """

    step: Phase
    rest: Phase
    steps: Column
    warps: Column
    blocks: Column
    strip_bytes: Column
    flops: Column
    load_groups: Column = 0.0
    products_awaited: bool = False
    resident: Column = False
    ends_overlap: Column = False
    steps_ahead: Column = 0
    awaited_ahead: Column = 0
    warpgroups: bool = False
    inputs: str = ""
    sums: str = "f32"
    code: Column = 0
    from_dram: Column = 0.0
    read: WarpStep | None = None

    def from_dram_as(self, dram_bytes: float) -> Work:
        """The same work, of a grid that moves so many bytes between L2 and DRAM.

        >>> nothing = Phase()
        >>> work = Work(nothing, nothing, steps=4, warps=1, blocks=2, strip_bytes=100, flops=1)
        >>> work.from_dram_as(200).from_dram, work.from_dram_as(900).from_dram
        (0.25, 1.0)
        """
        asked = self.strip_bytes * self.steps * self.blocks
        return replace(self, from_dram=min(1.0, dram_bytes / asked) if asked else 0.0)


def asked_rows(gemm: Gemm, name: OperandName, rows: Column, readers: Column = 1) -> Column:
    """Rows of a box of A or B that the L2 is asked for, by a block whose cluster has so many readers of it.

    A row that begins inside a sector is two requests, and such requests are not coalesced on their way. Rows that
    begin inside lines, but at sectors, cost nothing. Measured on the H200 in bf16: 1000^3 takes 10.8 us, with rows
    apart as in 1024^3 6.7, in pairs of blocks 7.9; 3000^3 130 us, in pairs 94; 2000^3 as long as 2048^3
    (benchmarks/results/plans_h200.json, l2_requests_h200.json).

    >>> from tilewright.dtypes import BF16
    >>> [asked_rows(Gemm(64, 64, k, BF16), "A", 64) for k in (1000, 1024)]
    [128.0, 64.0]
    """
    return rows * (1.0 + is_misaligned(gemm, name)) / readers


def is_misaligned(gemm: Gemm, name: OperandName) -> bool:
    """Whether rows of A or B are sector-misaligned."""
    return gemm.leading(name) * gemm.operand(name).dtype.bytes % SECTOR_BYTES != 0


def rows_begin_at(gemm: Gemm, name: OperandName) -> int:
    """The power of two, a line of 128 bytes at most, that rows of A, B or C begin at multiples of."""
    pitch = gemm.leading(name) * gemm.operand(name).dtype.bytes
    return min(pitch & -pitch, LINE_BYTES) if pitch else LINE_BYTES


def round_trips(registers: float) -> int:
    """How often a thread waits for so many registers of values from global memory.

    >>> round_trips(0), round_trips(16), round_trips(64)
    (0, 1, 4)
    """
    return ceil(registers / IN_FLIGHT_REGISTERS)
