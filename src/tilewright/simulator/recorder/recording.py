"""What is recorded of one block, as values. A moment is numbered from 0; its state is the one after it."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array

MomentKind = Literal["step", "stall", "landing", "skipped", "fault"]
"""A statement executed; warps that begin to wait; asynchronous copies that land while all warps wait; statements that
were not kept; the statement that a detector stopped at, or the deadlock."""


@dataclass(frozen=True, slots=True)
class Region:
    """The cells of one buffer, from `base` on.

    space: "shared" has a cell for each element; "register" has them as (warps, elements, 32). line: that declares it,
    in the text of the kernel. offset_bytes: in shared memory.
    """

    name: str
    space: Literal["shared", "register"]
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    note: str
    base: int
    cells: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """The addresses of a warp's lanes relative to a multiple of 128 bytes; -1 for lanes that do not take part."""

    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """An access to memory. matrices: of ldmatrix and stmatrix, whose lanes name rows of 16 bytes.

    places: of each warp its number, its picture, what to add to the picture's addresses, and, of an asynchronous copy
    into shared memory, the picture of where it reads (else -1).
    """

    buffer: str
    space: Literal["shared", "global"]
    store: bool
    width_bytes: int
    itemsize: int
    matrices: int
    places: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened. line: in the text of the kernel, 0 where it has none. warps: of the block.

    loops: the loops around the statement with their values. lanes: for each warp the lanes that take part as bits;
    empty where all do. note: mbarriers that it is about, instructions it stands for, what is waited for.
    """

    kind: MomentKind
    line: int
    warps: tuple[int, ...]
    loops: tuple[tuple[str, int], ...] = ()
    lanes: tuple[int, ...] = ()
    note: str = ""
    accesses: tuple[Shown, ...] = ()


@dataclass(frozen=True, slots=True)
class Stall:
    """A warp waits from moment `first` until before moment `last` (-1: for ever). barrier: its name."""

    warp: int
    line: int
    first: int
    last: int
    barrier: str
    what: str


@dataclass(frozen=True, slots=True)
class Flight:
    """Work of an asynchronous unit, under way from moment `first` until before moment `last` (-1: to the end).

    warp: that started it. committed: the moment from which it belongs to a complete group, -1 where there are none.
    runs: the elements of `buffer` it writes or reads, as (first, count). note: where in the matrix, which mbarrier.
    """

    kind: Literal["cp.async", "TMA load", "TMA store", "wgmma"]
    line: int
    warp: int
    first: int
    last: int
    committed: int = -1
    buffer: str = ""
    runs: tuple[tuple[int, int], ...] = ()
    size_bytes: int = 0
    barrier: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class BarrierState:
    """An mbarrier from a moment on. phase: that runs, from 0. pending: arrivals that it waits for, of `count`; bytes:
    expected and not landed."""

    moment: int
    barrier: int
    phase: int
    pending: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule, and the moments that show it. earlier: of the access it conflicts with, -1 where there is none or
    it was not kept. missing: who should have arrived, in sentences."""

    kind: str
    is_error: bool
    headline: str
    note: str
    hint: str
    moment: int
    line: int
    warp: int
    lanes: tuple[int, ...]
    buffer: str
    element: int | None
    earlier: int
    earlier_line: int
    earlier_warp: int
    earlier_lanes: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Changes:
    """Cells that changed, run by run. first: the run at which each moment begins, (moments + 1,). start, length: of
    each run in cells; values: of all runs one after the other."""

    first: Array
    start: Array
    length: Array
    values: Array


