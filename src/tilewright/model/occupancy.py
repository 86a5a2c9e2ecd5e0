"""How many blocks of a kernel an SM holds at once, what stops it from holding more, and why in words.

The rules are those of cuda_occupancy.h of CUDA 13.0, which the tests compare against:

    registers      per warp, rounded up to 256; a sub-partition holds floor(16384 / that) warps
    shared memory  static + dynamic + what the system reserves, rounded up to the granularity
    warps, blocks  the caps of the SM
    barriers       from sm_90 on, the hardware barriers of the SM are shared out too

A launch may get a smaller shared-memory carve-out than the largest one, and then holds fewer blocks than this:
the driver chooses, unless the kernel asks for a carve-out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.errors import LaunchError
from tilewright.html_text import table
from tilewright.units import ceil_div, counted, format_bytes, round_up


class Limit(Enum):
    """What an SM has a fixed amount of. The value is its name in a sentence."""

    REGISTERS = "registers"
    SHARED = "shared memory"
    WARPS = "warps"
    BLOCKS = "blocks per SM"
    BARRIERS = "barriers"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks of one kernel that fit on an SM of `spec`, limit by limit.

    blocks_allowed: for each limit that applies, the blocks it alone would allow. A kernel without shared memory
    has no entry for it, where the system reserves none.
    """

    spec: DeviceSpec
    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    barriers_per_block: int
    blocks_allowed: tuple[tuple[Limit, int], ...]

    @property
    def blocks_per_sm(self) -> int:
        return min(blocks for _, blocks in self.blocks_allowed)

    @property
    def warps_per_block(self) -> int:
        return ceil_div(self.threads_per_block, WARP_THREADS)

    @property
    def warps_per_sm(self) -> int:
        return self.blocks_per_sm * self.warps_per_block

    @property
    def fraction(self) -> float:
        """Resident warps over the most that an SM can hold, 0..1."""
        return self.warps_per_sm / self.spec.max_warps_per_sm

    @property
    def limited_by(self) -> tuple[Limit, ...]:
        """Every limit that binds: raising only some of these would not let another block in."""
        return tuple(limit for limit, blocks in self.blocks_allowed if blocks == self.blocks_per_sm)

    def _repr_html_(self) -> str:
        rows = [
            (limit.value, blocks, "limits" if limit in self.limited_by else "") for limit, blocks in self.blocks_allowed
        ]
        title = (
            f"{self.spec.name}: {self.blocks_per_sm} blocks per SM, {self.warps_per_sm} of "
            f"{self.spec.max_warps_per_sm} warps ({self.fraction:.0%})"
        )
        return table(title, ("limit", "blocks it allows", ""), rows, below=self.why)

    @property
    def why(self) -> str:
        """A sentence for each limit that binds, with the numbers and what would let another block in."""
        return "; ".join(f"{limit.value}: {_sentence(self, limit)}" for limit in self.limited_by)


def occupancy(
    spec: DeviceSpec,
    *,
    threads_per_block: int,
    registers_per_thread: int,
    static_shared_bytes: int,
    dynamic_shared_bytes: int = 0,
    barriers: int = 1,
) -> Occupancy:
    """The occupancy of a kernel on `spec`; 0 blocks if it cannot run at all.

    >>> from tilewright.device.catalog import device
    >>> two = occupancy(
    ...     device("h200"), threads_per_block=256, registers_per_thread=128, static_shared_bytes=16896
    ... )
    >>> two.blocks_per_sm, two.warps_per_sm, two.fraction
    (2, 16, 0.25)
    >>> print(two.why)
    registers: 256 threads x 128 take 32768 of 65536, so 2 blocks of 8 warps fit; 80 would let in a third
    """
    if threads_per_block < 1:
        raise LaunchError(f"A block needs at least one thread, not {threads_per_block}.")
    shared_bytes = static_shared_bytes + dynamic_shared_bytes
    warps = ceil_div(threads_per_block, WARP_THREADS)
    fits = threads_per_block <= spec.max_threads_per_block
    allowed = {
        Limit.REGISTERS: _blocks_by_registers(spec, warps, registers_per_thread),
        Limit.SHARED: _blocks_by_shared(spec, shared_bytes),
        Limit.WARPS: spec.max_warps_per_sm // warps if fits else 0,
        Limit.BLOCKS: spec.max_blocks_per_sm,
        Limit.BARRIERS: _blocks_by_barriers(spec, barriers),
    }
    return Occupancy(
        spec=spec,
        threads_per_block=threads_per_block,
        registers_per_thread=registers_per_thread,
        shared_bytes_per_block=shared_bytes,
        barriers_per_block=barriers,
        blocks_allowed=tuple((limit, blocks) for limit, blocks in allowed.items() if blocks is not None),
    )


