"""What was counted: a row for each line of the kernel, and the sums over rows that questions are asked of.

All numbers are counts of what the simulated blocks did, so rows of several runs can be added and weighted
(`sampling`); every ratio is computed from sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tilewright.html_text import table
from tilewright.ir.buffer import Space
from tilewright.ir.stmt import For
from tilewright.layout.banks import SECTOR_BYTES
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS
from tilewright.simulator.findings import Launch, Listener, Site
from tilewright.simulator.line_counts import COUNTED, LineCounts, LineKind, line_counts
from tilewright.simulator.listeners import SiteCounter


@dataclass(frozen=True, slots=True)
class GlobalCounts:
    """Loads or stores of global memory. lanes: that took part, each once a request.

    bytes_used: distinct bytes of each request. fewest_sectors: that would hold these.
    """

    instructions: int
    requests: int
    lanes: int
    bytes_asked: int
    bytes_used: int
    sectors: int
    fewest_sectors: int
    cache_lines: int

    @property
    def bytes_moved(self) -> int:
        """Bytes of all sectors touched, each once a request: traffic between L1 and L2 if nothing hits in L1."""
        return self.sectors * SECTOR_BYTES

    @property
    def sectors_per_request(self) -> float:
        return _ratio(self.sectors, self.requests)

    @property
    def fewest_sectors_per_request(self) -> float:
        return _ratio(self.fewest_sectors, self.requests)

    @property
    def used_share(self) -> float:
        """Bytes used over bytes moved, 0 to 1: 1 where no byte of a sector is moved for nothing."""
        return _ratio(self.bytes_used, self.bytes_moved)

    @property
    def lines_per_request(self) -> float:
        return _ratio(self.cache_lines, self.requests)


@dataclass(frozen=True, slots=True)
class SharedCounts:
    """Loads or stores of shared memory. lanes: that took part, each once a request."""

    instructions: int
    requests: int
    lanes: int
    bytes_asked: int
    wavefronts: int
    ideal_wavefronts: int

    @property
    def excess_wavefronts(self) -> int:
        """Wavefronts that bank conflicts cost."""
        return self.wavefronts - self.ideal_wavefronts

    @property
    def conflict_share(self) -> float:
        """Bank conflicts of all wavefronts, 0 to 1."""
        return _ratio(self.excess_wavefronts, self.wavefronts)

    @property
    def wavefronts_per_request(self) -> float:
        return _ratio(self.wavefronts, self.requests)

    @property
    def ideal_wavefronts_per_request(self) -> float:
        return _ratio(self.ideal_wavefronts, self.requests)


@dataclass(frozen=True, slots=True)
class TmaCounts:
    """Boxes that TMA moves. size_bytes: in shared memory; sectors, elements: inside the matrix."""

    instructions: int
    boxes: int
    size_bytes: int
    sectors: int
    elements: int

    @property
    def bytes_moved(self) -> int:
        """Bytes of all sectors touched, each once a box."""
        return self.sectors * SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class Counters:
    """Everything that was counted. blocks: simulated, or stood for by those simulated; of `grid_blocks`.

    is_estimate: the numbers stand for more blocks than ran, and symmetry does not make them exact.
    """

    blocks: int
    grid_blocks: int
    warps_per_block: int
    lines: tuple[LineCounts, ...]
    is_estimate: bool = False

    def where(self, chosen: Callable[[LineCounts], bool]) -> Counters:
        """The counts of some lines only."""
        return replace(self, lines=tuple(line for line in self.lines if chosen(line)))

    def of_origin(self, origin: str) -> Counters:
        """The counts of the lines that come from one declared thing."""
        return self.where(lambda line: line.origin == origin)

    @property
    def origins(self) -> tuple[str, ...]:
        """Every origin that a line names, in order of the text."""
        return tuple(dict.fromkeys(line.origin for line in self.lines if line.origin))

    def total(self, count: str, kind: LineKind | None = None, space: Space | None = None) -> int:
        """The sum of one count over the lines of a kind and a space (None: all)."""
        chosen = (line for line in self.lines if kind in (None, line.kind) and space in (None, line.space))
        return sum(int(getattr(line, count)) for line in chosen)

    @property
    def global_loads(self) -> GlobalCounts:
        return self._global("load")

    @property
    def global_stores(self) -> GlobalCounts:
        return self._global("store")

    @property
    def shared_loads(self) -> SharedCounts:
        return self._shared("load")

    @property
    def shared_stores(self) -> SharedCounts:
        return self._shared("store")

    @property
    def operand_wavefronts(self) -> int:
        """Wavefronts in which wgmma reads its operands from shared memory: not by threads, so no `shared_loads`."""
        return sum(line.executions // GROUP_WARPS * line.tile_wavefronts for line in self.lines)

    @property
    def bulk_loads(self) -> TmaCounts:
        return self._bulk("bulk load")

    @property
    def bulk_stores(self) -> TmaCounts:
        return self._bulk("bulk store")

    def _bulk(self, kind: LineKind) -> TmaCounts:
        names = ("executions", "boxes", "bulk_bytes", "bulk_sectors", "bulk_elements")
        return TmaCounts(*(self.total(name, kind) for name in names))

    def _global(self, kind: LineKind) -> GlobalCounts:
        names = [field.name for field in fields(GlobalCounts)]
        return GlobalCounts(*(self.total(name, kind, Space.GLOBAL) for name in names))

    def _shared(self, kind: LineKind) -> SharedCounts:
        names = [field.name for field in fields(SharedCounts)]
        return SharedCounts(*(self.total(name, kind, Space.SHARED) for name in names))

    @property
    def instructions(self) -> dict[str, int]:
        """Warp instructions by opcode; integer arithmetic and the closing of loops are not counted."""
        counts: dict[str, int] = {}
        for line in self.lines:
            for opcode, count in line.opcodes:
                counts[opcode] = counts.get(opcode, 0) + count * line.executions
        return dict(sorted(counts.items()))

    @property
    def fmas(self) -> int:
        """Multiply-adds, by lanes and by tensor cores."""
        return self.total("fmas")

    @property
    def results(self) -> int:
        """Elements of C stored."""
        stores = (line for line in self.lines if line.kind == "store" and line.space is Space.GLOBAL)
        return sum(line.bytes_asked // line.element_bytes for line in stores) + self.bulk_stores.elements

    def per_fma(self, space: Space) -> float:
        """Loads by lanes (instructions) for each multiply-add."""
        return _ratio(self.total("lanes", "load", space), self.fmas)

    def per_result(self, space: Space) -> float:
        """Loads by lanes (instructions) for each element of C that is stored."""
        return _ratio(self.total("lanes", "load", space), self.results)

    @property
    def barriers_per_block(self) -> float:
        return _ratio(self.total("executions", "barrier"), self.blocks * self.warps_per_block)

    @property
    def barriers_per_k_step(self) -> float:
        """Barriers each time around the loop that holds them: of several such loops, the one that goes round most.

        An unrolled loop counts only where there is no other: parts of a result leave in such. Barriers that no warp
        came to do not count.
        """
        met = [line for line in self.lines if line.kind == "barrier" and line.executions]
        inner = {line.loops[-1] for line in met if line.loops}
        loops = [line for line in self.lines if line.kind == "loop" and line.path in inner and line.executions]
        if not loops:
            return 0.0
        loop = max(loops, key=lambda line: (bool(line.opcodes), line.executions))
        barriers = sum(line.executions for line in met if loop.path in line.loops)
        return _ratio(barriers, loop.executions)

    @property
    def bytes_by_level(self) -> dict[str, int]:
        """Bytes that cross each border of the memory hierarchy, as the kernel asks for them (no cache counted)."""
        return {
            "shared_to_registers": self.shared_loads.bytes_asked,
            "registers_to_shared": self.shared_stores.bytes_asked,
            "global_to_registers": self.global_loads.bytes_asked,
            "registers_to_global": self.global_stores.bytes_asked,
            "l2_to_l1_sectors": self.global_loads.bytes_moved,
            "l1_to_l2_sectors": self.global_stores.bytes_moved,
            "l2_to_shared_boxes": self.bulk_loads.bytes_moved,
            "shared_to_l2_boxes": self.bulk_stores.bytes_moved,
        }

    @property
    def divergent_branches(self) -> int:
        """Branches at which the lanes of a warp disagreed."""
        return self.total("split", "branch")

    @property
    def partial_requests(self) -> int:
        """Requests in which some lanes of the warp took no part."""
        return self.total("partial")

    @property
    def guarded_off_lanes(self) -> int:
        """Lanes kept from memory by a guard."""
        return self.total("guarded_off")

    def _repr_html_(self) -> str:
        moved = (("global loads", self.global_loads), ("global stores", self.global_stores))
        kept = (("shared loads", self.shared_loads), ("shared stores", self.shared_stores))
        tma = (("TMA loads", self.bulk_loads), ("TMA stores", self.bulk_stores))
        rows: list[tuple[object, ...]] = [
            *(
                (name, one.requests, f"{one.sectors:,} sectors", one.fewest_sectors, _used(one), "")
                for name, one in moved
            ),
            *(
                (name, one.requests, f"{one.wavefronts:,} wavefronts", one.ideal_wavefronts, "", one.excess_wavefronts)
                for name, one in kept
            ),
            *((name, one.boxes, f"{one.sectors:,} sectors", "", "", "") for name, one in tma if one.boxes),
        ]
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks:,} blocks"
        title = f"{blocks} of {self.warps_per_block} warps{', estimated' if self.is_estimate else ''}"
        columns = ("memory", "requests", "take", "fewest possible", "bytes used of moved", "bank conflicts")
        below = f"{self.fmas:,} multiply-adds; {self.barriers_per_k_step:g} __syncthreads for each k iteration."
        return table(title, columns, rows, below=below)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the sums and ratios, and the lines that did something."""
        return {
            "blocks": self.blocks,
            "grid_blocks": self.grid_blocks,
            "is_estimate": self.is_estimate,
            "global_loads": _with_ratios(self.global_loads),
            "global_stores": _with_ratios(self.global_stores),
            "shared_loads": _with_ratios(self.shared_loads),
            "shared_stores": _with_ratios(self.shared_stores),
            "operand_wavefronts": self.operand_wavefronts,
            "bulk_loads": _with_ratios(self.bulk_loads),
            "bulk_stores": _with_ratios(self.bulk_stores),
            "instructions": self.instructions,
            "fmas": self.fmas,
            "results": self.results,
            "shared_loads_per_fma": self.per_fma(Space.SHARED),
            "global_loads_per_fma": self.per_fma(Space.GLOBAL),
            "shared_loads_per_result": self.per_result(Space.SHARED),
            "global_loads_per_result": self.per_result(Space.GLOBAL),
            "barriers_per_block": self.barriers_per_block,
            "barriers_per_k_step": self.barriers_per_k_step,
            "divergent_branches": self.divergent_branches,
            "partial_requests": self.partial_requests,
            "guarded_off_lanes": self.guarded_off_lanes,
            "bytes_by_level": self.bytes_by_level,
            "lines": [_line_as_dict(line) for line in self.lines if line.executions],
        }


