"""The steps of a timeline on a GPU: products by our kernels, data by copy engines, flags by operations of streams.

Copy engines push rows into symmetric memory of the peers, which needs no SM. A flag is set by a copy of one word behind
the data, in stream order. A wait is `cuStreamBatchMemOp` (wait for 1, write 0): no block spins, so that products may
fill the GPU. All of it can be captured in a CUDA graph, because no value lives on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright import extras
from tilewright.distributed.pytorch.collectives import summed
from tilewright.distributed.timeline import (
    FREE,
    Add,
    Await,
    Buffer,
    Copy,
    Lane,
    Multiply,
    Rows,
    Signal,
    Step,
)
from tilewright.distributed.watchdog import Watchdog, abort
from tilewright.errors import LaunchError
from tilewright.frontend.compute import compute
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.plain import LIBRARY
from tilewright.runtime.driver import driver_answer
from tilewright.units import round_up

torch: Any = extras.require("torch", "Multiplying on several GPUs")
dist: Any = torch.distributed

_PAGE = 4096
"""Bytes before the data, for the flags: CHANNELS words for each rank."""


class Workspace:
    """Symmetric memory of one process group, its flags, and the streams of this rank.

    room_bytes: of data. Made by all ranks together; every rank has the same room. Raises RuntimeError where PyTorch
    cannot map the memory of the peers.
    """

    def __init__(self, group: Any, device: Any, room_bytes: int) -> None:
        import torch.distributed._symmetric_memory as symmetric
        from cuda.bindings import driver

        self._driver = driver
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.room_bytes = round_up(room_bytes, 1 << 21)
        size = _PAGE + self.room_bytes
        self.memory = symmetric.empty(size, dtype=torch.uint8, device=device)
        self._handle = symmetric.rendezvous(self.memory, group.group_name)
        self._bases = [self._handle.get_buffer(rank, (size,), torch.uint8).data_ptr() for rank in range(self.ranks)]
        self.data = self.memory[_PAGE:]
        flags = self.memory[:_PAGE].view(torch.int32)
        flags.zero_()
        flags[FREE * self.ranks : (FREE + 1) * self.ranks] = 1
        self._one = torch.ones(1, dtype=torch.int32, device=device)
        self._streams = {lane: torch.cuda.Stream(device) for lane in (Lane.SECOND, Lane.COPIES)}
        self._events: list[Any] = []
        self._start, self._end = torch.cuda.Event(), torch.cuda.Event()
        self._last: int | None = None
        self._waits: dict[tuple[int, int], list[Any]] = {}
        self._partial: Any = None
        timeout_s, name = _timeout_s(group, device), group.group_name
        self._watchdog = Watchdog(self._end.query, timeout_s, partial(abort, name, self.rank, timeout_s))
        torch.cuda.synchronize(device)

    def partial(self, size_bytes: int) -> Any:
        """Memory of this rank alone, in which products wait to be sent."""
        if self._partial is None or self._partial.numel() < size_bytes:
            if torch.cuda.is_current_stream_capturing():
                raise LaunchError("A product over several ranks needs more memory, which a CUDA graph cannot record.")
            self._partial = torch.empty(size_bytes, dtype=torch.uint8, device=self.memory.device)
        return self._partial

    def prepare(self, steps: Sequence[Step], operands: Operands) -> None:
        """Choose and load the kernels of all products, by computing them once from whatever lies in the buffers.

        Loading a kernel may wait for all streams of the GPU, one of which may wait for a peer.
        """
        for step in steps:
            if isinstance(step, Multiply | Add):
                self._compute(step, operands, elsewhere=True)
        torch.cuda.current_stream().synchronize()

    def run(self, steps: Sequence[Step], operands: Operands) -> None:
        """Start all steps of a call. Work of the current stream that comes later waits for them."""
        caller = torch.cuda.current_stream()
        streams = {Lane.CALLER: caller, **self._streams}
        capturing = torch.cuda.is_current_stream_capturing()
        if not capturing and self._last not in (None, caller.cuda_stream):
            caller.wait_event(self._end)
        waited = {number for step in steps for number in step.after}
        while len(self._events) < len(steps) + len(Lane):
            self._events.append(torch.cuda.Event())
        self._start.record(caller)
        for stream in self._streams.values():
            stream.wait_event(self._start)
        for number, step in enumerate(steps):
            stream = streams[step.lane]
            for earlier in step.after:
                if steps[earlier].lane is not step.lane:
                    stream.wait_event(self._events[earlier])
            self._start_step(step, stream, operands, step.lane is Lane.CALLER)
            if number in waited:
                self._events[number].record(stream)
        for event, stream in zip(self._events[len(steps) :], self._streams.values(), strict=False):
            event.record(stream)
            caller.wait_event(event)
        if not capturing:
            self._end.record(caller)
            self._last = caller.cuda_stream
            self._watchdog.call()

    def _start_step(self, step: Step, stream: Any, operands: Operands, current: bool) -> None:
        match step:
            case Await():
                self._wait(stream.cuda_stream, step.peer, step.channel)
            case Signal():
                flag = self._bases[step.peer] + 4 * (step.channel * self.ranks + self.rank)
                self._copy(flag, self._one.data_ptr(), 4, stream)
            case Copy():
                source = operands.rows(step.source)
                target = operands.address(step.target)
                if step.peer is not None:
                    target += self._bases[step.peer] - self._bases[self.rank]
                self._copy(target, source.data_ptr(), source.numel() * source.element_size(), stream)
            case _:
                if current:
                    self._compute(step, operands)
                else:
                    with torch.cuda.stream(stream):
                        self._compute(step, operands)

    def _compute(self, step: Multiply | Add, operands: Operands, elsewhere: bool = False) -> None:
        """elsewhere: what a peer would be sent goes to memory of no meaning."""
        added = [operands.rows(rows) for rows in step.added]
        if isinstance(step, Add):
            summed(added, operands.rows(step.target))
            return
        source = operands.rows(step.source)
        for number, b in enumerate(operands.b):
            target = operands.rows(step.target, number)
            if step.peer is not None:
                target = _alike(target) if elsewhere else self._of_peer(step.peer, target)
            if not added:
                compute(LIBRARY, source, b, target, None, None, operands.options)
            else:
                c = added[0] if len(added) == 1 else summed(added)
                compute(LIBRARY, source, b, target, c, None, operands.adding)

    def _of_peer(self, peer: int, own: Any) -> Any:
        """The same place in the memory of a peer."""
        offset = own.data_ptr() - self._bases[self.rank]
        return self._handle.get_buffer(peer, tuple(own.shape), own.dtype, offset // own.element_size())

    def _copy(self, target: int, source: int, size_bytes: int, stream: Any) -> None:
        answer = self._driver.cuMemcpyAsync(target, source, size_bytes, stream.cuda_stream)
        driver_answer(answer, "copying to another GPU")

    def _wait(self, stream: int, peer: int, channel: int) -> None:
        operations = self._waits.get((peer, channel))
        if operations is None:
            address = self._bases[self.rank] + 4 * (channel * self.ranks + peer)
            operations = self._waits[peer, channel] = _wait_and_reset(self._driver, address)
        driver_answer(self._driver.cuStreamBatchMemOp(stream, 2, operations, 0), "waiting for another GPU")


def _timeout_s(group: Any, device: Any) -> float:
    """The timeout of a group's collectives."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None) or dist.distributed_c10d.default_pg_timeout
    return float(timeout.total_seconds())


