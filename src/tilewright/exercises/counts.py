"""The counts that exercises ask for."""

from __future__ import annotations

from tilewright.exercises.exercise import Goal
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Kernel
from tilewright.simulator import Counters

NO_LOAD_CONFLICTS = Goal(
    "wavefronts of shared loads lost to bank conflicts", lambda c, _: c.shared_loads.excess_wavefronts, 0
)
NO_STORE_CONFLICTS = Goal(
    "wavefronts of shared stores lost to bank conflicts", lambda c, _: c.shared_stores.excess_wavefronts, 0
)
NO_LOADS_TO_REGISTERS = Goal(
    "loads of A and B from global memory to registers, by warps", lambda c, _: _loads_to_registers(c), 0
)
NO_WARP_STORES = Goal("stores of C by warps", lambda c, _: c.global_stores.requests, 0)


def global_loads(at_most: float) -> Goal:
    """Loads from global memory for each element of C."""
    return Goal("global loads for each result", lambda c, _: c.per_result(Space.GLOBAL), at_most)


def shared_loads_per_fma(at_most: float) -> Goal:
    """Loads from shared memory for each multiply-add."""
    return Goal("shared loads for each multiply-add", lambda c, _: c.per_fma(Space.SHARED), at_most)


def sectors_per_load(at_most: float) -> Goal:
    """Sectors that a load of a warp from global memory touches."""
    return Goal("sectors for each global load of a warp", lambda c, _: c.global_loads.sectors_per_request, at_most)


def barriers(at_most: float) -> Goal:
    """`__syncthreads` in each k iteration."""
    return Goal("__syncthreads for each k iteration", lambda c, _: c.barriers_per_k_step, at_most)


def shared_bytes(at_most: int) -> Goal:
    """Bytes of shared memory that a block takes."""
    return Goal("bytes of shared memory for each block", lambda _, kernel: kernel.shared_bytes, at_most)


def tma_bytes(at_most: int) -> Goal:
    """Bytes that TMA loads."""
    return Goal("bytes that TMA loads", lambda c, _: c.bulk_loads.bytes_moved, at_most)


def off_tensor_cores(counters: Counters, _: Kernel) -> int:
    """Multiply-adds of m16n8k16 and of FMAs that tensor cores do not do."""
    return counters.fmas - counters.instructions.get("HMMA", 0) * 16 * 8 * 16


ON_TENSOR_CORES = Goal("multiply-adds that are not on tensor cores", off_tensor_cores, 0)


def _loads_to_registers(counters: Counters) -> int:
    operands = counters.where(lambda line: line.origin != "C")
    return sum(count for opcode, count in operands.instructions.items() if opcode.startswith("LDG."))
