"""The NVIDIA driver and the GPUs it shows, opened on first use.

Whether a driver is there is asked once, through `cuda.pathfinder` and `cuda.bindings`, before any object of
`cuda.core` is made: without a driver those objects can leave the process hanging at its next driver call
(seen with cuda-core 1.2.2 for `ObjectCode.get_kernel()` and `repr(ObjectCode)`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.errors import LaunchError

OLDEST_CUDA = (13, 0)
"""The CUDA version a driver must support. Source: CUDA Compatibility guide, minor version compatibility."""

OLDEST_DRIVER = 580
"""The first driver branch that supports it. Source: the same guide, table of minimum driver versions."""

_ATTRIBUTE_PREFIX = "CU_DEVICE_ATTRIBUTE_"
_LINUX_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_ERROR_NAME = re.compile(r"CUDA_ERROR_\w+")

# What an error of the driver means for somebody who launches a kernel: (note, hint).
_MEANING = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "a kernel accessed memory outside its arrays; every further GPU call of this process will fail too.",
        "run the kernel in the simulator, which names the buffer and the lanes.",
    ),
    "CUDA_ERROR_MISALIGNED_ADDRESS": (
        "a vector access or an asynchronous copy met an address that is not a multiple of its width.",
        "check that the pointers and the leading dimensions are aligned as the kernel assumes.",
    ),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": (
        "one block needs more registers or shared memory than an SM has.",
        "use fewer threads per block or a smaller tile.",
    ),
    "CUDA_ERROR_OUT_OF_MEMORY": ("the GPU has no such piece of memory free.", "free arrays, or use a smaller problem."),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": (
        "machine code runs only on the architecture it was compiled for.",
        "compile for `Gpu.arch`.",
    ),
}


@functools.cache
def gpu_problem() -> str | None:
    """Why no GPU can be used here, in one sentence with the way out; None if one can. Asked once a process."""
    try:
        from cuda import pathfinder
        from cuda.bindings import driver
    except ImportError as missing:
        return f"The Python package {missing.name!r} is missing: python -m pip install 'tilewright[cuda]'."
    try:
        pathfinder.load_nvidia_dynamic_lib("cuda")
    except (RuntimeError, OSError):  # DynamicLibNotFoundError is a RuntimeError
        return (
            "No NVIDIA driver is installed, so no kernel can run on a GPU here (all else works); "
            f"to run one, install driver {OLDEST_DRIVER} or newer."
        )
    (status,) = driver.cuInit(0)
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return "The NVIDIA driver sees no GPU; check what `nvidia-smi` lists and the variable CUDA_VISIBLE_DEVICES."
    if int(status) != 0:
        return f"The NVIDIA driver does not start ({status.name}); check what `nvidia-smi` says."
    _, version = driver.cuDriverGetVersion()
    if _cuda_version(version) < OLDEST_CUDA:
        return (
            f"The NVIDIA driver is too old: it supports CUDA {_dotted(version)} and kernels are compiled for "
            f"CUDA {OLDEST_CUDA[0]}; install driver {OLDEST_DRIVER} or newer."
        )
    _, count = driver.cuDeviceGetCount()
    if count == 0:
        return "The NVIDIA driver shows no GPU; check what `nvidia-smi` lists and the variable CUDA_VISIBLE_DEVICES."
    return None


def gpu_count() -> int:
    """How many GPUs can be used; 0 where `gpu_problem` has something to say."""
    if gpu_problem() is not None:
        return 0
    from cuda.bindings import driver

    return int(driver_answer(driver.cuDeviceGetCount(), "counting GPUs"))


def open_gpu(index: int = 0) -> Gpu:
    """GPU number `index`, counted from 0 as the driver counts; the same object each time.

    Raises LaunchError if no GPU can be used, or there is none of that number.
    """
    problem = gpu_problem()
    if problem is not None:
        raise LaunchError(problem)
    count = gpu_count()
    if not 0 <= index < count:
        raise LaunchError(
            f"There is no GPU {index}: the driver shows {count}, counted from 0.",
            hint="CUDA_VISIBLE_DEVICES chooses which ones a process sees.",
        )
    return _opened(index)


@functools.cache
def _opened(index: int) -> Gpu:
    return Gpu(index)


class _Attributes(Mapping[str, int]):
    """The attributes of a device, asked for one by one."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._told: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        if name not in self._told:
            from cuda.bindings import driver

            attribute = getattr(driver.CUdevice_attribute, f"{_ATTRIBUTE_PREFIX}{name.upper()}", None)
            if attribute is None:
                raise KeyError(name)
            status, value = driver.cuDeviceGetAttribute(attribute, self._handle)
            if int(status) != 0:
                raise KeyError(name)
            self._told[name] = int(value)
        return self._told[name]

    def __iter__(self) -> Iterator[str]:
        from cuda.bindings import driver

        names = (attribute.name.removeprefix(_ATTRIBUTE_PREFIX).lower() for attribute in driver.CUdevice_attribute)
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class GpuFacts:
    """What the driver tells of a GPU, with no context on it. index: as the driver counts. Facts are read when asked
    for."""

    def __init__(self, index: int) -> None:
        self.index = index

    @functools.cached_property
    def handle(self) -> Any:
        """The driver's CUdevice."""
        from cuda.bindings import driver

        return driver_answer(driver.cuDeviceGet(self.index), f"opening GPU {self.index}")

    @functools.cached_property
    def name(self) -> str:
        """As the driver says it: "NVIDIA H200"."""
        from cuda.bindings import driver

        told = driver_answer(driver.cuDeviceGetName(128, self.handle), "asking for the name of the GPU")
        # The text ends at the first NUL; what follows in the buffer is whatever lay there.
        return str(told.decode(errors="replace").split("\0", 1)[0].strip())

    @functools.cached_property
    def uuid(self) -> str:
        """The same card has the same one in every process and machine: "GPU-8f0e...", as `nvidia-smi -L` prints it."""
        from cuda.bindings import driver

        told = driver_answer(driver.cuDeviceGetUuid(self.handle), "asking for the UUID of the GPU")
        digits = bytes(told.bytes).hex()
        groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return f"GPU-{'-'.join(groups)}"

    @functools.cached_property
    def attributes(self) -> Mapping[str, int]:
        """Attributes by their name in the driver API without the prefix: "multiprocessor_count", "clock_rate", ...;
        clocks are in kHz, sizes in bytes. Each is asked for when it is read, so that a tool which watches the driver
        sees no question that an older driver cannot answer."""
        return _Attributes(self.handle)

    @property
    def compute_capability(self) -> tuple[int, int]:
        return self.attributes["compute_capability_major"], self.attributes["compute_capability_minor"]

    @property
    def arch(self) -> str:
        """What kernels are compiled for: "sm_90a" and "sm_100a" on Hopper and data-centre Blackwell, whose
        warpgroup and tensor-memory instructions exist only in the target with an "a"; else "sm_86" and so on."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}{'a' if major in (9, 10) else ''}"

    @functools.cached_property
    def memory_bytes(self) -> int:
        """DRAM that the driver offers, a few per cent less than the nominal size."""
        from cuda.bindings import driver

        return int(driver_answer(driver.cuDeviceTotalMem(self.handle), "asking for the size of the memory"))

    @functools.cached_property
    def driver_version(self) -> str:
        """ "580.159.04 (CUDA 13.0)", or "CUDA 13.0" where the system does not tell the driver's own number."""
        from cuda.bindings import driver

        cuda = f"CUDA {_dotted(driver_answer(driver.cuDriverGetVersion(), 'asking for the driver version'))}"
        own = _own_driver_version()
        return f"{own} ({cuda})" if own else cuda

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.index}, {self.name}, {self.arch})"


