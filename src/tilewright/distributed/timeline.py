"""What one rank does in a product that overlaps with communication: steps on streams, as data.

`pytorch/symmetric.py` executes the steps, the tests run those of all ranks in every kind of order.

The rows of the matrix that all ranks share (A in an all-gather, the result in a reduce-scatter) lie on the ranks one
behind the other: rank 0 has the first `rows[0]`.

A flag is one word in the memory of the rank that waits for it: another rank sets it to 1, a wait sets it back to 0.
A flag that may still be 1 is not set: a rank pushes data only after the flag FREE of the peer, which the peer sets when
its call begins, so that it has read the data of the call before. Copies begin some microseconds later than if flags
were set behind the last reader; but no step of a call then comes behind its last product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import accumulate

from tilewright.units import ceil_div, round_up

FREE = 0
"""The channel of the flags that say that a rank's buffer may be written."""

DATA = 1
"""The channel of the flags that say that data lies there: of the first piece; the next pieces have the next ones."""

MOST_PIECES = 8
CHANNELS = DATA + MOST_PIECES

_PIECE_ROWS = 128
"""Pieces are multiples of this, so that only the last has a partial tile along m."""


class Lane(IntEnum):
    """The streams of a rank. Products of a gather alternate between two: the next fills the GPU when one runs out of
    tiles."""

    CALLER = 0
    SECOND = 1
    COPIES = 2


class Buffer(Enum):
    """Matrices of rows. GATHERED and RECEIVED lie in symmetric memory, where peers write them; so do SCALES, those of
    gathered rows of FP8, which travel with them."""

    A = "a"
    GATHERED = "gathered"
    SCALES = "scales"
    PARTIAL = "partial"
    RECEIVED = "received"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a buffer."""

    buffer: Buffer
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Multiply:
    """target = source @ b + the sum of `added`. arrivals: peers whose rows of the source arrive meanwhile, in this
    order: the kernel waits for their flags of DATA, and leaves them as they are. shared: peers with which the kernel
    adds up: it computes its parts of their rows first, in this order, and stores them into their memory, and adds those
    of own rows that they send before these are written. Kernels wait for each other by flags of their own."""

    lane: Lane
    source: Rows
    target: Rows
    added: tuple[Rows, ...] = ()
    after: tuple[int, ...] = ()
    arrivals: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Add:
    """target = the sum of some rows, in this order."""

    lane: Lane
    added: tuple[Rows, ...]
    target: Rows
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A kernel that stores rows into the memory of all ranks, and waits for what they store: own rows of the source, to
    all of them; or parts of the rows that each keeps (summed), whose sums in the order of the ranks are the target.
    Ranks meet before it and in it, so that it takes no flags."""

    lane: Lane
    source: Rows
    target: Rows
    summed: bool = False
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows into the buffer of a peer, or into an own one (None)."""

    lane: Lane
    source: Rows
    target: Rows
    peer: int | None
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """Set the own flag of a channel on a peer."""

    lane: Lane
    peer: int
    channel: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for the flag that a peer sets, and set it back."""

    lane: Lane
    peer: int
    channel: int
    after: tuple[int, ...] = ()


Step = Multiply | Add | Exchange | Copy | Signal | Await
"""Steps of one lane run in order. after: steps of other lanes, by their number, that end before this one begins."""


def starts_of(rows: Sequence[int]) -> list[int]:
    """The first row of each rank.

    >>> starts_of((4, 4, 3))
    [0, 4, 8]
    """
    return list(accumulate(rows, initial=0))[:-1]


def pieces_of(rows: int, pieces: int) -> list[tuple[int, int]]:
    """At most so many pieces: the first row and the number of rows of each.

    >>> pieces_of(300, 2)
    [(0, 256), (256, 44)]
    >>> pieces_of(0, 2)
    []
    """
    size = round_up(ceil_div(max(rows, 1), pieces), _PIECE_ROWS)
    return [(first, min(size, rows - first)) for first in range(0, rows, size)]


def slot_of(source: int, owner: int, rows: Sequence[int]) -> int:
    """The first row, on its owner, of what another rank sends in a reduce-scatter."""
    return (source if source < owner else source - 1) * rows[owner]


def all_gather_steps(rank: int, rows: Sequence[int], *, arriving: bool = False) -> tuple[Step, ...]:
    """The rows of all ranks, times b: each rank pushes its own to the others while it multiplies them.

    The peer that needs them first comes first: a rank multiplies its own rows, then those of the next ranks in turn.
    arriving: one product of all rows, whose kernel waits for
    those of each rank; its flags are set back when it has ended.
    """
    ranks, starts, steps = len(rows), starts_of(rows), list[Step]()
    own = Rows(Buffer.A, 0, rows[rank])
    places = [Rows(Buffer.GATHERED, start, count) for start, count in zip(starts, rows, strict=True)]
    others = [(rank + distance) % ranks for distance in range(1, ranks)]
    steps += [Signal(Lane.COPIES, peer, FREE) for peer in others]
    for peer in reversed(others):
        steps.append(Await(Lane.COPIES, peer, FREE))
        if rows[rank]:
            steps.append(Copy(Lane.COPIES, own, places[rank], peer))
        steps.append(Signal(Lane.COPIES, peer, DATA))
    if arriving:
        if rows[rank]:
            steps.append(Copy(Lane.CALLER, own, places[rank], None))
        everything = Rows(Buffer.GATHERED, 0, sum(rows)), Rows(Buffer.RESULT, 0, sum(rows))
        _multiplied(steps, Multiply(Lane.CALLER, *everything, arrivals=tuple(others)))
        return (*steps, *(Await(Lane.CALLER, peer, DATA) for peer in others))
    _multiplied(steps, Multiply(Lane.CALLER, own, Rows(Buffer.RESULT, starts[rank], rows[rank])))
    for number, peer in enumerate(others):
        lane = (Lane.SECOND, Lane.CALLER)[number % 2]
        steps.append(Await(lane, peer, DATA))
        target = Rows(Buffer.RESULT, starts[peer], rows[peer])
        _multiplied(steps, Multiply(lane, places[peer], target))
    return tuple(steps)


