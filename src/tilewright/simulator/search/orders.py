"""All orders of a kernel's warps and copies that can matter, block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.kernel import Kernel
from tilewright.problem.problem import Stored
from tilewright.simulator.findings import Finding
from tilewright.simulator.launch import Block, all_blocks, launched_grid
from tilewright.simulator.run import Run, scalars_of, simulate
from tilewright.simulator.search.explore import Order, explore

MOST_ORDERS = 1000
"""Orders of one block that are run, unless more are asked for."""


@dataclass(frozen=True, slots=True)
class OrderSearch:
    """What a search has found.

    blocks: blocks, clusters or, where flags order all blocks, launches that were searched, each by itself. orders: that
    were run, in all; no two are equivalent. steps: of the longest. complete: every other order of every block is
    equivalent to one of them. findings: of the first order that breaks a rule. same_bits: all orders gave the same
    bits. bound: orders of one block that were allowed.
    """

    blocks: int
    orders: int
    steps: int
    complete: bool
    findings: tuple[Finding, ...]
    same_bits: bool
    bound: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind.is_error)

    @property
    def ok(self) -> bool:
        """Nothing is wrong in the orders that were run; `complete` says whether in all."""
        return not self.errors and self.same_bits

    def __str__(self) -> str:
        ran = f"{self.orders:,} order{'s' * (self.orders != 1)} of {self.blocks:,} block{'s' * (self.blocks != 1)}"
        steps = f"up to {self.steps:,} steps each"
        if self.errors:
            return f"{ran} run, {steps}: the last one breaks a rule"
        if not self.same_bits:
            return f"{ran} run, {steps}: two of them give different bits"
        if self.complete:
            return f"{ran} run, {steps}; every other order is equivalent to one of these: no race, no deadlock"
        return (
            f"{ran} run, {steps}: nothing found, and the search met its bound of {self.bound:,} orders of a block; "
            "others may break a rule"
        )


def search_orders(
    kernel: Kernel,
    operands: Stored,
    *,
    most_orders: int = MOST_ORDERS,
    detectors: bool = True,
    resident_blocks: int | None = None,
    part_of_k: int = 0,
    batching: Mapping[str, int] | None = None,
    group_ends: Sequence[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> OrderSearch:
    """Runs orders of the warps and copies of each block that are not equivalent, until none is left.

    Stops at the first that breaks a rule or gives other bits. most_orders: of one block; what is left then is not
    looked at, and the result says so. detectors: False leaves deadlocks and other bits to be found. progress: called
    with (blocks done, in all). The rest is as for `simulate`.

    Blocks are searched one by one, as nothing orders them; races between them are found in any run of all blocks.
    """
    grid = launched_grid(kernel, scalars_of(kernel, operands, part_of_k, batching), resident_blocks)
    parts = _parts(kernel, grid)
    orders = steps = 0
    complete = same_bits = True
    findings: tuple[Finding, ...] = ()
    for done, blocks in enumerate(parts):
        runs: list[Run] = []

        def run(order: Order, blocks: Sequence[Block] = blocks, runs: list[Run] = runs) -> bool:
            found = simulate(
                kernel,
                operands,
                listeners=(),
                detectors=detectors,
                on_finding="collect",
                blocks=blocks,
                schedule=order,
                resident_blocks=resident_blocks,
                part_of_k=part_of_k,
                batching=batching,
                group_ends=group_ends,
            )
            runs[1:] = [found] if runs else []
            runs[:1] = runs[:1] or [found]
            return not found.errors and _same_bits(runs[0], found)

        explored = explore(run, most_orders)
        orders, steps = orders + explored.orders, max(steps, explored.steps)
        complete = complete and explored.complete
        findings, same_bits = runs[-1].findings, _same_bits(runs[0], runs[-1])
        if runs[-1].errors or not same_bits:
            break
        if progress is not None:
            progress(done + 1, len(parts))
    return OrderSearch(len(parts), orders, steps, complete, findings, same_bits, most_orders)


def _parts(kernel: Kernel, grid: Block) -> list[list[Block]]:
    """The blocks that something may order, apart from those that nothing does."""
    blocks = [(int(x), int(y), int(z)) for x, y, z in all_blocks(grid).tolist()]
    if kernel.workspace:
        return [blocks]
    return [blocks[at : at + kernel.cluster] for at in range(0, len(blocks), kernel.cluster)]


def _same_bits(a: Run, b: Run) -> bool:
    return all(np.array_equal(_bytes(a.stored[name]), _bytes(b.stored[name])) for name in a.stored)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)
