"""Boxes from global to shared memory and back, by TMA, started by one thread; and st.async, from registers of a thread
to shared memory of a block of the cluster.

What st.async stores is there at once, as far as the values go. Who may read it, and from when on, is up to the clocks:
it is stamped with the phase that counts its bytes, as a box of TMA is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.async_stmt import TensorMap
from tilewright.simulator.asynchronous.barrier_ops import BarrierOp
from tilewright.simulator.asynchronous.flights import Box, Coordinates, Flight, Store, StoreQueue
from tilewright.simulator.asynchronous.lanes import SharedPlace, UnitOp, acting, values
from tilewright.simulator.asynchronous.ordered import UnitAccess
from tilewright.simulator.asynchronous.phases import MBARRIERS
from tilewright.simulator.asynchronous.units import place_of
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Kind, TmaCopy, Where
from tilewright.simulator.index import Place
from tilewright.simulator.journal import Role
from tilewright.simulator.values import RegisterView

BOX_ALIGN_BYTES = 128
"""Where a box may begin in shared memory. Source: PTX ISA 9.0, cp.async.bulk.tensor."""

GLOBAL_ALIGN_BYTES = 16
"""Of a matrix, its leading dimension, and a row of a box. Source: CUDA driver API, cuTensorMapEncodeTiled. Also of what
a store writes: `runtime.tensor_map` says where that was measured."""

_MOST_ELEMENTS = 256


def box_trouble(box: Box, base_bytes: int, *, stored: bool = False) -> str:
    """Why the driver would refuse the tensor map, or a store would write beside the matrix; "" if neither."""
    name, row_bytes, widest = box.map.operand, box.row_bytes, box.map.swizzle.row_bytes
    if base_bytes % GLOBAL_ALIGN_BYTES:
        return f"{name} begins at byte {base_bytes}, not at a multiple of {GLOBAL_ALIGN_BYTES}"
    if box.leading_bytes % GLOBAL_ALIGN_BYTES:
        return f"the leading dimension of {name} is {box.leading_bytes} bytes, no multiple of {GLOBAL_ALIGN_BYTES}"
    if stored and box.length_bytes % GLOBAL_ALIGN_BYTES:
        return (
            f"the rows of {name} are {box.length_bytes} bytes long, and TMA writes whole pieces of {GLOBAL_ALIGN_BYTES}"
        )
    if row_bytes % GLOBAL_ALIGN_BYTES:
        return f"a row of the box is {row_bytes} bytes, no multiple of {GLOBAL_ALIGN_BYTES}"
    if box.map.swizzle.bits and row_bytes > widest:
        return f"a row of the box is {row_bytes} bytes, and the swizzle permutes rows of {widest}"
    if max(box.map.box) > _MOST_ELEMENTS:
        return f"a box of {box.map.box[0]} x {box.map.box[1]} elements has a side above {_MOST_ELEMENTS}"
    return ""


@dataclass
class TmaBase:
    """What loads and stores of boxes share."""

    op: UnitOp
    map: TensorMap
    at: tuple[Place, ...]
    shared: SharedPlace

    @cached_property
    def box(self) -> Box:
        units = self.op.units
        step = units.steps.get(self.map.step, 0)
        return Box(self.map, units.problem, self.shared.buffer, units.memory.base_of(self.shared.buffer.name), step)

    @cached_property
    def trouble(self) -> str:
        memory = self.op.units.memory
        return box_trouble(self.box, memory.base_of(self.map.operand), stored=isinstance(self.op, TmaStoreOp))

    def lanes(self, convoy: Convoy) -> Array:
        """The lanes that start a box: one of a warp, else it is reported."""
        lanes = acting(convoy)
        warps, counts = np.unique(lanes // WARP_THREADS, return_counts=True)
        if (counts > 1).any():
            several = lanes[lanes // WARP_THREADS == warps[int(np.argmax(counts > 1))]]
            self.op.report(
                Kind.BULK_COPY,
                f"{len(several)} lanes of a warp start the same bulk copy.",
                self.op.place(convoy, several),
                note="each lane starts a copy of its own.",
                hint="let one thread through: if threadIdx.x == 0.",
            )
        return lanes

    def first(self, convoy: Convoy, lanes: Array) -> Array:
        """The element of shared memory at which each lane's box begins; checked."""
        op, box = self.op, self.box
        first = self.shared.of(op, convoy, lanes, box.elements)
        if self.trouble:
            op.report(Kind.BULK_COPY, f"A bulk copy is impossible: {self.trouble}.", op.place(convoy, lanes))
        align = max(BOX_ALIGN_BYTES, box.map.swizzle.repeat_bytes)
        address = box.base_bytes + first * box.buffer.dtype.bytes
        wrong = address % align != 0
        if wrong.any():
            op.report(
                Kind.MISALIGNED,
                f"A box in {box.buffer.name} is at byte {int(address[int(np.argmax(wrong))])} of shared memory, "
                f"not at a multiple of {align}.",
                op.place(convoy, lanes[wrong]),
                buffer=box.buffer.name,
                note=f"{box.map.swizzle.tensor_map} permutes {align} bytes at a time.",
                hint="align the buffer, and let slots and swizzle atoms be multiples of it.",
            )
        return first

    def check_begin(self, convoy: Convoy, lanes: Array, at: Coordinates) -> None:
        """A box is loaded from a multiple of 16 bytes of its line on. No source says so: boxes of f32 that began at
        other elements ended with an illegal instruction, on an H100 and an H200, whatever their size (2026)."""
        begins = at[0] * (self.box.row_bytes // self.map.box[0])
        wrong = begins % GLOBAL_ALIGN_BYTES != 0
        if wrong.any():
            self.op.report(
                Kind.MISALIGNED,
                f"A box of {self.map.operand} begins at byte {int(begins[int(np.argmax(wrong))])} of a line, not at a "
                f"multiple of {GLOBAL_ALIGN_BYTES}.",
                self.op.place(convoy, lanes[wrong]),
                note="the hardware ends with an illegal instruction.",
                hint="let it begin before, and be longer.",
            )

    def tell(self, convoy: Convoy, lanes: Array, at: Coordinates, first: Array) -> None:
        if not self.op.context.wire.bulk_copied:
            return
        boxes, sectors = len(lanes), self.box.sectors(at)
        places, inside = self.box.offsets(at)
        size_bytes, elements = boxes * self.box.size_bytes, int(np.count_nonzero(inside))
        shared = self.box.places(first)
        event = TmaCopy(self.op.site, boxes, size_bytes, sectors, elements, places, inside, lanes, convoy.warps, shared)
        for hear in self.op.context.wire.bulk_copied:
            hear(event)


@dataclass(slots=True)
class TmaLoadOp(BarrierOp):
    """Starts boxes on their way to shared memory; `barrier` is told in each block where they land."""

    map: TensorMap
    at: tuple[Place, ...]
    target: SharedPlace
    mask: Place | None
    _base: TmaBase = field(init=False)

    def __post_init__(self) -> None:
        self._base = TmaBase(self, self.map, self.at, self.target)

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        lanes = self._base.lanes(convoy)
        if not len(lanes):
            return
        units = self.units
        units.check_previous(self.site, convoy, convoy.mask, self.map.operand, store=False)
        at = tuple(values(part, convoy, lanes) for part in self.at)
        first, keys = self._base.first(convoy, lanes), self.keys(convoy, lanes)
        self._base.check_begin(convoy, lanes, at)
        self._base.tell(convoy, lanes, at, first)
        if self.mask is not None:
            source, rank = self._targets(convoy, lanes)
            leader = units.clocks.leader[convoy.warps.block_of_lane[lanes]]
            slot = leader[source] + rank
            lanes, first, keys, *parts = (x[source] for x in (lanes, first, keys, *at))
            at = tuple(parts)
            keys = units.phases.key(slot, keys % len(units.names))
        else:
            slot = convoy.warps.block_of_lane[lanes]
        made = self.check_made(convoy, lanes, keys, far=True)
        lanes, first, keys, slot, *parts = (x[made] for x in (lanes, first, keys, slot, *at))
        if len(lanes):
            self._start(
                convoy,
                lanes,
                Flight(self.site, self._base.box, tuple(parts), slot, first, keys, self.place(convoy, lanes)),
            )

    def _targets(self, convoy: Convoy, lanes: Array) -> tuple[Array, Array]:
        """Of each copy: which of the lanes asks for it, and the block of the cluster in which it lands."""
        assert self.mask is not None
        cluster, mask = self.units.kernel.cluster, values(self.mask, convoy, lanes)
        wrong = (mask <= 0) | (mask >> cluster != 0)
        if wrong.any():
            which = "blocks beyond the" if mask[wrong][0] else "no block of the"
            headline = f"The mask {int(mask[wrong][0]):#b} names {which} cluster of {cluster}."
            self.context.findings.stop(Kind.BULK_COPY, headline, self.place(convoy, lanes[wrong]))
        return np.nonzero(mask[:, None] >> np.arange(cluster) & 1)  # type: ignore[return-value]

    def _start(self, convoy: Convoy, lanes: Array, flight: Flight) -> None:
        units = self.units
        if units.races is not None:
            box = flight.box
            self._check_source(convoy, lanes, flight)
            elements = box.places(flight.first) + (flight.slot * box.buffer.elements)[:, None]
            units.races.unit_writes(
                UnitAccess(
                    self.site,
                    box.buffer.name,
                    "written by TMA",
                    elements,
                    self.rows(convoy, lanes),
                    flight.slot,
                    units.clocks.phases,
                    flight.key % len(units.names),
                    units.phases.phase[flight.key] + 1,
                    convoy.warps.global_thread[lanes],
                    LanePlaces(self, convoy, lanes),
                )
            )
        units.flights.append(flight)

    def _check_source(self, convoy: Convoy, lanes: Array, flight: Flight) -> None:
        """Boxes are read out of memory that other ranks write, until their barriers say that they have landed."""
        races, units = self.units.races, self.units
        if races is None or flight.box.map.operand not in races.of_ranks:
            return
        elements, inside = flight.box.offsets(flight.at)
        stamp = units.clocks.phases, flight.key % len(units.names), units.phases.phase[flight.key] + 1
        rows, thread = self.rows(convoy, lanes), convoy.warps.global_thread[lanes]
        where = LanePlaces(self, convoy, lanes)
        name = flight.box.map.operand
        access = UnitAccess(self.site, name, "read by TMA", elements, rows, flight.slot, *stamp, thread, where)
        races.box_reads(access, inside)


class LanePlaces:
    """The places of the lanes of a statement, made when one is asked for."""

    def __init__(self, op: UnitOp, convoy: Convoy, lanes: Array) -> None:
        self._op, self._convoy, self._lanes = op, convoy, lanes

    def __getitem__(self, row: int) -> Where:
        lane = int(self._lanes[row])
        return place_of(self._op.site, self._convoy, lane // WARP_THREADS, (lane % WARP_THREADS,))


@dataclass(slots=True)
class TmaStoreOp(UnitOp):
    """Starts boxes on their way to global memory: shared memory is read by the end of the wait for them."""

    map: TensorMap
    at: tuple[Place, ...]
    source: SharedPlace
    _base: TmaBase = field(init=False)

    def __post_init__(self) -> None:
        self._base = TmaBase(self, self.map, self.at, self.source)

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        lanes = self._base.lanes(convoy)
        if not len(lanes):
            return
        at = tuple(values(part, convoy, lanes) for part in self.at)
        first = self._base.first(convoy, lanes)
        self._base.tell(convoy, lanes, at, first)
        units, box = self.units, self._base.box
        units.check_previous(self.site, convoy, convoy.mask, self.map.operand, store=True)
        rows, slot = self.rows(convoy, lanes), convoy.warps.block_of_lane[lanes]
        elements = box.places(first) + (slot * box.buffer.elements)[:, None]
        serials = np.empty(len(lanes), np.int64)
        for index, (row, lane) in enumerate(zip(rows.tolist(), lanes.tolist(), strict=True)):
            units.store_serials[row] += 1
            serials[index] = units.store_serials[row]
            where = place_of(self.site, convoy, lane // WARP_THREADS, (lane % WARP_THREADS,))
            corner = tuple(int(part[index]) for part in at)
            store = Store(self.site, box, corner, elements[index], int(serials[index]), where)
            units.queue(row, lane % WARP_THREADS).running.append(store)
        if units.races is not None:
            self._check(convoy, lanes, elements, serials, box.offsets(at))

    def _check(
        self, convoy: Convoy, lanes: Array, elements: Array, serials: Array, target: tuple[Array, Array]
    ) -> None:
        units, warps = self.units, convoy.warps
        rows, slot = self.rows(convoy, lanes), warps.block_of_lane[lanes]
        member, thread = rows % units.clocks.warps, warps.global_thread[lanes]
        stamp = (units.clocks.stored, member, serials, thread, LanePlaces(self, convoy, lanes))
        assert units.races is not None
        name = self._base.box.buffer.name
        units.races.unit_reads(
            UnitAccess(self.site, name, "read by a bulk store", elements, rows, slot, *stamp), units.clocks.warps
        )
        nowhere = np.full(len(lanes), -1)
        written = UnitAccess(self.site, self.map.operand, "written by a bulk store", target[0], rows, nowhere, *stamp)
        units.races.unit_writes(written, target[1])


@dataclass(slots=True)
class CommitStoresOp(UnitOp):
    """The bulk stores of each thread since the last commit become a group."""

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        for _, queue in _queues(self, convoy):
            queue.commit()


@dataclass(slots=True)
class WaitStoresOp(UnitOp):
    """Threads wait for their own groups, and blocks no other: what they wait for is carried out."""

    pending: int

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        units = self.units
        for row, queue in _queues(self, convoy):
            due = queue.due(self.pending)
            if due:
                units.carry_out(due)
                serial = np.array([max(store.serial for store in due)])
                rows = np.array([row])
                units.clocks.learn(rows, units.clocks.own[rows] + units.clocks.stored, serial)


def _queues(op: UnitOp, convoy: Convoy) -> list[tuple[int, StoreQueue]]:
    """The queues of the lanes that take part, with the clock row of each."""
    units = op.units
    found: list[tuple[int, StoreQueue]] = []
    for row, warp in zip(units.clocks.row(convoy.warps).tolist(), range(len(convoy.warps)), strict=True):
        for lane, queue in units.stores.get(row, {}).items():
            if convoy.mask is None or convoy.mask.lanes[warp * WARP_THREADS + lane]:
                found.append((row, queue))
    return found


@dataclass(slots=True)
class StoreAsyncOp(BarrierOp):
    """Each lane stores its registers in another block; `barrier` is told there."""

    target: SharedPlace
    source: RegisterView
    count: int
    rank: Place

    def __call__(self, convoy: Convoy) -> None:
        lanes = acting(convoy)
        if not len(lanes):
            self.issue(convoy)
            return
        units, buffer = self.units, self.target.buffer
        keys, first = self.keys(convoy, lanes), self.target.of(self, convoy, lanes, self.count)
        self.issue(convoy, keys)
        self._check_aligned(convoy, lanes, first)
        slots, keys = self.there(convoy, lanes, keys, self.rank)
        held = self.source.read(convoy).reshape(self.count, -1)[:, lanes]
        made = self.check_made(convoy, lanes, keys, far=True)
        lanes, slots, keys, first, held = lanes[made], slots[made], keys[made], first[made], held[:, made]
        if not len(lanes):
            return
        self.context.note(Role.ARRIVES, MBARRIERS, keys, units.phases.phase[keys])
        elements = (slots * buffer.elements + first)[:, None] + np.arange(self.count)
        if units.races is not None:
            units.races.unit_writes(self._access(convoy, lanes, slots, keys, elements))
        units.memory.arrays[buffer.name][elements.T] = self.context.arithmetic.encode(held, buffer.dtype)
        units.note_stored(keys, convoy.warps.block_of_lane[lanes])
        units.phases.land(keys, self.count * buffer.dtype.bytes, units.complain(self.place(convoy, lanes)))

    def _access(self, convoy: Convoy, lanes: Array, slots: Array, keys: Array, elements: Array) -> UnitAccess:
        units, name = self.units, self.target.buffer.name
        stamp = units.clocks.phases, keys % len(units.names), units.phases.phase[keys] + 1
        thread, places = convoy.warps.global_thread[lanes], LanePlaces(self, convoy, lanes)
        rows = self.rows(convoy, lanes)
        return UnitAccess(self.site, name, "written by st.async", elements, rows, slots, *stamp, thread, places)

    def _check_aligned(self, convoy: Convoy, lanes: Array, first: Array) -> None:
        buffer = self.target.buffer
        size_bytes = self.count * buffer.dtype.bytes
        address = self.units.memory.base_of(buffer.name) + first * buffer.dtype.bytes
        wrong = address % size_bytes != 0
        if wrong.any():
            headline = (
                f"A store of {size_bytes} bytes to {buffer.name} is at byte {int(address[int(np.argmax(wrong))])}, "
                f"not at a multiple of {size_bytes}."
            )
            self.report(Kind.MISALIGNED, headline, self.place(convoy, lanes[wrong]), buffer=buffer.name)
