"""Facts that the machine tells its listeners, with the places that they are at; what detectors find in them: rules that
a kernel breaks, where, who, what. A listener counts; the machine does not change when one is added.

An event speaks of one statement executed by one convoy: many warps of many blocks at once; `who` are those warps (None
where a test makes the event), `mask` their lanes that take part (None: all). Whatever a listener
finds out about the addresses of an access it keeps with their pattern (`Access.known`), since the same pattern comes
back with another offset in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal, NoReturn, TypeVar

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.errors import SimulationError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Stmt
from tilewright.ir.text import kernel_lines
from tilewright.ir.visit import Path
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


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One statement. index: position among the sites of the kernel. line: from 1, in `ir.text.kernel_text`.

    origin: the declared thing it comes from ("" if none). loops: the enclosing loops, outermost first: the name of
    each and the slot that holds its value. memory: which buffer the site is about, where the statement touches two
    (an asynchronous copy has a site for its source and one for its target).
    """

    index: int
    path: Path
    line: int
    text: str
    stmt: Stmt
    origin: str = ""
    loops: tuple[tuple[str, int], ...] = ()
    memory: Buffer | None = None

    def values(self, slots: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """The enclosing loops with their current values."""
        return tuple((name, slots[slot]) for name, slot in self.loops)

    @property
    def loop_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.loops)


class Sites:
    """Makes the sites of one kernel, in the order in which its statements are translated."""

    def __init__(self, kernel: Kernel) -> None:
        self._lines = {
            line.path: (number, line.text.strip())
            for number, line in enumerate(kernel_lines(kernel), start=1)
            if line.path is not None
        }
        self.all: list[Site] = []

    def place(self, path: Path, stmt: Stmt, loops: tuple[tuple[str, int], ...]) -> Site:
        """A statement as an observer is told of it: a place that no counter counts by, index -1."""
        line, text = self._lines[path]
        return Site(-1, path, line, text, stmt, getattr(stmt, "origin", ""), loops)

    def add(self, path: Path, stmt: Stmt, loops: tuple[tuple[str, int], ...], memory: Buffer | None = None) -> Site:
        line, text = self._lines[path]
        origin = getattr(stmt, "origin", "")
        site = Site(len(self.all), path, line, text, stmt, origin, loops, memory)
        self.all.append(site)
        return site


OnFinding = Literal["raise", "collect"]


class Kind(Enum):
    """What is wrong. The value is the phrase that messages use."""

    RACE = "race"
    SAME_VALUE = "same value written by several threads"  # a note: redundant, not wrong
    UNWRITTEN = "read of unwritten memory"
    OUT_OF_BOUNDS = "access out of bounds"
    MISALIGNED = "misaligned access"
    OVERFLOW = "overflow of a 32-bit index"
    NEGATIVE = "division of a negative integer"
    COPY_SIZE = "copy of an impossible size"
    DIVERGENT_BARRIER = "barrier reached by a part of a warp"
    PARTED_WARP = "instruction of a whole warp on which its lanes do not agree"
    NOT_UNIFORM = "value that differs between lanes of a warp"
    MBARRIER = "misused mbarrier"
    UNFENCED = "access that no fence orders"
    IN_FLIGHT = "registers of wgmma under way"
    UNFINISHED = "end before all is over"
    BULK_COPY = "impossible bulk copy"
    REGISTERS = "impossible number of registers"
    DEADLOCK = "deadlock"

    @property
    def is_error(self) -> bool:
        return self is not Kind.SAME_VALUE


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the kernel as some lanes execute it; no lanes stand for the whole warp.

    line: from 1, in `ir.text.kernel_text`. block: (x, y, z).

    loops: enclosing loops, outermost first, with their values; empty where they are not known (an earlier access).
    """

    line: int
    text: str
    block: tuple[int, int, int]
    warp: int
    lanes: tuple[int, ...]
    loops: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        loops = f"  with {', '.join(f'{name} = {value}' for name, value in self.loops)}" if self.loops else ""
        lanes = f", {numbers_text('lane', self.lanes)}" if self.lanes else ""
        who = f"block {self.block}, warp {self.warp}{lanes}"
        return f"line {self.line}: {self.text}{loops}\n  {who}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one line, however often it happened.

    element: the flat element of `buffer` that the first lane touches. earlier: the access it conflicts with.
    occurrences: executions of the line that broke the rule this way. order: of warps, as `simulate` is told it; empty
    for the usual one.
    """

    kind: Kind
    headline: str
    where: Where
    buffer: str = ""
    element: int | None = None
    earlier: Where | None = None
    note: str = ""
    hint: str = ""
    occurrences: int = 1
    order: str = ""

    @property
    def place(self) -> str:
        earlier = "" if self.earlier is None else f"\nearlier, {self.earlier}"
        return f"{self.where}{earlier}" + (f"\nin the order {self.order}" if self.order else "")

    def error(self) -> SimulationError:
        return SimulationError(self.headline, place=self.place, note=self.note, hint=self.hint)

    def __str__(self) -> str:
        return str(self.error())


class StopSimulation(Exception):
    """The kernel cannot go on (deadlock); what was found says why."""


@dataclass(slots=True)
class Findings:
    """Collects what is found, or raises the first error. Repeats of one finding at one line are counted.

    heard: told each finding as it is found. order: in which warps run, as findings tell it.
    """

    on_finding: OnFinding = "raise"
    heard: Callable[[Finding], None] | None = None
    order: str = ""
    _found: dict[object, Finding] = field(default_factory=dict)

    def report(
        self,
        kind: Kind,
        headline: str,
        where: Where,
        buffer: str = "",
        element: int | None = None,
        earlier: Where | None = None,
        *,
        note: str = "",
        hint: str = "",
    ) -> None:
        finding = Finding(kind, headline, where, buffer, element, earlier, note, hint, order=self.order)
        if self.heard is not None:
            self.heard(finding)
        if self.on_finding == "raise" and finding.kind.is_error:
            raise finding.error()
        key = (finding.kind, finding.where.line, finding.buffer, finding.earlier and finding.earlier.line)
        known = self._found.get(key)
        self._found[key] = finding if known is None else replace(known, occurrences=known.occurrences + 1)

    def stop(self, *finding: Any, **words: Any) -> NoReturn:
        """Report what the kernel cannot go on after, as `report` takes it."""
        self.report(*finding, **words)
        raise StopSimulation

    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())


def numbers_text(noun: str, numbers: Iterable[int]) -> str:
    """Numbered things with runs joined.

    >>> numbers_text("lane", [0, 1, 2, 3, 8, 30, 31]), numbers_text("warp", [5])
    ('lanes 0-3, 8, 30-31', 'warp 5')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    plural = "s" if len(runs) > 1 or runs[0][0] != runs[0][1] else ""
    return f"{noun}{plural} {text}"
