"""Facts that the machine tells its listeners. A listener counts; the machine does not change when one is added.

An event speaks of one statement executed by one convoy: many warps of many blocks at once; `who` are those warps (None
where a test makes the event), `mask` their lanes that take part (None: all). Whatever a listener
finds out about the addresses of an access it keeps with their pattern (`Access.known`), since the same pattern comes
back with another offset in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.kernel import Kernel
from tilewright.simulator.findings import Site
from tilewright.simulator.warps import Mask, Pattern, Warps

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Launch:
    """What is about to run. blocks: how many will be simulated, of how many in the grid."""

    kernel: Kernel
    sites: tuple[Site, ...]
    grid: tuple[int, int, int]
    blocks: int
    grid_blocks: int
    warps_per_block: int


@dataclass(slots=True)
class Access:
    """A load or store of global or shared memory, `width` elements a lane.

    pattern + offset: the first element of each lane. base_bytes: the address of element 0. issued_warps: warps that
    execute the instruction; some may have no lane that touches memory. guarded_off: lanes whose guard is false.
    matrices: of 8 rows of 16 bytes that each warp moves (ldmatrix; then an active lane is one that names a row).
    continued: a further access of the same execution of the statement. source: where the lanes of an asynchronous copy
    read what this access writes, as `pattern`.
    """

    site: Site
    buffer: Buffer
    store: bool
    width: int
    pattern: Pattern
    offset: int
    issued_warps: int
    guarded_off: int = 0
    base_bytes: int = 0
    warps: Warps | None = None
    matrices: int = 0
    continued: bool = False
    source: Pattern | None = None

    @property
    def executing_lanes(self) -> int:
        """Lanes that execute the instruction."""
        return self.issued_warps * WARP_THREADS if self.matrices else self.pattern.active_lanes + self.guarded_off

    @property
    def space(self) -> Space:
        return self.buffer.space

    @property
    def width_bytes(self) -> int:
        return self.width * self.buffer.dtype.bytes

    @property
    def bytes_asked(self) -> int:
        """What the active lanes move, a byte wanted by two lanes counted twice."""
        return self.pattern.active_lanes * self.width_bytes

    def addresses(self) -> Array:
        """The byte address of each lane, shape (warps, 32); only those of active lanes mean anything."""
        size = self.buffer.dtype.bytes
        rows: Array = self.pattern.rows * size + (self.base_bytes + self.offset * size)
        return rows

    def known(self, name: str, modulus_bytes: int, find: Callable[[Access], Result]) -> Result:
        """`find(self)`, where a shared offset matters only modulo `modulus_bytes`: found once for each remainder."""
        remainder = (self.base_bytes + self.offset * self.buffer.dtype.bytes) % modulus_bytes
        key = (name, self.buffer.dtype.bytes, self.width, self.store, self.matrices, self.source, remainder)
        return self.pattern.known(key, lambda: find(self))


@dataclass(slots=True)
class Arithmetic:
    """One assignment, `times` over (an unrolled nest is one event). operations: instructions of each kind in one."""

    site: Site
    operations: Mapping[str, int]
    times: int
    warps: int
    lanes: int
    who: Warps | None = None
    mask: Mask | None = None


@dataclass(slots=True)
class Meeting:
    """Warps arrive at a barrier. blocks: blocks they belong to."""

    site: Site
    warps: int
    lanes: int
    blocks: int
    who: Warps | None = None


@dataclass(slots=True)
class Branch:
    """An `If`. warps: that reach it; split: warps whose lanes disagree."""

    site: Site
    warps: int
    lanes: int
    split: int


@dataclass(slots=True)
class Iterations:
    """A loop went round `times`. warps, lanes, blocks: that went round together."""

    site: Site
    times: int
    warps: int
    lanes: int
    blocks: int


@dataclass(slots=True)
class Issue:
    """An instruction that is neither an access nor arithmetic: a fence, an arrival, the start of a unit.

    barriers: the mbarriers that it arrives at or waits for, "k_tile_full[2]"; a wait is told when it is over.
    """

    site: Site
    warps: int
    lanes: int
    blocks: int
    who: Warps | None = None
    mask: Mask | None = None
    barriers: tuple[str, ...] = ()


@dataclass(slots=True)
class Landing:
    """Asynchronous copies (cp.async) are waited for and have arrived. elements: of the buffer that were written."""

    buffer: str
    elements: Array
    who: Warps


@dataclass(slots=True)
class TmaCopy:
    """TMA starts boxes. size_bytes: in shared memory. sectors: of global memory, inside the matrix.

    elements: inside the matrix. places: their offsets in the matrix, (boxes, elements of a box), where `inside`. lanes:
    those of `warps` that start the boxes. shared: the elements of shared memory in which they lie, as `places`.
    """

    site: Site
    boxes: int
    size_bytes: int
    sectors: int
    elements: int
    places: Array
    inside: Array
    lanes: Array
    warps: Warps
    shared: Array


class Listener:
    """Receives every fact; override what you count."""

    def launched(self, launch: Launch) -> None:
        """Before the first statement."""

    def accessed(self, access: Access) -> None:
        """A load or store of global or shared memory; before a store takes place."""

    def computed(self, arithmetic: Arithmetic) -> None:
        """Arithmetic on registers."""

    def met(self, meeting: Meeting) -> None:
        """Warps arrived at a barrier."""

    def branched(self, branch: Branch) -> None:
        """A branch was taken or not."""

    def iterated(self, iterations: Iterations) -> None:
        """A loop went round."""

    def issued(self, issue: Issue) -> None:
        """Any other instruction was executed."""

    def bulk_copied(self, copy: TmaCopy) -> None:
        """TMA started boxes."""

    def landed(self, landing: Landing) -> None:
        """Asynchronous copies were waited for."""


class Wire:
    """Carries each kind of event to the listeners that override its method, and costs nothing for the others."""

    def __init__(self, listeners: tuple[Listener, ...]) -> None:
        def hearing(name: str) -> tuple[Callable[..., None], ...]:
            return tuple(
                getattr(one, name) for one in listeners if getattr(type(one), name) is not getattr(Listener, name)
            )

        self.launched = hearing("launched")
        self.accessed = hearing("accessed")
        self.computed = hearing("computed")
        self.met = hearing("met")
        self.branched = hearing("branched")
        self.iterated = hearing("iterated")
        self.issued = hearing("issued")
        self.bulk_copied = hearing("bulk_copied")
        self.landed = hearing("landed")