def _multiplied(steps: list[Step], product: Multiply) -> None:
    """A product without rows is left out."""
    if product.target.count:
        steps.append(product)


def reduce_scatter_steps(rank: int, rows: Sequence[int], *, pieces: int = 1, adds: bool = False) -> tuple[Step, ...]:
    """The sum over ranks of products, of which each rank keeps its own rows.

    A rank multiplies the rows of the next ranks first, and pushes each piece to its owner when it is done. Own rows
    come last, and what the others sent is added to their accumulators. Products follow each other in one stream: of two
    that begin at once a GPU may finish the later one first.
    adds: what the others sent is added when own rows are done, so that these wait for nothing; one piece.
    """
    ranks, starts = len(rows), starts_of(rows)
    steps = _free(rank, rows)
    for distance in range(1, ranks):
        peer = (rank + distance) % ranks
        if rows[peer]:
            steps.append(Await(Lane.COPIES, peer, FREE))
        for number, (first, count) in enumerate(pieces_of(rows[peer], pieces)):
            partial = Rows(Buffer.PARTIAL, starts[peer] + first, count)
            received = Rows(Buffer.RECEIVED, slot_of(rank, peer, rows) + first, count)
            steps.append(Multiply(Lane.CALLER, Rows(Buffer.A, starts[peer] + first, count), partial))
            steps.append(Copy(Lane.COPIES, partial, received, peer, (len(steps) - 1,)))
            steps.append(Signal(Lane.COPIES, peer, DATA + number))
    others = [peer for peer in range(ranks) if peer != rank]
    if adds and rows[rank]:
        own = Rows(Buffer.PARTIAL, starts[rank], rows[rank])
        steps.append(Multiply(Lane.CALLER, Rows(Buffer.A, starts[rank], rows[rank]), own))
        steps += _added(rank, rows, others)
    for number, (first, count) in enumerate(() if adds else pieces_of(rows[rank], pieces)):
        steps += [Await(Lane.CALLER, peer, DATA + number) for peer in others]
        added = tuple(Rows(Buffer.RECEIVED, slot_of(peer, rank, rows) + first, count) for peer in others)
        source, target = Rows(Buffer.A, starts[rank] + first, count), Rows(Buffer.RESULT, first, count)
        steps.append(Multiply(Lane.CALLER, source, target, added))
    return tuple(steps)


def _free(rank: int, rows: Sequence[int]) -> list[Step]:
    """Tells all ranks that they may write what this one receives of its own rows."""
    peers = [peer for peer in range(len(rows)) if peer != rank and rows[rank]]
    return [Signal(Lane.COPIES, peer, FREE) for peer in peers]


def _added(rank: int, rows: Sequence[int], others: Sequence[int]) -> list[Step]:
    """Own rows of the partial product and those that the others have sent, added in the order of the ranks."""
    own = Rows(Buffer.PARTIAL, starts_of(rows)[rank], rows[rank])
    sent = {peer: Rows(Buffer.RECEIVED, slot_of(peer, rank, rows), rows[rank]) for peer in others}
    parts = tuple({**sent, rank: own}[i] for i in range(len(rows)))
    waits: list[Step] = [Await(Lane.CALLER, peer, DATA) for peer in others]
    return [*waits, Add(Lane.CALLER, parts, Rows(Buffer.RESULT, 0, rows[rank]))]


def exchanged_all_gather_steps(rank: int, rows: Sequence[int]) -> tuple[Step, ...]:
    """Rows that threads store into the memory of all ranks, and one product of all of them."""
    everything = Rows(Buffer.GATHERED, 0, sum(rows))
    exchange = Exchange(Lane.CALLER, Rows(Buffer.A, 0, rows[rank]), everything)
    return exchange, Multiply(Lane.CALLER, everything, Rows(Buffer.RESULT, 0, sum(rows)))


def exchanged_reduce_scatter_steps(rank: int, rows: Sequence[int]) -> tuple[Step, ...]:
    """One product of all rows, parts of which threads store into the memory of their owners, and add up."""
    partial = Rows(Buffer.PARTIAL, 0, sum(rows))
    exchange = Exchange(Lane.CALLER, partial, Rows(Buffer.RESULT, 0, rows[rank]), summed=True)
    return Multiply(Lane.CALLER, Rows(Buffer.A, 0, sum(rows)), partial), exchange


def shared_reduce_scatter_steps(rank: int, rows: Sequence[int]) -> tuple[Step, ...]:
    """One product of all rows, whose kernel stores its parts of other ranks' rows into their memory while it runs, and
    adds up those of own rows."""
    ranks = len(rows)
    others = tuple((rank + distance) % ranks for distance in range(1, ranks))
    source, target = Rows(Buffer.A, 0, sum(rows)), Rows(Buffer.RESULT, 0, rows[rank])
    return (Multiply(Lane.CALLER, source, target, shared=others),)
