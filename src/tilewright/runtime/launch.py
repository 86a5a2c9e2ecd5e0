"""A cubin on a GPU: loading it, checking and packing arguments, launching.

What the driver would misread in silence is checked here first. `launch` prepares and starts once; a caller who starts
the same kernel again and again keeps what `prepare` gives.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.artifacts import Cubin, CudaSource, Parameter
from tilewright.device.arch import SINCE, Arch, Feature
from tilewright.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from tilewright.errors import LaunchError
from tilewright.runtime.driver import Gpu, driver_answer, launch_error
from tilewright.runtime.prepared import PreparedLaunch
from tilewright.units import KIB, resident_blocks

Dim3 = tuple[int, int, int]

# Static and dynamic shared memory of a block together, unless the kernel opts in to more.
# Source: CUDA C++ programming guide, compute capabilities, shared memory of sm_70 and later.
_SHARED_BYTES_WITHOUT_OPT_IN = 48 * KIB

_AXES = "xyz"


def _as_integer(of: type[np.signedinteger[Any]]) -> Callable[[Any], Any]:
    """A cast that refuses what NumPy 1.26 would cut (2.5 to 2) or wrap (2**31 to -2**31)."""
    least, most = int(np.iinfo(of).min), int(np.iinfo(of).max)

    def cast(value: Any) -> np.signedinteger[Any]:
        integer = operator.index(value)
        if not least <= integer <= most:
            raise OverflowError(value)
        return of(integer)

    return cast


_SCALARS: dict[DType, Callable[[Any], Any]] = {
    F32: np.float32,
    F64: np.float64,
    F16: np.float16,
    BF16: lambda value: np.uint16(BF16.encode(np.asarray(value, np.float32))),
    I32: _as_integer(np.int32),
    I64: _as_integer(np.int64),
    BOOL: np.bool_,
}


def load(gpu: Gpu, cubin: Cubin, source: CudaSource) -> LoadedKernel:
    """`cubin`, which was compiled from `source`, on `gpu`, ready to launch.

    Raises LaunchError if it was compiled for another architecture, needs more shared memory than a block may
    have there, or is refused by the driver.
    """
    built_for = _arch(cubin.arch)
    if built_for is not None and not built_for.runs_on(gpu.compute_capability):
        raise LaunchError(
            f"Kernel {cubin.entry!r} was compiled for {cubin.arch} and cannot run on {gpu.name} ({gpu.arch}).",
            hint=f"compile it for {gpu.arch!r}.",
        )
    _check_shared_memory(gpu, cubin, source)
    return LoadedKernel(gpu, cubin, source)


class LoadedKernel:
    """A kernel on a GPU, made by `load`. It may be launched from any thread in which the GPU is current."""

    def __init__(self, gpu: Gpu, cubin: Cubin, source: CudaSource) -> None:
        from cuda.core import ObjectCode

        self.gpu = gpu
        self.cubin = cubin
        self.source = source
        self._given = tuple(parameter for parameter in source.parameters if parameter.tensor_map is None)
        self._casts = tuple(_cast_of(parameter) for parameter in self._given)
        try:
            self._code: Any = ObjectCode.from_cubin(cubin.image, name=cubin.entry)
            self._kernel: Any = self._code.get_kernel(cubin.entry)
        except Exception as failure:
            raise launch_error(failure, f"loading kernel {cubin.entry!r} on {gpu.name}") from failure
        _opt_in_to_shared_memory(gpu, self._kernel, cubin, source)
        self._most_blocks = self._resident_blocks() if source.resident else 0

    def launch(self, stream: Any, grid: Dim3, block: Dim3, args: tuple[Any, ...]) -> None:
        """Start the kernel on `stream` (of cuda.core) and return at once.

        grid: blocks along x, y, z; a resident kernel is started with fewer (`resident_blocks`). block: threads
        along x, y, z. args: one a parameter, in order; the address on the device (an int) for a pointer, a Python or
        NumPy number for a scalar; tensor maps are made of these. Raises LaunchError for arguments, a grid or a block
        that do not fit; a fault inside the kernel is told by the next wait.
        """
        if any(parameter.words for parameter in self._given):
            raise LaunchError(
                f"Kernel {self.source.entry!r} takes a table of problems as an argument.",
                hint="prepare(...).launch_table(stream, words).",
            )
        prepared = self.prepare(grid, block, args)
        addresses = (operator.index(value) for value, one in zip(args, self._given, strict=True) if one.is_pointer)
        prepared.launch(int(stream.handle), *addresses)

    def _resident(self, grid: Dim3) -> Dim3:
        """The blocks of a resident kernel that are started."""
        if not self._most_blocks:
            return grid
        source = self.source
        return resident_blocks(grid[0], self._most_blocks, source.cluster, equal=source.equal_items), *grid[1:]

    def _cast(self, args: tuple[Any, ...]) -> list[Any]:
        """Arguments in the formats that the kernel declares."""
        if len(args) != len(self._casts):
            raise self._wrong_count(args)
        try:
            return [cast(value) for cast, value in zip(self._casts, args, strict=True)]
        except (TypeError, ValueError, OverflowError):
            raise self._wrong_value(args) from None

    def prepare(self, grid: Dim3, block: Dim3, args: tuple[Any, ...]) -> PreparedLaunch:
        """A launch to be repeated with other addresses; `args` as for `launch`, with any address for a pointer."""
        grid = self._resident(grid)
        self._check_grid(grid, block)
        return PreparedLaunch(
            self.gpu,
            self.handle,
            self.source,
            (grid, block),
            self._cast(args),
            lambda stream: self.packed_config(stream, grid, block),
            self.described(grid, block),
        )

    @property
    def handle(self) -> int:
        """The driver's handle of the kernel."""
        return int(self._kernel.handle)

    def packed_config(self, stream: int, grid: Dim3, block: Dim3) -> Any:
        """How a kernel is launched with packed arguments on a stream, by its address."""
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = self.source.dynamic_shared_bytes
        config.hStream = driver.CUstream(stream)
        if self.source.overlapped and self.gpu.compute_capability >= SINCE[Feature.DEPENDENT_LAUNCH]:
            dependent = driver.CUlaunchAttribute()
            dependent.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            dependent.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [dependent], 1
        return config

    def _resident_blocks(self) -> int:
        """How many blocks run at once, in whole clusters: one to each SM, or as many as fit where no ring of TMA loads
        fills its shared memory. A cluster lies in one GPC: on an H200, whose GPCs have up to 18 SMs, 30 clusters of 4
        run at once and not 33."""
        cluster = self.source.cluster
        if cluster == 1 and len(self._given) == len(self.source.parameters):  # no tensor maps
            return int(self.gpu.attributes["multiprocessor_count"]) * max(1, self.blocks_per_sm())
        clusters = int(self.gpu.attributes["multiprocessor_count"]) // cluster
        if cluster > 1:
            from cuda.bindings import driver

            config = self.packed_config(0, (clusters * cluster, 1, 1), (self.source.threads_per_block, 1, 1))
            answer = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(self.handle), config)
            clusters = max(1, min(clusters, int(driver_answer(answer, f"looking at kernel {self.source.entry!r}"))))
        return clusters * cluster

    def blocks_per_sm(self) -> int:
        """How many blocks of this kernel the driver says one SM holds at a time."""
        occupancy = self._kernel.occupancy
        return int(
            occupancy.max_active_blocks_per_multiprocessor(
                self.source.threads_per_block, self.source.dynamic_shared_bytes
            )
        )

    def _check_grid(self, grid: Dim3, block: Dim3) -> None:
        threads = math.prod(block)
        if threads != self.source.threads_per_block:
            raise LaunchError(
                f"Kernel {self.source.entry!r} was built for blocks of {self.source.threads_per_block} threads and "
                f"cannot be launched with {block}, which is {threads}."
            )
        for axis, blocks in zip(_AXES, grid, strict=True):
            most = self.gpu.attributes[f"max_grid_dim_{axis}"]
            if not 1 <= blocks <= most:
                raise LaunchError(
                    f"Cannot launch {blocks} blocks along {axis}: {self.gpu.name} takes 1 to {most}.",
                    place=f"kernel {self.source.entry!r}, grid {grid}, block {block}",
                    hint="an empty problem needs no launch." if blocks == 0 else "put the longest axis along x.",
                )

    def described(self, grid: Dim3, block: Dim3) -> str:
        shared = self.source.dynamic_shared_bytes
        return (
            f"launching kernel {self.source.entry!r} with grid {grid}, block {block} "
            f"and {shared} bytes of dynamic shared memory"
        )

    def _wrong_count(self, args: tuple[Any, ...]) -> LaunchError:
        names = ", ".join(parameter.name for parameter in self._given)
        return LaunchError(
            f"Kernel {self.source.entry!r} takes {len(self._casts)} arguments and was given {len(args)}.",
            place=f"parameters: {names}",
        )

    def _wrong_value(self, args: tuple[Any, ...]) -> LaunchError:
        for parameter, cast, value in zip(self._given, self._casts, args, strict=True):
            try:
                cast(value)
            except (TypeError, ValueError, OverflowError):
                wanted = "an address (int)" if parameter.is_pointer else f"a number that fits {parameter.dtype}"
                return LaunchError(
                    f"Argument {parameter.name!r} of kernel {self.source.entry!r} must be {wanted}, not {value!r}."
                )
        raise AssertionError("every argument fits")

    def __repr__(self) -> str:
        # Without its own repr a debugger would show cuda.core objects, and theirs are not safe to take.
        return f"LoadedKernel({self.source.entry!r}, {self.cubin.arch}, on {self.gpu.name})"