@dataclass(frozen=True, slots=True)
class Recording:
    """One block of a launch. lines: the text of the kernel. ends: the moment before which each warp has ended, -1 for
    never. skipped: moments that were not kept. NaN: a cell that nobody has written."""

    kernel: str
    sizes: tuple[int, int, int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    warps: int
    lines: tuple[str, ...]
    regions: tuple[Region, ...]
    moments: tuple[Moment, ...]
    stalls: tuple[Stall, ...]
    flights: tuple[Flight, ...]
    barriers: tuple[str, ...]
    barrier_states: tuple[BarrierState, ...]
    pictures: tuple[Picture, ...]
    faults: tuple[Fault, ...]
    ends: tuple[int, ...]
    changes: Changes = field(repr=False)
    skipped: int = 0

    @property
    def cells(self) -> int:
        return sum(region.cells for region in self.regions)

    def state(self, moment: int) -> Array:
        """All cells after a moment, (cells,) float32; -1 is before the first."""
        cells = np.full(self.cells, np.nan, np.float32)
        changes, last = self.changes, int(self.changes.first[moment + 1])
        ends = np.cumsum(changes.length[:last])
        for start, length, end in zip(changes.start[:last], changes.length[:last], ends, strict=True):
            cells[start : start + length] = changes.values[end - length : end]
        return cells

    def shared(self, moment: int) -> dict[str, Array]:
        """The shared buffers after a moment, in their shapes."""
        state = self.state(moment)
        return {
            region.name: state[region.base : region.base + region.cells].reshape(region.shape)
            for region in self.regions
            if region.space == "shared"
        }

    def registers(self, moment: int, warp: int) -> list[tuple[Region, Array]]:
        """The register buffers of a warp after a moment, each (elements, 32)."""
        state = self.state(moment)
        return [
            (region, state[region.base : region.base + region.cells].reshape(self.warps, -1, WARP_THREADS)[warp])
            for region in self.regions
            if region.space == "register"
        ]

    def executions(self, text: str) -> list[int]:
        """The moments at which a line of the kernel that contains `text` was executed."""
        return [at for at, one in enumerate(self.moments) if one.kind == "step" and text in self.lines[one.line - 1]]

    def to_data(self) -> dict[str, Any]:
        """Everything as JSON can hold it; arrays are packed (`packed`), values with their bytes in four planes."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "changes"}
        plain = {name: _plain(value) for name, value in data.items()}
        changes = self.changes
        planes = changes.values.astype("<f4").view(np.uint8).reshape(-1, 4).T
        return plain | {
            "runs_first": packed(changes.first.astype("<i4")),
            "runs_start": packed(np.diff(changes.start, prepend=0).astype("<i4")),
            "runs_length": packed(changes.length.astype("<i4")),
            "values": packed(np.ascontiguousarray(planes)),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Recording:
        """The recording that `to_data` wrote."""
        values = unpacked(data["values"], "u1").reshape(4, -1).T
        changes = Changes(
            unpacked(data["runs_first"], "<i4"),
            np.cumsum(unpacked(data["runs_start"], "<i4")),
            unpacked(data["runs_length"], "<i4"),
            np.ascontiguousarray(values).view("<f4").reshape(-1),
        )
        made = {name: [_made(kind, one) for one in data[name]] for name, kind in _VALUES.items()}
        rest: dict[str, Any] = {
            name: tuple(made[name]) if name in made else _tupled(value)
            for name, value in data.items()
            if name in cls.__dataclass_fields__
        }
        return cls(**rest, changes=changes)


_VALUES: dict[str, type] = {
    "regions": Region,
    "moments": Moment,
    "stalls": Stall,
    "flights": Flight,
    "barrier_states": BarrierState,
    "pictures": Picture,
    "faults": Fault,
}


def packed(array: Array) -> str:
    """The bytes of an array, compressed, as text."""
    return packed_bytes(array.tobytes())


def packed_bytes(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")


def unpacked(text: str, dtype: str) -> Array:
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype)


def _plain(value: Any) -> Any:
    """Dataclasses as lists of their fields: the names would be most of the text."""
    if hasattr(value, "__dataclass_fields__"):
        return [_plain(getattr(value, name)) for name in value.__dataclass_fields__]
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(one) for one in value) if isinstance(value, list) else value


def _made(kind: type, row: Sequence[Any]) -> Any:
    values = dict(zip(kind.__dataclass_fields__, row, strict=True))  # type: ignore[attr-defined]
    if kind is Moment:
        values["accesses"] = [_made(Shown, shown) for shown in values["accesses"]]
    return kind(**{name: _tupled(value) for name, value in values.items()})


def fields_of_values() -> dict[str, list[str]]:
    """The field names behind the lists of `to_data`, for whoever reads it."""
    kinds = {**_VALUES, "shown": Shown}
    return {name: list(kind.__dataclass_fields__) for name, kind in kinds.items()}  # type: ignore[attr-defined]
