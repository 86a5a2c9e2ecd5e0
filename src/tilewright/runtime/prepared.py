"""A launch whose sizes are settled: addresses are put in their places and the driver is called, nothing else.

For callers who start the same kernel again and again. Arguments that do not change are packed once; a tensor map is
made when an address is new and then only looked up.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.artifacts import CudaSource
from tilewright.dtypes import Array
from tilewright.runtime.driver import Gpu, driver_answer
from tilewright.runtime.tensor_map import Sizes, encode, sizes_of

_WORD_BYTES = 8
_KEPT_MAPS = 1024
"""Maps kept for one matrix; a program that keeps changing its addresses must not fill the memory with them."""


class _MapPlace:
    """Where the address of one tensor map goes, and the maps known so far by the address of their matrix."""

    def __init__(self, slot: int, pointer: int, box: Any, sizes: Sizes) -> None:
        self.slot = slot
        self.pointer = pointer
        self._box = box
        self._sizes = sizes
        self.known: dict[int, int] = {}
        self._kept: list[Array] = []

    def new(self, address: int) -> int:
        """The address in host memory of the map of the matrix at `address`."""
        if len(self.known) >= _KEPT_MAPS:
            self.known.clear()
            self._kept.clear()
        made = encode(self._box, address, *self._sizes)
        # The driver wants maps at multiples of 64 bytes.
        room = (ctypes.c_char * (made.nbytes + 64))()
        at = (ctypes.addressof(room) + 63) // 64 * 64
        ctypes.memmove(at, made.ctypes.data, made.nbytes)
        self._kept.append(room)  # type: ignore[arg-type]
        self.known[address] = at
        return at


class PreparedLaunch:
    """Made by `LoadedKernel.prepare`. May be used from several threads.

    handle: of the kernel. shape: blocks and threads along x, y, z. values: of all parameters but tensor maps. config:
    of a launch on a stream, by its address. doing: what an error says was done.
    """

    def __init__(
        self,
        gpu: Gpu,
        handle: int,
        source: CudaSource,
        shape: tuple[tuple[int, int, int], tuple[int, int, int]],
        values: Sequence[Any],
        config: Callable[[int], Any],
        doing: str,
    ) -> None:
        from cuda.bindings import driver

        self.source, parameters = source, source.parameters
        self.grid, self.block = shape
        given = [parameter for parameter in parameters if parameter.tensor_map is None]
        by_name = dict(zip((p.name for p in given), values, strict=True))
        self._cells = (ctypes.c_uint64 * len(parameters))()
        self._addresses = (ctypes.c_void_p * len(parameters))()
        start = ctypes.addressof(self._cells)
        pointers = [p.name for p in parameters if p.is_pointer]
        self._pointer_slots: list[int] = []
        self._table: Any = None
        self._maps: list[_MapPlace] = []
        for slot, parameter in enumerate(parameters):
            self._addresses[slot] = start + slot * _WORD_BYTES
            if parameter.tensor_map is not None:
                box = parameter.tensor_map
                place = _MapPlace(slot, pointers.index(box.pointer), box, sizes_of(box, by_name))
                self._maps.append(place)
            elif parameter.is_pointer:
                self._pointer_slots.append(slot)
            elif parameter.words:
                self._table = (ctypes.c_uint64 * parameter.words)()
                self._addresses[slot] = ctypes.addressof(self._table)
            else:
                raw = by_name[parameter.name].tobytes()
                ctypes.memmove(start + slot * _WORD_BYTES, raw, len(raw))
        self.pointers = len(pointers)
        self._gpu, self._doing = gpu, doing
        self._new_config = config
        self._function = driver.CUfunction(handle)
        self._argument_list = ctypes.addressof(self._addresses)
        self._configs: dict[int, Any] = {}
        self._launch = driver.cuLaunchKernelEx
        self._success = driver.CUresult.CUDA_SUCCESS
        self._lock, self._table_lock = threading.Lock(), threading.Lock()

    def launch(self, stream: int, *pointers: int) -> None:
        """Start the kernel on a stream, by its address; `pointers`: the addresses of its matrices, in order."""
        config = self._configs.get(stream)
        if config is None:
            config = self._configs[stream] = self._new_config(stream)
        cells, addresses = self._cells, self._addresses
        with self._lock:
            for slot, pointer in zip(self._pointer_slots, pointers):  # noqa: B905  (a launch is counted in nanoseconds)
                cells[slot] = pointer
            for place in self._maps:
                address = pointers[place.pointer]
                addresses[place.slot] = place.known.get(address) or place.new(address)
            (status,) = self._launch(config, self._function, self._argument_list, 0)
        if status is not self._success:
            self._again(status, config)

    def launch_table(self, stream: int, words: Array) -> None:
        """Start a kernel of a list of problems on a stream; `words`: the table that is its argument, 64 bits each."""
        with self._table_lock:
            ctypes.memmove(self._table, words.ctypes.data, words.nbytes)
            self.launch(stream)

    def _again(self, status: Any, config: Any) -> None:
        """A thread that has no context yet gets that of the kernel's GPU; anything else is an error."""
        from cuda.bindings import driver

        if status != driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
            driver_answer((status,), self._doing)
        self._gpu.make_current()
        with self._lock:
            driver_answer(self._launch(config, self._function, self._argument_list, 0), self._doing)
