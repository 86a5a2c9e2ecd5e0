"""Layouts that a schedule leaves open are found when it is built, proved, and shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.errors import LoweringError, ScheduleError
from tilewright.ir.kernel import SAFE
from tilewright.ir.program_text import program_text
from tilewright.ladders import find_rung
from tilewright.layout.arrangement import Auto, Xor
from tilewright.layout_search import relayout_auto, resolve_layouts
from tilewright.lowering import lower
from tilewright.problem import check, make_operands
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Relayout, Schedule, Step, diff, from_json, to_json
from tilewright.toolchain import build, run_on_simulator

GEMM = Gemm(128, 128, 8)


def left_open(rung: str, *tiles: str) -> Schedule:
    """The schedule of a rung with the layout of some tiles left open."""

    def opened(step: Step) -> Step:
        ours = isinstance(step, Relayout) and step.tile in tiles
        return replace(step, pad=0, arrangement=Auto()) if ours else step  # type: ignore[call-arg]

    return Schedule(*map(opened, find_rung(rung).schedule(GEMM)))


OPEN = left_open("worklog/6", "A_tile")


def test_a_layout_is_found_when_a_schedule_is_built() -> None:
    built = build(GEMM, OPEN)
    (found,) = built.layouts
    assert found.step == Relayout("A_tile", rows="k", arrangement=Xor(bits=3, base=2, shift=0))
    assert diff(OPEN, built.schedule).added == (found.step,)
    shared = [line for line in built.simulate(make_operands(GEMM)).counters.lines if line.buffer == "A_tile"]
    assert shared and all(line.wavefronts == line.ideal_wavefronts for line in shared)
    operands = make_operands(GEMM)
    computed, run = run_on_simulator(built, operands)
    assert check(operands, computed).ok and not run.findings


def test_the_kernel_says_what_was_found_and_why() -> None:
    built = build(GEMM, OPEN)
    (found,) = built.layouts
    for line in (repr(found.step), *found.proof.splitlines()):
        assert line.strip()[:60] in built.cuda
    assert "Auto" not in built.cuda


def test_each_tile_is_searched_by_itself() -> None:
    both = left_open("worklog/10", "A_tile", "B_tile")
    built = build(GEMM, both)
    assert [found.tile for found in built.layouts] == ["A_tile", "B_tile"]
    for found in built.layouts:
        assert found == relayout_auto(GEMM, both, found.tile)


def test_a_schedule_without_open_layouts_is_built_as_it_is() -> None:
    steps = find_rung("worklog/6").schedule(GEMM)
    assert resolve_layouts(GEMM, steps) == (steps, ())


def test_an_open_layout_is_a_value() -> None:
    assert from_json(to_json(OPEN)) == OPEN
    program = OPEN.apply(GEMM)
    assert "laid out as will be found" in program_text(program)


def test_a_program_with_an_open_layout_is_not_lowered() -> None:
    with pytest.raises(LoweringError) as refused:
        lower(OPEN.apply(GEMM), SAFE)
    assert str(refused.value) == (
        "The layout of 'A_tile' is still to be found.\n"
        "  Note: Auto() stands for a layout that is searched when a schedule is built for a problem.\n"
        "  Hint: build(gemm, schedule) finds it; resolve_layouts(gemm, schedule) gives the schedule that has it."
    )


def test_where_every_layout_conflicts_the_accesses_are_named() -> None:
    with pytest.raises(ScheduleError) as refused:
        build(GEMM, left_open("worklog/6", "B_tile"))
    text = str(refused.value)
    assert text.startswith("No layout of 'B_tile' that was tried is free of bank conflicts.\n  B_tile: as it is, ")
    assert "no layout tried serves: B_frag[n_reg_vec * 4] <- x4 B_tile[" in text
    assert text.endswith("  Hint: Relayout('B_tile', rows='k') loses fewest wavefronts.")
