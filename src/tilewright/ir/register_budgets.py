"""How the registers of a block are shared out among its producer and its consumers (setmaxnreg)."""

from __future__ import annotations

from tilewright.ir.program import GROUP_LANES, Program
from tilewright.ir.work import SplitK

REGISTERS_PER_SM = 65536
MAX_REGISTERS = 248
"""Of a thread when a kernel starts: 255, in whole steps. Source: CUDA C++ Programming Guide, compute capability 9.0."""

STEP = 8
"""setmaxnreg takes multiples of this, from 24 to 256. Source: PTX ISA 9.0, setmaxnreg."""

PRODUCER, CONSUMER = 24, 240
"""The least that a thread can be left with, and the most that a consumer of wgmma is given."""

COURIER = 40
"""Of a thread that loads tiles, or waits for other GPUs and tells them: with 24 NVRTC 13.0 spills up to 108 bytes."""


def registers_at_start(threads: int, blocks: int = 1) -> int:
    """Of a thread of a block of so many, of which an SM has so many.

    >>> [registers_at_start(128 * groups) for groups in (2, 3, 4)]
    [248, 168, 128]
    """
    return min(REGISTERS_PER_SM // blocks // threads // STEP * STEP, MAX_REGISTERS)


def budgets(threads: int, blocks: int = 1) -> tuple[int, int]:
    """Registers of a thread of the producer, and of a consumer, in a block of so many threads. blocks: that share an
    SM.

    >>> [budgets(128 * groups) for groups in (2, 3, 4)], budgets(384, blocks=2)
    ([(24, 240), (24, 240), (24, 160)], (24, 104))
    """
    groups = threads // GROUP_LANES
    left = registers_at_start(threads, blocks) * groups - PRODUCER
    return PRODUCER, min(left // (groups - 1) // STEP * STEP, CONSUMER)


def register_budgets(program: Program) -> tuple[int, int]:
    """Those of a program with roles: what its schedule says, or else what its block has. Where ranks share out k,
    consumers leave the producer's warpgroup as many as its second thread with work takes."""
    assert program.specialized is not None
    producer, consumer = program.specialized.registers or budgets(program.threads_per_block)
    if program.split_k is not SplitK.RANKS or producer >= COURIER:
        return producer, consumer
    consumers = program.threads_per_block // GROUP_LANES - 1
    left = producer + consumers * consumer - COURIER
    return COURIER, left // consumers // STEP * STEP
