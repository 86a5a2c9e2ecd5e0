"""Picture: the pipeline. Which stage is filled, waited for and read while which step over k is multiplied.

Every stretch of the program takes one unit: the picture shows order and overlap, not time. Warps that always run
together are one role, with a clock of its own; clocks meet at barriers.

Roles: warps of a block that always do the same, as the producer and the consumers of a specialised kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.async_stmt import TeamBarrier, TmaLoad, WaitBarrier, Wgmma
from tilewright.ir.buffer import Space
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.report.page.watch import Event, Watched, operand_of, stages_of
from tilewright.simulator.findings import Access, Arithmetic, Issue, Landing, Meeting, TmaCopy


def roles_of(watched: Watched) -> list[frozenset[int]]:
    """Warps that take part in the same events, as far as memory and arithmetic go; a lone leader counts with them."""
    seen: dict[int, set[int]] = {}
    for number, event in enumerate(watched.events):
        if _is_work(event):
            for warp in watched.warps_in(event):
                seen.setdefault(warp, set()).add(number)
    roles: list[tuple[set[int], set[int]]] = []
    for warp, events in sorted(seen.items()):
        for warps_of, known in roles:
            if events <= known or known <= events:
                warps_of.add(warp)
                known |= events
                break
        else:
            roles.append(({warp}, set(events)))
    return [frozenset(warps_of) for warps_of, _ in roles]


def _is_work(event: Event) -> bool:
    if isinstance(event, Issue):
        return isinstance(event.site.stmt, Wgmma)
    return isinstance(event, (Access, TmaCopy)) or (isinstance(event, Arithmetic) and multiplies(event))


def multiplies(event: Arithmetic) -> bool:
    return any(name == "FFMA" or name.endswith("MMA") for name in event.operations) and event.site.origin != "C"


def role_name(warps: frozenset[int]) -> str:
    first, last = min(warps), max(warps)
    if first == last:
        return f"warp {first}"
    return f"warps {first} to {last}" if len(warps) == last - first + 1 else f"{len(warps)} warps"


Kind = Literal["load", "copy", "store", "multiply", "wait", "results"]

_UNITS: dict[Kind, float] = {"load": 1, "copy": 1, "store": 1, "multiply": 2, "wait": 0.5, "results": 1}
_MOST_UNITS = 60.0


@dataclass(slots=True)
class Cell:
    """A stretch of one role. step: over k, counted through all tiles of the block; -1 for none."""

    role: int
    kind: Kind
    step: int
    start: float
    end: float
    text: str


@dataclass(slots=True)
class Bar:
    """What a stage of shared memory (or registers on the way there) holds. ready: since when; read: from .. to."""

    row: str
    step: int
    start: float
    ready: float | None = None
    read: tuple[float, float] | None = None


@dataclass
class _Drawing:
    """What is known so far, and the clock of each role."""

    watched: Watched
    roles: list[frozenset[int]]
    clocks: list[float] = field(init=False)
    cells: list[Cell] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    meeting: dict[int, float] = field(default_factory=dict)
    signals: dict[str, float] = field(default_factory=dict)
    loaded: dict[tuple[int, str], Bar] = field(default_factory=dict)
    content: dict[str, Bar] = field(default_factory=dict)
    waited: dict[int, list[str]] = field(default_factory=dict)
    reading: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clocks = [0.0] * len(self.roles)
        loads = (stmt for _, stmt in walk(self.watched.built.kernel.body) if isinstance(stmt, TmaLoad))
        self.told_by_tma = {stmt.signal.buffer.name for stmt in loads}
        """Barriers that say that a stage has been filled."""

    def roles_in(self, event: Event) -> list[int]:
        here = self.watched.warps_in(event)
        return [number for number, role in enumerate(self.roles) if role & here]

    def cell(self, role: int, kind: Kind, step: int, text: str, after: float = 0.0) -> Cell:
        """The running stretch of a role that began no earlier than `after`, or a new one."""
        if role in self.meeting:  # it has met all others: no role was through before the last arrived
            self.clocks[role] = max(self.clocks[role], *self.meeting.values())
            del self.meeting[role]
        for last in (cell for cell in reversed(self.cells) if cell.role == role):
            if last.step != step or kind == "wait" or ("multiply" in (kind, last.kind) and kind != last.kind):
                break
            if (
                last.kind == kind and last.start >= after
            ):  # loads and stores of one step alternate: each kind is one stretch
                return last
        start = self.clocks[role]
        made = Cell(role, kind, step, start, start + _UNITS[kind], text)
        self.clocks[role] = made.end
        self.cells.append(made)
        return made

    def fill(self, row: str, step: int, start: float) -> Bar:
        """A stage begins to be filled; the same bar while the same step comes in."""
        known = self.content.get(row)
        if known is not None and known.step == step and known.read is None:
            return known
        bar = self.content[row] = Bar(row, step, start)
        self.bars.append(bar)
        if row not in self.rows:
            self.rows.append(row)
        return bar


def timeline(watched: Watched) -> dict[str, Any]:
    """The roles of a block, their stretches and the stages, as plain values."""
    drawing = _Drawing(watched, roles_of(watched))
    for event in watched.events:
        _draw(drawing, event)
        if min(drawing.clocks, default=0.0) > _MOST_UNITS:
            break
    seen = {cell.role for cell in drawing.cells if cell.kind != "wait"}
    units = max((cell.end for cell in drawing.cells), default=0.0)
    return {
        "roles": [
            {"number": number, "name": role_name(role)} for number, role in enumerate(drawing.roles) if number in seen
        ],
        "rows": drawing.rows,
        "units": units,
        "cells": [
            {"role": c.role, "kind": c.kind, "step": c.step, "from": c.start, "to": c.end, "text": c.text}
            for c in drawing.cells
            if c.role in seen
        ],
        "bars": [
            {"row": b.row, "step": b.step, "from": b.start, "ready": b.ready, "read": b.read} for b in drawing.bars
        ],
    }


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw(drawing: _Drawing, event: Event) -> None:
    for role in drawing.roles_in(event):
        match event:
            case Access():
                _access(drawing, event, role)
            case TmaCopy():
                _bulk_copy(drawing, event, role)
            case Arithmetic() if multiplies(event):
                drawing.cell(role, "multiply", _current(drawing, role), event.site.text)
            case Meeting() if not isinstance(event.site.stmt, TeamBarrier):
                drawing.cell(role, "wait", -1, event.site.text)
                drawing.meeting[role] = drawing.clocks[role]
            case Issue():
                _issue(drawing, event, role)
            case Landing():
                _landing(drawing, event, role)


def _access(drawing: _Drawing, access: Access, role: int) -> None:
    watched, name = drawing.watched, access.buffer.name
    _, first, lanes = watched.lanes_of(access)
    if not lanes.any():
        return
    if access.space is Space.GLOBAL:
        if name not in ("A", "B"):
            if access.store:
                drawing.cell(role, "results", -1, access.site.text)
            return
        step = _step(watched, name, first[lanes])
        copies = isinstance(access.site.stmt, Move) and access.site.stmt.asynchronous
        cell = drawing.cell(role, "copy" if copies else "load", step, access.site.text)
        row = "" if copies else f"{name} in registers"
        bar = Bar(row, step, cell.start)
        drawing.loaded[role, name] = bar
        known = any((one.row, one.step) == (row, step) for one in drawing.bars)
        if row and watched.built.kernel.shared and not known:
            drawing.fill(row, step, cell.start).ready = cell.end
        return
    if not name.startswith(("A", "B")):
        return
    row = _slot(access, int(first[lanes][0]))
    if access.store:
        copies = isinstance(access.site.stmt, Move) and access.site.stmt.asynchronous
        loaded = drawing.loaded.get((role, name[0]))
        if copies and drawing.loaded.pop((role, name[0]), None) is None:
            drawing.content.pop(row, None)  # zeros, for steps past the end
            return
        step, after = (-1, 0.0) if loaded is None else (loaded.step, loaded.start)
        cell = drawing.cell(role, "copy" if copies else "store", step, access.site.text, after)
        bar = drawing.fill(row, step, cell.start)
        if not copies:
            bar.ready = cell.end
            if f"{name[0]} in registers" in drawing.content:
                source = drawing.content[f"{name[0]} in registers"]
                source.read = (cell.start, cell.end)
        return
    held = drawing.content.get(row)
    if held is not None:
        drawing.reading[role] = held.step
        _read(held, drawing.cell(role, "multiply", held.step, access.site.text))


def _read(held: Bar, cell: Cell) -> None:
    held.ready = cell.start if held.ready is None else held.ready
    held.read = (cell.start if held.read is None else held.read[0], cell.end)


def _current(drawing: _Drawing, role: int) -> int:
    """The step that a role works on: of the stage that it last read, else of what it last loaded."""
    if role in drawing.reading:
        return drawing.reading[role]
    last = next((cell for cell in reversed(drawing.cells) if cell.role == role and cell.kind != "wait"), None)
    return -1 if last is None else last.step


def _bulk_copy(drawing: _Drawing, copy: TmaCopy, role: int) -> None:
    operand = operand_of(copy)
    if operand == "C":
        drawing.cell(role, "results", -1, copy.site.text)
        return
    stmt = copy.site.stmt
    assert isinstance(stmt, TmaLoad)
    buffer = stmt.dst.buffer
    per_stage = buffer.elements // stages_of(buffer)
    slot = int(copy.shared.min()) % buffer.elements // per_stage
    row = _row(buffer.name, slot, stages_of(buffer))
    step = _fills(drawing, operand, drawing.content.get(row))
    cell = drawing.cell(role, "copy", step, copy.site.text)
    drawing.fill(row, step, cell.start)
    drawing.signals[f"{stmt.signal.buffer.name}[{slot}]"] = cell.end


def _fills(drawing: _Drawing, operand: str, known: Bar | None) -> int:
    """The number of the fill: steps over k go on counting from one tile of C to the next."""
    filled = [bar for bar in drawing.bars if bar.row.startswith(f"{operand}_")]
    if known is not None and known.read is None and known is filled[-1]:
        return known.step
    return filled[-1].step + 1 if filled else 0


def _issue(drawing: _Drawing, issue: Issue, role: int) -> None:
    match issue.site.stmt:
        case WaitBarrier():
            cell = drawing.cell(role, "wait", -1, issue.site.text)
            told = max((drawing.signals.get(name, 0.0) for name in issue.barriers), default=0.0)
            if told > cell.start:
                cell.start, cell.end = told, told + _UNITS["wait"]
                drawing.clocks[role] = cell.end
            if any(name.partition("[")[0] in drawing.told_by_tma for name in issue.barriers):
                slot = issue.barriers[0].rpartition("[")[2].rstrip("]")
                rows = [row for row in drawing.content if row.endswith(f"stage {slot}")]
                drawing.waited[role] = rows
                for row in rows:
                    drawing.content[row].ready = cell.end
        case Wgmma():
            rows = drawing.waited.get(role) or [row for row in drawing.content if row in ("A_tile", "B_tile")]
            held = [drawing.content[row] for row in rows]
            cell = drawing.cell(role, "multiply", held[0].step if held else -1, issue.site.text)
            for bar in held:
                _read(bar, cell)
        case _:
            for name in issue.barriers:
                drawing.signals[name] = max(drawing.signals.get(name, 0.0), drawing.clocks[role])


def _landing(drawing: _Drawing, landing: Landing, role: int) -> None:
    buffer = next(one for one in drawing.watched.built.kernel.shared if one.name == landing.buffer)
    per_stage = buffer.elements // stages_of(buffer)
    slots = np.unique(landing.elements % buffer.elements // per_stage).tolist()
    rows = [_row(buffer.name, slot, stages_of(buffer)) for slot in slots]
    last = drawing.cells[-1] if drawing.cells and drawing.cells[-1].role == role else None
    cell = last if last is not None and last.text == "wait for copies" else None
    cell = cell or drawing.cell(role, "wait", -1, "wait for copies")
    for row in rows:
        if row in drawing.content and drawing.content[row].ready is None:
            drawing.content[row].ready = cell.end


def _slot(access: Access, element: int) -> str:
    slots = stages_of(access.buffer)
    return _row(access.buffer.name, element // (access.buffer.elements // slots), slots)


def _row(buffer: str, slot: int, slots: int) -> str:
    return f"{buffer} stage {slot}" if slots > 1 else buffer


def _step(watched: Watched, operand: str, elements: Array) -> int:
    rows, columns = watched.place("A" if operand == "A" else "B", elements)
    k = columns if operand == "A" else rows
    return int(k.min()) // watched.built.kernel.tile["k"]
