"""Products that the ranks of a group share, each by one kernel, and exchanges between them by threads, on GPUs of
PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from tilewright import extras
from tilewright.errors import LaunchError
from tilewright.frontend.compute import device_of, views_of
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.plain import LIBRARY
from tilewright.frontend.requests import checked, requests_of
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.lowering.rank_sums import MOST_BLOCKS, flags_of
from tilewright.planning.beside_products import TileParts, exchange_plan
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.packing import Shards
from tilewright.planning.plan import Place, Plan
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
        return dispatcher(device_of(LIBRARY, views.a)).plan(request)


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


_LEAST_PART_BYTES = 2048
"""Of a tile whose parts have flags: smaller ones are not used."""


def parts_flag_bytes(ranks: int, parts_bytes: int) -> int:
    """Bytes of the flags of so many bytes of parts, on each rank."""
    return round_up(4 * flags_of(ranks, parts_bytes // (ranks - 1) // _LEAST_PART_BYTES), WIDEST_BYTES)


@dataclass(frozen=True, slots=True)
class PartsMemory:
    """The memory by which the kernels of all ranks add up, by its addresses on each rank. flags: in so many bytes,
    which are 0 in the beginning; received: parts, in so many bytes. sent: memory of this rank, of at least so many."""

    flags: Sequence[int]
    flag_bytes: int
    received: Sequence[int]
    room_bytes: int
    sent: Callable[[int], Any]


class SummedProducts(_Products):
    """Products whose kernels add up over ranks, each of which keeps its rows: parts of other ranks' rows are stored
    into their memory, and those of own rows are added when they are there."""

    def __init__(self, rows: Sequence[int], rank: int, memory: PartsMemory, options: Options, device: Any) -> None:
        super().__init__(Shards(tuple(rows), rank, summed=True), options, device)
        self._memory, self._device = memory, device
        self.words: frozenset[tuple[Any, ...]] = frozenset()
        """The shapes of b, what multiplies by them, and by how many blocks: those of a number speak with each other."""
        self._peers = [torch.tensor(one, dtype=torch.int64, device=device) for one in (memory.received, memory.flags)]
        self._sent: Any
        self._sent_flags: Any

    def _planned(self, a: Any, b: Any) -> Plan:
        plan, ranks = super()._planned(a, b), len(self._shards.rows)
        multiplied = plan.steps[0].multiplied
        assert multiplied is not None and isinstance(multiplied.config.kernel, WgmmaConfig)
        parts = TileParts.of(self._shards, multiplied.config.kernel, int(b.shape[1]), multiplied.gemm.out.bytes)
        needed, blocks = parts.slot_bytes * (ranks - 1), plan.steps[0].launch.grid[0]
        flags_fit = 4 * flags_of(ranks, parts.tiles) <= self._memory.flag_bytes and blocks <= MOST_BLOCKS
        if needed > self._memory.room_bytes or not flags_fit:
            raise LaunchError(
                f"A product of {tuple(a.shape)} by {tuple(b.shape)} has more parts of tiles than there is memory for: "
                f"{needed} bytes in {self._memory.room_bytes}, and flags in {self._memory.flag_bytes}."
            )
        self._sent = self._memory.sent(needed)
        self._sent_flags = torch.zeros((ranks - 1) * parts.tiles, dtype=torch.int32, device=self._device)
        self.words |= {(tuple(b.shape)[1:], plan.words, blocks)}
        return plan

    def start(self, number: int, a: Any, b: Any, out: Any, stream: int) -> None:
        """Start the product on a stream, by its address. out: own rows of the sum. Raises as `plan`."""
        plan, (received, flags) = self.plan(number, a, b), self._peers
        behind = self._shards.starts[self._shards.rank] * b.shape[1] * out.element_size()
        told = {
            Place.A: a.data_ptr(),
            Place.B: b.data_ptr(),
            Place.OUT: out.data_ptr() - behind if out.numel() else self._sent.data_ptr(),  # the kernel counts all rows
            Place.SHARD_STARTS: self._starts.data_ptr(),
            Place.SENT_PARTS: self._sent.data_ptr(),
            Place.SENT_FLAGS: self._sent_flags.data_ptr(),
            Place.RANK_SUMS: received.data_ptr(),
            Place.RANK_FLAGS: flags.data_ptr(),
        }
        _run(plan, stream, told)


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
