"""What is legal, stated once: every reason why a kernel cannot run on a device, in words with a way out.

The tuner prunes by it, dispatch and the command line ask it, errors quote it. Sources: CUDA C++ programming guide
("Technical specifications per compute capability") through `DeviceSpec`; PTX ISA through `Arch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from tilewright.device.arch import Arch, Feature, arch, archs_with
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.model.occupancy import allocated_registers_per_block, max_registers_that_fit
from tilewright.units import ceil_div, format_bytes


def reasons_it_cannot_run(
    spec: DeviceSpec,
    *,
    threads_per_block: int,
    registers_per_thread: int | None = None,
    static_shared_bytes: int = 0,
    dynamic_shared_bytes: int = 0,
    barriers: int = 1,
    grid: tuple[int, int, int] = (1, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    needs: Iterable[Feature] = (),
    target: str | Arch | None = None,
) -> tuple[str, ...]:
    """Every reason why this launch is illegal on `spec`; empty if it is legal.

    registers_per_thread: None before the kernel is compiled. grid and cluster: blocks along x, y, z.
    needs: the features its instructions use. target: what it is compiled for, by default the device's own
    architecture.

    >>> from tilewright.device.catalog import device
    >>> reasons_it_cannot_run(device("rtx3090"), threads_per_block=256, dynamic_shared_bytes=128 * 1024)
    ('128.0 KiB of shared memory per block exceed the 99.0 KiB of RTX 3090: use fewer stages or a smaller tile',)
    """
    compiled_for = arch(spec.arch if target is None else target)
    return (
        *_architecture(spec, compiled_for, needs),
        *_threads(spec, threads_per_block),
        *_registers(spec, threads_per_block, registers_per_thread),
        *_shared_memory(spec, static_shared_bytes, dynamic_shared_bytes),
        *_barriers(spec, barriers),
        *_grid(spec, grid),
        *_cluster(spec, cluster, grid),
    )


def _architecture(spec: DeviceSpec, compiled_for: Arch, needs: Iterable[Feature]) -> Iterator[str]:
    if not compiled_for.runs_on(spec.compute_capability):
        yield (f"machine code for {compiled_for} does not run on {spec.name}: compile it for {spec.arch}")
    for feature in compiled_for.missing(needs):
        yield f"{feature.value} needs {archs_with(feature)}, and the kernel is compiled for {compiled_for}"


def _threads(spec: DeviceSpec, threads_per_block: int) -> Iterator[str]:
    if threads_per_block < 1:
        yield f"a block needs at least one thread, not {threads_per_block}"
    if threads_per_block > spec.max_threads_per_block:
        yield (
            f"{threads_per_block} threads per block exceed {spec.max_threads_per_block}: "
            "use a smaller block tile or a larger thread tile"
        )


def _registers(spec: DeviceSpec, threads_per_block: int, registers_per_thread: int | None) -> Iterator[str]:
    if registers_per_thread is None or not 1 <= threads_per_block <= spec.max_threads_per_block:
        return
    if registers_per_thread > spec.max_registers_per_thread:
        yield (
            f"{registers_per_thread} registers per thread exceed {spec.max_registers_per_thread}: "
            "use a smaller thread tile"
        )
        return
    warps = ceil_div(threads_per_block, WARP_THREADS)
    taken = allocated_registers_per_block(spec, warps, registers_per_thread)
    if taken > spec.max_registers_per_block:
        most = max_registers_that_fit(spec, threads_per_block=threads_per_block)
        yield (
            f"{threads_per_block} threads x {registers_per_thread} registers take {taken} of the "
            f"{spec.max_registers_per_block} registers of a block: use fewer threads, a smaller thread tile, or "
            f"limit the compiler to {most} registers"
        )


def _shared_memory(spec: DeviceSpec, static_bytes: int, dynamic_bytes: int) -> Iterator[str]:
    total_bytes = static_bytes + dynamic_bytes
    if total_bytes > spec.max_shared_bytes_per_block:
        yield (
            f"{format_bytes(total_bytes)} of shared memory per block exceed the "
            f"{format_bytes(spec.max_shared_bytes_per_block)} of {spec.name}: use fewer stages or a smaller tile"
        )
    elif static_bytes > spec.max_static_shared_bytes_per_block:
        yield (
            f"{format_bytes(static_bytes)} of static shared memory exceed "
            f"{format_bytes(spec.max_static_shared_bytes_per_block)}: make it dynamic, which may take "
            f"{format_bytes(spec.max_shared_bytes_per_block)}"
        )


def _barriers(spec: DeviceSpec, barriers: int) -> Iterator[str]:
    if barriers > spec.max_barriers_per_block:
        yield (
            f"{barriers} named barriers exceed the {spec.max_barriers_per_block} of a block: "
            "use mbarriers in shared memory"
        )


def _grid(spec: DeviceSpec, grid: tuple[int, int, int]) -> Iterator[str]:
    for axis, blocks, most in zip("xyz", grid, spec.max_grid, strict=True):
        if blocks < 1:
            yield f"the grid has {blocks} blocks along {axis}: an empty result needs no launch"
        if blocks > most:
            way_out = "split the problem" if axis == "x" else "bind this axis to x or fold it into x"
            yield f"{blocks} blocks along {axis} exceed {most}: {way_out}"


def _cluster(spec: DeviceSpec, cluster: tuple[int, int, int], grid: tuple[int, int, int]) -> Iterator[str]:
    blocks = prod(cluster)
    if blocks == 1:
        return
    if spec.max_blocks_per_cluster == 1:
        yield f"block clusters need {archs_with(Feature.CLUSTER)}, and {spec.name} is {spec.arch}"
        return
    if blocks > spec.max_blocks_per_cluster:
        yield f"{blocks} blocks per cluster exceed {spec.max_blocks_per_cluster}: use a smaller cluster"
    for axis, extent, step in zip("xyz", grid, cluster, strict=True):
        if extent % step:
            yield f"{extent} blocks along {axis} do not divide into clusters of {step}: pad the grid"
