"""The steps of a timeline on a GPU: products by our kernels, data by copy engines, flags by operations of streams.

Copy engines push rows into symmetric memory of the peers, which needs no SM. Flags are set and waited for by
`cuStreamBatchMemOp` (write 1; wait for 1, write 0), whose writes come behind a barrier of the system: a copy of one
word may overtake the data before it. No block spins, so that products may fill the GPU. All of it can be captured in a
CUDA graph, because no value lives on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from tilewright import extras
from tilewright.distributed.pytorch.collectives import summed
from tilewright.distributed.pytorch.scales import Asked, Scales
from tilewright.distributed.pytorch.shared import ArrivingProducts, Exchanges, PartsMemory, SummedProducts
from tilewright.distributed.timeline import DATA, Add, Await, Buffer, Copy, Exchange, Lane, Multiply, Rows, Signal, Step
from tilewright.distributed.watchdog import Watchdog, abort
from tilewright.frontend.compute import compute
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.plain import LIBRARY
from tilewright.frontend.scaled import ScaledOptions, compute_scaled
from tilewright.kernels.exchange import flags_of
from tilewright.runtime.driver import driver_answer
from tilewright.units import round_up

torch: Any = extras.require("torch", "Multiplying on several GPUs")
dist: Any = torch.distributed

_PAGE = 4096
"""Bytes before the data, for the flags: CHANNELS words for each rank."""


_PRIORITY = -3
"""Of streams that copy: no other stream has it. Streams share the queues of the GPU, and a flag that is set may wait
for all that is before it in its queue: for a kernel, too, which waits for a peer. Priorities have their own queues."""

_LAST: dict[Any, tuple[Any, Any]] = {}
"""On each device: the stream of the last call of any group, and the event behind it."""


def exchange_flag_bytes(ranks: int) -> int:
    """Bytes at the start of the data, for flags of blocks where threads exchange rows; as many for their scales."""
    return round_up(4 * flags_of(ranks), _PAGE)


class Workspace:
    """Symmetric memory of one process group, its flags, and the streams of this rank.

    room_bytes: of data; zeroed_bytes: that are 0 in the beginning. Made by all ranks together; every rank has the same
    room. Raises RuntimeError where PyTorch cannot map the memory of the peers.
    """

    def __init__(self, group: Any, device: Any, room_bytes: int, zeroed_bytes: int = 0) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.room_bytes, self.zeroed_bytes = round_up(room_bytes, 1 << 21), zeroed_bytes
        size = _PAGE + self.room_bytes
        self.memory = symmetric.empty(size, dtype=torch.uint8, device=device)
        self._handle = symmetric.rendezvous(self.memory, group.group_name)
        self.bases = [self._handle.get_buffer(rank, (size,), torch.uint8).data_ptr() for rank in range(self.ranks)]
        self.data = self.memory[_PAGE:]
        self.data[:zeroed_bytes].zero_()
        flags = self.memory[:_PAGE].view(torch.int32)
        flags.zero_()
        flags[DATA * self.ranks + self.rank] = 1  # own rows lie there before a kernel starts that waits for rows
        copies = torch.cuda.Stream(device, priority=_PRIORITY)
        self.streams = {Lane.SECOND: torch.cuda.Stream(device), Lane.COPIES: copies}
        self.recording = torch.cuda.Stream(device)
        """On which graphs are recorded."""
        self.start, self._end = torch.cuda.Event(), torch.cuda.Event()
        self._partials: list[Any] = []
        timeout_s, name = _timeout_s(group, device), group.group_name
        self._watchdog = Watchdog(self._end.query, timeout_s, partial(abort, name, self.rank, timeout_s))
        torch.cuda.synchronize(device)

    def partial(self, size_bytes: int) -> Any:
        """Memory of this rank alone, in which products wait to be sent. Smaller ones are kept: graphs may have recorded
        their addresses."""
        if not self._partials or self._partials[-1].numel() < size_bytes:
            self._partials.append(torch.empty(size_bytes, dtype=torch.uint8, device=self.memory.device))
        return self._partials[-1]

    def begin(self, caller: Any, capturing: bool) -> None:
        """A call starts on a stream: it waits for the one before, of any group, if that was on another one. Of two
        kernels that wait for peers, a GPU has room for one."""
        last, end = _LAST.get(self.memory.device, (None, None))
        if not capturing and last not in (None, caller.cuda_stream):
            caller.wait_event(end)

    def finish(self, caller: Any, capturing: bool) -> None:
        """All of a call was started."""
        if not capturing:
            self._end.record(caller)
            _LAST[self.memory.device] = caller.cuda_stream, self._end
            self._watchdog.call()

    def flag(self, owner: int, source: int, channel: int) -> int:
        """The address of the flag on its owner that a rank sets."""
        return int(self.bases[owner] + 4 * (channel * self.ranks + source))


@dataclass(slots=True)
class Call:
    """The tensors of one call."""

    a: Any
    b: Sequence[Any]
    results: Sequence[Any]
    scales: Scales | None = None


Action = Callable[[Call, int], None]
"""Starts a step of a call on a stream, by its address."""

Place = Callable[[Call, int], Any]
"""Some rows of a buffer in a call; of RESULT those of one b, by its number."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A step, bound to the memory that is the same in all calls. waits: for events of other lanes. done: the event
    behind it, if a step waits for it. computes: on the current stream of PyTorch."""

    lane: Lane
    waits: tuple[Any, ...]
    done: Any
    action: Action
    computes: bool


class Program:
    """The steps of a kind of call. matrices: of the buffers that are the same in all calls. adding: the options of a
    product with a `c`. rows: of each rank. scaled_rows: whether each row of A has a scale of its own."""

    def __init__(
        self,
        workspace: Workspace,
        steps: Sequence[Step],
        matrices: dict[Buffer, Any],
        options: Asked,
        adding: Options,
        rows: Sequence[int],
        scaled_rows: bool = False,
    ) -> None:
        from cuda.bindings import driver

        self.workspace, self._driver = workspace, driver
        self._matrices = matrices
        self._options, self._adding, self._rows = options, adding, tuple(rows)
        self._scaled_rows = scaled_rows
        self._is_shared = any(isinstance(step, Multiply) and step.shared for step in steps)
        self._steps, self._instructions = steps, list[Instruction]()
        waited = {number for step in steps for number in step.after}
        last = {step.lane: number for number, step in enumerate(steps)}
        self._used = [workspace.streams[lane] for lane in last if lane is not Lane.CALLER]
        self._joined = [
            (workspace.streams[lane], torch.cuda.Event())
            for lane, number in last.items()
            if lane is Lane.COPIES or (lane is Lane.SECOND and number not in waited)
        ]
        self._computations = [self._alone(step) for step in steps if isinstance(step, Multiply | Add | Exchange)]

    def _alone(self, step: Multiply | Add | Exchange) -> Action:
        """What a step computes without the peers."""
        match step:
            case Multiply():
                return self._product(step, elsewhere=True)
            case Exchange():
                return self._exchanged(step, elsewhere=True)
            case Add():
                return self._action(step)

    def prepare(self, call: Call) -> None:
        """Choose and load all kernels, by computing once from whatever lies in the buffers.

        Loading a kernel may wait for all streams of the GPU, one of which may wait for a peer. Raises TilewrightError
        where rows are to arrive while a kernel runs, and no kernel waits for them.
        """
        stream = torch.cuda.current_stream()
        for computation in self._computations:
            computation(call, stream.cuda_stream)
        stream.synchronize()
        self._instructions = self._bound()

    def _bound(self) -> list[Instruction]:
        """What the steps start, of kernels that are known. Operations on flags that follow each other are one: each
        takes a stream microseconds."""
        steps, found = self._steps, list[Instruction]()
        events = {number: torch.cuda.Event() for step in steps for number in step.after}
        together: list[Any] = []
        for number, step in enumerate(steps):
            waits = tuple(events[i] for i in step.after if steps[i].lane is not step.lane)
            for part in self._parts(step):
                last = found[-1] if found else None
                follows = last is not None and last.lane is step.lane and last.done is None and not waits
                if isinstance(part, list) and together and follows:
                    together += part
                    continue
                together = list(part) if isinstance(part, list) else []
                action = part if not isinstance(part, list) else self._operations(together)
                found.append(Instruction(step.lane, waits, None, action, isinstance(step, Multiply | Add | Exchange)))
                waits = ()
            if number in events:
                found[-1] = replace(found[-1], done=events[number])
        return found

    def _parts(self, step: Step) -> list[Action | list[Any]]:
        """What a step starts one after the other: actions, and operations of a stream on flags."""
        workspace, driver = self.workspace, self._driver
        match step:
            case Await():
                return [_wait_and_reset(driver, workspace.flag(workspace.rank, step.peer, step.channel))]
            case Signal():
                return [_write(driver, workspace.flag(step.peer, workspace.rank, step.channel), 1)]
            case _:
                return [self._action(step)]

    def run(self, call: Call) -> None:
        """Start all steps of a call. Work of the current stream that comes later waits for them."""
        workspace, caller = self.workspace, torch.cuda.current_stream()
        capturing = torch.cuda.is_current_stream_capturing()
        workspace.begin(caller, capturing)
        streams = {Lane.CALLER: caller, **workspace.streams}
        if self._used:
            workspace.start.record(caller)
        for stream in self._used:
            stream.wait_event(workspace.start)
        for one in self._instructions:
            stream = streams[one.lane]
            for event in one.waits:
                stream.wait_event(event)
            if one.computes and stream is not caller:
                torch.cuda.set_stream(stream)
                try:
                    one.action(call, stream.cuda_stream)
                finally:
                    torch.cuda.set_stream(caller)
            else:
                one.action(call, stream.cuda_stream)
            if one.done is not None:
                one.done.record(stream)
        for stream, event in self._joined:
            event.record(stream)
            caller.wait_event(event)
        workspace.finish(caller, capturing)

    @property
    def _plain(self) -> Options:
        """Options of products without scales."""
        assert isinstance(self._options, Options)
        return self._options

    @property
    def shared_words(self) -> frozenset[Any]:
        """Which kernels add up over ranks: shapes of b, and plans in words; of a program that is prepared."""
        return self._summed.words if self._is_shared else frozenset()

    @cached_property
    def _arriving(self) -> ArrivingProducts:
        """Products that wait for rows of each rank, by the flags that are also waited for in streams."""
        workspace = self.workspace
        flags, device = workspace.flag(workspace.rank, 0, DATA), workspace.memory.device
        return ArrivingProducts(self._rows, workspace.rank, flags, self._plain, device)

    @cached_property
    def _summed(self) -> SummedProducts:
        """Products that add up over ranks in the kernels, by flags of their own at the start of the data."""
        workspace = self.workspace
        flags, flag_bytes = [base + _PAGE for base in workspace.bases], workspace.zeroed_bytes
        received, room_bytes = [address + flag_bytes for address in flags], workspace.room_bytes - flag_bytes
        memory = PartsMemory(flags, flag_bytes, received, room_bytes, workspace.partial)
        return SummedProducts(self._rows, workspace.rank, memory, self._plain, workspace.memory.device)

    @cached_property
    def _exchanges(self) -> Exchanges:
        workspace = self.workspace
        received = [base + _PAGE + workspace.zeroed_bytes for base in workspace.bases]
        return self._exchanges_of(received, 0)

    @cached_property
    def _exchanges_of_scales(self) -> Exchanges:
        """Of the scales of gathered rows, by flags of their own."""
        workspace = self.workspace
        behind = self._matrices[Buffer.SCALES].data_ptr() - workspace.bases[workspace.rank]
        return self._exchanges_of([base + behind for base in workspace.bases], exchange_flag_bytes(workspace.ranks))

    def _exchanges_of(self, received: list[int], behind: int) -> Exchanges:
        """behind: bytes in front of the flags."""
        workspace = self.workspace
        flags = [base + _PAGE + behind for base in workspace.bases]
        return Exchanges(self._rows, workspace.rank, received, flags, workspace.memory.device)

    def _action(self, step: Copy | Add | Multiply | Exchange) -> Action:
        match step:
            case Copy():
                return self._copied(step)
            case Add():
                added, target = [self._place(rows) for rows in step.added], self._place(step.target)
                return lambda call, stream: summed([place(call, 0) for place in added], target(call, 0))
            case Multiply():
                return self._product(step, elsewhere=False)
            case Exchange():
                return self._exchanged(step, elsewhere=False)

    def _exchanged(self, step: Exchange, elsewhere: bool) -> Action:
        """elsewhere: the kernel is loaded, and no peer is waited for."""
        source, target = self._place(step.source), self._place(step.target)
        gathers_scales = not step.summed and isinstance(self._options, ScaledOptions)
        of_scales = self._exchanges_of_scales if gathers_scales else None

        def exchanged(exchanges: Exchanges, rows: Any, out: Any, stream: int) -> None:
            if elsewhere:
                exchanges.plan(rows, step.summed)
            else:
                exchanges.start(rows, out, stream)

        def exchange(call: Call, stream: int) -> None:
            exchanged(self._exchanges, source(call, 0), target(call, 0) if step.summed else None, stream)
            if of_scales is not None:
                assert call.scales is not None
                exchanged(of_scales, call.scales.a, None, stream)

        return exchange

    def _place(self, rows: Rows) -> Place:
        if rows.buffer in self._matrices:
            fixed = _rows(self._matrices[rows.buffer], rows)
            return lambda call, number: fixed
        if rows.buffer is Buffer.A:
            return lambda call, number: _rows(call.a, rows)
        return lambda call, number: _rows(call.results[number], rows)

    def _product(self, step: Multiply, elsewhere: bool) -> Action:
        """elsewhere: no peer is sent anything, or waited for."""
        source, target = self._place(step.source), self._place(step.target)
        if step.shared:
            products = self._summed

            def multiply_shared(call: Call, stream: int) -> None:
                for number, b in enumerate(call.b):
                    if elsewhere:
                        products.plan(number, source(call, 0), b)
                    else:
                        products.start(number, source(call, 0), b, target(call, number), stream)

            return multiply_shared
        if step.arrivals:
            arriving = self._arriving

            def multiply_arriving(call: Call, stream: int) -> None:
                for number, b in enumerate(call.b):
                    arriving.start(number, source(call, 0), b, target(call, number), stream, waits=not elsewhere)

            return multiply_arriving
        if isinstance(self._options, ScaledOptions):
            return self._scaled_product(step, self._options)
        added, options, adding = [self._place(rows) for rows in step.added], self._plain, self._adding

        def multiply(call: Call, stream: int) -> None:
            rows = source(call, 0)
            for number, b in enumerate(call.b):
                if not added:
                    compute(LIBRARY, rows, b, target(call, number), None, None, options)
                    continue
                sent = [place(call, number) for place in added]
                c = sent[0] if len(sent) == 1 else summed(sent)
                compute(LIBRARY, rows, b, target(call, number), c, None, adding)

        return multiply

    def _scaled_product(self, step: Multiply, options: ScaledOptions) -> Action:
        """By scales of its rows, or of the rank whose rows they are, which has the place of the first of them."""
        source, target, gathered = self._place(step.source), self._place(step.target), step.source.buffer
        first, scaled_rows = step.source.first, self._scaled_rows
        kept = step.source.count if scaled_rows else 1

        def multiply(call: Call, stream: int) -> None:
            rows, scales = source(call, 0), call.scales
            assert scales is not None
            place = scales.a if gathered is Buffer.A else self._matrices[Buffer.SCALES]
            of_rows = scales.a if gathered is Buffer.A and not scaled_rows else place[first : first + kept]
            for number, (b, scale) in enumerate(zip(call.b, scales.b, strict=True)):
                compute_scaled(LIBRARY, (rows, b, of_rows, scale, None, target(call, number)), options)

        return multiply

    def _copied(self, step: Copy) -> Action:
        workspace, matrix = self.workspace, self._matrices[step.target.buffer]
        width = matrix.shape[1] * matrix.element_size()
        to = matrix.data_ptr() + step.target.first * width
        if step.peer is not None:
            to += workspace.bases[step.peer] - workspace.bases[workspace.rank]
        offset, size = step.source.first * width, step.source.count * width
        if step.source.buffer is Buffer.A and isinstance(self._options, ScaledOptions):
            return self._copied_with_scales(step, to, size)
        if step.source.buffer is Buffer.A:
            return self._copy(to, lambda call: call.a.data_ptr() + offset, size)
        start = self._matrices[step.source.buffer].data_ptr() + offset
        return self._copy(to, lambda call: start, size)

    def _copied_with_scales(self, step: Copy, target: int, size: int) -> Action:
        """All own rows, and then their scales, or the one of the rank in the place of the first."""
        workspace, scales = self.workspace, self._matrices[Buffer.SCALES]
        assert step.peer is not None and not step.source.first
        behind = workspace.bases[step.peer] - workspace.bases[workspace.rank]
        place = scales.data_ptr() + 4 * step.target.first + behind

        def scales_of_a(call: Call) -> int:
            assert call.scales is not None
            return int(call.scales.a.data_ptr())

        copies = (
            self._copy(target, lambda call: call.a.data_ptr(), size),
            self._copy(place, scales_of_a, 4 * (step.source.count if self._scaled_rows else 1)),
        )

        def start(call: Call, stream: int) -> None:
            for copy in copies:
                copy(call, stream)

        return start

    def _copy(self, target: int, source: Callable[[Call], int], size_bytes: int) -> Action:
        copy, success = self._driver.cuMemcpyAsync, self._driver.CUresult.CUDA_SUCCESS

        def start(call: Call, stream: int) -> None:
            (status,) = copy(target, source(call), size_bytes, stream)
            if status is not success:
                driver_answer((status,), "copying to another GPU")

        return start

    def _operations(self, operations: list[Any]) -> Action:
        """Operations of a stream on flags; more may be put behind them until they are started."""
        start_all, success = self._driver.cuStreamBatchMemOp, self._driver.CUresult.CUDA_SUCCESS

        def start(call: Call, stream: int) -> None:
            (status,) = start_all(stream, len(operations), operations, 0)
            if status is not success:
                driver_answer((status,), "waiting for another GPU, or telling it that data is there")

        return start


def _rows(whole: Any, rows: Rows) -> Any:
    """Some rows of a matrix."""
    return whole if rows.count == whole.shape[0] else whole[rows.first : rows.first + rows.count]


def _timeout_s(group: Any, device: Any) -> float:
    """The timeout of a group's collectives."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None) or dist.distributed_c10d.default_pg_timeout
    return float(timeout.total_seconds())


def _wait_and_reset(driver: Any, address: int) -> list[Any]:
    """Operations of a stream: wait until a word is 1, then write 0."""
    wait = driver.CUstreamBatchMemOpParams()
    wait.waitValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
    wait.waitValue.address = driver.CUdeviceptr(address)
    wait.waitValue.value = driver.cuuint32_t(1)
    wait.waitValue.flags = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
    return [wait, *_write(driver, address, 0)]


def _write(driver: Any, address: int, value: int) -> list[Any]:
    """The operation of a stream that sets a word. All that the stream has done before is seen by whoever sees it: a
    barrier of the system comes before the word."""
    write = driver.CUstreamBatchMemOpParams()
    write.writeValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
    write.writeValue.address = driver.CUdeviceptr(address)
    write.writeValue.value = driver.cuuint32_t(value)
    write.writeValue.flags = int(driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT)
    return [write]
