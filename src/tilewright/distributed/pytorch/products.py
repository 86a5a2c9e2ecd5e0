"""A call on the ranks of a process group: agreed upon once, then computed by symmetric memory or by collectives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright import extras
from tilewright.device.catalog import H200
from tilewright.device.catalog import device as device_named
from tilewright.distributed.overlap import Costs, Work
from tilewright.distributed.plans import ARRIVING, EXCHANGED, SCALED, SCALED_AS_WHOLE, SHARED, Plan, ranked
from tilewright.distributed.pytorch import collectives
from tilewright.distributed.pytorch.agreement import GATHER, Agreed, RankCall, agreed, described, groups_made
from tilewright.distributed.pytorch.replays import Replays
from tilewright.distributed.pytorch.scales import Asked, Scales, multiplied
from tilewright.distributed.pytorch.shared import parts_elements, parts_flag_bytes
from tilewright.distributed.pytorch.symmetric import Call, Program, Workspace, exchange_flag_bytes
from tilewright.distributed.timeline import Buffer
from tilewright.errors import LaunchError, TilewrightError, UnknownName
from tilewright.frontend.options import PLAIN, Options, options_with
from tilewright.frontend.pytorch.plain import LIBRARY
from tilewright.frontend.scaled import ScaledOptions
from tilewright.notices import say_once
from tilewright.units import round_up

torch: Any = extras.require("torch", "Multiplying on several GPUs")
dist: Any = torch.distributed


@dataclass(frozen=True, slots=True)
class Known:
    """A call that was agreed upon. plan: None for collectives. words: which kernels add up over ranks, the same on all
    of them."""

    agreed: Agreed
    plan: Plan | None
    words: frozenset[Any] | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A kind of call whose kernels are loaded: what it starts, for which b, and how the results are made."""

    parts: tuple[tuple[Replays, slice, tuple[Callable[[], Any], ...]], ...]

    def run(self, a: Any, b: tuple[Any, ...], scales: Scales | None) -> list[Any]:
        results = list[Any]()
        for replays, which, makers in self.parts:
            call = Call(a, b[which], [make() for make in makers], None if scales is None else scales.of(which))
            replays.run(call)
            results += call.results
        return results


class State:
    """What is known of one process group. ready: of the calls in `known`, by where tensors lie.

    The group is not kept alive: its threads would run on behind `destroy_process_group`, and one that asks for the
    interpreter while that is ending aborts the process.
    """

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)
        self.known: dict[Any, Known] = {}
        self.programs: dict[Any, tuple[Workspace, Program]] = {}
        self.ready: dict[Any, Ready] = {}
        self.workspaces: dict[str, Workspace] = {}
        self.retired: list[Workspace] = []
        self.peers = True
        self.groups = groups_made()

    @property
    def group(self) -> Any:
        """None once it has been destroyed."""
        return self._group()

    def notice_groups(self) -> None:
        """Ranks agree anew about kernels that fill the GPU and wait for peers where a group was made since they did."""
        if (made := groups_made()) != self.groups:
            self.groups = made
            self.known = {key: known for key, known in self.known.items() if known.plan != SHARED}
            self.ready.clear()


_STATES: dict[str, State] = {}


def state_of(group: Any) -> State:
    """What is known of a group; a new group may have the name of one that was destroyed."""
    found = _STATES.get(group.group_name)
    if found is None or found.group is not group:
        found = _STATES[group.group_name] = State(group)
    found.notice_groups()
    return found


def known_of(asked: RankCall, group: Any) -> Known:
    """What all ranks agreed upon for a call, now or before."""
    state = state_of(group)
    tensors = [x for x in asked.tensors if isinstance(x, torch.Tensor)]
    key = (asked.name, asked.options, asked.rows, asked.plan, len(asked.b))
    key += tuple((x.shape, x.dtype, x.device) for x in tensors)
    known = state.known.get(key)
    if known is None:
        known = state.known[key] = _settled(state, asked)
    return known


def computed(asked: RankCall, group: Any) -> list[Any]:
    """The results of a call, without derivatives."""
    a = asked.a
    if isinstance(a, torch.Tensor) and a.is_cuda and torch.cuda.current_device() != a.get_device():
        with torch.cuda.device(a.device):
            return computed(asked, group)
    state, key = state_of(group), _key(asked)
    ready = state.ready.get(key)
    if ready is not None:
        return ready.run(a, asked.b, asked.scales)
    known = known_of(asked, group)
    asked = asked.detached
    if len(known.agreed.rows) == 1:
        return multiplied(asked.a, asked.b, asked.options, asked.scales)
    if known.plan is None:
        run = collectives.all_gather_matmul if asked.gathers else collectives.matmul_reduce_scatter
        return run(asked, known.agreed, group)
    calls = [_call_of(known, part, state) for part in asked.parts]
    for program, call in calls:
        program.run(call)
    if key is not None and all(call.a is asked.a for _, call in calls):
        state.ready[key] = _ready(calls, a.get_device())
    return [result for _, call in calls for result in call.results]


