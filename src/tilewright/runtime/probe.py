"""A `DeviceSpec` of the GPU that is there: what the driver tells, completed from the catalogue.

The driver tells counts, limits, sizes and clocks. It does not tell issue rates, latencies or tensor rates:
those come from the catalogue's entry of the same GPU or, for a GPU we do not know, of the most alike one.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.device.catalog import DEVICES, device
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.errors import UnknownName
from tilewright.runtime.driver import GpuFacts

_KHZ_PER_MHZ = 1000
_BITS_PER_BYTE = 8
_TRANSFERS_PER_CLOCK = 2  # of GDDR and HBM: one on each edge


def probe(gpu: GpuFacts) -> DeviceSpec:
    """The facts of `gpu`. Its nominal DRAM size and bandwidth are the data sheet's where the GPU is known."""
    known = known_spec(gpu)
    spec = _with_the_drivers_facts(gpu, known or most_alike(gpu))
    return spec if known is not None else _with_the_drivers_memory(gpu, spec)


def known_spec(gpu: GpuFacts) -> DeviceSpec | None:
    """The catalogue's entry of this very GPU, None if it has none.

    The number of SMs must agree as well: the catalogue takes the beginning of a name for the whole ("H20" for
    the H200), and a MIG slice is not the GPU whose name it bears.
    """
    try:
        known = device(gpu.name)
    except UnknownName:
        return None
    is_same = known.compute_capability == gpu.compute_capability
    return known if is_same and known.sm_count == gpu.attributes["multiprocessor_count"] else None


def most_alike(gpu: GpuFacts) -> DeviceSpec:
    """The catalogue's entry whose rates `gpu` is most likely to have: of the nearest compute capability, older
    rather than newer, and of the nearest number of SMs among those."""
    major, minor = gpu.compute_capability

    def distance(spec: DeviceSpec) -> tuple[bool, int, int, int]:
        its_major, its_minor = spec.compute_capability
        is_newer = spec.compute_capability > (major, minor)
        sms = abs(spec.sm_count - gpu.attributes["multiprocessor_count"])
        return is_newer, abs(its_major - major), abs(its_minor - minor), sms

    return min(DEVICES, key=distance)


def _with_the_drivers_facts(gpu: GpuFacts, spec: DeviceSpec) -> DeviceSpec:
    told = gpu.attributes
    # Some virtual machines report a clock of 0.
    boost_clock_mhz = told.get("clock_rate", 0) // _KHZ_PER_MHZ or spec.boost_clock_mhz
    return replace(
        spec,
        name=gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "),
        compute_capability=gpu.compute_capability,
        arch=gpu.arch,
        sm_count=told["multiprocessor_count"],
        boost_clock_mhz=boost_clock_mhz,
        max_warps_per_sm=told["max_threads_per_multiprocessor"] // WARP_THREADS,
        max_blocks_per_sm=told["max_blocks_per_multiprocessor"],
        registers_per_sm=told["max_registers_per_multiprocessor"],
        shared_bytes_per_sm=told["max_shared_memory_per_multiprocessor"],
        reserved_shared_bytes_per_block=told["reserved_shared_memory_per_block"],
        max_threads_per_block=told["max_threads_per_block"],
        max_registers_per_block=told["max_registers_per_block"],
        max_static_shared_bytes_per_block=told["max_shared_memory_per_block"],
        max_shared_bytes_per_block=told["max_shared_memory_per_block_optin"],
        max_grid_x=told["max_grid_dim_x"],
        max_grid_y=told["max_grid_dim_y"],
        max_grid_z=told["max_grid_dim_z"],
        l2_bytes=told["l2_cache_size"],
    )


def _with_the_drivers_memory(gpu: GpuFacts, spec: DeviceSpec) -> DeviceSpec:
    """Memory of a GPU whose data sheet we do not have, and a tensor clock that is none but the boost clock."""
    told = gpu.attributes
    clock_mhz = told.get("memory_clock_rate", 0) / _KHZ_PER_MHZ
    bytes_per_clock = _TRANSFERS_PER_CLOCK * told.get("global_memory_bus_width", 0) / _BITS_PER_BYTE
    return replace(
        spec,
        base_clock_mhz=None,
        tensor_clock_mhz=spec.boost_clock_mhz,
        dram_bytes=gpu.memory_bytes,
        # MHz x bytes = 10^6 bytes per second
        dram_gb_per_s=clock_mhz * bytes_per_clock / 1e3 or spec.dram_gb_per_s,
    )
