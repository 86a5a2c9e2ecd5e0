"""What the ranks of a group ask, compared once for each kind of call: all go on, or all raise the same error.

A rank describes its call, the descriptions are gathered, and each rank judges all of them by the same rules. What was
agreed is remembered by the own description: ranks that later ask different things, each of which it has asked before,
are not noticed.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import Any

from tilewright import extras
from tilewright.distributed.plans import Plan
from tilewright.distributed.pytorch.scales import Asked, Scales, problem_of
from tilewright.errors import ProblemError
from tilewright.frontend.pytorch.plain import LIBRARY
from tilewright.frontend.scaled import ScaledOptions
from tilewright.units import ceil_div

torch: Any = extras.require("torch", "Multiplying on several GPUs")
dist: Any = torch.distributed

GATHER, SCATTER = "all_gather_matmul", "matmul_reduce_scatter"


@dataclass(frozen=True, slots=True, eq=False)
class RankCall:
    """A call as one rank makes it. name: of the function. rows: of each rank, where the user says so. plan: how it is
    computed, instead of what is chosen."""

    name: str
    a: Any
    b: tuple[Any, ...]
    options: Asked
    rows: tuple[int, ...] | None = None
    plan: Plan | None = None
    scales: Scales | None = None

    @property
    def gathers(self) -> bool:
        return self.name == GATHER

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All that are given, a first."""
        return (self.a, *self.b, *(() if self.scales is None else self.scales.tensors))

    @property
    def format(self) -> Any:
        """Of the results."""
        return self.a.dtype if self.options.out_dtype is None else LIBRARY.to_torch[self.options.out_dtype]

    @property
    def detached(self) -> RankCall:
        return replace(self, a=self.a.detach(), b=tuple(x.detach() for x in self.b))

    @property
    def parts(self) -> list[RankCall]:
        """One for each program: a gather serves all b, a scatter one."""
        if self.gathers:
            return [self]
        which = [slice(number, number + 1) for number in range(len(self.b))]
        return [replace(self, b=self.b[i], scales=None if self.scales is None else self.scales.of(i)) for i in which]


@dataclass(frozen=True, slots=True)
class Described:
    """A call as one rank sees it. problem: what is wrong with it by itself. device: None on the host. options: beside
    the product, as text. rows: that each rank shall keep, if the user says so. scaling: what scale_a is of, where rows
    and shards differ. alone: the group is the only one of its process whose collectives run on GPUs."""

    name: str
    a: tuple[int, ...]
    b: tuple[tuple[int, ...], ...]
    formats: tuple[str, ...]
    options: str
    rows: tuple[int, ...] | None
    host: str
    gpu: str
    device: int | None
    capturing: bool
    problem: str
    scaling: str = ""
    alone: bool = True


def is_alone() -> bool:
    """Whether there is no other group whose kernels may wait on this GPU for other ranks; False where PyTorch does not
    say, or would not tell of a later one."""
    try:
        backends = [str(told[0]) for told in dist.distributed_c10d._world.pg_map.values()]
    except (AttributeError, TypeError):
        return False
    return groups_made() is not None and sum(backend != "gloo" for backend in backends) <= 1


def groups_made() -> int | None:
    """How many process groups were made so far, the same number on all ranks, as all of them call `new_group`; None
    where PyTorch does not say. A group made with `use_local_synchronization` is not counted."""
    return getattr(getattr(dist.distributed_c10d, "_world", None), "group_count", None)


def described(call: RankCall) -> Described:
    """The call of this rank."""
    name, a, b, options, rows, scales = call.name, call.a, call.b, call.options, call.rows, call.scales
    tensors = (a, *b)
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        kinds = ", ".join(type(x).__name__ for x in tensors)
        wrong = f"operands are {kinds}, and must be tensors of PyTorch"
        return Described(name, (), (), (), "", rows, "", "", None, False, wrong)
    device = a.get_device() if a.is_cuda else None
    gpu = "" if device is None else torch.cuda.get_device_name(device)
    capturing = device is not None and bool(torch.cuda.is_current_stream_capturing())
    asked = _asked(options)
    shapes, formats = tuple(tuple(x.shape) for x in b), tuple(str(x.dtype).removeprefix("torch.") for x in tensors)
    wrong = _problem(a, b, scaled=scales is not None)
    if scales is not None and isinstance(options, ScaledOptions):
        wrong = wrong or problem_of(a, b, scales, options)
    wrong = wrong or (_problem_of_rows(a.shape[0], rows) if name == SCATTER else "")
    host, scaling = socket.gethostname(), _scaling(a, scales)
    where = host, gpu, device, capturing
    return Described(name, tuple(a.shape), shapes, formats, asked, rows, *where, wrong, scaling, is_alone())


