"""The machine: convoys of warps, each an independent thread of control, until all have ended or none can go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer
from tilewright.simulator.context import BlockBarriers, Context
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Kind, Where, numbers_text
from tilewright.simulator.translate import Program
from tilewright.simulator.warps import Batch, Warps

Order = Literal["lockstep", "warps", "moments"]
"""How warps are scheduled. lockstep: all together, as far as they agree. warps: each as far as it can go, in an order
drawn from a seed, so that whoever relies on the order of warps gets wrong results. moments: in such an order, too, but
a warp may stop after each statement at which one can wait and notice late that a wait is over, and a copy of TMA may
complete at any moment after it was started."""

ORDERS: tuple[Order, ...] = get_args(Order)

_STOPS, _LOOKS, _LANDS = 0.25, 0.5, 0.25
"""Of "moments": how likely a warp stops after an instruction, a wait that is over is noticed before another warp goes
on, and a copy completes then."""


class Machine:
    """Runs one batch of blocks after the other."""

    def __init__(self, program: Program, context: Context, shared: tuple[Buffer, ...], order: Order, seed: int) -> None:
        self._program = program
        self._context = context
        self._shared = {buffer.name: buffer.elements for buffer in shared}
        self._order = order
        self._random = np.random.default_rng(seed)

    def run(self, batch: Batch) -> None:
        """All warps of the blocks, to their end. Raises StopSimulation after a deadlock.

        Boxes of TMA land where no warp can go on and some warp waits for them: as late as they may, so that
        whoever does not wait for them reads the old contents. In the order "moments" they land at any moment.
        """
        self._context.memory.new_batch(batch.blocks)
        self._context.barriers = BlockBarriers(batch)
        units = self._context.units
        if units is not None:
            units.new_batch(batch)
        if self._context.races is not None:
            self._context.races.new_batch(batch, self._shared)
        observer = self._context.observer
        if observer is not None:
            observer.begun(self._context, batch)
        self._drive(batch)
        if units is not None:
            units.finish()

    def _drive(self, batch: Batch) -> None:
        """Steps all warps to their end."""
        runnable = self._start(batch)
        waiting: list[Convoy] = []
        while runnable or waiting:
            if self._order == "moments" and runnable:
                free, waiting = self._noticed(waiting)
                runnable += free
                self._land(())
            elif not runnable:
                runnable, waiting = self._noticed(waiting, all_of_them=self._order != "moments")
                if not runnable and self._land(waiting):
                    continue
                if not runnable:
                    runnable, waiting = self._noticed(waiting, all_of_them=True)
                if not runnable:
                    self._deadlock(batch, waiting)
            convoy = runnable.pop(self._turn(len(runnable)))
            runnable += self._advance(convoy, waiting)

    def _noticed(self, waiting: list[Convoy], *, all_of_them: bool = False) -> tuple[list[Convoy], list[Convoy]]:
        """(those that may go on and know it, those that still wait)."""
        looking = [all_of_them or self._random.random() < _LOOKS for _ in waiting]
        free, held = _released([convoy for convoy, looks in zip(waiting, looking, strict=True) if looks])
        held += [convoy for convoy, looks in zip(waiting, looking, strict=True) if not looks]
        if self._context.observer is not None:
            for convoy in free:
                self._context.observer.released(convoy)
        return free, held

    def _land(self, waiting: Sequence[Convoy]) -> bool:
        """Completes the copies that some warp waits for, or of these and all others some; whether there were any."""
        units = self._context.units
        if units is None:
            return False
        at_random = self._order == "moments"
        landed = units.land_some(lambda: bool(self._random.random() < _LANDS)) if at_random else units.land(waiting)
        if at_random and waiting and not landed:
            landed = units.land(waiting)
        if landed and self._context.observer is not None:
            self._context.observer.completed()
        return landed

    def _start(self, batch: Batch) -> list[Convoy]:
        count, blocks = batch.warps_per_block, np.arange(batch.blocks)
        if self._order == "lockstep":
            return [
                self._program.convoy(Warps(batch, np.repeat(blocks, count), np.tile(np.arange(count), len(blocks))))
            ]
        return [self._program.convoy(Warps(batch, blocks, np.full_like(blocks, number))) for number in range(count)]

    def _turn(self, runnable: int) -> int:
        return 0 if self._order == "lockstep" else int(self._random.integers(runnable))

    def _advance(self, convoy: Convoy, waiting: list[Convoy]) -> list[Convoy]:
        """Steps a convoy until it ends, waits or splits; the parts of a split, which go on later."""
        code = self._program.code
        while convoy.pc < len(code):
            parts = code[convoy.pc].step(convoy)
            if len(parts) > 1:
                return list(parts)
            (convoy,) = parts
            if convoy.wait is not None:
                waiting.append(convoy)
                return []
            if self._order == "moments" and self._random.random() < _STOPS:
                return [convoy]
        self._ended(convoy)
        return []

    def _ended(self, convoy: Convoy) -> None:
        if self._context.units is not None:
            self._context.units.ended(convoy)
        if self._context.observer is not None:
            self._context.observer.ended(convoy)

    def _deadlock(self, batch: Batch, waiting: list[Convoy]) -> None:
        """No warp can go on: says which waits where in the first block concerned, and who has ended."""
        slot = min(int(convoy.warps.slots.min()) for convoy in waiting)
        groups: dict[tuple[int, str, str], list[int]] = defaultdict(list)
        place: Where | None = None
        for convoy in waiting:
            here = convoy.warps.slots == slot
            if here.any() and convoy.wait is not None:
                site = convoy.wait.site
                groups[site.line, site.text, convoy.wait.select(here).describe()] += convoy.warps.numbers[here].tolist()
                row = int(np.argmax(here))
                warp, block = int(convoy.warps.numbers[row]), convoy.warps.coordinates(row)
                place = place or Where(site.line, site.text, block, warp, (), site.values(convoy.slots))
        assert place is not None
        lines = [
            f"{numbers_text('warp', numbers)} wait{'s' if len(numbers) == 1 else ''} for {what} at line {line}: {text}"
            for (line, text, what), numbers in sorted(groups.items())
        ]
        stuck = {number for numbers in groups.values() for number in numbers}
        ended = [number for number in range(batch.warps_per_block) if number not in stuck]
        if ended:
            lines.append(f"{numbers_text('warp', ended)} ha{'s' if len(ended) == 1 else 've'} ended")
        self._context.findings.stop(
            Kind.DEADLOCK,
            f"Deadlock in block {place.block}: no warp can go on.",
            place,
            note="; ".join(lines) + ".",
            hint="every warp of a block must reach the same barriers equally often."
            if self._context.units is None
            else "whoever is waited for must arrive once for each phase, and bring the bytes that are expected.",
        )


def _released(waiting: list[Convoy]) -> tuple[list[Convoy], list[Convoy]]:
    """(those that may go on, those that still wait); a convoy of which some warps may go on is split."""
    free: list[Convoy] = []
    held: list[Convoy] = []
    for convoy in waiting:
        assert convoy.wait is not None
        ready: Array = convoy.wait.ready()
        if ready.all():
            free.append(convoy)
        elif not ready.any():
            held.append(convoy)
        else:
            free.append(convoy.part(ready))
            held.append(convoy.part(~ready))
    for convoy in free:
        convoy.wait = None
    return free, held
