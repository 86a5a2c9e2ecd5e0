"""Rings of any number of slots: the number of a slot is a counter, and costs no division."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from instruction_counts import instruction_mix

from tilewright.ir.expr import Binary, Op
from tilewright.ir.stmt import For
from tilewright.ir.text import ExprText
from tilewright.ir.visit import exprs_of, variables, walk, walk_expr
from tilewright.ladders import find_rung
from tilewright.toolchain import Build, build

STAGES = (2, 3, 4)


def rings() -> dict[int, Build]:
    rungs = {stages: find_rung(f"swizzle/stages_{stages}") for stages in STAGES}
    return {stages: build(rung.gemm(4096, 4096, 4096), rung) for stages, rung in rungs.items()}


def divisions(built: Build) -> Iterator[str]:
    """What is divided inside the loop over k and depends on where the loop is."""
    for _, loop in walk(built.kernel.body):
        if isinstance(loop, For) and loop.carried:
            for _, stmt in walk(loop.body):
                for expr in exprs_of(stmt):
                    for part in walk_expr(expr):
                        if isinstance(part, Binary) and part.op in (Op.DIV, Op.MOD) and "k_tile" in variables(part):
                            yield ExprText()(part)


@pytest.mark.parametrize("stages", STAGES)
def test_the_loop_divides_nothing(stages: int) -> None:
    assert not list(divisions(rings()[stages]))


def test_three_slots_take_the_instructions_of_two_and_four() -> None:
    """A remainder by three would be a product by a reciprocal: IMAD.HI, or MUFU.RCP."""
    mixes = {stages: Counter(instruction_mix(built.compile("sm_90a"))) for stages, built in rings().items()}
    for opcode in ("IMAD.HI", "IMAD.HI.U32", "UIMAD.HI", "MUFU.RCP", "I2F.RP"):
        assert len({mix[opcode] for mix in mixes.values()}) == 1, opcode