def _asked(options: Asked) -> str:
    if isinstance(options, ScaledOptions):
        return f"out_dtype={options.out_dtype}, fast_accumulation={options.fast}"
    return f"out_dtype={options.out_dtype}, precision={options.precision}"


def _scaling(a: Any, scales: Scales | None) -> str:
    """What scale_a is of, in words; empty where that is the same, or there is none."""
    if scales is None or a.dim() != 2 or a.shape[0] < 2:
        return ""
    return _ROWS if scales.a.numel() > 1 else "a whole shard"


_ROWS = "rows"


def _problem(a: Any, b: tuple[Any, ...], *, scaled: bool) -> str:
    """What is wrong with the operands of one rank; empty for nothing. scaled: their formats may differ."""
    if a.dim() != 2 or not b or any(x.dim() != 2 for x in b):
        return f"a has shape {tuple(a.shape)} and b {[tuple(x.shape) for x in b]}, and matrices are multiplied"
    for x in b:
        if a.shape[1] != x.shape[0]:
            return f"a of shape {tuple(a.shape)} does not go with b of shape {tuple(x.shape)}"
        if x.dtype != a.dtype and not scaled:
            return f"a holds {a.dtype}, and b {x.dtype}"
        if x.device != a.device:
            return f"a lies on {a.device}, and b on {x.device}"
    return ""


def _problem_of_rows(m: int, rows: tuple[int, ...] | None) -> str:
    if rows is not None and (sum(rows) != m or min(rows, default=0) < 0):
        return f"rows are {rows}, whose sum is not the m of a, {m}"
    return ""


@dataclass(frozen=True, slots=True)
class Agreed:
    """rows: of each rank, of A in an all-gather, of the result in a reduce-scatter. k, columns: of the largest product.
    peers: whether the ranks are different GPUs of one host. gpu: of rank 0, by its name. scaled_rows: whether each row
    of A has a scale of its own. alone: no rank has another group of GPUs."""

    rows: tuple[int, ...]
    k: int
    columns: int
    peers: bool
    gpu: str
    scaled_rows: bool = False
    alone: bool = True


def agreed(own: Described, group: Any) -> Agreed:
    """Compare the calls of all ranks. Raises ProblemError, the same on every rank."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return judged(found)


def judged(found: list[Described]) -> Agreed:
    """What the calls of all ranks amount to. Raises ProblemError."""
    for rank, one in enumerate(found):
        if one.problem:
            raise ProblemError(f"{one.name} on rank {rank}: {one.problem}.")
    _same("call", [one.name for one in found], found)
    _same("formats", [", ".join(one.formats) for one in found], found)
    _same("options", [one.options for one in found], found)
    _same("rows", [one.rows for one in found], found)
    scaled = next((one.scaling for one in found if one.scaling), "")
    _same("scale_a", [one.scaling or scaled for one in found], found)
    if found[0].name == GATHER:
        _same("k", [one.a[1] for one in found], found)
        rows = tuple(one.a[0] for one in found)
        if found[0].rows not in (None, rows):
            raise ProblemError(f"{GATHER}: rows are {found[0].rows}, and the ranks have {rows} rows of a.")
    else:
        _same("m", [one.a[0] for one in found], found)
        _same("n", [", ".join(str(n) for _, n in one.b) for one in found], found)
        rows = found[0].rows or shares(found[0].a[0], len(found))
        if len(rows) != len(found):
            raise ProblemError(f"{SCATTER}: rows are {rows}, and the group has {len(found)} ranks.")
    places = {(one.host, one.device) for one in found}
    peers = len(places) == len(found) and len({one.host for one in found}) == 1
    peers = peers and all(one.device is not None for one in found)
    widths = [sum(n) if found[0].name == GATHER else max(n) for n in ([shape[1] for shape in one.b] for one in found)]
    k, alone = max(one.a[1] for one in found), all(one.alone for one in found)
    return Agreed(rows, k, max(widths), peers, found[0].gpu, scaled == _ROWS, alone)


def shares(rows: int, ranks: int) -> tuple[int, ...]:
    """Rows that each rank keeps: as DTensor shards them, the first ranks have more."""
    size = max(ceil_div(rows, ranks), 1)
    return tuple(max(min(size, rows - rank * size), 0) for rank in range(ranks))


def _same(what: str, told: list[Any], found: list[Described]) -> None:
    if len(set(told)) > 1:
        values = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(told))
        raise ProblemError(
            f"{found[0].name}: the ranks do not agree about {what}.",
            note=values,
            hint="call with operands of the same formats and matching shapes on every rank of the group.",
        )
