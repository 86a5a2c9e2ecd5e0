"""What is legal, stated once: every reason why a kernel cannot run on a device, in words with a way out.

The tuner prunes by it, dispatch and the command line ask it, errors quote it. Sources: CUDA C++ programming guide
("Technical specifications per compute capability") through `DeviceSpec`; PTX ISA through `Arch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.device.arch import Feature, arch, archs_with
from tilewright.device.spec import DeviceSpec
from tilewright.units import format_bytes


def reasons_it_cannot_run(
    spec: DeviceSpec,
    *,
    threads_per_block: int,
    static_shared_bytes: int = 0,
    dynamic_shared_bytes: int = 0,
    grid: tuple[int, int, int] = (1, 1, 1),
    needs: Iterable[Feature] = (),
) -> tuple[str, ...]:
    """Every reason why this launch is illegal on `spec`; empty if it is legal.

    grid: blocks along x, y, z. needs: the features that its instructions use. Registers are known once it is compiled:
    `model.occupancy` says how many blocks they leave.

    >>> from tilewright.device.catalog import device
    >>> reasons_it_cannot_run(device("rtx3090"), threads_per_block=256, dynamic_shared_bytes=128 * 1024)
    ('128.0 KiB of shared memory per block exceed the 99.0 KiB of RTX 3090: use fewer stages or a smaller tile',)
    """
    return (
        *_architecture(spec, needs),
        *_threads(spec, threads_per_block),
        *_shared_memory(spec, static_shared_bytes, dynamic_shared_bytes),
        *_grid(spec, grid),
    )


def _architecture(spec: DeviceSpec, needs: Iterable[Feature]) -> Iterator[str]:
    for feature in arch(spec.arch).missing(needs):
        yield f"{feature.value} needs {archs_with(feature)}, and the kernel is compiled for {spec.arch}"


def _threads(spec: DeviceSpec, threads_per_block: int) -> Iterator[str]:
    if threads_per_block < 1:
        yield f"a block needs at least one thread, not {threads_per_block}"
    if threads_per_block > spec.max_threads_per_block:
        yield (
            f"{threads_per_block} threads per block exceed {spec.max_threads_per_block}: "
            "use a smaller block tile or a larger thread tile"
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


def _grid(spec: DeviceSpec, grid: tuple[int, int, int]) -> Iterator[str]:
    for axis, blocks, most in zip("xyz", grid, spec.max_grid, strict=True):
        if blocks < 1:
            yield f"the grid has {blocks} blocks along {axis}: an empty result needs no launch"
        if blocks > most:
            way_out = "split the problem" if axis == "x" else "bind this axis to x or fold it into x"
            yield f"{blocks} blocks along {axis} exceed {most}: {way_out}"
