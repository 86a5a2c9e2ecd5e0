"""A GPU that is none: emitted CUDA text runs on the CPU, so that whole calls are tested without a GPU.

Kernels are compiled by g++ with tests/codegen/cuda_on_cpu.h into shared libraries and called with the addresses that
a launch would get. Memory of the device is memory of the host. Tensor cores and TMA are absent.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_on_cpu
import numpy as np
import pytest

from tilewright.artifacts import CudaSource
from tilewright.codegen.prelude import PASSED_TABLE, PRELUDE
from tilewright.device.catalog import device
from tilewright.device.spec import TensorRates
from tilewright.dtypes import BF16, E4M3, E5M2, DType
from tilewright.frontend import calls, compute, guard_flags, known_calls, libraries, lists
from tilewright.frontend.libraries.views import Signed, View, format_named, no_room
from tilewright.planning import dispatch, kernels
from tilewright.runtime import launch as launching

FOLDER = Path(tempfile.mkdtemp(prefix="cpu_gpu_"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
_LIBRARIES: dict[str, ctypes.CDLL] = {}


class CpuKernel:
    """In the place of a LoadedKernel."""

    def __init__(self, source: CudaSource) -> None:
        self.source = source
        self._library = _compiled(source)
        self._casts = [launching._cast_of(parameter) for parameter in source.parameters]

    def prepare(self, grid: Any, block: Any, args: tuple[Any, ...]) -> CpuLaunch:
        assert np.prod(block) == self.source.threads_per_block
        assert len(args) == len(self._casts), (self.source.parameters, args)
        assert all(1 <= extent <= limit for extent, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=True)), grid
        return CpuLaunch(self, grid, block, [cast(value) for cast, value in zip(self._casts, args, strict=True)])

    def run(self, grid: Any, block: Any, values: list[Any]) -> None:
        cells = [np.atleast_1d(np.asarray(v, np.uint64 if isinstance(v, int) else None)) for v in values]
        addresses = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        self._library.run(addresses, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), STATE.order)


class CpuLaunch:
    """In the place of a PreparedLaunch."""

    def __init__(self, kernel: CpuKernel, grid: Any, block: Any, values: list[Any]) -> None:
        self._kernel, self._grid, self._block, self._values = kernel, grid, block, values
        self.source = kernel.source
        self.places = [i for i, p in enumerate(kernel.source.parameters) if p.is_pointer]
        self.pointers = len(self.places)

    def launch_table(self, stream: int, words: Any) -> None:
        (number,) = (i for i, p in enumerate(self._kernel.source.parameters) if p.words)
        table = np.zeros(self._kernel.source.parameters[number].words, np.int64)
        table[: words.size] = words.reshape(-1)
        self._values[number] = table
        self.launch(stream)

    def launch(self, stream: int, *pointers: int) -> None:
        values = list(self._values)
        for place, pointer in zip(self.places, pointers, strict=True):
            values[place] = pointer
        STATE.launches.append(self._kernel.source.entry)
        self._kernel.run(self._grid, self._block, values)


class State:
    """What happened, and what shall fail."""

    def __init__(self) -> None:
        self.order = 0
        self.launches: list[str] = []
        self.compiled: list[str] = []
        self.capturing = False
        self.deterministic = False
        self.has_room = True


STATE = State()


class FakeGpu:
    name, arch, index = "a CPU", "sm_75", 0

    def as_current(self) -> Any:
        return nullcontext()

    def synchronize(self) -> None:
        pass


class HostMemoryOfGpu:
    """In the place of a DeviceArray."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.pointer = self.array.ctypes.data

    @classmethod
    def of(cls, gpu: Any, array: Any) -> HostMemoryOfGpu:
        return cls(array)

    def download(self) -> Any:
        return self.array.copy()


class OnGpu(np.ndarray):  # type: ignore[type-arg]
    """An array that says it lies on GPU 0. 2-byte integers stand for bf16, bytes for e4m3, texts of one for e5m2."""


def on_gpu(array: Any) -> Any:
    """A copy, right in front of nothing: the last element ends its memory."""
    return np.asarray(array).copy(order="K").view(OnGpu)