def blocks_that_fit(spec: DeviceSpec, *, warps: Any, registers_per_thread: Any, shared_bytes: Any) -> Any:
    """`occupancy(...).blocks_per_sm` of many kernels at once: NumPy columns of integers, registers of at least 1.

    >>> from tilewright.device.catalog import device
    >>> columns = {"warps": np.array([8, 4]), "registers_per_thread": np.array([128, 255])}
    >>> blocks_that_fit(device("h200"), **columns, shared_bytes=np.array([16896, 0])).tolist()
    [2, 2]
    """
    per_warp = round_up(registers_per_thread * WARP_THREADS, spec.register_allocation_unit)
    asked = per_warp * round_up(warps, spec.schedulers_per_sm)
    too_many = (registers_per_thread > spec.max_registers_per_thread) | (asked > spec.max_registers_per_block)
    by_registers = spec.registers_per_scheduler // per_warp * spec.schedulers_per_sm // warps
    by_shared = spec.shared_bytes_per_sm // np.maximum(1, allocated_shared_bytes(spec, shared_bytes))
    by_warps = spec.max_warps_per_sm // warps
    too_large = (shared_bytes > spec.max_shared_bytes_per_block) | (warps * WARP_THREADS > spec.max_threads_per_block)
    most = min(spec.max_blocks_per_sm, spec.max_blocks_per_sm if spec.barriers_per_sm is None else spec.barriers_per_sm)
    found = np.minimum(np.minimum(by_registers, by_shared), np.minimum(by_warps, most))
    return np.where(too_many | too_large, 0, found)


def allocated_registers_per_warp(spec: DeviceSpec, registers_per_thread: int) -> int:
    """Registers that a warp takes: 32 threads, rounded up to the allocation unit."""
    return round_up(registers_per_thread * WARP_THREADS, spec.register_allocation_unit)


def allocated_registers_per_block(spec: DeviceSpec, warps: int, registers_per_thread: int) -> int:
    """Registers that a launch asks for: the check rounds the warps up to all sub-partitions."""
    return allocated_registers_per_warp(spec, registers_per_thread) * round_up(warps, spec.schedulers_per_sm)


def allocated_shared_bytes(spec: DeviceSpec, shared_bytes: int) -> int:
    """Shared memory that a block takes: with the system's part, rounded up to the granularity."""
    return round_up(shared_bytes + spec.reserved_shared_bytes_per_block, spec.shared_granularity_bytes)


def max_registers_that_fit(spec: DeviceSpec, *, threads_per_block: int, blocks: int = 1) -> int:
    """The most registers a thread may use for `blocks` blocks to fit on an SM; 0 if none are few enough.

    >>> from tilewright.device.catalog import device
    >>> max_registers_that_fit(device("h200"), threads_per_block=256, blocks=2)
    128
    """
    warps = ceil_div(threads_per_block, WARP_THREADS)
    step = spec.register_allocation_unit // WARP_THREADS
    most = spec.max_registers_per_thread
    for allocated in range(round_up(most, step), 0, -step):
        registers = min(allocated, most)
        fitting = _blocks_by_registers(spec, warps, registers)
        if fitting is not None and fitting >= blocks:
            return registers
    return 0


def _blocks_by_registers(spec: DeviceSpec, warps: int, registers_per_thread: int) -> int | None:
    if registers_per_thread == 0:
        return None
    if registers_per_thread > spec.max_registers_per_thread:
        return 0
    if allocated_registers_per_block(spec, warps, registers_per_thread) > spec.max_registers_per_block:
        return 0
    per_warp = allocated_registers_per_warp(spec, registers_per_thread)
    return spec.registers_per_scheduler // per_warp * spec.schedulers_per_sm // warps


