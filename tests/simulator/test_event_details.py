"""What events say beside their counts: who takes part, what lands, which barrier is waited for."""

from __future__ import annotations

import numpy as np

from tilewright.ir.async_stmt import WaitBarrier
from tilewright.ladders import find_rung
from tilewright.problem.reference import make_operands
from tilewright.simulator.findings import Arithmetic, Issue, Landing, Listener, TmaCopy
from tilewright.simulator.warps import Warps
from tilewright.toolchain import build


class Heard(Listener):
    """Everything that these tests ask of."""

    def __init__(self) -> None:
        self.landings: list[Landing] = []
        self.issues: list[Issue] = []
        self.boxes: list[TmaCopy] = []
        self.products: list[Arithmetic] = []

    def landed(self, landing: Landing) -> None:
        self.landings.append(landing)

    def issued(self, issue: Issue) -> None:
        self.issues.append(issue)

    def bulk_copied(self, copy: TmaCopy) -> None:
        self.boxes.append(copy)

    def computed(self, arithmetic: Arithmetic) -> None:
        if "FFMA" in arithmetic.operations and arithmetic.site.origin != "C":
            self.products.append(arithmetic)


def slots(name: str) -> int:
    """Of the ring of A tiles."""
    rung = find_rung(name)
    return next(
        buffer for buffer in build(rung.gemm(256, 256, 64), rung).kernel.shared if buffer.name == "A_tile"
    ).shape[0]


def heard(name: str, k: int) -> Heard:
    rung, listener = find_rung(name), Heard()
    built = build(rung.gemm(256, 256, k), rung)
    built.simulate(make_operands(built.gemm), listeners=[listener], detectors=False, blocks=[(0, 0, 0)])
    return listener


def test_every_element_of_an_asynchronous_copy_lands_once() -> None:
    landings = heard("worklog/12", k=48).landings
    for buffer, width in (("A_tile", 1), ("B_tile", 4)):
        elements = np.concatenate([one.elements for one in landings if one.buffer == buffer])
        assert len(elements) * width == 3 * 128 * 16  # three steps over k
        assert elements.min() == 0 and elements.max() + width == 2 * 128 * 16  # through both slots


def test_waits_name_the_barriers_of_the_ring_in_turn() -> None:
    ring = slots("hopper/3")
    issues = heard("hopper/3", k=(ring + 1) * 64).issues
    waits = [one.barriers for one in issues if isinstance(one.site.stmt, WaitBarrier) and "full" in one.site.text]
    assert waits == [(f"k_tile_full[{step % ring}]",) for step in range(ring + 1)]


def test_boxes_say_where_in_shared_memory_they_lie() -> None:
    ring = slots("hopper/3")
    boxes = [one for one in heard("hopper/3", k=(ring + 1) * 64).boxes if "A_map" in one.site.text]
    filled = [np.unique(one.shared // (128 * 64)).tolist() for one in boxes]
    assert filled == [[step % ring] for step in range(ring + 1)]
    assert all(len(np.unique(one.shared)) == one.elements for one in boxes)


def test_arithmetic_says_which_warps_take_part() -> None:
    def active(event: Arithmetic) -> set[int]:
        assert isinstance(event.who, Warps)
        rows = np.ones(len(event.who), bool) if event.mask is None else event.mask.rows.any(axis=1)
        return set(event.who.numbers[rows].tolist())

    halves = {frozenset(active(event)) for event in heard("worklog/11", k=64).products}
    assert halves == {frozenset(range(4)), frozenset(range(4, 8))}
