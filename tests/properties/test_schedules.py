"""No step changes the result: random legal schedules, after every step, lowered, and simulated.

Many more than an ordinary run tries: `pytest tests/properties --hypothesis-profile=fuzz --timeout=0 -n 2`.
"""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.properties.evaluate import evaluate
from tests.random_schedules import Drawing, random_variant
from tests.strategies import NO_SHRINKING, budget, schedules
from tilewright.errors import LoweringError
from tilewright.ir.kernel import Kernel, Variant
from tilewright.ir.program_text import program_text
from tilewright.ir.stmt import Alloc, For, Let, Stmt
from tilewright.ir.visit import walk
from tilewright.problem import check, make_operands
from tilewright.problem.reference import Operands, view
from tilewright.schedule import Schedule, diff, from_json, to_json
from tilewright.schedule.step import RESERVED, derived
from tilewright.simulator import ModularArithmetic, simulate
from tilewright.toolchain import build, run_on_simulator

PRIME = 1_000_003


def described(drawing: Drawing, variant: Variant | None = None) -> None:
    """Say, if the test fails, what was drawn."""
    note(f"{drawing.gemm!r}\n{drawing.schedule.text}\n{variant!r}")


def kernel_of(drawing: Drawing, variant: Variant) -> Kernel | None:
    """The lowered kernel; None where its tiles need more shared memory than there is."""
    try:
        return build(drawing.gemm, drawing.schedule, variant=variant).kernel
    except LoweringError as error:
        assert error.headline.startswith("The shared tiles take"), str(error)
        return None


@given(schedules())
@settings(max_examples=budget(8), phases=NO_SHRINKING)
def test_every_step_keeps_the_result(drawing: Drawing) -> None:
    described(drawing)
    operands = make_operands(drawing.gemm)
    for number, program in enumerate(drawing.schedule.programs(drawing.gemm)):
        verdict = check(operands, evaluate(program, operands))
        assert verdict.ok, f"after step {number}: {verdict.message}"
        assert program_text(program).endswith("\n")


@given(schedules())
@settings(max_examples=budget(8), phases=NO_SHRINKING)
def test_what_is_refused_is_refused_in_words(drawing: Drawing) -> None:
    described(drawing)
    for step, error in drawing.refused:
        assert error.headline.endswith("."), f"{step!r}: {error}"
        assert len(error.headline.split()) >= 4, f"{step!r}: {error}"
        assert "None" not in str(error), f"{step!r}: {error}"


@given(schedules(), st.integers(0, 2**16).map(random.Random), st.sampled_from(("lockstep", "warps")))
@settings(max_examples=budget(8), phases=NO_SHRINKING)
def test_the_kernel_computes_the_product(drawing: Drawing, rng: random.Random, order: str) -> None:
    variant = random_variant(rng, drawing.program, drawing.gemm)
    described(drawing, variant)
    if kernel_of(drawing, variant) is None:
        return
    operands = make_operands(drawing.gemm)
    built = build(drawing.gemm, drawing.schedule, variant=variant)
    room = rng.choice((None, 1, 2))  # persistent blocks have several tiles then
    computed, run = run_on_simulator(built, operands, schedule=order, resident_blocks=room)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message
    assert run.errors == ()
    assert built.cuda  # every name is printable


@given(schedules())
@settings(max_examples=budget(8), phases=NO_SHRINKING)
def test_a_kernel_makes_no_name_that_a_schedule_could_have_taken(drawing: Drawing) -> None:
    described(drawing)
    kernel = kernel_of(drawing, Variant(alignment_bytes=1))
    if kernel is None:
        return
    program = drawing.program
    own = {*program.loop_names, *(axis.name for loop in program.loops for axis in loop.axes)}
    own |= {staged.name for staged in program.staged}
    own |= {program.accumulation.name} if program.accumulation is not None else set()
    known = own | RESERVED | {made for name in own for made in derived(name)}
    made = {name for _, stmt in walk(kernel.body) for name in declared(stmt)}
    assert made <= known


def declared(stmt: Stmt) -> tuple[str, ...]:
    """The names that a statement brings into its scope."""
    match stmt:
        case Let():
            return (stmt.name,)
        case For():
            return (stmt.var, *(carried.name for carried in stmt.carried))
        case Alloc():
            return (stmt.buffer.name,)
        case _:
            return ()


@given(schedules(whole_factors=True), st.integers(0, 2**16))
@settings(max_examples=budget(4), phases=NO_SHRINKING)
def test_sums_are_exact_in_whole_numbers(drawing: Drawing, seed: int) -> None:
    described(drawing)
    scheduled = kernel_of(drawing, Variant(alignment_bytes=1))
    if scheduled is None:
        return
    operands = whole_operands(drawing, seed)
    naive = build(drawing.gemm, Schedule(), variant=Variant(alignment_bytes=1)).kernel
    results = [simulate(kernel, operands, arithmetic=ModularArithmetic(PRIME)).c for kernel in (naive, scheduled)]
    expected, computed = (view(drawing.gemm, "C", stored) for stored in results)
    np.testing.assert_array_equal(computed, expected)


def whole_operands(drawing: Drawing, seed: int) -> Operands:
    """Operands of whole numbers below the prime."""
    operands = make_operands(drawing.gemm)
    rng = np.random.default_rng(seed)
    for name, storage in (("A", operands.a), ("B", operands.b), ("C", operands.c)):
        target = view(drawing.gemm, name, storage)
        target[...] = rng.integers(0, 1000, target.shape)
    return operands


@given(schedules(), schedules())
@settings(max_examples=budget(8), phases=NO_SHRINKING)
def test_schedules_are_values(drawing: Drawing, other: Drawing) -> None:
    described(drawing)
    old, new = other.schedule, drawing.schedule
    again = from_json(to_json(new))
    assert again == new and hash(again) == hash(new) and again.text == new.text
    assert again.apply(drawing.gemm) == drawing.program
    assert (old == new) == (old.steps == new.steps)
    assert diff(new, again).text == ""
    change = diff(old, new)
    assert len(old) - len(change.removed) + len(change.added) == len(new)
    assert sorted(map(repr, (*old, *change.added))) == sorted(map(repr, (*new, *change.removed)))