def counters_of(launch: Launch, listeners: Iterable[Listener]) -> Counters:
    """What those of the listeners that count by site have counted."""
    counted: dict[Site, dict[str, int]] = {}
    for listener in listeners:
        if isinstance(listener, SiteCounter):
            for site, row in listener.counts().items():
                known = {name: count for name, count in row.items() if name in COUNTED}
                counted.setdefault(site, {}).update(known)
    loops = {site.path for site in launch.sites if isinstance(site.stmt, For)}
    rows = (line_counts(site, loops, counted.get(site, {})) for site in launch.sites)
    lines = tuple(sorted((row for row in rows if row is not None), key=lambda row: row.line))
    return Counters(launch.blocks, launch.grid_blocks, launch.warps_per_block, lines)


def weighted_sum(parts: Sequence[tuple[int, Counters]], *, is_estimate: bool) -> Counters:
    """Counters of several runs of one kernel, each counted `weight` times."""
    first = parts[0][1]
    lines = []
    for rows in zip(*(counters.lines for _, counters in parts), strict=True):
        sums = {
            name: sum(weight * getattr(row, name) for (weight, _), row in zip(parts, rows, strict=True))
            for name in COUNTED
        }
        lines.append(replace(rows[0], **sums))
    blocks = sum(weight * counters.blocks for weight, counters in parts)
    return replace(first, blocks=blocks, lines=tuple(lines), is_estimate=is_estimate)


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def _used(counts: GlobalCounts) -> str:
    return f"{counts.used_share:.0%}" if counts.requests else ""


def _with_ratios(counts: GlobalCounts | SharedCounts | TmaCounts) -> dict[str, float]:
    """The fields and the properties of a group of counts."""
    ratios = [name for name, member in vars(type(counts)).items() if isinstance(member, property)]
    return {**asdict(counts), **{name: getattr(counts, name) for name in ratios}}


def _line_as_dict(line: LineCounts) -> dict[str, Any]:
    counts = {name: getattr(line, name) for name in COUNTED if getattr(line, name)}
    return {"line": line.line, "text": line.text, "origin": line.origin, "kind": line.kind, **counts}
