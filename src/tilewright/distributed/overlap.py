"""How long a product over several ranks takes, from figures of the GPU and of the link: who waits for what.

The steps of all ranks run by discrete events. A tile of C takes one SM for a time, a product's tiles take the SMs as
they become free, copies of a rank go one after the other. `plans.chosen` takes the plan for which this is the least.

Left out: the L2, clocks that fall under load, copies that take bandwidth of the memory from a product, and ranks that
come late.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Literal

from tilewright.device.links import NVLINK_4, Link
from tilewright.device.spec import DeviceSpec
from tilewright.distributed.timeline import DATA, Add, Await, Buffer, Copy, Exchange, Lane, Multiply, Signal, Step
from tilewright.dtypes import BF16, E4M3, F32
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request
from tilewright.planning.estimates import estimates, is_ruled_out
from tilewright.planning.packing import Alignment, Shards
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

_SHARE_OF_DRAM = 0.85
"""Of the nominal bandwidth: a guess."""

LAUNCH_US, _LEAST_US = 4.0, 1.0
"""Of a product, beside its tiles: launch, first loads, last stores; and the least that its tiles take. Guesses."""

# Fitted to two H100s and two H200s (benchmarks/results/overlap_h200x2.json, calls as CUDA graphs):

_CALL_US = 3.0
"""Of a call, beside its steps: streams that fork and join."""

_WITH_ADDED = 1.2
"""What tiles take longer whose epilogue adds what others sent."""

_ARRIVING, _SHARED_US = 1.01, 3.0
"""What tiles take longer in kernels that wait for rows, as a factor, and in those that add up over ranks."""

_FLAGS_US = 3.0
"""Of an operation of a stream that waits for flags, beside the wait."""

_CARRY_US = 6.0
"""Until a part of a tile that is done is seen on the rank that keeps it, beside its bytes and a flag."""

_EXCHANGE_US, _EXCHANGE_GB_PER_S = 5.0, 340.0
"""Of kernels by which ranks exchange rows, beside the launch: flags there and back; and the rate at which threads store
into a peer."""

_SHARE_OF_LOCAL_COPY = 0.35
"""Of the nominal bandwidth, that a copy inside a GPU reaches, read and written."""

_LOCAL_COPY_US = 7.0


@dataclass(frozen=True, slots=True)
class Work:
    """What each rank multiplies: rows of all ranks, k of one rank, columns of all b of one rank; bytes of an element of
    an operand and of a result."""

    rows: tuple[int, ...]
    k: int
    columns: int
    element_bytes: int = 2
    result_bytes: int = 2


Sharing = Literal["", "arriving", "summed"]
"""Whether ranks share a product: each multiplies rows that arrive while it does, or they add up."""


@dataclass(frozen=True, slots=True)
class Costs:
    """A GPU and its link."""

    device: DeviceSpec
    link: Link = NVLINK_4

    @property
    def sms(self) -> int:
        return self.device.sm_count

    @property
    def dram_bytes_per_us(self) -> float:
        return self.device.dram_gb_per_s * 1e3 * _SHARE_OF_DRAM

    def tiles(self, rows: int, work: Work, sharing: Sharing = "") -> tuple[int, float]:
        """How many tiles a product has, and microseconds of each on its SM; infinite where ranks cannot share it."""
        return _tiles(self.device, rows, work, sharing)


_FORMATS = {1: E4M3, 2: BF16, 4: F32}
"""That stand for all of as many bytes."""


@lru_cache(maxsize=4096)
def _tiles(device: DeviceSpec, rows: int, work: Work, sharing: Sharing) -> tuple[int, float]:
    """Of the kernel that is estimated to be the fastest."""
    if not rows:
        return 0, 0.0
    operand, out = (_FORMATS[size] for size in (work.element_bytes, work.result_bytes))
    gemm = Gemm(rows, work.columns, work.k, operand, out=out, beta=0.0)
    shards = Shards(work.rows, 0, summed=sharing == "summed") if sharing else None
    alignment = Alignment(WIDEST_BYTES, WIDEST_BYTES, WIDEST_BYTES)
    request = Request(gemm, alignment, shards=shards, without_workspace=sharing != "")
    for time_us, config in estimates(request, device):
        if is_ruled_out(request, config):
            continue
        kernel, count = config.kernel, device.sm_count
        if isinstance(kernel, WgmmaConfig):
            parts = max(config.split_k, 1) * kernel.cluster_k
            count = ceil_div(rows, kernel.m) * ceil_div(work.columns, kernel.n) * parts
        return count, max(time_us - LAUNCH_US, _LEAST_US) / ceil_div(count, device.sm_count)
    return 1, inf


def predicted_us(steps: Sequence[Sequence[Step]], work: Work, costs: Costs) -> float:
    """The time until the last rank has its result. steps: of each rank, all of which begin at once."""
    return _Ranks(steps, work, costs).finish()


class _Ranks:
    """All ranks while their steps run."""

    def __init__(self, steps: Sequence[Sequence[Step]], work: Work, costs: Costs) -> None:
        ranks = range(len(steps))
        self.steps, self.work, self.costs = steps, work, costs
        self.lanes = {
            (rank, lane): [i for i, step in enumerate(steps[rank]) if step.lane is lane]
            for rank in ranks
            for lane in Lane
        }
        self.free_at = dict.fromkeys(self.lanes, 0.0)
        self.ended: list[dict[int, float]] = [{} for _ in ranks]
        self.begun: dict[tuple[int, int], float] = {}
        """When a product that ranks share comes to own tiles, or a rank to an exchange, until what the others send is
        there."""
        self.carried = dict[tuple[int, int], list[float]]()
        """When parts of a rank's tiles, which another one sends, are there."""
        self.set_at = dict[tuple[int, int, int], float]()
        self.at_flags = set[tuple[int, Lane]]()
        """Lanes whose last step was a wait: waits that follow each other are one operation."""
        self.sms = [[0.0] * costs.sms for _ in ranks]

    def finish(self) -> float:
        """Run the step that is ready first, until there is none."""
        while True:
            ready = [(at, place) for place in self.lanes if (at := self._ready(place)) is not None]
            if not ready:
                break
            at, place = min(ready)
            self._run(at, place)
        assert not any(self.lanes.values()), "the ranks wait for each other"
        forks = any(step.lane is not Lane.CALLER for steps in self.steps for step in steps)
        return _CALL_US * forks + max(end for ended in self.ended for end in ended.values())

    def _ready(self, place: tuple[int, Lane]) -> float | None:
        """When the next step of a lane can begin, as far as is known; None where a step that it waits for has not
        run."""
        rank, waiting = place[0], self.lanes[place]
        if not waiting:
            return None
        step = self.steps[rank][waiting[0]]
        at = self.free_at[place]
        for number in step.after:
            if number not in self.ended[rank]:
                return None
            at = max(at, self.ended[rank][number])
        if isinstance(step, Await):
            flag = self.set_at.get((rank, step.peer, step.channel))
            return None if flag is None else max(at, flag)
        if not isinstance(step, Multiply | Exchange):
            return at
        own = self.begun.get((rank, waiting[0]))
        if isinstance(step, Multiply) and own is not None:
            return own if all((rank, peer) in self.carried for peer in step.shared) else None
        awaited = step.arrivals if isinstance(step, Multiply) else () if own is None else self._peers(rank)
        if any((rank, peer, DATA) not in self.set_at for peer in awaited):
            return None
        return at if own is None else max([own, *(self.set_at[rank, peer, DATA] for peer in awaited)])

    def _run(self, at: float, place: tuple[int, Lane]) -> None:
        rank, link = place[0], self.costs.link
        number = self.lanes[place][0]
        step = self.steps[rank][number]
        if isinstance(step, Multiply) and step.shared and (rank, number) not in self.begun:
            self.begun[rank, number] = self._others(at, rank, step)
            return
        if isinstance(step, Exchange) and (rank, number) not in self.begun:
            self.begun[rank, number] = at + LAUNCH_US
            self.set_at |= {(peer, rank, DATA): at + LAUNCH_US for peer in self._peers(rank)}
            return
        self.lanes[place].pop(0)
        match step:
            case Await():
                del self.set_at[rank, step.peer, step.channel]
                end = at if place in self.at_flags else at + _FLAGS_US
            case Signal():
                self.set_at[step.peer, rank, step.channel] = at + link.flag_us
                end = at
            case Copy():
                width = self._width(step.target.buffer)
                local = _LOCAL_COPY_US + 2 * step.source.count * width * _SHARE_OF_DRAM / (
                    self.costs.dram_bytes_per_us * _SHARE_OF_LOCAL_COPY
                )
                end = at + (local if step.peer is None else link.copy_us(step.source.count * width))
            case Add():
                moved = (len(step.added) + 1) * step.target.count * self._width(step.target.buffer)
                end = at + LAUNCH_US + moved / self.costs.dram_bytes_per_us
            case Exchange():
                for peer in self._peers(rank):
                    del self.set_at[rank, peer, DATA]
                end = at + self._exchanged(step)
            case Multiply(shared=(_, *_)):
                end = self._own(at, rank, step)
            case Multiply():
                end = self._multiplied(at, rank, step)
        self.free_at[place] = self.ended[rank][number] = end
        (self.at_flags.add if isinstance(step, Await) else self.at_flags.discard)(place)

    def _peers(self, rank: int) -> tuple[int, ...]:
        return tuple(peer for peer in range(len(self.steps)) if peer != rank)

    def _exchanged(self, step: Exchange) -> float:
        """From when all ranks have come to an exchange until its end."""
        width, ranks = self._width(step.source.buffer), len(self.steps)
        rows = step.source.count - step.target.count if step.summed else (ranks - 1) * step.source.count
        moved = (ranks + 1) * step.target.count if step.summed else 0
        rate = min(self.costs.link.gb_per_s, _EXCHANGE_GB_PER_S)
        return _EXCHANGE_US + rows * width / rate / 1e3 + moved * width / self.costs.dram_bytes_per_us

    def _multiplied(self, at: float, rank: int, step: Multiply) -> float:
        added = len(step.added) * step.target.count * self._width(step.target.buffer) / self.costs.dram_bytes_per_us
        sms, end = self.sms[rank], at
        slower = _ARRIVING if step.arrivals else 1.0
        slower *= _WITH_ADDED if step.added else 1.0
        for arrived, alone in self._tiles(at, rank, step):
            each = alone * slower
            begin = max(heapq.heappop(sms), arrived)
            end = max(end, begin + each)
            heapq.heappush(sms, begin + each)
        return end + added

    def _others(self, at: float, rank: int, step: Multiply) -> float:
        """Tiles of peers' rows, whose parts travel one after the other; when the product has begun."""
        begin = sent = at + LAUNCH_US
        rate = min(self.costs.link.gb_per_s, _EXCHANGE_GB_PER_S) * 1e3
        for number, peer in enumerate(step.shared):
            ends = self._ends(rank, step, peer, begin, (), again=number > 0)
            size = self.work.rows[peer] * self._width(Buffer.RECEIVED) / max(len(ends), 1)
            there = self.carried[peer, rank] = []
            for end in ends:
                sent = max(sent, end) + size / rate
                there.append(sent + _CARRY_US + self.costs.link.flag_us)
        return begin

    def _own(self, begin: float, rank: int, step: Multiply) -> float:
        """Own tiles, none of which ends before the others' parts of it are there; when all are done."""
        parts = [self.carried.pop((rank, peer)) for peer in step.shared]
        there = [max(some) for some in zip(*parts, strict=True)]
        return max(self._ends(rank, step, rank, begin, there, again=True), default=begin)

    def _ends(
        self, rank: int, step: Multiply, owner: int, begin: float, there: Sequence[float], *, again: bool
    ) -> list[float]:
        """When each tile of a rank's rows is done. there: when what is added to it is there, if anything is. again: b
        was read for the rows of another rank, and what the L2 does not hold of it comes from DRAM once more."""
        count, each = self.costs.tiles(step.source.count, self.work, "summed")
        sms, ends = self.sms[rank], list[float]()
        tiles = ceil_div(count * self.work.rows[owner], max(step.source.count, 1))
        if again:
            left_bytes = self.work.k * self.work.columns * self.work.element_bytes - self.costs.device.l2_bytes
            each = max(each, left_bytes / self.costs.dram_bytes_per_us / max(ceil_div(tiles, self.costs.sms), 1))
        for number in range(tiles):
            end = max(heapq.heappop(sms), begin) + each + _SHARED_US
            ends.append(max(end, there[number]) if there else end)
            heapq.heappush(sms, ends[-1])
        return ends

    def _tiles(self, at: float, rank: int, step: Multiply) -> Iterator[tuple[float, float]]:
        """When each tile of a product can begin, and how long it takes. Rows that arrive come last, in their order."""
        count, each = self.costs.tiles(step.target.count, self.work, "arriving" if step.arrivals else "")
        begin, done = at + LAUNCH_US, 0
        shards = [(begin, self.work.rows[rank])] if step.arrivals else [(begin, step.target.count)]
        shards += [(max(begin, self.set_at[rank, peer, DATA]), self.work.rows[peer]) for peer in step.arrivals]
        rows = 0
        for arrived, more in shards:
            rows += more
            until = count * rows // max(step.target.count, 1)
            yield from ((arrived, each) for _ in range(done, until))
            done = until

    def _width(self, buffer: Buffer) -> int:
        """Bytes of a row of a buffer."""
        if buffer in (Buffer.A, Buffer.GATHERED):
            return self.work.k * self.work.element_bytes
        return self.work.columns * self.work.result_bytes
