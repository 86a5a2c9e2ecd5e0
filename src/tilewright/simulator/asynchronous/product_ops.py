"""wgmma on tiles in shared memory, started by the four warps of a warpgroup and waited for in groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array, DType
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.fragment import Fragment
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS
from tilewright.simulator.asynchronous.descriptor import Found, Reader
from tilewright.simulator.asynchronous.lanes import UnitOp
from tilewright.simulator.asynchronous.ordered import UnitAccess
from tilewright.simulator.asynchronous.units import Units, groups_of, place_of
from tilewright.simulator.collective import check_whole_warps
from tilewright.simulator.convoy import Convoy, Product, Products, RegisterArray, Wait
from tilewright.simulator.findings import Kind, Site, Where
from tilewright.simulator.index import Place, Predicate, Uniform
from tilewright.simulator.journal import Role
from tilewright.simulator.warps import Mask

WARPGROUPS = "warpgroup"
"""What a journal calls those who commit wgmma together."""


def products_of(convoy: Convoy) -> Products:
    if convoy.products is None:
        convoy.products = Products(len(convoy.warps))
    return convoy.products


@dataclass(slots=True)
class Side:
    """An operand of a wgmma. place: its first element; base_bytes: of the buffer. reader: decodes the descriptor."""

    place: Place
    base_bytes: int
    itemsize: int
    reader: Reader
    rows: int

    def starts(self, convoy: Convoy) -> Array:
        """The byte address that each lane puts into the descriptor, (warps, 32)."""
        element = self.place.cell.of(convoy).values + self.place.offset(convoy.slots)
        starts: Array = (self.base_bytes + element * self.itemsize).reshape(-1, WARP_THREADS)
        return starts


@dataclass(slots=True)
class Held:
    """A of a wgmma in registers. first: of its registers."""

    registers: int
    first: Uniform
    fragment: Fragment
    order: Array = field(init=False)

    def __post_init__(self) -> None:
        rows, columns = self.fragment.places()
        self.order = rows[:WARP_THREADS] * self.fragment.columns + columns[:WARP_THREADS]

    def tile(self, array: RegisterArray, first: int) -> Array:
        """The 16 rows of each warp, (warps, 16, k)."""
        held = array.data[first : first + self.fragment.registers]
        warps = held.shape[1] // WARP_THREADS
        tile = np.empty((warps, self.order.size), held.dtype)
        tile[:, self.order] = held.reshape(-1, warps, WARP_THREADS).transpose(1, 2, 0)
        return tile.reshape(warps, -1, self.fragment.columns)


@dataclass(slots=True)
class WgmmaStep(UnitOp):
    """Starts a wgmma. first: of the registers of the sum. order: (lanes of a warp, registers) in rows of the tile."""

    instruction: MatrixInstruction
    registers: int
    first: Uniform
    a: Side | Held
    b: Side
    fresh: Predicate | None
    order: Array = field(init=False)

    def __post_init__(self) -> None:
        rows, columns = self.instruction.c.places()
        self.order = rows[:WARP_THREADS] * self.instruction.n + columns[:WARP_THREADS]

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        self.issue(convoy)
        check_whole_warps(self.site, self.context, convoy)
        convoy.pc += 1
        products, warps = products_of(convoy), convoy.warps
        count = self.order.shape[1]
        array, first = self._run(convoy, self.registers, self.first, count)
        fresh = self._fresh(convoy)
        held = self._held(convoy)
        rows = self.units.clocks.row(warps)
        product = Product(
            self.site,
            self,
            self.registers,
            first,
            count,
            products.started.copy(),
            products.groups.copy(),
            self._uniform(convoy, self.a)
            if isinstance(self.a, Side)
            else np.full(len(warps), self.a.first(convoy.slots)),
            self._uniform(convoy, self.b),
            fresh,
        )
        self._check_registers(convoy, array, (first, first + count), fresh)
        self._check_together(convoy, product, rows)
        self._check_reads(convoy, product)
        products.started += 1
        self.units.started[rows] += 1
        products.under_way.append(product)
        array.start_product(first, first + product.count, self.site)
        if held is not None:
            held[0].start_product(held[1], held[2], self.site)
        return (convoy,)

    def _run(self, convoy: Convoy, registers: int, start: Uniform, count: int) -> tuple[RegisterArray, int]:
        """The registers of an operand, and the first of them."""
        first = start(convoy.slots)
        return self.context.registers(self.site, convoy, registers, first, first + count), first

    def _held(self, convoy: Convoy) -> tuple[RegisterArray, int, int] | None:
        """The registers of A, checked, and which of them; None where it lies in shared memory."""
        if not isinstance(self.a, Held):
            return None
        count = self.a.fragment.registers
        array, first = self._run(convoy, self.a.registers, self.a.first, count)
        self._check_registers(convoy, array, (first, first + count), np.zeros(len(convoy.warps), np.bool_))
        return array, first, first + count

    def _fresh(self, convoy: Convoy) -> Array:
        """Whether each warp's sum begins anew."""
        chosen = False if self.fresh is None else self.fresh(convoy)
        if not isinstance(chosen, Mask):
            return np.full(len(convoy.warps), chosen)
        differ = chosen.parted
        if differ.any():
            self._disagree(convoy, differ, "whether the sum begins anew")
        return chosen.rows[:, 0]

    def _uniform(self, convoy: Convoy, side: Side) -> Array:
        starts = side.starts(convoy)
        differ = (starts != starts[:, :1]).any(axis=1)
        if differ.any():
            self._disagree(convoy, differ, "where a tile begins")
        return starts[:, 0].copy()

    def _disagree(self, convoy: Convoy, warps: Array, what: str) -> None:
        self.report(
            Kind.NOT_UNIFORM,
            f"The lanes of a warpgroup disagree on {what}.",
            place_of(self.site, convoy, int(np.argmax(warps))),
            note="a descriptor is one number for all lanes.",
        )

    def _check_registers(self, convoy: Convoy, array: RegisterArray, run: tuple[int, int], fresh: Array) -> None:
        """Of the sum, or of A. run: which of them, from and to."""
        name, (first, end) = array.buffer.name, run
        if array.dirty:
            self.report(
                Kind.UNFENCED,
                f"Registers of {name} were touched, and no WgmmaFence orders that before the wgmma.",
                place_of(self.site, convoy, 0),
                buffer=name,
                note="wgmma.fence orders what threads did with the registers, also before the first wgmma.",
                hint="run WgmmaFence between any other use of the registers and the next wgmma.",
            )
        under_way = [other for other in array.in_products if other[0] < end and first < other[1]]
        if any(other != run for other in under_way):
            self.report(
                Kind.IN_FLIGHT,
                f"Registers {first} to {end - 1} of {name} overlap those of a wgmma of another shape under way.",
                place_of(self.site, convoy, 0),
                buffer=name,
            )
        if array.missing and not under_way and not fresh.all():
            bare = array.unwritten(range(first, end), None)
            if bare is not None:
                element, lanes = bare
                lanes = lanes & np.repeat(~fresh, WARP_THREADS)
                if lanes.any():
                    self.context.unwritten_register(self.site, convoy, name, element, lanes)

    def _check_together(self, convoy: Convoy, product: Product, rows: Array) -> None:
        """All four warps start the same wgmma in the same order."""
        units = self.units
        per_block = convoy.warps.batch.warps_per_block
        if per_block % GROUP_WARPS:
            headline = f"A block of {per_block} warps has a warpgroup that is not complete."
            self.context.findings.stop(Kind.PARTED_WARP, headline, place_of(self.site, convoy, 0))
        groups = rows // GROUP_WARPS
        if _whole_groups(rows):
            same = all(
                (array.reshape(-1, GROUP_WARPS) == array[::GROUP_WARPS, None]).all()
                for array in (product.number, product.a, product.b)
            )
            if same:
                return
        entries = zip(groups.tolist(), product.number.tolist(), product.a.tolist(), product.b.tolist(), strict=True)
        for warp, (group, number, a, b) in enumerate(entries):
            mine = (self.site.index, a, b)
            if units.last_product.setdefault((group, number), mine) != mine:
                self.report(
                    Kind.PARTED_WARP,
                    "The four warps of a warpgroup start different wgmma.",
                    place_of(self.site, convoy, warp),
                    note="they execute every wgmma together, with the same descriptors.",
                )

    def _check_reads(self, convoy: Convoy, product: Product) -> None:
        """Who reads what from now on; addresses outside of shared memory."""
        units, clocks = self.units, self.units.clocks
        rows = clocks.row(convoy.warps)
        # One warp speaks for its warpgroup; of A a warp that comes alone could speak for its own rows only.
        _, chosen = np.unique(rows // GROUP_WARPS, return_index=True)
        for side, starts in ((self.a, product.a), (self.b, product.b)):
            if isinstance(side, Held):
                continue
            for start in np.unique(starts[chosen]).tolist():
                found, outside = side.reader.find(start)
                here = chosen[starts[chosen] == start]
                if outside is not None:
                    self._report_outside(convoy, here, outside)
                if units.races is not None:
                    self._tell_races(convoy, units, found, here, product)

    def _report_outside(self, convoy: Convoy, here: Array, outside: int) -> None:
        self.report(
            Kind.OUT_OF_BOUNDS,
            f"A descriptor leads to byte {outside} of shared memory, where the kernel has nothing.",
            place_of(self.site, convoy, int(here[0])),
            note="leading_bytes, stride_bytes and the swizzle say where rows lie; the unit knows no buffer.",
        )

    def _tell_races(self, convoy: Convoy, units: Units, found: list[Found], here: Array, product: Product) -> None:
        assert units.races is not None
        warps, clocks = convoy.warps, units.clocks
        slot = warps.slots[here]
        for part in found:
            elements = part.elements + (slot * units.elements_of[part.buffer])[:, None]
            units.races.unit_reads(
                UnitAccess(
                    self.site,
                    part.buffer,
                    "read by wgmma",
                    elements,
                    clocks.row(warps)[here],
                    slot,
                    clocks.multiplied,
                    warps.numbers[here] // GROUP_WARPS,
                    product.group[here] + 1,
                    warps.global_thread[here * WARP_THREADS],
                    _WarpPlaces(self.site, convoy, here),
                ),
                groups_of(clocks.warps),
            )

    # -- carrying out -----------------------------------------------------------------------------------------------

    def tiles(self, convoy: Convoy, product: Product) -> tuple[Array, Array]:
        """Each warp's rows of A and its B: (warpgroups, 4, 16, k) and (warpgroups, 1, n, k), or (warps, 1, ...) both.

        Always 16 rows a wgmma, so that accumulators are rounded alike in every order of warps.
        """
        rows = self.units.clocks.row(convoy.warps)
        each = self.instruction.m // GROUP_WARPS
        held = self._tile_held(convoy, product)
        if _whole_groups(rows) and not self.units.snapshots:
            some = np.arange(0, len(rows), GROUP_WARPS)
            a, b = self._operands(convoy, product, some)
            a = a if held is None else held
            return a.reshape(len(some), GROUP_WARPS, each, -1), b[:, None]
        kept = [self._kept(convoy, product, warp) for warp in range(len(rows))]
        own = (rows % GROUP_WARPS).tolist()
        if held is None:
            held = np.stack([tile[rank * each : (rank + 1) * each] for (tile, _), rank in zip(kept, own, strict=True)])
        return held[:, None], np.stack([tile for _, tile in kept])[:, None]

    def _tile_held(self, convoy: Convoy, product: Product) -> Array | None:
        """Each warp's rows of A, (warps, 16, k), where they are in registers."""
        if not isinstance(self.a, Held):
            return None
        array = convoy.registers[self.a.registers]
        assert array is not None
        return self.a.tile(array, int(product.a[0]))

    def _kept(self, convoy: Convoy, product: Product, warp: int) -> tuple[Array, Array]:
        """The tiles of a warpgroup whose warps come one by one, read for the first of them."""
        snapshots = self.units.snapshots
        key = int(self.units.clocks.row(convoy.warps)[warp]) // GROUP_WARPS, int(product.number[warp])
        if key not in snapshots:
            one = np.array([warp])
            a, b = (tile[0] for tile in self._operands(convoy, product, one))
            snapshots[key] = GROUP_WARPS, a, b
        left, a, b = snapshots[key]
        snapshots[key] = left - 1, a, b
        if left == 1:
            del snapshots[key]
        return a, b

    def _operands(self, convoy: Convoy, product: Product, warps: Array) -> tuple[Array, Array]:
        """The tiles of A and B of some warps as numbers; none of A where it is in registers."""
        first, second = self.instruction.formats
        a = np.empty((len(warps), 0))
        if isinstance(self.a, Side):
            a = self._gather(convoy, self.a, product.a, warps, first)
        return a, self._gather(convoy, self.b, product.b, warps, second)

    def _gather(self, convoy: Convoy, side: Side, starts: Array, warps: Array, product: DType) -> Array:
        """The tiles of some warps as numbers, (warps, rows, k)."""
        units, arithmetic = self.units, self.context.arithmetic
        arrays, k = units.memory.arrays, self.instruction.k
        kind = arithmetic.memory_type(product)
        poison = np.asarray(arithmetic.encode(np.full(1, arithmetic.poison(product)), product)).astype(kind)
        out = np.empty((len(warps), side.rows * k), kind)
        for start in np.unique(starts[warps]).tolist():
            here = np.flatnonzero(starts[warps] == start)
            found, outside = side.reader.find(start)
            if outside is not None:
                out[here] = poison
            for part in found:
                storage = arrays[part.buffer]
                taken: Any = poison
                if storage.dtype == kind:
                    slots = convoy.warps.slots[warps[here]]
                    taken = storage[part.elements + (slots * units.elements_of[part.buffer])[:, None]]
                if part.at is None:
                    out[here] = taken
                else:
                    out[np.ix_(here, part.at)] = taken
        numbers = arithmetic.decode(out, product)
        return numbers.reshape(len(warps), side.rows, k)

    def release(self, convoy: Convoy, product: Product) -> None:
        """The registers of A may be touched again."""
        if isinstance(self.a, Held):
            array, first = convoy.registers[self.a.registers], int(product.a[0])
            assert array is not None
            array.end_product(first, first + self.a.fragment.registers)

    def carry_out(self, convoy: Convoy, product: Product) -> None:
        """Adds the wgmma to the accumulators of every warp."""
        a, b = self.tiles(convoy, product)
        array = convoy.registers[self.registers]
        assert array is not None
        data = array.data[product.first : product.first + product.count]
        count, each, n = len(convoy.warps), self.instruction.m // GROUP_WARPS, self.instruction.n
        held = data.reshape(len(data), count, WARP_THREADS).transpose(1, 2, 0)
        c = np.empty((count, each * n), data.dtype)
        c[:, self.order] = held
        c[product.fresh] = 0
        d = self.context.arithmetic.multiply_tiles(
            self.instruction, a, b.swapaxes(-1, -2), c.reshape(*a.shape[:2], each, n)
        ).reshape(count, -1)
        data[...] = d[:, self.order].transpose(2, 0, 1).reshape(data.shape)
        if array.missing:
            array.mark(range(product.first, product.first + product.count), None)


def _whole_groups(rows: Array) -> bool:
    """Whether warps come as whole warpgroups, in order."""
    return len(rows) % GROUP_WARPS == 0 and bool(
        (
            rows.reshape(-1, GROUP_WARPS)
            == rows[::GROUP_WARPS, None] // GROUP_WARPS * GROUP_WARPS + np.arange(GROUP_WARPS)
        ).all()
    )


class _WarpPlaces:
    def __init__(self, site: Site, convoy: Convoy, warps: Array) -> None:
        self._site, self._convoy, self._warps = site, convoy, warps

    def __getitem__(self, row: int) -> Where:
        return place_of(self._site, self._convoy, int(self._warps[row]))


@dataclass(slots=True)
class WgmmaFenceOp(UnitOp):
    """Registers written so far come before later wgmma."""

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        check_whole_warps(self.site, self.context, convoy)
        for array in convoy.registers:
            if array is not None:
                array.dirty = False


@dataclass(slots=True)
class WgmmaCommitOp(UnitOp):
    """The wgmma since the last commit become a group."""

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        check_whole_warps(self.site, self.context, convoy)
        products = products_of(convoy)
        products.groups += 1
        rows = self.units.clocks.row(convoy.warps)
        self.units.committed[rows] = products.groups
        self.context.note(Role.TELLS, WARPGROUPS, rows // GROUP_WARPS, products.groups)


@dataclass(slots=True)
class WgmmaWaitStep(UnitOp):
    """The instruction: the wgmma of all but the youngest `pending` groups are carried out."""

    pending: int

    def over(self, keys: Array, wanted: Array) -> Array:
        """Whether all warps of the warpgroups of these have committed so many groups."""
        others = keys[:, None] // GROUP_WARPS * GROUP_WARPS + np.arange(GROUP_WARPS)
        over: Array = self.units.committed[others].min(axis=1) >= wanted
        return over

    def name(self, key: int) -> str:
        return "wgmma that the other warps of its warpgroup have not started"

    def text(self, key: int, wanted: int) -> str:
        return self.name(key)

    def _others(self, convoy: Convoy) -> Wait | None:
        """The wait for the other warps of the warpgroups; None where they are not complete."""
        if convoy.warps.batch.warps_per_block % GROUP_WARPS:
            return None
        complete = np.maximum(products_of(convoy).groups - self.pending, 0)
        return Wait(self.site, self, self.units.clocks.row(convoy.warps), complete)

    def ready(self, convoy: Convoy) -> bool:
        wait = self._others(convoy)
        return wait is None or bool(wait.ready().all())

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        check_whole_warps(self.site, self.context, convoy)
        products, units = products_of(convoy), self.units
        rows = units.clocks.row(convoy.warps)
        complete = np.maximum(products.groups - self.pending, 0)
        wait = self._others(convoy)
        if wait is not None:
            if not wait.ready().all():
                convoy.wait = wait
                return (convoy,)
            self.context.note(Role.HEARS, WARPGROUPS, rows // GROUP_WARPS, complete)
        self.issue(convoy)
        convoy.pc += 1
        for product in products.due(self.pending):
            operation = product.operation
            assert isinstance(operation, WgmmaStep)
            operation.carry_out(convoy, product)
            array = convoy.registers[product.registers]
            assert array is not None
            array.end_product(product.first, product.first + product.count)
            operation.release(convoy, product)
        units.clocks.learn(
            rows,
            units.clocks.own[rows]
            - rows % units.clocks.warps
            + units.clocks.multiplied
            + rows % units.clocks.warps // GROUP_WARPS,
            complete,
        )
        return (convoy,)