def _alike(tensor: Any) -> Any:
    """New memory for a contiguous tensor, aligned as it is."""
    size, apart = tensor.numel() * tensor.element_size(), tensor.data_ptr() % 256
    room = torch.empty(size + 256, dtype=torch.uint8, device=tensor.device)
    return room[apart : apart + size].view(tensor.dtype).view(tensor.shape)


def _wait_and_reset(driver: Any, address: int) -> list[Any]:
    """Operations of a stream: wait until a word is 1, then write 0."""
    kinds = driver.CUstreamBatchMemOpType
    wait, reset = driver.CUstreamBatchMemOpParams(), driver.CUstreamBatchMemOpParams()
    wait.waitValue.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
    wait.waitValue.address = driver.CUdeviceptr(address)
    wait.waitValue.value = driver.cuuint32_t(1)
    wait.waitValue.flags = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
    reset.writeValue.operation = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
    reset.writeValue.address = driver.CUdeviceptr(address)
    reset.writeValue.value = driver.cuuint32_t(0)
    reset.writeValue.flags = int(driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT)
    return [wait, reset]


class Operands:
    """The matrices of one call, by the buffers of its steps.

    matrices: whole matrices; of RESULT a list, one for each b. options: of a product; adding: of one with a `c`.
    """

    def __init__(
        self, matrices: dict[Buffer, Any], results: list[Any], b: Sequence[Any], options: Options, adding: Options
    ) -> None:
        self._matrices, self._results = matrices, results
        self.b, self.options, self.adding = b, options, adding

    def rows(self, rows: Rows, number: int = 0) -> Any:
        """Some rows of a buffer, as a tensor."""
        whole = self._results[number] if rows.buffer is Buffer.RESULT else self._matrices[rows.buffer]
        return whole if rows.count == whole.shape[0] else whole[rows.first : rows.first + rows.count]

    def address(self, rows: Rows) -> int:
        """The address of some rows of this rank's memory."""
        matrix = self._matrices[rows.buffer]
        return int(matrix.data_ptr()) + rows.first * int(matrix.shape[1]) * int(matrix.element_size())