class CpuArrays(Signed):
    """The library of such arrays."""

    name = "the CPU's GPU"
    writes_in_place = True
    launches_alone = True

    def view(self, array: Any) -> View:
        held_as_bits = {np.uint16: BF16, np.uint8: E4M3, np.bytes_: E5M2}
        dtype = held_as_bits.get(array.dtype.type) or format_named(array.dtype.name, array)
        step = array.itemsize
        return View(array.ctypes.data, array.shape, tuple(s // step for s in array.strides), dtype, 0)

    def maker(self, shape: Any, dtype: DType, like: Any) -> Any:
        return lambda: dtype.encode(np.full(shape, np.nan, np.float32)).view(OnGpu)

    def sign(self, array: Any) -> Any:
        if not isinstance(array, OnGpu):
            raise AttributeError
        return array.dtype, array.shape, array.strides, 0, array.ctypes.data & 15

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def tight(self, array: Any) -> Any:
        return np.ascontiguousarray(array).view(OnGpu)

    def spread(self, array: Any, shape: Any) -> Any:
        return np.broadcast_to(array, shape).copy(order="C").view(OnGpu)

    def convert(self, array: Any, dtype: DType) -> Any:
        return dtype.encode(self.view(array).dtype.decode(np.asarray(array))).view(OnGpu)

    def assign(self, target: Any, value: Any) -> None:
        target[...] = value

    def stream(self, device: int) -> int:
        return 0

    def scratch(self, size_bytes: int, like: Any) -> tuple[int, Any]:
        if not STATE.has_room:
            raise no_room(size_bytes)
        room = np.full(size_bytes + 256, 0xFF, np.uint8)
        return (room.ctypes.data + 255) // 256 * 256, room

    def upload(self, words: Any, like: Any) -> tuple[int, Any]:
        kept = words.copy()
        return kept.ctypes.data, kept

    def deterministic(self) -> bool:
        return STATE.deterministic

    def elsewhere(self, device: int) -> bool:
        return False

    def finished(self, device: int) -> None:
        pass

    def capturing(self) -> bool:
        return STATE.capturing


@contextmanager
def cpu_gpu(capability: tuple[int, int] = (7, 5), sms: int = 8) -> Iterator[State]:
    """Within the block GPU 0 is the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "load", lambda gpu, cubin, source: CpuKernel(source))
        patch.setattr(kernels, "compile_cuda", _noted)
        # Without tensor cores: their instructions have no meaning on a CPU.
        spec = replace(
            device("H200"),
            tensor=TensorRates(),
            compute_capability=capability,
            arch="sm_{}{}".format(*capability),
            sm_count=sms,
        )
        patch.setattr(kernels, "probe", lambda gpu: spec)
        patch.setattr(dispatch, "open_gpu", lambda index: FakeGpu())
        patch.setattr(dispatch, "_DISPATCHERS", {})
        patch.setattr(dispatch, "_DATABASE", [None])
        patch.setattr(guard_flags, "_ROOMS", {})
        patch.setattr(guard_flags, "DeviceArray", HostMemoryOfGpu)
        patch.setitem(libraries._KNOWN, OnGpu, CpuArrays())
        calls.MULTIPLY.pop(OnGpu, None)
        _forget()
        STATE.__init__()  # type: ignore[misc]
        try:
            yield STATE
        finally:
            _forget()  # calls with arrays of the host would find their plans


def _forget() -> None:
    for known in (compute.MEMO, known_calls.KNOWN, lists._KNOWN):
        known.clear()


def _noted(source: CudaSource, arch: str, *, cache: Any = None) -> None:
    STATE.compiled.append(source.entry)


def _compiled(source: CudaSource) -> ctypes.CDLL:
    key = hashlib.sha256(source.text.encode()).hexdigest()[:24]
    if key not in _LIBRARIES:
        text = source.text.replace("extern __shared__", "extern").replace('extern "C" __global__', "static")
        for name in cuda_on_cpu.PTX_FUNCTIONS:
            text = text.replace(PRELUDE[name], "")
        names = ", ".join(p.name for p in source.parameters)
        types = [PASSED_TABLE if p.words else f"{p.dtype.cuda}{'*' * p.is_pointer}" for p in source.parameters]
        given = "\n".join(
            f"    {p.name} = *({t}*)args[{i}];" for i, (p, t) in enumerate(zip(source.parameters, types, strict=True))
        )
        main = "\n".join(
            [
                "namespace { namespace given {",
                *(f"{t} {p.name};" for p, t in zip(source.parameters, types, strict=True)),
                f"void call() {{ {source.entry}({names}); }}",
                "} }",
                'extern "C" __attribute__((visibility("default")))',
                "void run(void** args, unsigned* grid, unsigned* block, int order) {",
                "    using namespace given;",
                given.replace("    ", "    given::", 1).replace("\n    ", "\n    given::"),
                "    cpu::launch({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, order, given::call);",
                "}",
            ]
        )
        path = FOLDER / f"{key}.cpp"
        path.write_text(f'#include "cuda_on_cpu.h"\n{text}\n{main}\n')
        options = (*cuda_on_cpu.OPTIONS, "-fPIC", "-fvisibility=hidden")
        cuda_on_cpu.gxx(options, "-shared", "-Wl,-Bsymbolic", path, "-o", path.with_suffix(".so"))
        _LIBRARIES[key] = ctypes.CDLL(str(path.with_suffix(".so")))
    return _LIBRARIES[key]