def _key(asked: RankCall) -> Any:
    """What calls on a GPU have in common whose tensors lie alike; None for others."""
    tensors = asked.tensors
    if not all(isinstance(x, torch.Tensor) for x in tensors) or not tensors[0].is_cuda:
        return None
    key: tuple[Any, ...] = asked.name, asked.options, asked.rows, asked.plan
    for x in tensors:
        key += x.dtype, x.shape, x.stride(), x.get_device(), x.data_ptr() & 15
    return key


def _ready(calls: Sequence[tuple[Program, Call]], device: int) -> Ready:
    parts, first = [], 0
    for program, call in calls:
        views = [LIBRARY.view(one) for one in call.results]
        makers = tuple(LIBRARY.maker(view.shape, view.dtype, call.a) for view in views)
        parts.append((Replays(program, device), slice(first, first + len(call.b)), makers))
        first += len(call.b)
    return Ready(tuple(parts))


def _settled(state: State, asked: RankCall) -> Known:
    """A new kind of call, agreed upon by all ranks. Raises ProblemError on every rank if on one, and LaunchError where
    the stream is recording a graph."""
    own, plan = described(asked), asked.plan
    if own.capturing:
        raise _first_met(asked.name)
    found = agreed(own, state.group)
    if len(found.rows) == 1 or not sum(found.rows) * found.k * found.columns:
        return Known(found, None)
    work = Work(found.rows, found.k, found.columns, asked.a.element_size(), asked.format.itemsize)
    ways = ranked(asked.gathers, work, _costs(found.gpu)) if plan is None else (plan,)
    if asked.scales is not None:
        able = SCALED if found.scaled_rows else SCALED_AS_WHOLE
        ways = tuple(way for way in ways if way in able)
    if plan is None and not found.alone:
        ways = tuple(way for way in ways if way != SHARED)
    asked = asked.detached
    for way in ways:
        room, memory = _room(asked, way, found.rows), _memory_of(asked.name, way)
        if not (found.peers and state.peers and _has_room(state, memory, asked.a.device, room)):
            break
        known, problem = _prepared(Known(found, way), state, asked)
        if not problem:
            dist.barrier(group=state.group)  # loading a kernel later would wait for a stream that waits
            return known
        if way == plan:
            raise LaunchError(problem)
    say_once(
        f"{asked.name} communicates before or after the product instead of meanwhile: the ranks are not GPUs of one "
        "host whose memory symmetric memory of PyTorch can map."
    )
    return Known(found, None)


_ONE_KERNEL = ARRIVING, SHARED


def _prepared(known: Known, state: State, asked: RankCall) -> tuple[Known, str]:
    """Load the kernels of a call. Where one kernel shall do all of it, ranks tell each other which; if one
    has none, none of them uses it."""
    problem, words = "", frozenset[Any]()
    try:
        programs = [_call_of(known, part, state)[0] for part in asked.parts]
        words = frozenset(pair for program in programs for pair in program.shared_words)
    except TilewrightError as failure:
        if known.plan not in _ONE_KERNEL:
            raise
        problem = failure.headline
    if known.plan not in _ONE_KERNEL:
        return known, ""
    told: list[Any] = [None] * len(known.agreed.rows)
    dist.all_gather_object(told, (problem, words), group=state.group)
    problem = next((text for text, _ in told if text), "")
    if not problem and len({others for _, others in told}) > 1:
        problem = "the ranks would compute parts of the sum by different kernels."
    return replace(known, words=words), problem


def _costs(gpu: str) -> Costs:
    """Figures of a GPU, by its name; those of an H200 where it has none."""
    try:
        spec = device_named(gpu)
    except UnknownName:
        spec = H200
    return Costs(spec if spec.tensor.bf16_f32 else H200)


def _first_met(name: str) -> LaunchError:
    return LaunchError(
        f"The stream is recording a CUDA graph, and {name} meets operands of this kind for the first time.",
        note="ranks compare what they ask and load kernels, which cannot be recorded.",
        hint="make the same call once before the capture.",
    )


_BY_TILES_OR_BLOCKS = SHARED, *EXCHANGED

SCALE_BYTES = 16
"""Of the scale of a row that is gathered, at most, and where those of all begin."""


def _memory_of(name: str, plan: Plan) -> str:
    """The symmetric memory of a call: where parts of tiles lie in it, or flags of blocks, it is one of its own."""
    return f"{name}, {plan.kind}" if plan in _BY_TILES_OR_BLOCKS else name