def _cast_of(parameter: Parameter) -> Callable[[Any], Any]:
    if parameter.words:  # written by `PreparedLaunch.launch_table`
        return np.int64
    return operator.index if parameter.is_pointer else _SCALARS[parameter.dtype]


def _arch(name: str) -> Arch | None:
    """ "sm_90a" as a value; None for a kind of name we do not know, which is left to the driver."""
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", name)
    return Arch((int(found[1]), int(found[2])), is_specific=bool(found[3])) if found else None


def _check_shared_memory(gpu: Gpu, cubin: Cubin, source: CudaSource) -> None:
    static_bytes, dynamic_bytes = cubin.resources.shared_bytes, source.dynamic_shared_bytes
    most_bytes = gpu.attributes["max_shared_memory_per_block_optin"]
    if static_bytes > _SHARED_BYTES_WITHOUT_OPT_IN:
        raise LaunchError(
            f"Kernel {cubin.entry!r} declares {static_bytes} bytes of static shared memory; "
            f"a block may have {_SHARED_BYTES_WITHOUT_OPT_IN}.",
            note="only dynamic shared memory can be raised above 48 KiB.",
        )
    if static_bytes + dynamic_bytes > most_bytes:
        raise LaunchError(
            f"Kernel {cubin.entry!r} needs {static_bytes + dynamic_bytes} bytes of shared memory per block "
            f"({static_bytes} static, {dynamic_bytes} dynamic); {gpu.name} has {most_bytes}.",
            hint="use fewer stages or a smaller tile.",
        )


def _opt_in_to_shared_memory(gpu: Gpu, kernel: Any, cubin: Cubin, source: CudaSource) -> None:
    """Allow the kernel its dynamic shared memory. Done once, here: lowering it later would race with launches."""
    if cubin.resources.shared_bytes + source.dynamic_shared_bytes <= _SHARED_BYTES_WITHOUT_OPT_IN:
        return
    from cuda.bindings import driver

    driver_answer(
        driver.cuKernelSetAttribute(
            driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            source.dynamic_shared_bytes,
            driver.CUkernel(int(kernel.handle)),
            gpu.handle,
        ),
        f"allowing kernel {cubin.entry!r} {source.dynamic_shared_bytes} bytes of dynamic shared memory",
    )