class Gpu(GpuFacts):
    """One GPU, opened by `open_gpu`: its primary context (the one PyTorch and CuPy use) and a stream of its own.

    device: of `cuda.core`. stream: of `cuda.core`; it does not wait for the default stream, nor the default stream for
    it.
    """

    def __init__(self, index: int) -> None:
        from cuda.core import Device

        super().__init__(index)
        self.device: Any = Device(index)
        self.make_current()
        self.stream: Any = self.device.create_stream()

    def make_current(self) -> None:
        """Make this GPU the current one of the calling thread. Every thread that launches needs it once."""
        self.device.set_current()

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Within the block this GPU is the current one of the thread; behind it, whichever was before."""
        from cuda.bindings import driver

        before = driver_answer(driver.cuCtxGetCurrent(), "asking for the current GPU")
        self.make_current()
        try:
            yield
        finally:
            if int(before):
                driver_answer(driver.cuCtxSetCurrent(before), "making another GPU current again")

    def synchronize(self) -> None:
        """Wait until everything given to this GPU's context is done. Raises LaunchError if a kernel failed."""
        from cuda.bindings import driver

        driver_answer(driver.cuCtxSynchronize(), f"waiting for {self.name}")


def driver_answer(answer: tuple[Any, ...], doing: str) -> Any:
    """The value in what a function of `cuda.bindings.driver` returned (None if it has none).

    Raises LaunchError, named after what was being done ("allocating 4 KiB") and the driver's error.
    """
    status, *values = answer
    if int(status) != 0:
        raise _driver_error(status.name, doing)
    return values[0] if values else None


def launch_error(failure: Exception, doing: str) -> LaunchError:
    """A failure that `cuda.core` raised, as a LaunchError; raised again as it is if it is not the driver's."""
    found = _ERROR_NAME.search(str(failure))
    if found is None:
        raise failure
    return _driver_error(found[0], doing)


def _driver_error(name: str, doing: str) -> LaunchError:
    note, hint = _MEANING.get(name, ("", ""))
    return LaunchError(f"The driver reported {name} while {doing}.", note=note, hint=hint)


def _cuda_version(number: int) -> tuple[int, int]:
    """13000 is CUDA 13.0."""
    return number // 1000, number % 1000 // 10


def _dotted(number: int) -> str:
    major, minor = _cuda_version(number)
    return f"{major}.{minor}"


def _own_driver_version() -> str:
    try:
        told = _LINUX_DRIVER_VERSION.read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", told)
    return found[0] if found else ""