def _room(asked: RankCall, plan: Plan, rows: tuple[int, ...]) -> tuple[int, int]:
    """Bytes of symmetric memory that a call needs, and of flags of kernels at its start; the same on every rank."""
    exchanges = 2 if asked.gathers and isinstance(asked.options, ScaledOptions) else 1
    flags = exchanges * exchange_flag_bytes(len(rows)) if plan in EXCHANGED else 0
    if asked.gathers:
        row_bytes = int(asked.a.shape[1]) * int(asked.a.element_size()) + SCALE_BYTES
        return flags + sum(rows) * row_bytes + SCALE_BYTES, flags
    size, columns = int(asked.format.itemsize), max(int(x.shape[1]) for x in asked.b)
    if plan == SHARED:
        parts = parts_elements(rows, columns) * size
        flags = parts_flag_bytes(len(rows), parts)
        return flags + parts, flags
    return flags + (len(rows) - 1) * max(rows) * columns * size, flags


def _has_room(state: State, name: str, device: Any, needed: tuple[int, int]) -> bool:
    """Whether there is symmetric memory as `_room` says, on all ranks, by its name. Where there is none, nobody asks
    again."""
    workspace = state.workspaces.get(name)
    if workspace is not None and workspace.room_bytes >= needed[0] and workspace.zeroed_bytes >= needed[1]:
        return True
    if workspace is not None:
        torch.cuda.synchronize(device)
        state.retired.append(workspace)  # graphs may have recorded its addresses
        state.ready.clear()
    problem = ""
    try:
        state.workspaces[name] = Workspace(state.group, device, *needed)
    except (ImportError, AttributeError, RuntimeError) as failure:
        problem = f"{type(failure).__name__}: {failure}"
    told: list[Any] = [None] * dist.get_world_size(state.group)
    dist.all_gather_object(told, problem, group=state.group)
    state.peers = not any(told)
    return state.peers


def _call_of(known: Known, asked: RankCall, state: State) -> tuple[Program, Call]:
    """The program of a call, whose kernels are loaded, and the call with new results."""
    name, options, rows, plan = asked.name, asked.options, known.agreed.rows, known.plan
    assert plan is not None
    workspace = state.workspaces[_memory_of(name, plan)]
    a = asked.a.contiguous()
    if plan in _BY_TILES_OR_BLOCKS and a.data_ptr() % 16:  # so that all ranks choose one kernel
        a = a.clone()
    height = sum(rows) if asked.gathers else rows[workspace.rank]
    results = [a.new_empty(height, x.shape[1], dtype=asked.format) for x in asked.b]
    call = Call(a, asked.b, results, asked.scales)
    key = (name, plan, rows, known.agreed.scaled_rows, options, a.dtype, a.shape, a.data_ptr() & 15)
    key += tuple((x.shape, x.stride(), x.data_ptr() & 15) for x in asked.tensors[1:])
    found = state.programs.get(key)
    if found is None or found[0] is not workspace:
        if a.is_cuda and torch.cuda.is_current_stream_capturing():
            raise _first_met(name)
        matrices = {} if plan == SHARED else _matrices(workspace, name, plan, a, rows, call)
        steps, scaled_rows = plan.steps(workspace.rank, rows), known.agreed.scaled_rows
        program = Program(workspace, steps, matrices, options, _adding(options), rows, scaled_rows)
        program.prepare(call)
        if known.words is not None and not program.shared_words <= known.words:
            raise LaunchError(
                f"{name}: operands that lie otherwise than those that the ranks agreed upon need another kernel.",
                hint="pass operands with the strides and the alignment of the first call.",
            )
        found = state.programs[key] = workspace, program
    return found[1], call


def _matrices(
    workspace: Workspace, name: str, plan: Plan, a: Any, rows: tuple[int, ...], call: Call
) -> dict[Buffer, Any]:
    """The buffers of a call that are memory of the workspace."""
    received = workspace.data[workspace.zeroed_bytes :]
    if name == GATHER:
        size = sum(rows) * a.shape[1] * a.element_size()
        gathered = {Buffer.GATHERED: received[:size].view(a.dtype).view(sum(rows), a.shape[1])}
        if call.scales is None:
            return gathered
        first = round_up(size, SCALE_BYTES)
        scales = received[first : first + 4 * sum(rows)].view(torch.float32).view(sum(rows), 1)
        return {**gathered, Buffer.SCALES: scales}
    n, kind = call.b[0].shape[1], call.results[0].dtype
    counts = {Buffer.RECEIVED: (len(rows) - 1) * max(rows), Buffer.PARTIAL: sum(rows)}
    memory = {
        Buffer.RECEIVED: received,
        Buffer.PARTIAL: workspace.partial(counts[Buffer.PARTIAL] * n * kind.itemsize),
    }
    return {
        buffer: memory[buffer][: count * n * kind.itemsize].view(kind).view(count, n)
        for buffer, count in counts.items()
    }


def _adding(options: Asked) -> Options:
    """The same with a `c` that is added. Products with scales take none."""
    if not isinstance(options, Options):
        return PLAIN
    return options_with(
        beta=1.0, out_dtype=options.out_dtype, precision=options.precision, fixed_order=options.fixed_order
    )
