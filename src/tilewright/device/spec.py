"""What one GPU is: every limit and rate that the project uses, with units in the field names.

A `DeviceSpec` holds facts only, each with its source in `catalog.py`; what follows from them is a property.
The occupancy calculator and the time model read it; neither knows a number of its own about a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilewright.errors import UnknownName
from tilewright.units import KIB

WARP_THREADS = 32
"""Threads of a warp, on every NVIDIA GPU (CUDA programming guide)."""

FLOPS_PER_FMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRates:
    """Dense tensor-core rates: operations per clock and SM (a multiply-add is two). 0: no such instruction.

    Fields are named `input_accumulator`; `f8` stands for e4m3 and e5m2.
    """

    f16_f16: int = 0
    f16_f32: int = 0
    bf16_f32: int = 0
    tf32_f32: int = 0
    f8_f32: int = 0
    i8_i32: int = 0

    @property
    def supported(self) -> tuple[str, ...]:
        """The names of the rates that are not 0, in field order."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))

    def flops_per_clk_per_sm(self, inputs: str, accumulator: str) -> int:
        """The rate of multiplying `inputs` into `accumulator` (names as in the fields); 0 where the GPU has no such
        instruction. Raises UnknownName for a pair that is not a field.

        >>> TensorRates(f16_f32=4096).flops_per_clk_per_sm("f16", "f32")
        4096
        """
        name = f"{inputs}_{accumulator}"
        known = [field.name for field in fields(self)]
        if name not in known:
            raise UnknownName("rate of tensor cores", name, known)
        return int(getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One GPU: identity, limits of a launch, resources of an SM, rates and latencies. `_clk` is SM clocks.

    name: as users say it. arch: the name a kernel is compiled for ("sm_90a").
    base_clock_mhz is guaranteed (None where it is not published); boost_clock_mhz is what the FP32 figures
    of data sheets assume, tensor_clock_mhz what their tensor figures assume (lower on Hopper and Blackwell).
    The clock of a run differs: a prediction must name its clock.

    ffma_issue_interval_clk: clocks between two FFMA of one scheduler (32 lanes over 16 or 32 units).
    alu_issue_interval_clk: the same for integer and logic instructions.
    lsu_instructions_per_clk: per SM, shared and global accesses together.

    shared_bytes_per_sm: the largest carve-out. max_shared_bytes_per_block: after opting in;
    max_static_shared_bytes_per_block is what `__shared__` arrays may take without.
    reserved_shared_bytes_per_block: kept by the system out of shared_bytes_per_sm, not usable by a kernel.
    barriers_per_sm: barriers that the blocks of an SM share; None where occupancy does not depend on them.
    dram_bytes: nominal; the driver reports a few per cent less. dram_gb_per_s: nominal, 10^9 bytes.

    board_power_w: the limit of the board. energy_scale: what an instruction takes at the boost clock, as a multiple of
    what it takes on the H200.

    A field with a default has that value on every GPU from sm_75 to sm_120 (CUDA C++ programming guide, table
    "technical specifications per compute capability"; allocation units from cuda_occupancy.h of CUDA 13.0).
    """

    name: str
    compute_capability: tuple[int, int]
    arch: str

    # Clocks and arithmetic
    sm_count: int
    base_clock_mhz: int | None
    boost_clock_mhz: int
    tensor_clock_mhz: int
    fp32_lanes_per_sm: int
    ffma_issue_interval_clk: int
    alu_issue_interval_clk: int = 2
    board_power_w: int
    energy_scale: float = 1.0
    schedulers_per_sm: int = 4  # one for each sub-partition
    tensor: TensorRates

    # Resources of an SM and how they are handed out
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int = 65536
    register_allocation_unit: int = 256  # registers, per warp
    shared_bytes_per_sm: int
    shared_carveouts_bytes: tuple[int, ...]
    shared_granularity_bytes: int
    reserved_shared_bytes_per_block: int
    barriers_per_sm: int | None = None

    # Limits of a launch
    max_threads_per_block: int = 1024
    max_registers_per_thread: int = 255
    max_registers_per_block: int = 65536
    max_static_shared_bytes_per_block: int = 48 * KIB
    max_shared_bytes_per_block: int
    max_blocks_per_cluster: int = 1  # portable; 1 where there are no clusters
    max_grid_x: int = 2**31 - 1
    max_grid_y: int = 65535
    max_grid_z: int = 65535

    # The memory system
    lsu_instructions_per_clk: float
    shared_bytes_per_clk_per_sm: int = 128
    l2_bytes: int
    l2_partitions: int = 1  # parts, each beside an equal share of the SMs; a line of another part is kept in both
    l2_bytes_per_clk_per_sm: int
    dram_bytes: int
    dram_gb_per_s: float

    # Latencies
    shared_latency_clk: int = 23
    l2_latency_clk: int
    dram_latency_clk: int

    def __hash__(self) -> int:
        """A GPU has one name: it is asked for at each look-up of what is known of kernels on it."""
        return hash(self.name)

    @property
    def max_grid(self) -> tuple[int, int, int]:
        """Most blocks of a grid along x, y and z."""
        return self.max_grid_x, self.max_grid_y, self.max_grid_z

    @property
    def registers_per_scheduler(self) -> int:
        """The register file of one sub-partition: a warp lives in one and cannot borrow from another."""
        return self.registers_per_sm // self.schedulers_per_sm

    @property
    def lsu_issue_interval_clk(self) -> float:
        """Clocks of the SM's load/store unit that one warp instruction takes at least."""
        return 1 / self.lsu_instructions_per_clk

    @property
    def fp32_flops_per_clk_per_sm(self) -> int:
        return FLOPS_PER_FMA * self.fp32_lanes_per_sm

    @property
    def peak_fp32_tflops(self) -> float:
        """FFMA throughput of the whole GPU at the boost clock, 10^12 per second."""
        return self._tflops(self.fp32_flops_per_clk_per_sm, self.boost_clock_mhz)

    def peak_tensor_tflops(self, inputs: str, accumulator: str = "f32") -> float:
        """Dense tensor throughput at the clock of the data sheet, 10^12 per second; 0 if not supported."""
        return self._tflops(self.tensor.flops_per_clk_per_sm(inputs, accumulator), self.tensor_clock_mhz)

    @property
    def peak_shared_gb_per_s(self) -> float:
        """Shared-memory bandwidth of the whole GPU at the boost clock, 10^9 bytes per second."""
        return self.sm_count * self.shared_bytes_per_clk_per_sm * self.boost_clock_mhz * 1e-3

    def _tflops(self, flops_per_clk_per_sm: int, clock_mhz: float) -> float:
        return self.sm_count * flops_per_clk_per_sm * clock_mhz * 1e-6
