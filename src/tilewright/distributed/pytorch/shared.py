"""Products that the ranks of a group share, each by one kernel, and exchanges between them by threads, on GPUs of
PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from tilewright import extras
from tilewright.distributed.timeline import SHARED_PIECES
from tilewright.errors import LaunchError
from tilewright.frontend.compute import refuse_host_memory, views_of
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.plain import LIBRARY
from tilewright.frontend.requests import checked, requests_of
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.exchanging import exchange_plan
from tilewright.planning.plan import Place, Plan
from tilewright.planning.stack import Shards
from tilewright.planning.tile_parts import TileParts, slot_of
from tilewright.problem.exchange import Exchange as RankExchange
from tilewright.units import round_up

torch: Any = extras.require("torch", "Multiplying on several GPUs")


def _run(plan: Plan, stream: int, told: Mapping[Place, int]) -> None:
    """Start a plan with addresses by their places."""
    addresses = [0] * (max(told) + 1)
    for place, address in told.items():
        addresses[place] = address
    plan.run(stream, addresses)


class _Products:
    """`a @ b` of several b, by their numbers; all calls with one number look alike."""

    def __init__(self, shards: Shards, options: Options, device: Any) -> None:
        self._shards, self._options = shards, options
        self._starts = torch.tensor(shards.starts, dtype=torch.int32, device=device)
        self._plans: dict[int, Plan] = {}

    def plan(self, number: int, a: Any, b: Any) -> Plan:
        """The launch of a product. Raises TilewrightError where no kernel computes it so, the first time of a
        number."""
        plan = self._plans.get(number)
        if plan is None:
            plan = self._plans[number] = self._planned(a, b)
        return plan

    def _planned(self, a: Any, b: Any) -> Plan:
        views = views_of(LIBRARY, a, b)
        pieces = requests_of(views, *checked(views, self._options), self._options)
        plain = len(pieces) == 1 and pieces[0].is_at_start and not pieces[0].swapped
        if not plain or pieces[0].request.algorithm is not None:
            raise LaunchError(
                f"Ranks cannot share a product of {tuple(a.shape)} by {tuple(b.shape)} that is more than one launch.",
                hint="leave the product and the exchange to launches of their own.",
            )
        request = replace(pieces[0].request, shards=self._shards, without_workspace=True)
        return dispatcher(refuse_host_memory(LIBRARY, views)).plan(request)


class ArrivingProducts(_Products):
    """Products whose kernels wait for the rows of each rank.

    flags: the address of the flags that are waited for, one a rank; that of the own rank is always set.
    """

    def __init__(self, rows: Sequence[int], rank: int, flags: int, options: Options, device: Any) -> None:
        super().__init__(Shards(tuple(rows), rank), options, device)
        self._flags = flags
        self._raised = torch.ones(len(rows), dtype=torch.int32, device=device)

    def start(self, number: int, a: Any, b: Any, out: Any, stream: int, *, waits: bool = True) -> None:
        """Start `out = a @ b` on a stream, by its address. a: memory of all rows. waits: for rows to arrive; else
        whatever lies there is multiplied. Raises as `plan`."""
        flags = self._flags if waits else self._raised.data_ptr()
        told = {
            Place.A: a.data_ptr(),
            Place.B: b.data_ptr(),
            Place.OUT: out.data_ptr(),
            Place.SHARD_STARTS: self._starts.data_ptr(),
            Place.SHARD_FLAGS: flags,
        }
        _run(self.plan(number, a, b), stream, told)


MOST_TILE_ROWS, MOST_CLUSTER_COLUMNS = 1024, 1024
"""Of the tiles of a cluster: all of them are sent."""


def parts_elements(rows: Sequence[int], columns: int) -> int:
    """Elements of the parts of tiles that a rank receives, at most, whatever tiles the kernel has."""
    return (len(rows) - 1) * round_up(max(rows) + MOST_TILE_ROWS, 8) * round_up(columns + MOST_CLUSTER_COLUMNS, 8)


@dataclass(frozen=True, slots=True)
class PartsMemory:
    """The memory by which the kernels of all ranks add up. received: the address of what each rank receives, with room
    for so many bytes; flags: of the pieces that this rank receives, SHARED_PIECES for each rank; sent: memory of this
    rank, of at least so many bytes."""

    received: Sequence[int]
    room_bytes: int
    flags: int
    sent: Callable[[int], Any]


class SummedProducts(_Products):
    """Products whose kernels add up over ranks, each of which keeps its rows: parts of other ranks' rows are left for
    copy engines, and those of own rows are added when their flags are 1."""

    def __init__(self, rows: Sequence[int], rank: int, memory: PartsMemory, options: Options, device: Any) -> None:
        super().__init__(Shards(tuple(rows), rank, summed=True, pieces=SHARED_PIECES), options, device)
        self._memory = memory
        self.words: frozenset[tuple[tuple[int, ...], str]] = frozenset()
        """The shapes of b, and what multiplies by them."""
        self.parts: TileParts
        """Of the product that was planned."""
        self._counts = torch.zeros(SHARED_PIECES * len(rows), dtype=torch.int32, device=device)
        self._sent: Any

    def _planned(self, a: Any, b: Any) -> Plan:
        plan = super()._planned(a, b)
        multiplied = plan.steps[0].multiplied
        assert multiplied is not None and isinstance(multiplied.config.kernel, WgmmaConfig)
        parts = TileParts.of(self._shards, multiplied.config.kernel, int(b.shape[1]), multiplied.gemm.out.bytes)
        needed = parts.slot_bytes * (len(parts.tiles) - 1)
        if needed > self._memory.room_bytes:
            raise LaunchError(
                f"A product of {tuple(a.shape)} by {tuple(b.shape)} has more parts of tiles than there is memory for: "
                f"{needed} bytes in {self._memory.room_bytes}."
            )
        self.parts, self._sent = parts, self._memory.sent(needed)
        self.words |= {(tuple(b.shape)[1:], plan.words)}
        return plan

    def start(self, number: int, a: Any, b: Any, out: Any, stream: int) -> None:
        """Start the product on a stream, by its address. out: own rows of the sum. Raises as `plan`."""
        plan, received = self.plan(number, a, b), self._memory.received[self._shards.rank]
        behind = self._shards.starts[self._shards.rank] * b.shape[1] * out.element_size()
        told = {
            Place.A: a.data_ptr(),
            Place.B: b.data_ptr(),
            Place.OUT: out.data_ptr() - behind if out.numel() else received,  # the kernel counts all rows
            Place.SHARD_STARTS: self._starts.data_ptr(),
            Place.SENT_PARTS: self._sent.data_ptr(),
            Place.RECEIVED_PARTS: received,
            Place.SENT_COUNTS: self._counts.data_ptr(),
            Place.RECEIVED_FLAGS: self._memory.flags,
        }
        _run(plan, stream, told)

    def count(self, keeper: int, piece: int) -> tuple[int, int]:
        """The address of the count of a piece of a rank's rows, and the count when it is done."""
        _, tiles = self.parts.piece(keeper, piece)
        return self._counts.data_ptr() + 4 * (piece * len(self.parts.tiles) + keeper), tiles

    def copy(self, keeper: int, piece: int) -> tuple[int, int, int]:
        """How a piece travels to the rank that keeps it: to and from which address, and how many bytes."""
        parts, rank = self.parts, self._shards.rank
        first, tiles = parts.piece(keeper, piece)
        behind = first * parts.tile_bytes
        to = self._memory.received[keeper] + slot_of(rank, keeper) * parts.slot_bytes + behind
        source = self._sent.data_ptr() + slot_of(keeper, rank) * parts.slot_bytes + behind
        return to, source, tiles * parts.tile_bytes


