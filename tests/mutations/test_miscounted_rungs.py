"""Break the counts of the real kernels: a ring off by a slot, a loop cut short, a row without its pad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rung_formats import uses_tensor_cores
from rung_runs import rungs
from tests.mutations.broken import run_of
from tilewright.ir.expr import Const, Op, binary
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Body, Carried, For, Stmt
from tilewright.ir.text import stmt_text
from tilewright.ir.visit import rewrite, walk
from tilewright.ladders import Rung, find_rung
from tilewright.problem import Gemm, Operands, check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Schedule
from tilewright.toolchain import build, run_on_simulator

Change = Callable[[Any], Body | None]
Matches = Callable[[Stmt], bool]


def mutants(kernel: Kernel, matches: Matches, change: Change) -> Iterator[tuple[str, Kernel]]:
    """The kernel with `change` made to one matching statement, for each of them."""
    count = sum(matches(stmt) for _, stmt in walk(kernel.body))
    for chosen in range(count):
        seen, text = -1, ""

        def one(stmt: Stmt, chosen: int = chosen) -> Body | None:
            nonlocal seen, text
            if not matches(stmt):
                return None
            seen += 1
            if seen != chosen:
                return None
            text = stmt_text(stmt)
            return change(stmt)

        body = rewrite(kernel.body, one)
        yield text, replace(kernel, body=body)


def is_missed(kernel: Kernel, operands: Operands) -> bool:
    """Whether neither a detector nor the result tells that a kernel is wrong."""
    run, gemm = run_of(kernel, operands, schedule="lockstep"), operands.gemm
    return run is not None and check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok


def survivors(kernel: Kernel, gemm: Gemm, matches: Matches, change: Change, *, with_c: bool = False) -> list[str]:
    """The mutants that nothing tells from the kernel; `with_c`: nor on a problem that reads C."""
    problems = [make_operands(gemm), *([make_operands(replace(gemm, beta=0.5))] if with_c else [])]
    found = list(mutants(kernel, matches, change))
    assert found, "nothing to break"
    return [text for text, broken in found if all(is_missed(broken, operands) for operands in problems)]


def rings(rung: Rung) -> int:
    kernel = build(rung.gemm(256, 256, 80), rung).kernel
    return sum(len(stmt.carried) for _, stmt in walk(kernel.body) if isinstance(stmt, For))


WITH_RINGS = (
    "worklog/12", "worklog/best", "hierarchy/v06_double_buffered", "hierarchy/v07_double_buffered", "swizzle/opt",
    "swizzle/conflict_free", "swizzle/async_copy", "swizzle/block_order", "swizzle/stages_2", "swizzle/stages_3",
    "swizzle/stages_4", "swizzle/layers", "te/5", "ampere/4", "ampere/5", "ampere/6",
)  # fmt: skip
"""The rungs whose stages are counted. Named here, so that collecting tests lowers no kernel."""


@pytest.mark.slow
def test_these_are_the_rungs_whose_stages_are_counted() -> None:
    assert {str(param.id) for param in rungs() if rings(find_rung(str(param.id)))} == set(WITH_RINGS)


@pytest.mark.cross_section("rung", every=6)
@pytest.mark.parametrize("rung", [pytest.param(find_rung(name), id=name) for name in WITH_RINGS])
def test_a_ring_that_starts_at_the_wrong_slot_is_found(rung: Rung) -> None:
    gemm = rung.gemm(128, 128, 80)
    kernel = build(rung.gemm(256, 256, 80), rung).kernel
    for counter in range(2):

        def shifted(loop: For, counter: int = counter) -> Body:
            wrong = [
                Carried(c.name, binary(Op.SUB, 1, c.start) if at == counter else c.start, c.next)
                for at, c in enumerate(loop.carried)
            ]
            return (replace(loop, carried=tuple(wrong)),)

        assert survivors(kernel, gemm, lambda stmt: isinstance(stmt, For) and bool(stmt.carried), shifted) == []


SLOW = ("te/2", "worklog/11", "worklog/best")
"""Left out to keep the tests short: many loops, or tiles that are copied 256 times."""


@pytest.mark.cross_section("rung", every=17)
@pytest.mark.parametrize("rung", [p for p in rungs("worklog", "te", "swizzle", "ampere") if p.id not in SLOW])
def test_a_loop_cut_short_is_found(rung: Rung) -> None:
    # Whole tiles, and past the first turn of a ring.
    gemm = rung.gemm(*((128, 256, 192) if uses_tensor_cores(rung) else (128, 128, 48)))
    kernel = build(gemm, rung).kernel

    def repeats(stmt: Stmt) -> bool:
        return isinstance(stmt, For) and stmt.extent != Const(0)

    assert survivors(kernel, gemm, repeats, lambda loop: (replace(loop, extent=loop.extent - 1),), with_c=True) == []


def test_the_pad_of_rung_8_costs_stores_and_saves_no_load() -> None:
    """A warp reads B at one k, so a longer row moves no bank: the pad only narrows the stores."""
    rung = find_rung("worklog/8")
    gemm = rung.gemm(256, 256, 64)
    steps = rung.schedule(gemm)
    bare = [replace(step, pad=0) if getattr(step, "pad", 0) else step for step in steps]
    operands = make_operands(gemm)
    padded, unpadded = (run_on_simulator(build(gemm, Schedule(*s)), operands)[1].counters for s in (steps, bare))
    assert padded.shared_loads == unpadded.shared_loads
    assert padded.shared_stores.instructions > unpadded.shared_stores.instructions