def _blocks_by_shared(spec: DeviceSpec, shared_bytes: int) -> int | None:
    if shared_bytes > spec.max_shared_bytes_per_block:
        return 0
    per_block = allocated_shared_bytes(spec, shared_bytes)
    return spec.shared_bytes_per_sm // per_block if per_block else None


def _blocks_by_barriers(spec: DeviceSpec, barriers: int) -> int | None:
    if spec.barriers_per_sm is None or barriers == 0:
        return None
    return spec.barriers_per_sm // barriers


def _sentence(this: Occupancy, limit: Limit) -> str:
    spec, blocks, warps = this.spec, this.blocks_per_sm, this.warps_per_block
    match limit:
        case Limit.REGISTERS:
            return _register_sentence(this)
        case Limit.SHARED:
            return _shared_sentence(this)
        case Limit.WARPS:
            if this.threads_per_block > spec.max_threads_per_block:
                return f"{this.threads_per_block} threads per block exceed {spec.max_threads_per_block}"
            return f"{counted(blocks, 'block')} of {counted(warps, 'warp')} out of {spec.max_warps_per_sm}"
        case Limit.BLOCKS:
            return f"an SM holds at most {blocks}, here of {counted(warps, 'warp')}; larger blocks would fill it"
        case Limit.BARRIERS:
            return f"{this.barriers_per_block} per block out of {spec.barriers_per_sm}"


def _register_sentence(this: Occupancy) -> str:
    spec, registers = this.spec, this.registers_per_thread
    if registers > spec.max_registers_per_thread:
        return f"{registers} per thread exceed {spec.max_registers_per_thread}"
    warps = this.warps_per_block
    taken = allocated_registers_per_warp(spec, registers) * warps
    demand = f"{this.threads_per_block} threads x {registers} take {taken} of {spec.registers_per_sm}"
    enough = max_registers_that_fit(spec, threads_per_block=this.threads_per_block, blocks=this.blocks_per_sm + 1)
    return f"{demand}, {_so_many_fit(this)}{_way_out(this, str(enough) if enough else '')}"


def _shared_sentence(this: Occupancy) -> str:
    spec = this.spec
    if this.shared_bytes_per_block > spec.max_shared_bytes_per_block:
        most = format_bytes(spec.max_shared_bytes_per_block)
        return f"{format_bytes(this.shared_bytes_per_block)} per block exceed {most}"
    taken = allocated_shared_bytes(spec, this.shared_bytes_per_block)
    demand = f"a block takes {format_bytes(taken)} of {format_bytes(spec.shared_bytes_per_sm)}"
    if spec.reserved_shared_bytes_per_block:
        demand += f" ({format_bytes(spec.reserved_shared_bytes_per_block)} of it the system's)"
    share = spec.shared_bytes_per_sm // (this.blocks_per_sm + 1)
    granularity = spec.shared_granularity_bytes
    enough = share // granularity * granularity - spec.reserved_shared_bytes_per_block
    return f"{demand}, {_so_many_fit(this)}{_way_out(this, f'{enough} bytes' if enough > 0 else '')}"


def _so_many_fit(this: Occupancy) -> str:
    blocks = this.blocks_per_sm
    if blocks == 0:
        return "so not even one block fits"
    return (
        f"so {counted(blocks, 'block')} of {counted(this.warps_per_block, 'warp')} {'fits' if blocks == 1 else 'fit'}"
    )


def _way_out(this: Occupancy, amount: str) -> str:
    """What would let in one more block, said only where no other limit would still keep it out."""
    if not amount or len(this.limited_by) > 1:
        return ""
    return f"; {amount} would let in a {_ordinal(this.blocks_per_sm + 1)}"


def _ordinal(number: int) -> str:
    """
    >>> [_ordinal(n) for n in (1, 2, 3, 4, 11, 21, 32)]
    ['first', 'second', 'third', 'fourth', '11th', '21st', '32nd']
    """
    small = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    if number <= len(small):
        return small[number - 1]
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{suffix}"
