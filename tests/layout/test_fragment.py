"""Fragments: every element is held once, and by the lane and register that the PTX manual says."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Literal

import numpy as np
import pytest

from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.layout.fragment import (
    ACCUMULATOR_16X8,
    ACCUMULATOR_PAIRED,
    LEFT_16X8,
    LEFT_16X16,
    LEFT_PAIRED,
    RIGHT_8X8,
    RIGHT_16X8,
    WARPGROUP_LEFT_PAIRED,
    Fragment,
    Holder,
    opaque,
    warpgroup_accumulator,
    warpgroup_accumulator_paired,
)

FRAGMENTS = list(
    dict.fromkeys(
        fragment for known in INSTRUCTIONS for fragment in (known.a, known.b, known.c) if fragment is not None
    )
)
IN_PAIRS = (WARPGROUP_LEFT_PAIRED, *(warpgroup_accumulator_paired(columns) for columns in (8, 64, 256)))
"""Of no instruction by itself: their rows are in another order."""


@pytest.mark.parametrize("fragment", [*FRAGMENTS, *IN_PAIRS], ids=lambda f: f"{f.rows}x{f.columns}x{f.registers}")
def test_every_element_is_held_exactly_once(fragment: Fragment) -> None:
    row, column = fragment.places()
    assert row.shape == column.shape == (fragment.lanes, fragment.numbered)
    numbers = np.sort((row * fragment.columns + column).reshape(-1))
    assert (numbers == np.arange(fragment.rows * fragment.columns)).all()
    assert fragment.numbered == fragment.registers or (fragment.opaque and fragment.numbered <= fragment.registers)


def test_digits_number_every_lane_and_every_register_once() -> None:
    for fragment in FRAGMENTS:
        for holder, count in ((Holder.LANE, fragment.lanes), (Holder.REGISTER, fragment.registers)):
            digits = sorted((one for one in fragment.digits if one.holder is holder), key=lambda one: one.step)
            extents = [one.extent for one in digits]
            assert [one.step for one in digits] == [prod(extents[:at]) for at in range(len(extents))]
            assert prod(extents) == count or (fragment.opaque and prod(extents) <= count)


def test_every_width_of_a_warpgroup_is_among_them() -> None:
    assert {warpgroup_accumulator(n) for n in range(8, 257, 8)} <= set(FRAGMENTS)


def lanes_and_registers(fragment: Fragment) -> list[tuple[int, int, tuple[int, int]]]:
    """(lane, register, element) of all, as Python integers."""
    row, column = fragment.places()
    return [
        (lane, register, (int(row[lane, register]), int(column[lane, register])))
        for lane in range(fragment.lanes)
        for register in range(fragment.numbered)
    ]


# The formulas of PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16 with floating point type", written as they stand
# there: groupID = %laneid >> 2, threadID_in_group = %laneid % 4.


def test_the_left_operand_of_16_bits() -> None:
    for lane, i, element in lanes_and_registers(LEFT_16X16):
        group, thread = lane >> 2, lane % 4
        row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
        col = thread * 2 + (i & 1) if i < 4 else thread * 2 + (i & 1) + 8
        assert element == (row, col)


def test_the_right_operand_of_16_bits() -> None:
    for lane, i, element in lanes_and_registers(RIGHT_16X8):
        row = (lane % 4) * 2 + (i & 1) if i < 2 else (lane % 4) * 2 + (i & 1) + 8
        assert element == (row, lane >> 2)


def test_the_accumulator() -> None:
    for lane, i, element in lanes_and_registers(ACCUMULATOR_16X8):
        group = lane >> 2
        assert element == (group if i < 2 else group + 8, (lane % 4) * 2 + (i & 1))


def test_the_operands_of_32_bits() -> None:
    for lane, i, element in lanes_and_registers(LEFT_16X8):
        group, thread = lane >> 2, lane % 4
        assert element == (group if i in (0, 2) else group + 8, thread if i in (0, 1) else thread + 4)
    for lane, i, element in lanes_and_registers(RIGHT_8X8):
        assert element == (lane % 4 if i == 0 else lane % 4 + 4, lane >> 2)


@pytest.mark.parametrize(("paired", "own"), [(LEFT_PAIRED, LEFT_16X8), (ACCUMULATOR_PAIRED, ACCUMULATOR_16X8)])
def test_rows_in_pairs_are_the_rows_of_the_manual_in_another_order(paired: Fragment, own: Fragment) -> None:
    (row, column), (its_row, its_column) = paired.places(), own.places()
    assert (column == its_column).all() and (row == its_row % 8 * 2 + its_row // 8).all()


@pytest.mark.parametrize("fragment", FRAGMENTS[:6], ids=lambda f: f"{f.rows}x{f.columns}x{f.registers}")
def test_turned_is_the_transpose(fragment: Fragment) -> None:
    row, column = fragment.places()
    its_row, its_column = fragment.turned.places()
    assert (row == its_column).all() and (column == its_row).all() and fragment.turned.turned == fragment


@pytest.mark.parametrize("n", [8, 24, 256])
def test_the_accumulator_of_a_warpgroup(n: int) -> None:
    """PTX ISA 9.0, "WGMMA .m64nNk16 register fragment layout for accumulator matrix D"."""
    for lane, i, (row, column) in lanes_and_registers(warpgroup_accumulator(n)):
        assert row == lane // 32 * 16 + lane % 32 // 4 + i // 2 % 2 * 8
        assert column == i // 4 * 8 + lane % 4 * 2 + i % 2


def test_an_element_and_its_neighbours() -> None:
    assert LEFT_16X16.neighbours(1) == 2 and RIGHT_16X8.neighbours(0) == 2 and LEFT_16X8.neighbours(1) == 1
    assert opaque(16, 16, 16).numbered == 8


@pytest.mark.parametrize("fragment", FRAGMENTS[:6], ids=lambda f: f"{f.rows}x{f.columns}x{f.registers}")
@pytest.mark.parametrize("index", [0, 1])
def test_the_pairs_of_registers_share_a_row_or_a_column(fragment: Fragment, index: Literal[0, 1]) -> None:
    """Every register is in one pair, in every lane; what the two differ in is the index that is asked for."""
    if not any(d.holder is Holder.REGISTER and d.index == index and d.extent == 2 for d in fragment.digits):
        return
    pairs = fragment.pairs(index)
    assert sorted(register for pair in pairs for register in pair) == list(range(fragment.numbered))
    places = {(lane, register): place for lane, register, place in lanes_and_registers(fragment)}
    for lane, (one, other) in product(range(fragment.lanes), pairs):
        first, second = places[lane, one], places[lane, other]
        assert first[1 - index] == second[1 - index] and first[index] != second[index]