class Exchanges:
    """Exchanges between ranks by threads, of matrices of one width and format. received, flags: their addresses on each
    rank; flags are 0 in the beginning. All addresses, and those of the matrices, are multiples of 16 bytes."""

    def __init__(
        self, rows: Sequence[int], rank: int, received: Sequence[int], flags: Sequence[int], device: Any
    ) -> None:
        self._rows, self._rank, self._device = tuple(rows), rank, device
        starts = [0, *accumulate(rows)]
        self._starts = torch.tensor(starts, dtype=torch.int32, device=device)
        self._received, self._flags = (torch.tensor(one, dtype=torch.int64, device=device) for one in (received, flags))
        self._plans: dict[RankExchange, Plan] = {}

    def plan(self, source: Any, summed: bool) -> Plan:
        """The launch of an exchange, loaded. Raises LaunchError where there is none."""
        columns, dtype = int(source.shape[1]), LIBRARY.view(source).dtype
        problem = RankExchange(self._rows, self._rank, columns, dtype, summed)
        found = self._plans.get(problem)
        if found is None:
            made = dispatcher(source.get_device())
            with made.gpu.as_current():
                found = self._plans[problem] = exchange_plan(made.kernels, problem)
        return found

    def start(self, source: Any, out: Any, stream: int) -> None:
        """Start an exchange on a stream, by its address. out: own rows of the sum; None: rows are gathered."""
        told = {
            Place.A: source.data_ptr(),
            Place.OUT: 0 if out is None else out.data_ptr(),
            Place.SHARD_STARTS: self._starts.data_ptr(),
            Place.RANK_SUMS: self._received.data_ptr(),
            Place.RANK_FLAGS: self._flags.data_ptr(),
        }
        _run(self.plan(source, out is not None), stream, told)
